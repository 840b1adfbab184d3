"""The manners of a binary connection: what begins it, what ends it, and that nobody else is harmed."""

import asyncio
import inspect
import random
import socket

import pytest
from native_wire import NativeWire, batch, opened

from penstock.doors.line.binary import MAX_REQUESTS_UNDER_WAY, MAX_SUBSCRIPTIONS
from penstock.doors.line.binary_api import CODES, HANDLERS, INTERNAL_ERROR, error_code, failure_of
from penstock.doors.line.binary_push import MAX_CREDIT
from penstock.model import errors
from penstock.model.errors import PenstockError, StorageFull
from penstock.testing.server import Server
from penstock.wire.native.framing import MAX_PLAIN_BYTES, PREFACE, REQUESTS, encode
from penstock.wire.native.messages import (
    AddCredit,
    Batch,
    Done,
    Failure,
    Fetch,
    Fetched,
    Hello,
    Ping,
    Publish,
    Published,
    Records,
    Settle,
    SubscribeLog,
    SubscribePubSub,
    Unsubscribe,
    Welcome,
)
from servers import StartServer


async def still_serves(server: Server) -> None:
    wire = await NativeWire.open(server.line)
    await wire.ask(Ping(), Done)
    await wire.close()


# -- beginning ----------------------------------------------------------------------------------------------


async def test_hello_is_answered_with_what_both_speak(server: Server) -> None:
    wire = await NativeWire.connect(server.line)
    wire.send_raw(PREFACE)
    welcome = await wire.ask(Hello(99, "from the future", "somebody", "secret"), Welcome)
    assert welcome.version == 1
    assert welcome.server.startswith("penstock ")
    assert welcome.max_frame_bytes > 1 << 20
    again = await NativeWire.open(server.line)
    assert (await again.ask(Hello(1, "again"), Welcome)).cluster_id == welcome.cluster_id
    await wire.close()
    await again.close()


async def test_who_was_not_welcomed_is_not_served(server: Server) -> None:
    wire = await NativeWire.connect(server.line)
    wire.send_raw(PREFACE)
    assert (await wire.refused(Hello(0, "from the past"))).code == "unsupported-version"
    assert (await wire.refused(Ping())).code == "malformed"
    assert await wire.is_closed()


async def test_the_beginning_may_come_byte_by_byte(server: Server) -> None:
    wire = await NativeWire.connect(server.line)
    stream = PREFACE + encode(1, Hello(1, "slow")) + encode(2, Ping())
    for at in range(len(stream)):
        wire.send_raw(stream[at : at + 1])
        await wire.writer.drain()
        await asyncio.sleep(0)
    assert isinstance(await wire.of(1), Welcome)
    assert isinstance(await wire.of(2), Done)
    await wire.close()


async def test_the_beginning_may_come_with_all_that_follows(server: Server, topic: str) -> None:
    """More than a transport reads at once, in the hands of whoever looks at the first byte."""
    wire = await NativeWire.connect(server.line)
    helper = await NativeWire.open(server.line)
    await helper.create(topic)
    publishes = [encode(number + 2, Publish(-1, [Batch(topic, 0, batch(bytes(20_000)))])) for number in range(50)]
    wire.send_raw(PREFACE + encode(1, Hello(1, "eager")) + b"".join(publishes))
    assert isinstance(await wire.of(1), Welcome)
    for number in range(50):
        assert (await wire.reply(number + 2, Published)).results[0].base_offset == number
    await wire.close()
    await helper.close()


@pytest.mark.parametrize(
    "first",
    [b"\xf0PENSTX\x01", b"\xf0GET / HTTP/1.1\r\n", PREFACE[:-1] + b"\x02"],
    ids=["misspelt", "http", "another layout"],
)
async def test_another_preface_is_told_so(server: Server, first: bytes) -> None:
    wire = await NativeWire.connect(server.line)
    wire.send_raw(first)
    correlation_id, failure = await wire.next()
    assert (correlation_id, failure.code) == (0, "malformed")
    assert await wire.is_closed()


async def test_hello_comes_first(server: Server) -> None:
    wire = await NativeWire.connect(server.line)
    wire.send_raw(PREFACE)
    failure = await wire.of(wire.send(Ping()))
    assert (failure.code, failure.message) == ("malformed", "the first request must be Hello")
    assert await wire.is_closed()


