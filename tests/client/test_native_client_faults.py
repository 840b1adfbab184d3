"""What the client makes of servers that answer oddly, slowly, or not at all. The server here is a fake."""

import asyncio
from typing import Any

import pytest
from fake_line_door import SILENCE, FakeDoor, Reply

import penstock
from penstock.model import errors as nouns
from penstock.model.batch import decode_batch, read_header
from penstock.testing import Server
from penstock.wire.native import messages as wire
from penstock.wire.native.framing import encode

WAIT_S = 30.0


class Log:
    """Stores batches as the server does: nothing twice, nothing out of order; says no when told to."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.refusals: list[str | None] = []  # of the next batches; None takes one
        self.producers: dict[int, tuple[int, int]] = {}  # epoch and next sequence
        self.seen: list[tuple[int, int, int]] = []

    def __call__(self, request: Any) -> Reply:
        if not isinstance(request, wire.IncomingPublish):
            return None
        return wire.Published([self._store(bytes(batch.batch)) for batch in request.batches])

    def _store(self, batch: bytes) -> wire.Stored:
        header = read_header(batch)
        self.seen.append((header.producer_id, header.producer_epoch, header.base_sequence))
        code = self.refusals.pop(0) if self.refusals else None
        if code is not None:
            return wire.Stored(-1, error=code, message="as the test wants it", retriable=code == "StorageFailed")
        epoch, expected = self.producers.get(header.producer_id, (header.producer_epoch, header.base_sequence))
        if header.producer_epoch > epoch:
            expected = 0
        if header.base_sequence != expected or header.producer_epoch < epoch:
            return wire.Stored(-1, error="OutOfOrderSequence", message=f"expected {expected}")
        base = len(self.values)
        self.values += [(record.value or b"").decode() for record in decode_batch(batch)]
        self.producers[header.producer_id] = (header.producer_epoch, header.base_sequence + header.record_count)
        return wire.Stored(base)


def numbered(count: int) -> list[str]:
    """Large enough that each is a batch of its own, and several are on their way at once."""
    return [f"{number} " + "x" * 600_000 for number in range(count)]


def firsts(values: list[str]) -> list[int]:
    return [int(value.split()[0]) for value in values]


# -- odd frames ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", [1, 7, 100])
async def test_answers_may_come_in_pieces(chunk_bytes: int) -> None:
    async with FakeDoor(chunk_bytes=chunk_bytes) as door, penstock.Client(door.address) as client:
        assert await client.publish("t", "x") == penstock.Placed(0, 0)
        assert await client.topics() == []


@pytest.mark.parametrize(
    "noise",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff" * 20,
        b"\x00\x00\x00\x02\x81\x00",
        encode(1, wire.Done())[:-1] + b"\xc1",
    ],
    ids=["http", "huge", "short", "not msgpack"],
)
async def test_a_peer_that_speaks_something_else_is_named(noise: bytes) -> None:
    async with FakeDoor(lambda request: noise) as door:
        client = penstock.Client(door.address, timeout_s=2)
        with pytest.raises((penstock.ProtocolBroken, penstock.Unreachable), match=door.address):
            await client.connect()
        await client.close()


async def test_an_answer_nobody_waits_for_is_passed_over() -> None:
    def answer(request: Any) -> Reply:
        if isinstance(request, wire.ListTopics):
            return bytes(encode(999_999, wire.Done()))
        return None

    async with FakeDoor(answer) as door, penstock.Client(door.address) as client:
        with pytest.raises(penstock.TimedOut):
            await asyncio.wait_for(_topics_in(client, 0.5), WAIT_S)
        assert (await client.publish("t", "x")).offset == 0


async def _topics_in(client: penstock.Client, timeout_s: float) -> None:
    await client._session.call(wire.ListTopics(), timeout_s=timeout_s)


async def test_fields_that_a_newer_server_adds_are_passed_over() -> None:
    def answer(request: Any) -> Reply:
        if isinstance(request, wire.Hello):
            body = b"\x96\x01\xa4fake\xa1c\xce\x00\x10\x00\x00\xa3new\xc0"
            return (len(body) + 5).to_bytes(4, "big") + b"\x81" + (1).to_bytes(4, "big") + body
        return None

    async with FakeDoor(answer) as door, penstock.Client(door.address) as client:
        assert (await client.publish("t", "x")).offset == 0


# -- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noun", [noun for noun in vars(nouns).values() if isinstance(noun, type) and issubclass(noun, nouns.PenstockError)]
)
async def test_every_error_has_its_class_on_this_side_too(noun: type[nouns.PenstockError]) -> None:
    def answer(request: Any) -> Reply:
        return wire.Failure(noun.__name__, "why") if isinstance(request, wire.ListTopics) else None

    async with FakeDoor(answer) as door, penstock.Client(door.address) as client:
        with pytest.raises(noun, match="why"):
            await client.topics()


async def test_an_error_of_a_newer_server_is_still_an_error() -> None:
    def answer(request: Any) -> Reply:
        return wire.Failure("MoonPhase", "not today", retriable=True) if isinstance(request, wire.ListTopics) else None

    async with FakeDoor(answer) as door, penstock.Client(door.address) as client:
        with pytest.raises(penstock.PenstockError, match="MoonPhase: not today") as refused:
            await client.topics()
        assert refused.value.retriable


async def test_who_is_not_allowed_in_is_told_at_once() -> None:
    def answer(request: Any) -> Reply:
        return wire.Failure("NotAllowed", "wrong password") if isinstance(request, wire.Hello) else None

    async with FakeDoor(answer) as door:
        client = penstock.Client(door.address, user="me", password="guess")
        with pytest.raises(penstock.NotAllowed, match="wrong password"):
            await client.publish("t", "x")
        assert door.connections == 1
        assert (door.requests[0].user, door.requests[0].secret) == ("me", "guess")
        await client.close()


# -- refused batches ----------------------------------------------------------------------------------------


async def test_what_is_refused_for_now_is_sent_again_in_order() -> None:
    log = Log()
    log.refusals = ["StorageFailed", None, None, "StorageFailed", "StorageFull"]
    async with FakeDoor(log) as door, penstock.Client(door.address) as client:
        placed = await asyncio.gather(*(client.publish("t", value) for value in numbered(12)))
    assert [place.offset for place in placed] == list(range(12))
    assert firsts(log.values) == list(range(12))


async def test_what_is_refused_for_good_fails_alone() -> None:
    log = Log()
    log.refusals = [None, "RecordTooLarge", None, None, "InvalidRecord"]
    async with FakeDoor(log) as door, penstock.Client(door.address) as client:
        results = await asyncio.gather(*(client.publish("t", value) for value in numbered(12)), return_exceptions=True)
    failed = [number for number, result in enumerate(results) if isinstance(result, Exception)]
    assert [type(results[number]) for number in failed] == [penstock.RecordTooLarge, penstock.InvalidRecord]
    assert firsts(log.values) == [number for number in range(12) if number not in failed]


async def test_a_fenced_producer_takes_another_id() -> None:
    log = Log()
    log.refusals = [None, "InvalidProducerEpoch"]
    ids = iter(range(7, 20))

    def answer(request: Any) -> Reply:
        return wire.ProducerId(next(ids), 0) if isinstance(request, wire.TakeProducerId) else log(request)

    async with FakeDoor(answer) as door, penstock.Client(door.address) as client:
        await asyncio.gather(*(client.publish("t", value) for value in numbered(6)))
    assert firsts(log.values) == list(range(6))
    assert {producer for producer, _, _ in log.seen} == {7, 8}


async def test_retries_end_with_what_the_server_said() -> None:
    def answer(request: Any) -> Reply:
        if isinstance(request, wire.IncomingPublish):
            return wire.Published([wire.Stored(-1, error="StorageFull", message="disk full", retriable=True)])
        return None

    async with FakeDoor(answer) as door, penstock.Client(door.address, timeout_s=0.5) as client:
        with pytest.raises(penstock.TimedOut, match="disk full"):
            await client.publish("t", "x")
        assert 2 <= len(door.of(wire.IncomingPublish)) < 30, "again, but with pauses"
        assert client.buffered_bytes == 0


# -- silence ------------------------------------------------------------------------------------------------


async def test_a_publish_without_an_answer_says_that_nobody_knows() -> None:
    def answer(request: Any) -> Reply:
        return SILENCE if isinstance(request, wire.IncomingPublish) else None

    async with FakeDoor(answer) as door, penstock.Client(door.address, timeout_s=0.3) as client:
        with pytest.raises(penstock.TimedOut, match="may or may not be stored"):
            await client.publish("t", "x")
        assert client.buffered_bytes == 0


async def test_what_follows_a_batch_that_was_given_up_is_not_lost() -> None:
    """It was never stored, so the next one does not follow what the server has: it is numbered anew."""
    log = Log()
    swallowing = False

    def answer(request: Any) -> Reply:
        return SILENCE if isinstance(request, wire.IncomingPublish) and swallowing else log(request)

    async with FakeDoor(answer) as door, penstock.Client(door.address, timeout_s=0.5) as client:
        await client.publish("t", "8 before")
        swallowing = True
        results = await asyncio.gather(*(client.publish("t", value) for value in numbered(3)), return_exceptions=True)
        assert [type(result) for result in results] == [penstock.TimedOut] * 3
        swallowing = False
        assert (await client.publish("t", "9 after")).offset == 1
    assert firsts(log.values) == [8, 9]


async def test_a_silent_connection_is_given_up_and_replaced() -> None:
    def answer(request: Any) -> Reply:
        silent = door.connections == 1 and not isinstance(request, wire.Hello)
        return SILENCE if silent else None

    async with FakeDoor(answer) as door, penstock.Client(door.address, keepalive_s=0.1) as client:
        assert (await client.publish("t", "x")).offset == 0
        assert door.connections >= 2
        assert client.reconnects >= 1


async def test_an_idle_connection_is_kept_alive() -> None:
    async with FakeDoor() as door, penstock.Client(door.address, keepalive_s=0.25) as client:
        async with asyncio.timeout(WAIT_S):
            while len(door.of(wire.Ping)) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert client.reconnects == 0


async def test_a_server_that_cuts_every_connection_is_asked_with_pauses() -> None:
    async with FakeDoor(lambda request: None if isinstance(request, wire.Hello) else b"\xff" * 9) as door:
        client = penstock.Client(door.address, timeout_s=0.6)
        with pytest.raises((penstock.TimedOut, penstock.Unreachable)):
            await client.publish("t", "x")
        assert 2 <= door.connections < 30
        await client.close()


async def test_a_slow_server_slows_its_publishers_down() -> None:
    """Back-pressure: what is not acknowledged is bounded, and so is what is under way."""
    log = Log()
    gate = asyncio.Event()
    door = FakeDoor(log)
    limit = 3_000_000
    async with door, penstock.Client(door.address, max_buffered_bytes=limit) as client:
        await client.publish("t", "0")
        write = door._write

        async def slow(writer: asyncio.StreamWriter, reply: Any, correlation_id: int) -> None:
            await gate.wait()
            await write(writer, reply, correlation_id)

        door._write = slow  # type: ignore[method-assign]
        tasks = [asyncio.create_task(client.publish("t", value)) for value in numbered(40)]
        async with asyncio.timeout(WAIT_S):
            while client.buffered_bytes < limit - 700_000:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert client.buffered_bytes <= limit
        assert not any(task.done() for task in tasks)
        gate.set()
        await asyncio.gather(*tasks)
    assert firsts(log.values)[1:] == list(range(40))


# -- many topics --------------------------------------------------------------------------------------------


async def test_topics_that_are_forgotten_are_published_to_again(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.publisher.MAX_IDLE_TOPICS", 5)
    async with penstock.Client(server.line) as client:
        for turn in range(4):
            for number in range(12):
                placed = await client.publish(f"{topic}-{number}", str(turn))
                assert placed.offset == turn, "a number that was used before would be taken for a repeat"
        assert len(client._publisher._outboxes) <= 6


# -- restarts -----------------------------------------------------------------------------------------------


async def test_every_kind_of_subscription_outlives_a_restart(fresh_server: Server) -> None:
    async with penstock.Client(fresh_server.line) as client:
        await client.publish("t", "before", key="k")
        subscriptions: dict[str, Any] = {
            "log": client.subscribe("t"),
            "filtered": client.subscribe("t", matches=[{"key": "k"}]),
            "queue": client.subscribe("t", "queue"),
            "pulled": client.subscribe("t", "queue", name="fast", guarantee="at-most-once"),
            "pubsub": client.subscribe("t", "pubsub"),
        }
        for kind, subscription in subscriptions.items():
            await subscription.start()
            if kind != "pubsub":
                [message] = await subscription.take(timeout_s=WAIT_S)
                if kind == "queue":
                    await message.ack()
        waiting = {
            kind: asyncio.create_task(subscription.take(timeout_s=WAIT_S))
            for kind, subscription in subscriptions.items()
        }
        await asyncio.to_thread(fresh_server.stop)
        await asyncio.to_thread(fresh_server.restart)
        await client.publish("t", "after", key="k")
        for kind, task in waiting.items():
            if kind == "pubsub":
                while not task.done():  # it may have missed the first
                    await client.publish("t", "after", key="other")
                    await asyncio.sleep(0.01)
            assert [message.text for message in await task][:1] == ["after"], kind
