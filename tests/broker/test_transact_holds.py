"""What a commit holds is let go, whatever happens meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from queue_house import soon, until
from transaction_house import TransactionHouse

from penstock.broker import transact_hosting
from penstock.broker.transact import ProducerIdentity
from penstock.log.partition import Partition
from penstock.model.errors import ConcurrentTransactions, LimitReached
from penstock.security.principal import ANONYMOUS


@pytest.fixture(params=["memory", "disk"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TransactionHouse]:
    house = await TransactionHouse(request.param, tmp_path / "life0").open()
    await house.topics.create("t", 3, {})
    yield house
    await house.close()


async def log_of(house: TransactionHouse, partition: int, topic: str = "t") -> Partition:
    return await house.topics.open(house.topics.get(topic), partition)


class Gate:
    """Writes to one partition wait here: they were given their offsets, and are not durable."""

    def __init__(self, log: Partition) -> None:
        self.log, self._append = log, log.engine.append
        log.engine.append = self.append  # type: ignore[method-assign]
        self.waiting: list[tuple[asyncio.Future[None], asyncio.Future[None]]] = []

    def append(self, stream: Any, chunk: Any) -> asyncio.Future[None]:
        stored = self._append(stream, chunk)
        if stream != self.log.stream:
            return stored
        late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((stored, late))
        return late

    async def open(self) -> None:
        self.log.engine.append = self._append  # type: ignore[method-assign]
        for stored, late in self.waiting:
            await soon(stored)
            late.set_result(None)


async def test_a_commit_is_seen_in_all_partitions_or_in_none(house: TransactionHouse) -> None:
    who = await house.init()
    await house.put(who, b"1", partition=0)
    await house.put(who, b"1", partition=1)
    other = await house.init("y")
    await house.put(other, b"2", partition=0)
    gate = Gate(await log_of(house, 1))
    ended = asyncio.ensure_future(house.end(who))
    await until(lambda: gate.waiting)
    await house.end(other, name="y")  # ends later, begins later: it waits for the one before
    assert await house.committed(partition=0) == []
    await gate.open()
    await ended
    assert await house.committed(partition=0) == [b"1", b"2"]
    assert await house.committed(partition=1) == [b"1"]


async def test_what_is_committed_before_a_slow_commit_is_seen(house: TransactionHouse) -> None:
    early = await house.init("y")
    await house.put(early, b"early", partition=0)
    who = await house.init()
    await house.put(who, b"1", partition=0)
    await house.put(who, b"1", partition=1)
    gate = Gate(await log_of(house, 1))
    ended = asyncio.ensure_future(house.end(who))
    await until(lambda: gate.waiting)
    await house.end(early, name="y")
    assert await house.committed(partition=0) == [b"early"]
    await gate.open()
    await ended
    assert await house.committed(partition=0) == [b"early", b"1"]


async def test_a_partition_that_fails_in_an_unforeseen_way_holds_up_no_other(house: TransactionHouse) -> None:
    who = await house.init()
    await house.put(who, b"1", partition=0)
    await house.put(who, b"1", partition=1)
    log = await log_of(house, 1)
    engine_append = log.engine.append

    def append(stream: Any, chunk: Any) -> Any:
        if stream == log.stream:
            raise RuntimeError("nobody thought of this")
        return engine_append(stream, chunk)

    log.engine.append = append  # type: ignore[method-assign]
    with pytest.raises(ConcurrentTransactions):
        await house.end(who)
    assert await house.is_stable(partition=0)
    log.engine.append = engine_append  # type: ignore[method-assign]
    ended = asyncio.ensure_future(house.end(who))
    await asyncio.sleep(0)
    house.advance(5_000)
    await ended
    assert await house.committed(partition=1) == [b"1"]


async def test_a_topic_that_is_deleted_while_a_commit_is_under_way_holds_up_no_other(house: TransactionHouse) -> None:
    await house.topics.create("gone", 1, {})
    who = await house.init()
    await house.put(who, b"1", partition=0)
    await house.put(who, b"1", topic="gone")
    gate = Gate(await log_of(house, 0, "gone"))
    ended = asyncio.ensure_future(house.end(who))
    await until(lambda: gate.waiting)
    assert not await house.is_stable(partition=0)
    deleted = asyncio.ensure_future(house.topics.delete("gone"))
    await asyncio.sleep(0)
    await gate.open()
    await soon(deleted)
    await ended
    assert await house.committed(partition=0) == [b"1"]


async def test_a_reader_that_breaks_when_it_is_told_breaks_nobody_else(house: TransactionHouse) -> None:
    who = await house.init()
    await house.put(who, b"1", partition=0)
    await house.put(who, b"1", partition=1)
    first, second = await log_of(house, 0), await log_of(house, 1)
    told: list[int] = []

    def broken(partition: Partition, new_bytes: int) -> None:
        told.append(second.stable_end)
        raise RuntimeError("a reader that is broken")

    first.watch(broken, stable=True)
    await house.end(who)
    assert told == [second.durable_end], "whoever is told of one partition finds the commit in all"
    first.unwatch(broken)
    assert await house.committed(partition=1) == [b"1"]


async def test_writers_of_all_steps_have_a_bound(house: TransactionHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transact_hosting, "MAX_STEP_WRITERS", 1 - house.settings.max_ids)
    writer = await house.open_writer(0)
    with pytest.raises(LimitReached):
        await house.open_writer(0, name="another")
    await house.put(ProducerIdentity(writer.producer_id, 0), b"1")
    await house.commit_step(0, [writer.producer_id])
    await house.stable()
    await until(lambda: not house.transactions._host.owners)
    await house.open_writer(0, name="another")


async def test_names_that_are_forgotten_take_no_room(house: TransactionHouse) -> None:
    await house.commit_step(0, [])
    opened = await house.open_writer(3, name="aborted")
    assert not opened.done
    await soon(house.transactions.abort_step(ANONYMOUS, "aborted", 3))
    await until(lambda: not house.transactions.knows_step("aborted"))
    house.advance(house.settings.step_expiration_ms - 1)
    assert house.transactions.knows_step("s")
    house.advance(1)
    await until(lambda: not house.transactions.knows_step("s"))
    if house.kind == "disk":
        await house.restart()
        assert not house.transactions.step_names("")
    assert await house.commit_step(0, []) is True
