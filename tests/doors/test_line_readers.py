"""Subscriptions of the text protocol that only read: pub/sub and log."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from line_house import line_server
from line_talk import Message, Talk

from penstock.doors.line import text_subscriptions
from penstock.doors.line.door import LineDoor


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[LineDoor]:
    async with line_server(tmp_path) as (_, door):
        yield door


@pytest.fixture
async def talk(door: LineDoor) -> AsyncIterator[Talk]:
    talk = await Talk.open(door.listener.port)
    yield talk
    await talk.close()


@pytest.fixture
async def other(door: LineDoor) -> AsyncIterator[Talk]:
    talk = await Talk.open(door.listener.port)
    yield talk
    await talk.close()


async def test_everyone_who_is_here_now_gets_it(door: LineDoor, talk: Talk, other: Talk) -> None:
    assert await talk.publish("news", b"before") == "OK 0"
    assert await other.ask("SUBSCRIBE news/pubsub") == "OK news/pubsub"
    assert await talk.ask("SUBSCRIBE news/pubsub") == "OK news/pubsub"
    publisher = await Talk.open(door.listener.port)
    for number in range(1, 4):
        assert await publisher.publish("news", b"%d" % number) == f"OK {number}"
    for subscriber in (talk, other):
        assert [await subscriber.message() for _ in range(3)] == [
            Message(f"news:0:{number}", b"%d" % number) for number in range(1, 4)
        ]
    await publisher.close()


async def test_a_log_subscriber_gets_everything_from_where_it_says(talk: Talk, other: Talk) -> None:
    for number in range(4):
        await talk.publish("log", b"%d" % number)
    for start, first in (("", 0), ("from=earliest", 0), ("from=2", 2), ("from=0:3", 3)):
        assert await other.ask(f"SUBSCRIBE log/log {start}") == "OK log/log"
        assert [(await other.message()).payload for _ in range(first, 4)] == [b"%d" % n for n in range(first, 4)]
        assert await other.ask("UNSUBSCRIBE log/log") == "OK log/log"
    assert await other.ask("SUBSCRIBE log/log from=latest") == "OK log/log"
    await talk.publish("log", b"new")
    assert await other.message() == Message("log:0:4", b"new")


async def test_a_topic_of_many_partitions_is_read_whole(talk: Talk, other: Talk) -> None:
    await talk.ask("CREATE wide partitions=3")
    for number in range(30):
        await talk.publish("wide", b"%d" % number, f"partition={number % 3}")
    assert await other.ask("SUBSCRIBE wide/log from=0:9,1:9,2:8") == "OK wide/log"
    assert {(await other.message()).name for _ in range(4)} == {"wide:0:9", "wide:1:9", "wide:2:8", "wide:2:9"}
    assert (await other.ask("UNSUBSCRIBE wide/log")) == "OK wide/log"
    assert (await other.ask("SUBSCRIBE wide/log from=9")).startswith("ERR invalid-request there are 3 partitions")


async def test_a_filter_chooses_by_key_pattern_and_header(talk: Talk, other: Talk) -> None:
    await talk.publish("events", b"a", "key=order.created header.type=x")
    await talk.publish("events", b"b", "key=order.paid")
    await talk.publish("events", b"c", "key=user.created header.type=x")
    await talk.publish("events", b"d")
    for options, expected in (
        ("key=order.paid", [b"b"]),
        ("pattern=order.*", [b"a", b"b"]),
        ("header.type=x", [b"a", b"c"]),
        ("pattern=order.# header.type=x", [b"a"]),
    ):
        assert await other.ask(f"SUBSCRIBE events/log {options}") == "OK events/log"
        assert [(await other.message()).payload for _ in expected] == expected
        assert await other.ask("UNSUBSCRIBE events/log") == "OK events/log"


async def test_meta_tells_key_headers_and_time(talk: Talk, other: Talk) -> None:
    await talk.publish("events", b"x", 'key="a b" header.h=1 timestamp=1000')
    assert await other.ask("SUBSCRIBE events/log meta=yes") == "OK events/log"
    assert await other.message() == Message("events:0:0", b"x", 'timestamp=1000 key="a b" header.h=1')


async def test_answers_and_deliveries_never_cut_each_other_in_two(talk: Talk, other: Talk) -> None:
    assert await talk.ask("SUBSCRIBE busy/pubsub") == "OK busy/pubsub"
    pings = 300
    for number in range(pings):
        other.send(b"PUB busy 6\r\n%06d" % number)
        talk.send("PING\r\n")
    pongs, payloads = 0, []
    while pongs < pings or len(payloads) < pings:
        line = await talk.line()
        if line == "PONG":
            pongs += 1
        else:
            assert line.startswith("MSG busy:0:")
            payloads.append(await talk.exactly(6))
            assert await talk.exactly(2) == b"\r\n"
    assert payloads == [b"%06d" % number for number in range(pings)]


async def test_a_slow_subscriber_misses_messages_and_is_told_how_many(talk: Talk, door: LineDoor) -> None:
    slow = await Talk.open(door.listener.port, limit=1 << 10)
    assert await slow.ask("SUBSCRIBE busy/pubsub behind=100") == "OK busy/pubsub"
    payload, count = b"x" * 10_000, 3_000
    talk.send((b"PUB busy %d\r\n%b" % (len(payload), payload)) * count + b"PUB busy 4\r\nlast")
    assert (await talk.lines(count + 1))[-1] == f"OK {count}"
    received = missed = 0
    while True:
        line = await slow.line()
        if line.startswith("GAP busy "):
            missed += int(line.split()[2])
            continue
        payload = await slow.exactly(int(line.split()[2]))
        await slow.exactly(2)
        received += 1
        if payload == b"last":
            break
    assert missed > 0
    assert received + missed == count + 1
    await slow.close()


async def test_who_would_rather_end_than_miss_is_ended(talk: Talk, door: LineDoor) -> None:
    slow = await Talk.open(door.listener.port, limit=1 << 10)
    assert await slow.ask("SUBSCRIBE busy/pubsub behind=10 overflow=disconnect") == "OK busy/pubsub"
    payload, count = b"x" * 10_000, 3_000
    talk.send((b"PUB busy %d\r\n%b" % (len(payload), payload)) * count)
    await talk.lines(count)
    expected = 0
    while (line := await slow.line()).startswith("MSG "):
        assert line.split()[1] == f"busy:0:{expected}"
        await slow.exactly(len(payload) + 2)
        expected += 1
    assert line.startswith("ENDED busy/pubsub slow-subscriber ")
    assert await slow.ask("PING") == "PONG"
    await slow.close()


async def test_a_subscription_ends_with_its_topic(talk: Talk, other: Talk) -> None:
    assert await talk.ask("SUBSCRIBE gone/pubsub") == "OK gone/pubsub"
    assert await other.ask("DELETE gone") == "OK"
    assert (await talk.line()).startswith("ENDED gone/pubsub unknown-topic ")
    assert await talk.ask("SUBSCRIBE gone/pubsub") == "OK gone/pubsub"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("SUBSCRIBE orders", "say orders/pubsub, orders/log, orders/queue or orders/queue/<view>"),
        ("SUBSCRIBE orders/heap", "say orders/pubsub"),
        ("SUBSCRIBE orders/log/view", "say orders/pubsub"),
        ("SUBSCRIBE orders/pubsub view=mail", "only queues have views with names"),
        ("SUBSCRIBE orders/queue/a view=b", "two different views are named"),
        ("SUBSCRIBE orders/pubsub credit=5", "option credit has no meaning for orders/pubsub"),
        ("SUBSCRIBE orders/log from=yesterday", "an offset must be a whole number"),
        ("SUBSCRIBE orders/pubsub overflow=explode", "overflow must be drop-oldest or disconnect"),
        ("SUBSCRIBE orders/pubsub behind=0", "behind must be a whole number from 1"),
        ("SUBSCRIBE orders/pubsub meta=perhaps", "meta must be yes or no"),
        ("UNSUBSCRIBE orders/pubsub", "this connection is not subscribed to orders/pubsub"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_reason(talk: Talk, command: str, says: str) -> None:
    answer = await talk.ask(command)
    assert answer.startswith("ERR invalid-request ")
    assert says in answer
    assert await talk.ask("PING") == "PONG"


async def test_twice_the_same_subscription_is_refused(talk: Talk) -> None:
    assert await talk.ask("SUBSCRIBE orders/pubsub") == "OK orders/pubsub"
    assert await talk.ask("SUBSCRIBE orders/pubsub") == (
        "ERR invalid-request this connection is subscribed to orders/pubsub already"
    )


async def test_subscriptions_are_counted(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_subscriptions, "MAX_SUBSCRIPTIONS", 2)
    assert await talk.ask("SUBSCRIBE a/pubsub") == "OK a/pubsub"
    assert await talk.ask("SUBSCRIBE b/pubsub") == "OK b/pubsub"
    assert await talk.ask("SUBSCRIBE c/pubsub") == "ERR limit-reached a connection may have 2 subscriptions"


async def test_a_subscriber_that_left_is_forgotten(door: LineDoor, talk: Talk) -> None:
    assert await talk.ask("SUBSCRIBE news/pubsub") == "OK news/pubsub"
    assert await talk.ask("SUBSCRIBE news/log") == "OK news/log"
    await talk.close()
    async with asyncio.timeout(10):
        while door.limits.connections:
            door.listener._changed.clear()
            await door.listener._changed.wait()
    await asyncio.sleep(0)
    assert not door.broker.readers.waiting


async def test_a_subscriber_that_left_while_it_subscribed_is_forgotten_too(door: LineDoor, talk: Talk) -> None:
    for number in range(30):
        hasty = await Talk.open(door.listener.port)
        hasty.send(f"SUBSCRIBE new-{number}/pubsub\r\nSUBSCRIBE new-{number}/log\r\n")
        await hasty.writer.drain()
        hasty.writer.transport.abort()
    while door.limits.connections > 1 or door.broker.readers.waiting:
        assert await talk.ask("PING") == "PONG"
    pumps = [task for task in asyncio.all_tasks() if "ReaderSubscription" in repr(task.get_coro())]
    assert pumps == []
