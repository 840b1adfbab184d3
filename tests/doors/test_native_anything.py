"""Every request with anything in it: the server answers, goes on, and keeps nothing of it."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_wire import NativeWire, batch

from native_messages import ANYTHING, messages_of
from penstock.app import Server as App
from penstock.config.kinds import Listen, Storage
from penstock.config.settings import Settings
from penstock.doors.line.door import LineDoor
from penstock.testing.server import Server
from penstock.wire.native.framing import HEAD_BYTES, REQUESTS, encode
from penstock.wire.native.messages import (
    Batch,
    CreateView,
    Deliveries,
    Done,
    Failure,
    Fetch,
    Lease,
    Message,
    Ping,
    Publish,
    Settle,
    SubscribeLog,
    SubscribePubSub,
    SubscribeQueue,
    Views,
)
from servers import make_server

NAMES = ["t", "u", "v", "queue", "earliest", "latest", "ack", "nack", "release", "direct", "topic", "headers", "key"]
NAMES += ["lease_ms", "max_attempts", "drop-oldest", "disconnect", "cleanup.policy", "compact", "", "no/slash", "ü"]
LIKELY = {
    **ANYTHING,
    int: st.one_of(st.sampled_from([0, 1, 2, 3, 100, -1]), st.integers(-(2**63), 2**63 - 1)),
    str: st.one_of(st.sampled_from(NAMES), st.text(max_size=10)),
    bytes: st.one_of(st.just(batch(b"a", b"b")), st.binary(max_size=100)),
}
REQUEST = st.one_of([messages_of(kind, LIKELY) for kind in REQUESTS.values()])


@pytest.fixture(scope="module")
def strained() -> Iterator[Server]:
    """A server that nobody minds being left with what these tests make."""
    with make_server(max_topics=50, max_partitions=200) as running:
        yield running


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(REQUEST, min_size=1, max_size=15))
def test_any_requests_are_answered_and_none_breaks_the_server(strained: Server, requests: list[Message]) -> None:
    asyncio.run(_talk(strained, requests))


async def _talk(server: Server, requests: list[Message]) -> None:
    wire = await NativeWire.open(server.line)
    for request in (CreateView("t", "v", or_existing=True), CreateView("t", "queue", or_existing=True)):
        await wire.of(wire.send(request))
    for request in requests:
        if isinstance(request, Fetch | Lease):
            request.wait_ms = min(request.wait_ms, 5)
        wire.send(request)
    await wire.ask(Ping(), Done)
    said = [message for _, message in wire.arrived if isinstance(message, Failure)]
    assert "internal-error" not in [failure.code for failure in said], server.log_text()[-4000:]
    await wire.close()


def test_damaged_requests_end_at_most_their_connection(strained: Server) -> None:
    seeded = random.Random(42)
    whole = [
        encode(7, request)
        for request in (
            Publish(-1, [Batch("t", 0, batch(b"a", b"b"))]),
            Fetch("t", 0, 0, 1000, 0),
            SubscribeQueue("t", "queue", 10, None, True, {"lease_ms": 1000}, [{"key": "a"}]),
            Settle("t", "queue", "ack", [(1, 2), (3, 4)]),
            SubscribeLog("t", 10, {0: 1}),
        )
    ]

    async def strain() -> None:
        for _ in range(300):
            wire = await NativeWire.open(strained.line)
            damaged = bytearray(seeded.choice(whole))
            for _ in range(seeded.randrange(1, 4)):
                damaged[seeded.randrange(4, len(damaged))] = seeded.randrange(256)
            if seeded.random() < 0.3:
                del damaged[seeded.randrange(HEAD_BYTES, len(damaged)) :]
                damaged[:4] = (len(damaged) - 4).to_bytes(4, "big")
            wire.send_raw(damaged)
            wire.writer.write_eof()
            assert await wire.is_closed()
        survivor = await NativeWire.open(strained.line)
        await survivor.ask(Ping(), Done)
        await survivor.close()

    asyncio.run(strain())
    assert "Traceback" not in strained.log_text()


# -- nothing is kept ----------------------------------------------------------------------------------------


async def test_nothing_is_held_when_everybody_is_gone(tmp_path: Path) -> None:
    """However connections end: answered, refused, or gone in the middle of anything."""
    app = App(
        Settings(
            data=str(tmp_path),
            storage=Storage("memory", persistent=False),
            line=Listen("127.0.0.1", 0),
            kafka=None,
            udp=None,
            http=None,
        )
    )
    await app.start()
    (door,) = app.doors
    assert isinstance(door, LineDoor)
    address = f"127.0.0.1:{door.listener.port}"
    helper = await NativeWire.open(address)
    await helper.create("t", 2)
    await helper.ask(CreateView("t", "queue", {"max_attempts": 0, "retry_initial_ms": 0}), Views)
    tasks_before = len(asyncio.all_tasks())
    seeded = random.Random(3)

    def choose() -> Any:
        return seeded.choice(
            [
                Publish(
                    seeded.choice([-1, 0]), [Batch("t", seeded.randrange(3), batch(bytes(seeded.randrange(9000))))]
                ),
                Fetch("t", seeded.randrange(3), 0, 1 << 20, seeded.choice([0, 600_000])),
                Lease("t", "queue", 10, seeded.choice([0, 600_000]), lease_ms=1),
                SubscribeQueue("t", "queue", seeded.choice([0, 1, 1000])),
                SubscribePubSub("t", seeded.choice([0, 1, 1000])),
                SubscribeLog("t", seeded.choice([0, 1, 1000])),
                Settle("t", "queue", "ack", [(0, 1)]),
            ]
        )

    for _ in range(60):
        wire = await NativeWire.open(address)
        for _ in range(seeded.randrange(30)):
            wire.send(choose())
        how = seeded.randrange(4)
        if how == 0:
            wire.writer.transport.abort()
        elif how == 1:
            wire.send_raw(b"\xff\xff\xff\xff")
            assert await wire.is_closed()
        elif how == 2:
            wire.send_raw(b"\x00\x00\xff\xff" + bytes(30_000))
            wire.writer.write_eof()
            assert await wire.is_closed()
        else:
            await wire.ask(Ping(), Done)
            wire.writer.transport.abort()

    # What is left in the queue can be had: nobody who is gone holds it.
    got = await helper.ask(Lease("t", "queue", 10, 15_000), Deliveries)
    assert got.leased
    await helper.ask(Ping(), Done)
    for _ in range(2000):
        if len(door.listener.connections) == 1 and len(asyncio.all_tasks()) <= tasks_before:
            break
        await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) <= tasks_before
    assert door.limits.held_bytes == 0
    assert door.limits.connections == 1
    await helper.close()
    await app.stop()