# -- what is not of this protocol ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "correlation_id"),
    [
        (b"\x00\x00\x00\x00", 0),
        (b"\x00\x00\x00\x03\x02\x00\x00", 0),
        (b"\xff\xff\xff\xff", 0),
        (b"\x7f\xff\xff\xff", 0),
        (b"\x00\x00\x00\x06\x02\x00\x00\x00\x07\xc1", 7),
        (b"\x00\x00\x00\x05\x02\x00\x00\x00\x07", 7),
        (b"\x00\x00\x00\x08\x02\x00\x00\x00\x07\x90\x90\x90", 7),
        (b"\x00\x00\x00\x08\x13\x00\x00\x00\x07\x91\xa1\xff", 7),
        (b"\x00\x00\x00\x07\x13\x00\x00\x00\x07\x91\x05", 7),
        (b"\x00\x00\x00\x0a\x21\x00\x00\x00\x07\x92\xff\xdd\xff\xff", 7),
    ],
    ids=["empty", "short", "4 GiB", "2 GiB", "never used", "nothing", "a tail", "no UTF-8", "no str", "cut short"],
)
async def test_a_malformed_frame_is_answered_and_ends_the_connection(
    server: Server, native: NativeWire, frame: bytes, correlation_id: int
) -> None:
    native.send_raw(frame)
    answered, failure = await native.next()
    assert (answered, failure.code) == (correlation_id, "malformed")
    assert await native.is_closed()
    await still_serves(server)


