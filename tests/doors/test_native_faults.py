"""What a client of the binary protocol is told when the server fails, and what is carried through without it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from native_wire import NativeWire

from penstock.app import Server
from penstock.config.kinds import Listen, Storage
from penstock.config.settings import Settings
from penstock.doors.line.door import LineDoor
from penstock.model.errors import StorageFull
from penstock.storage.memory import MemoryEngine
from penstock.wire.native.messages import Done, Failure, ListTopics, Ping, Published, SubscribePubSub

TIMEOUT_S = 20


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[LineDoor]:
    """A line door in the test's own loop."""
    memory = Storage("memory", persistent=False)
    app = Server(
        Settings(data=str(tmp_path), storage=memory, line=Listen("127.0.0.1", 0), kafka=None, udp=None, http=None)
    )
    await app.start()
    (opened,) = app.doors
    assert isinstance(opened, LineDoor)
    yield opened
    await app.stop()


@pytest.fixture
async def near(door: LineDoor) -> AsyncIterator[NativeWire]:
    wire = await NativeWire.open(f"127.0.0.1:{door.listener.port}")
    await wire.create("t")
    await wire.publish("t", b"before")
    yield wire
    await wire.close()


class Slow:
    """An engine's append that is durable, or fails, when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._append: Any = MemoryEngine.append
        self.appended = asyncio.Event()
        self._pending: list[tuple[asyncio.Future[None], asyncio.Future[None]]] = []
        monkeypatch.setattr(MemoryEngine, "append", lambda *args, **kwargs: self.append(*args, **kwargs))

    def append(self, engine: MemoryEngine, *args: Any, **kwargs: Any) -> "asyncio.Future[None]":
        real: asyncio.Future[None] = self._append(engine, *args, **kwargs)
        promised: asyncio.Future[None] = type(real)(loop=asyncio.get_running_loop())
        self._pending.append((real, promised))
        self.appended.set()
        return promised

    def finish(self, error: Exception | None = None) -> None:
        for _, promised in self._pending:
            if error is None:
                promised.set_result(None)
            else:
                promised.set_exception(error)
        self._pending.clear()


async def test_a_batch_that_cannot_be_stored_is_told_so(near: NativeWire, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    asked, unasked = near.send_publish("t", b"a"), near.send_publish("t", b"b", acks=0)
    await near.ask(Ping(), Done)
    slow.finish(StorageFull("no space left"))
    (stored,) = (await near.reply(asked, Published)).results
    assert (stored.base_offset, stored.error, stored.retriable) == (-1, "storage-full", True)
    assert await near.of(unasked) == Failure("storage-full", "no space left", True)


async def test_nothing_is_answered_before_it_is_durable(near: NativeWire, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    subscription = near.send(SubscribePubSub("t", 10))
    await near.reply(subscription, Done)
    publishing = near.send_publish("t", b"a")
    waiting = near.send_fetch("t", 1, wait_ms=15_000)
    await near.ask(Ping(), Done)
    await near.ask(Ping(), Done)
    assert not {publishing, waiting} & {came_for for came_for, _ in near.arrived}
    assert subscription not in [came_for for came_for, _ in near.arrived[-2:]]
    slow.finish()
    await near.reply(publishing, Published)
    assert await near.values("t") == [b"before", b"a"]


async def test_a_failure_of_ours_is_told_and_ends_only_the_request(
    door: LineDoor, near: NativeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(type(door.broker.observer), "topics", broken)
    failure = await near.refused(ListTopics())
    assert (failure.code, failure.retriable) == ("internal-error", False)
    assert "a bug" not in failure.message
    await near.ask(Ping(), Done)


async def test_a_publish_is_carried_through_when_its_client_goes(
    door: LineDoor, near: NativeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    going = await NativeWire.open(f"127.0.0.1:{door.listener.port}")
    going.send_publish("t", b"last words")
    async with asyncio.timeout(TIMEOUT_S):
        await slow.appended.wait()
    going.writer.transport.abort()
    while len(door.listener.connections) > 1:
        await near.ask(Ping(), Done)
    slow.finish()
    assert await near.values("t") == [b"before", b"last words"]
    assert door.limits.held_bytes == 0


async def test_a_stopping_server_answers_what_it_took(
    door: LineDoor, near: NativeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    publishing = near.send_publish("t", b"a")
    async with asyncio.timeout(TIMEOUT_S):
        await slow.appended.wait()
    draining = asyncio.create_task(door.drain(TIMEOUT_S))
    await asyncio.sleep(0)
    assert not draining.done()
    slow.finish()
    assert (await near.reply(publishing, Published)).results[0].error is None
    async with asyncio.timeout(TIMEOUT_S):
        await draining
