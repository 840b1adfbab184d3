"""The text door's manners: bounds, silence, endings, and what bad input does to a connection (and only to it)."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from line_house import line_server
from line_talk import Talk

from penstock.doors.line import text
from penstock.doors.line.door import LineDoor
from penstock.wire.line.parser import MAX_LINE_BYTES


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[LineDoor]:
    async with line_server(tmp_path, max_request_bytes=1 << 20, max_pending_bytes=8 << 20) as (_, door):
        yield door


@pytest.fixture
async def talk(door: LineDoor) -> AsyncIterator[Talk]:
    talk = await Talk.open(door.listener.port)
    yield talk
    await talk.close()


async def until_gone(door: LineDoor) -> None:
    """Until the door has noticed that every connection is closed."""
    async with asyncio.timeout(15):
        while door.limits.connections:
            door.listener._changed.clear()
            await door.listener._changed.wait()


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"PUB orders 1048577\r\n" + b"x" * 500_000, b"ERR payload-too-large a payload may have 1048576 bytes (max_r"),
        (b"PUBLISH orders " + b"x" * MAX_LINE_BYTES, b"ERR line-too-long a line may have 65536 bytes; send more wi"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n" + b"\x00" * 1000, b"ERR not-text this is neither a line of text nor th"),
        (b"\x00" * 100_000, b"ERR line-too-long "),
    ],
)
async def test_what_cannot_be_passed_over_is_answered_and_ends_that_connection_only(
    door: LineDoor, talk: Talk, sent: bytes, answer: bytes
) -> None:
    bad = await Talk.open(door.listener.port)
    bad.send(b"PING\r\n" + sent)
    answers = await bad.rest()
    assert answers.startswith(b"PONG\r\n" + answer)
    assert answers.count(b"\r\n") == 2
    await bad.close()
    assert await talk.publish("orders", b"x") == "OK 0"


async def test_the_answer_reaches_who_is_still_sending(door: LineDoor) -> None:
    bad = await Talk.open(door.listener.port)
    bad.send(b"PUB orders 900000000\r\n")
    for _ in range(50):
        bad.send(b"x" * 100_000)
    assert (await bad.rest()).startswith(b"ERR payload-too-large ")
    await bad.close()
    await until_gone(door)
    assert door.limits.held_bytes == 0


async def test_who_never_stops_sending_after_that_is_cut_off(door: LineDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "LINGER_S", 0.05)
    bad = await Talk.open(door.listener.port)
    bad.send(b"PUB orders 900000000\r\n")
    assert (await bad.rest()).startswith(b"ERR payload-too-large ")
    await until_gone(door)  # though our side of it is open still
    await bad.close()


async def test_a_payload_cut_short_is_told_and_nothing_of_it_is_stored(talk: Talk, door: LineDoor) -> None:
    cut = await Talk.open(door.listener.port)
    cut.send(b"PUB orders 10\r\nabc")
    cut.writer.write_eof()
    assert await cut.rest() == b"ERR truncated the payload ends 7 bytes before its size\r\n"
    await cut.close()
    assert await talk.publish("orders", b"x") == "OK 0"


async def test_a_browser_that_lost_its_way_is_told_in_words(door: LineDoor) -> None:
    lost = await Talk.open(door.listener.port)
    lost.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert await lost.line() == "ERR unknown-command there is no command GET; HELP lists what there is"
    await lost.close()


async def test_the_first_byte_of_the_binary_protocol_is_not_text(door: LineDoor) -> None:
    binary = await Talk.open(door.listener.port)
    binary.send(b"\xf0" + b"\xff" * 64)
    assert b"ERR " not in await binary.rest()
    await binary.close()


async def test_bytes_that_trickle_in_are_held_counted_and_given_back(door: LineDoor, talk: Talk) -> None:
    slow = await Talk.open(door.listener.port)
    slow.send(b"PING\r\nPUB orders 100000\r\n")
    assert await slow.line() == "PONG"
    for _ in range(5):
        slow.send(b"x" * 10_000)
        await slow.writer.drain()
    while door.limits.held_bytes < 50_000:
        assert await talk.ask("PING") == "PONG"
    assert door.limits.held_bytes < 51_000
    slow.writer.transport.abort()
    while door.limits.connections > 1:
        assert await talk.ask("PING") == "PONG"
    assert door.limits.held_bytes == 0


async def test_a_silent_connection_is_closed_and_a_silent_subscriber_is_not(tmp_path: Path) -> None:
    async with line_server(tmp_path, connection_idle_ms=1000) as (_, door):
        subscriber = await Talk.open(door.listener.port)
        assert await subscriber.ask("SUBSCRIBE news/pubsub") == "OK news/pubsub"
        mute, dawdler = await Talk.open(door.listener.port), await Talk.open(door.listener.port)
        dawdler.send("PUB orders 10\r\nabc")
        assert await mute.rest() == b""
        assert await dawdler.rest() == b""
        other = await Talk.open(door.listener.port)
        assert await other.publish("news", b"still there?") == "OK 0"
        assert (await subscriber.message()).payload == b"still there?"
        for talk in (subscriber, mute, dawdler, other):
            await talk.close()


async def test_who_does_not_read_is_not_read_from(door: LineDoor, talk: Talk) -> None:
    payload = b"x" * 100_000
    await talk.publish("orders", payload)
    greedy = await Talk.open(door.listener.port, limit=1 << 10)
    greedy.send(b"FETCH orders 0\r\n" * 2_000)
    connection = next(
        iter(c for c in door.listener.connections if isinstance(c, text.TextConnection) and not c.idle()), None
    )
    while connection is None or connection._writable:
        assert await talk.ask("PING") == "PONG"
        busy = [c for c in door.listener.connections if isinstance(c, text.TextConnection) and not c.idle()]
        connection = busy[0] if busy else None
    assert connection._transport.get_write_buffer_size() < text.WRITE_BUFFER_BYTES + 2 * len(payload)
    for _ in range(2_000):
        assert (await greedy.message(ends_with_line=False)).payload == payload
    await greedy.close()


async def test_commands_under_way_are_bounded(door: LineDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MAX_COMMANDS_UNDER_WAY", 10)
    talk = await Talk.open(door.listener.port)
    talk.send(b"PUB orders 1\r\na" * 50_000)
    assert await talk.lines(50_000) == [f"OK {n}" for n in range(50_000)]
    await talk.close()


async def test_what_was_sent_before_the_stop_is_answered(tmp_path: Path) -> None:
    async with line_server(tmp_path) as (server, door):
        talk = await Talk.open(door.listener.port)
        assert await talk.ask("SUBSCRIBE orders/pubsub") == "OK orders/pubsub"
        assert await talk.ask("UNSUBSCRIBE orders/pubsub") == "OK orders/pubsub"
        talk.send(b"PUB orders 1\r\na" * 100)
        assert await talk.line() == "OK 0"
        waiting = await Talk.open(door.listener.port)
        waiting.send("PING\r\nFETCH orders 5000 count=1 wait=60000\r\n")
        assert await waiting.line() == "PONG"
        await server.stop()
        answers = await talk.rest()
        assert answers == b"".join(b"OK %d\r\n" % n for n in range(1, 100))
        assert (await waiting.rest()).startswith((b"ERR offset-out-of-range", b"END"))
        await talk.close()
        await waiting.close()


async def test_a_stop_does_not_wait_for_subscribers(tmp_path: Path) -> None:
    async with line_server(tmp_path) as (server, door):
        subscriber = await Talk.open(door.listener.port)
        for address in ("news/pubsub", "news/log", "news/queue"):
            assert await subscriber.ask(f"SUBSCRIBE {address}") == f"OK {address}"
        async with asyncio.timeout(15):
            await server.stop()
        assert await subscriber.rest() == b""
        await subscriber.close()


async def test_a_reader_that_leaves_while_it_waits_is_sent_home(door: LineDoor, talk: Talk) -> None:
    await talk.publish("orders", b"x")
    waiting = await Talk.open(door.listener.port)
    waiting.send("FETCH orders 1 wait=60000\r\n")
    while not door.broker.readers.waiting:
        assert await talk.ask("PING") == "PONG"
    sock = waiting.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leave without a word
    waiting.writer.transport.abort()
    while door.broker.readers.waiting:
        assert await talk.ask("PING") == "PONG"
    assert await talk.publish("orders", b"y") == "OK 1"


async def test_a_publish_goes_through_although_its_client_is_gone(door: LineDoor, talk: Talk) -> None:
    hasty = await Talk.open(door.listener.port)
    hasty.send(b"PUB orders 5\r\nhello")
    await hasty.writer.drain()
    await hasty.close()
    assert (await talk.ask("CREATE orders")).startswith(("OK", "ERR topic-exists"))
    assert (await talk.fetch("orders 0 wait=10000")).payload == b"hello"


async def test_noise_does_no_harm(door: LineDoor, talk: Talk) -> None:
    chance = random.Random(7)
    words = [
        b"PUB ",
        b"orders ",
        b"5 ",
        b"\r\n",
        b"\n",
        b"SUBSCRIBE ",
        b"a/queue",
        b"ACK ",
        b'"',
        b"=",
        b"key=",
        b"FETCH ",
    ]
    for _ in range(150):
        noise = b"".join(chance.choice([*words, chance.randbytes(chance.randrange(20))]) for _ in range(60))
        noisy = await Talk.open(door.listener.port)
        noisy.send(b"\n" + noise)
        noisy.writer.write_eof()
        await noisy.rest()
        await noisy.close()
    assert await talk.ask("PING") == "PONG"
    while door.limits.connections > 1:
        assert await talk.ask("PING") == "PONG"
    assert door.limits.held_bytes == 0