async def test_what_came_before_a_malformed_frame_is_done_and_answered(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    waiting = native.send_fetch(topic, 0, wait_ms=600_000)  # has nothing to say, and is not waited for
    publish = encode(1001, Publish(-1, [Batch(topic, 0, batch(b"a"))]))
    also_waiting = encode(1002, Fetch(topic, 0, 1, 100, 600_000))
    native.send_raw(publish + also_waiting + b"\xff\xff\xff\xff" + publish)
    assert (await native.reply(1001, Published)).results[0].base_offset == 0
    assert (await native.of(0)).code == "malformed"
    assert await native.is_closed()
    assert [
        message for came_for, message in native.arrived if came_for == waiting and isinstance(message, Failure)
    ] == []


async def test_a_request_that_is_large_and_need_not_be(native: NativeWire) -> None:
    receipts = [(1 << 40, 1 << 40)] * (MAX_PLAIN_BYTES // 18)
    failure = await native.refused(Settle("t", "v", "ack", receipts))
    assert failure.code == "malformed"
    assert "at most" in failure.message
    assert await native.is_closed()


async def test_kinds_that_nobody_knows_leave_the_connection_alive(native: NativeWire) -> None:
    for kind in (0x00, 0x7F, 0x81, 0xC0, 0xFF):
        native.send_raw(b"\x00\x00\x00\x06" + bytes([kind]) + b"\x00\x00\x00\x63\x90")
        failure = await native.of(0x63)
        assert failure.code == "unsupported-version"
        assert f"{kind:#04x}" in failure.message
    await native.ask(Ping(), Done)


async def test_a_frame_larger_than_the_server_takes(start_server: StartServer) -> None:
    server = start_server(max_request_bytes=1 << 20)
    wire = await NativeWire.open(server.line)
    wire.send_raw(((1 << 20) + 1).to_bytes(4, "big"))
    _, failure = await wire.next()
    assert failure.code == "malformed"
    assert await wire.is_closed()


async def test_garbage_harms_nobody_else(server: Server, topic: str) -> None:
    seeded = random.Random(7)
    good = await NativeWire.open(server.line)
    await good.create(topic)
    for _ in range(60):
        bad = await NativeWire.open(server.line)
        garbage = seeded.randbytes(seeded.randrange(1, 300))
        bad.send_raw(garbage if seeded.random() < 0.5 else len(garbage).to_bytes(4, "big") + garbage)
        if seeded.random() < 0.3:
            bad.writer.transport.abort()
        else:
            bad.writer.write_eof()
            assert await bad.is_closed()
        await good.publish(topic, b"unharmed")
    assert len(await good.values(topic)) == 60
    await good.close()


async def test_half_a_frame_and_a_goodbye(server: Server, topic: str) -> None:
    wire = await NativeWire.open(server.line)
    await wire.create(topic)
    whole = encode(9, Publish(-1, [Batch(topic, 0, batch(b"whole"))]))
    wire.send_raw(whole + whole[: len(whole) // 2])
    assert (await wire.reply(9, Published)).results[0].base_offset == 0
    wire.writer.write_eof()
    assert await wire.is_closed()
    other = await NativeWire.open(server.line)
    assert await other.values(topic) == [b"whole"]
    await other.close()


# -- bounds -------------------------------------------------------------------------------------------------


async def test_more_requests_than_are_taken_at_once_are_all_answered(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    waiting = [native.send_fetch(topic, 0, wait_ms=15_000) for _ in range(MAX_REQUESTS_UNDER_WAY - 1)]
    late = native.send_publish(topic, b"here")  # what waits leaves just enough room for it
    beyond = [native.send(Ping()) for _ in range(3000)]
    await native.reply(late, Published)
    for fetch in waiting:
        (record,) = opened((await native.reply(fetch, Fetched)).batches)
        assert record.value == b"here"
    for ping in beyond:
        await native.reply(ping, Done)


async def test_a_client_that_does_not_read_is_not_read_from(start_server: StartServer, topic: str) -> None:
    server = start_server()
    helper = await NativeWire.open(server.line)
    await helper.create(topic)
    for _ in range(8):
        await helper.publish(topic, bytes(1_000_000))
    rss_before = server.rss_bytes()

    deaf = socket.create_connection(tuple(server.line.rsplit(":", 1)))
    deaf.settimeout(1)
    deaf.sendall(PREFACE + encode(1, Hello(1, "deaf")))
    fetch = bytes(encode(2, Fetch(topic, 0, 0, 4 << 20, 0)))
    sent = 0
    with pytest.raises(TimeoutError):
        while True:
            sent += deaf.send(fetch * 100)
    assert sent < 64 << 20
    assert server.rss_bytes() - rss_before < 150 << 20
    await helper.ask(Ping(), Done)
    deaf.close()
    await helper.ask(Ping(), Done)
    await helper.close()


async def test_slow_readers_get_everything(server: Server, topic: str) -> None:
    wire = await NativeWire.open(server.line)
    await wire.create(topic)
    for _ in range(6):
        await wire.publish(topic, bytes(900_000))
    fetches = [wire.send_fetch(topic, 0, max_bytes=4 << 20) for _ in range(30)]
    for fetch in fetches:
        assert len(opened((await wire.reply(fetch, Fetched)).batches)) == 4
    await wire.close()


async def test_more_memory_than_there_is_for_requests(start_server: StartServer, topic: str) -> None:
    """Floods at several connections share the bound; all of it is stored in the end."""
    server = start_server(max_pending_bytes=4 << 20)
    wires = [await NativeWire.open(server.line) for _ in range(4)]
    await wires[0].create(topic)
    sent = [(wire, wire.send_publish(topic, bytes(500_000))) for _ in range(10) for wire in wires]
    offsets = [(await wire.reply(one, Published)).results[0].base_offset for wire, one in sent]
    assert sorted(offsets) == list(range(40))
    for wire in wires:
        await wire.close()


async def test_a_thousand_idle_connections(start_server: StartServer) -> None:
    server = start_server()
    first = await NativeWire.open(server.line)
    rss_before = server.rss_bytes()
    wires = [await NativeWire.open(server.line) for _ in range(1000)]
    assert server.rss_bytes() - rss_before < 64 << 20
    pings = [(wire, wire.send(Ping())) for wire in wires]
    for wire, ping in pings:
        await wire.reply(ping, Done)
    for wire in wires:
        await wire.close()
    await first.close()


async def test_a_silent_connection_is_closed_and_a_subscriber_is_not(start_server: StartServer, topic: str) -> None:
    server = start_server(connection_idle_ms=1000)
    silent, subscriber = await NativeWire.open(server.line), await NativeWire.open(server.line)
    await subscriber.create(topic)
    pushing = subscriber.send(SubscribePubSub(topic, 10))
    await subscriber.reply(pushing, Done)
    assert await silent.is_closed()
    silent_later = await NativeWire.open(server.line)
    assert await silent_later.is_closed()  # by now the subscriber has been silent for longer than the bound, too
    publisher = await NativeWire.open(server.line)
    await publisher.publish(topic, b"still there")
    assert isinstance(await subscriber.of(pushing), Records)
    await publisher.close()
    await subscriber.close()


async def test_the_server_finishes_what_is_under_way_when_it_stops(start_server: StartServer, topic: str) -> None:
    server = start_server()
    wire = await NativeWire.open(server.line)
    await wire.create(topic)
    subscription = wire.send(SubscribeLog(topic, 100))
    await wire.reply(subscription, Done)
    waiting = wire.send_fetch(topic, 0, wait_ms=600_000)
    publishing = wire.send_publish(topic, b"a")
    await wire.reply(publishing, Published)
    await wire.reply(waiting, Fetched)
    waiting = wire.send_fetch(topic, 1, wait_ms=600_000)
    await wire.ask(Ping(), Done)
    server.stop()
    assert (await wire.reply(waiting, Fetched)).batches == b""
    assert await wire.is_closed()
    assert "Traceback" not in server.log_text()


# -- subscriptions ------------------------------------------------------------------------------------------


async def test_credit_that_makes_no_sense(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    assert (await native.refused(SubscribePubSub(topic, -1))).code == "invalid-request"
    assert (await native.refused(SubscribePubSub(topic, MAX_CREDIT + 1))).code == "limit-reached"
    subscription = native.send(SubscribePubSub(topic, MAX_CREDIT))
    await native.reply(subscription, Done)
    assert (await native.refused(AddCredit(subscription, 1))).code == "limit-reached"
    assert (await native.refused(AddCredit(subscription, 0))).code == "invalid-request"
    assert (await native.refused(AddCredit(subscription, -5))).code == "invalid-request"
    native.send(AddCredit(subscription + 1000, 5))  # it may have ended: no answer
    await native.publish(topic, b"alive")
    assert isinstance(await native.of(subscription), Records)


async def test_as_many_subscriptions_as_a_connection_may_have(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    subscriptions = [native.send(SubscribePubSub(topic, 1)) for _ in range(MAX_SUBSCRIPTIONS)]
    for subscription in subscriptions:
        await native.reply(subscription, Done)
    assert (await native.refused(SubscribePubSub(topic, 1))).code == "limit-reached"
    assert await native.ask(Unsubscribe(subscriptions[0]), Done) == Done(1)
    assert await native.ask(Unsubscribe(subscriptions[0]), Done) == Done(0)
    await native.ask(SubscribePubSub(topic, 1), Done)


async def test_a_correlation_id_that_subscribes_twice(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    native.send(SubscribePubSub(topic, 1), correlation_id=77)
    await native.reply(77, Done)
    native.send(SubscribePubSub(topic, 1), correlation_id=77)
    assert (await native.of(77)).code == "invalid-request"


# -- errors -------------------------------------------------------------------------------------------------


def test_every_request_is_handled() -> None:
    assert HANDLERS.keys() == REQUESTS.keys()


def test_every_error_has_a_code_of_its_own() -> None:
    nouns = [
        noun
        for _, noun in inspect.getmembers(errors, inspect.isclass)
        if issubclass(noun, PenstockError) and noun is not PenstockError
    ]
    assert len(nouns) > 40
    assert CODES.keys() == set(nouns)
    assert len(set(CODES.values())) == len(nouns)
    for noun in nouns:
        failure = failure_of(noun("why"))
        assert failure == Failure(CODES[noun], "why", noun.retriable)
        assert failure.code == failure.code.lower().strip("-")
    assert error_code(StorageFull("full")) == "storage-full"


def test_an_error_below_a_noun_has_the_code_of_that_noun() -> None:
    class Special(errors.UnknownView):
        pass

    assert error_code(Special("x")) == "unknown-view"
    assert error_code(PenstockError("x")) == INTERNAL_ERROR
    assert failure_of(ZeroDivisionError("x")).code == INTERNAL_ERROR
