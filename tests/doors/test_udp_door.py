"""The UDP door: datagrams become messages, or are dropped and counted; nothing stalls."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.app import Server
from penstock.broker.broker import Broker
from penstock.broker.read import Start
from penstock.config.kinds import Listen, Storage
from penstock.config.settings import Settings
from penstock.doors.udp import door as udp_door
from penstock.doors.udp import drops
from penstock.doors.udp.door import UdpDoor
from penstock.model.record import Record
from penstock.security.principal import ANONYMOUS

PATIENCE_S = 15.0
StartDoor = Callable[..., Awaitable[UdpDoor]]


@pytest.fixture
async def start_door(tmp_path: Path) -> AsyncIterator[StartDoor]:
    servers: list[Server] = []

    async def start(**changes: Any) -> UdpDoor:
        settings = Settings(
            data=str(tmp_path),
            storage=Storage("memory", persistent=False),
            kafka=None,
            http=None,
            line=None,
            udp=Listen("127.0.0.1", 0),
            **changes,
        )
        servers.append(Server(settings))
        await servers[-1].start()
        (door,) = servers[-1].doors
        assert isinstance(door, UdpDoor)
        return door

    yield start
    for server in servers:
        await server.stop()


@pytest.fixture
async def door(start_door: StartDoor) -> UdpDoor:
    return await start_door()


def send(door: UdpDoor, *datagrams: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for datagram in datagrams:
            sender.sendto(datagram, ("127.0.0.1", door.port))


async def read(broker: Broker, topic: str, count: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(PATIENCE_S):
        await broker.administrator.topic_on_first_use(ANONYMOUS, topic)
        reader = await broker.readers.log(ANONYMOUS, topic, Start())
        while len(found) < count:
            taken = await reader.take(count, 1 << 20, 1000)
            found += [message.record for message in taken.messages]
        reader.close()
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  (what is waited for tells nobody)
            await asyncio.sleep(0.005)


async def test_one_datagram_is_one_message(door: UdpDoor) -> None:
    send(door, b"orders\nhello", b"orders order 7\n\x00\xff\n", b"orders\n")
    assert [(r.key, r.value) for r in await read(door.broker, "orders", 3)] == [
        (None, b"hello"),
        (b"order 7", b"\x00\xff\n"),
        (None, b""),
    ]


async def test_one_datagram_may_bring_many_messages(door: UdpDoor) -> None:
    send(door, b"*lines k\none\ntwo\nthree\n", b"+sized\n3\na\nb2 k\nhi")
    assert [(r.key, r.value) for r in await read(door.broker, "lines", 3)] == [
        (b"k", b"one"),
        (b"k", b"two"),
        (b"k", b"three"),
    ]
    assert [(r.key, r.value) for r in await read(door.broker, "sized", 2)] == [(None, b"a\nb"), (b"k", b"hi")]


async def test_what_comes_in_one_tick_is_stored_as_one_batch_in_order(door: UdpDoor) -> None:
    send(door, *(b"orders\n%d" % number for number in range(500)))
    assert [r.value for r in await read(door.broker, "orders", 500)] == [b"%d" % number for number in range(500)]
    assert door.received == 500
    assert door.drops.total == 0


async def test_bad_datagrams_are_dropped_counted_and_told_of_once(
    door: UdpDoor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drops, "FIRST_REPORT_S", 0.0)
    with caplog.at_level(logging.WARNING, logger="penstock.doors.udp"):
        send(door, b"no line break", b"+orders\n9\nshort", b"b@d\nx", b"orders\ngood")
        assert [r.value for r in await read(door.broker, "orders", 1)] == [b"good"]
        await until(lambda: door.drops.total == 3 and len(caplog.records) > 0)
        send(door, *[b"no line break"] * 100)
        await until(lambda: door.drops.total == 103)
        said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1  # the next line comes after the interval
    assert said[0].startswith("udp: dropped ")
    assert "no line break after the topic" in said[0]


async def test_a_topic_that_cannot_be_made_drops_its_datagrams(start_door: StartDoor) -> None:
    door = await start_door(auto_create_topics=False)
    send(door, b"orders\nlost", b"orders\nlost too")
    await until(lambda: door.drops.total == 2)
    await door.broker.administrator.create_topic(ANONYMOUS, "orders")
    async with asyncio.timeout(PATIENCE_S):
        while "orders" not in door._targets:  # asked again after a while
            send(door, b"orders\nstored")
            await asyncio.sleep(0.05)
    assert (await read(door.broker, "orders", 1))[0].value == b"stored"


async def test_too_much_under_way_is_dropped_and_what_follows_is_not(
    door: UdpDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp_door, "MAX_UNDER_WAY_BYTES", 10_000)
    for _ in range(10):
        door.datagram_received(b"orders\n" + b"x" * 1500, ("127.0.0.1", 1))
    assert door.drops.total == 5
    assert len(await read(door.broker, "orders", 5)) == 5
    await until(lambda: door.under_way_bytes == 0)
    send(door, b"orders\nafter")
    assert (await read(door.broker, "orders", 6))[5].value == b"after"


async def test_one_message_that_its_topic_refuses_is_not_its_neighbours_loss(door: UdpDoor) -> None:
    await door.broker.administrator.create_topic(ANONYMOUS, "small", None, {"max.message.bytes": "200"})
    send(door, b"small\nfirst")
    await read(door.broker, "small", 1)
    for payload in (b"a", b"x" * 1000, b"b"):
        door.datagram_received(b"small\n" + payload, ("127.0.0.1", 1))
    assert [r.value for r in await read(door.broker, "small", 3)] == [b"first", b"a", b"b"]
    await until(lambda: door.drops.total == 1)
    await until(lambda: door.under_way_bytes == 0)


async def test_a_deleted_topic_is_made_anew(door: UdpDoor) -> None:
    send(door, b"orders\nold")
    await read(door.broker, "orders", 1)
    await door.broker.administrator.delete_topic(ANONYMOUS, "orders")
    send(door, b"orders\nnew")
    await until(lambda: "orders" in door.broker.topics.by_name)
    assert [r.value for r in await read(door.broker, "orders", 1)] == [b"new"]


async def test_many_new_topics_at_once_are_bounded(door: UdpDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp_door, "MAX_OPENING", 5)
    monkeypatch.setattr(udp_door, "MAX_TARGETS", 3)
    for number in range(20):
        door.datagram_received(b"t%d\nx" % number, ("127.0.0.1", 1))
    await until(lambda: door.under_way_bytes == 0)
    assert door.drops.total == 15
    assert len(door._targets) <= 3
    for number in range(5):
        assert len(await read(door.broker, f"t{number}", 1)) == 1


async def test_what_came_before_the_stop_is_stored(start_door: StartDoor) -> None:
    door = await start_door()
    for number in range(100):
        door.datagram_received(b"orders\n%d" % number, ("127.0.0.1", 1))
    await door.drain(PATIENCE_S)
    assert len(await read(door.broker, "orders", 100)) == 100


async def test_what_the_kernel_dropped_is_counted_too(door: UdpDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert door._transport is not None
    sock = door._transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel's least
    monkeypatch.setattr(udp_door, "LOOK_AT_KERNEL_S", 0.0)
    send(door, *[b"orders\n" + b"x" * 500] * 2_000)  # while nobody reads
    await until(lambda: door.drops.total > 0 and door.received + door.drops.total == 2_000)
