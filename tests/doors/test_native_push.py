"""Pub/sub and log subscriptions through the binary protocol."""

from native_wire import NativeWire, batch, opened

from penstock.model.batch import encode_batch
from penstock.model.record import Record
from penstock.testing.server import Server
from penstock.wire.native.messages import (
    AddCredit,
    Batch,
    DeleteTopic,
    Done,
    Failure,
    Ping,
    Publish,
    Published,
    Records,
    SubscribeLog,
    SubscribePubSub,
    Unsubscribe,
)


async def subscribed(wire: NativeWire, request: SubscribePubSub | SubscribeLog) -> int:
    subscription = wire.send(request)
    await wire.reply(subscription, Done)
    return subscription


async def records(wire: NativeWire, subscription: int, count: int) -> list[tuple[int, Record]]:
    """So many pushed records, each with its partition."""
    found: list[tuple[int, Record]] = []
    while len(found) < count:
        push = await wire.reply(subscription, Records)
        found += [(part.partition, record) for part in push.batches for record in opened(part.batch)]
    assert len(found) == count
    return found


def values(found: list[tuple[int, Record]]) -> list[bytes | None]:
    return [record.value for _, record in found]


# -- pub/sub ------------------------------------------------------------------------------------------------


async def test_everyone_who_is_here_gets_what_comes_from_now_on(server: Server, topic: str) -> None:
    wires = [await NativeWire.open(server.line) for _ in range(5)]
    await wires[0].create(topic, 2)
    await wires[0].publish(topic, b"before")
    subscriptions = [await subscribed(wire, SubscribePubSub(topic, 100)) for wire in wires]
    await wires[0].publish(topic, b"a", b"b")
    await wires[0].publish(topic, b"c", partition=1)
    for wire, subscription in zip(wires, subscriptions, strict=True):
        found = await records(wire, subscription, 3)
        assert sorted((partition, r.offset, r.value) for partition, r in found) == [
            (0, 1, b"a"),
            (0, 2, b"b"),
            (1, 0, b"c"),
        ]
        await wire.close()


async def test_keys_headers_and_times_come_along(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    subscription = await subscribed(native, SubscribePubSub(topic, 10))
    sent = [
        Record(0, 1_900_000_000_123, b"key", b"value", (("a", b"1"), ("b", None))),
        Record(1, 1_900_000_000_125, None, None),
    ]
    await native.ask(Publish(-1, [Batch(topic, 0, bytes(encode_batch(sent, compression=4)))]), Published)
    assert [record for _, record in await records(native, subscription, 2)] == sent


async def test_nothing_comes_beyond_the_credit(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    subscription = await subscribed(native, SubscribePubSub(topic, 3))
    await native.publish(topic, *[str(number).encode() for number in range(10)])
    assert values(await records(native, subscription, 3)) == [b"0", b"1", b"2"]
    await native.ask(Ping(), Done)
    await native.publish(topic, b"10")
    assert not [message for came_for, message in native.arrived[-2:] if came_for == subscription]
    native.send(AddCredit(subscription, 5))
    assert values(await records(native, subscription, 5)) == [b"3", b"4", b"5", b"6", b"7"]
    native.send(AddCredit(subscription, 100))
    assert values(await records(native, subscription, 3)) == [b"8", b"9", b"10"]


async def test_a_subscription_may_begin_without_credit(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    subscription = await subscribed(native, SubscribePubSub(topic, 0))
    await native.publish(topic, b"a")
    native.send(AddCredit(subscription, 1))
    assert values(await records(native, subscription, 1)) == [b"a"]


async def test_who_is_too_slow_is_told_how_much_was_dropped(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    subscription = await subscribed(native, SubscribePubSub(topic, 0, max_behind=10))
    await native.publish(topic, *[str(number).encode() for number in range(100)])
    native.send(AddCredit(subscription, 100))
    push = await native.reply(subscription, Records)
    assert push.gap == 90
    assert [record.value for record in opened(push.batches[0].batch)] == [str(n).encode() for n in range(90, 100)]
    await native.publish(topic, b"more")
    assert (await native.reply(subscription, Records)).gap == 0


async def test_who_would_rather_be_told_than_miss_something(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    subscription = await subscribed(native, SubscribePubSub(topic, 0, max_behind=10, overflow="disconnect"))
    await native.publish(topic, *[b"x"] * 100)
    native.send(AddCredit(subscription, 100))
    failure = await native.of(subscription)
    assert (failure.code, failure.retriable) == ("slow-subscriber", False)
    assert await native.ask(Unsubscribe(subscription), Done) == Done(0)
    await native.ask(Ping(), Done)


async def test_filters_are_applied_here(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    by_key = await subscribed(native, SubscribePubSub(topic, 10, [{"pattern": "eu.*.paid"}, {"key": "all"}]))
    by_header = await subscribed(native, SubscribePubSub(topic, 10, [{"headers": {"kind": "audit"}}]))
    sent = [
        Record(0, 1_900_000_000_000, b"eu.1.paid", b"a"),
        Record(1, 1_900_000_000_000, b"us.1.paid", b"b", (("kind", b"audit"),)),
        Record(2, 1_900_000_000_000, b"all", b"c"),
    ]
    await native.ask(Publish(-1, [Batch(topic, 0, bytes(encode_batch(sent)))]), Published)
    assert [record for _, record in await records(native, by_key, 2)] == [sent[0], sent[2]]
    assert [record for _, record in await records(native, by_header, 1)] == [sent[1]]


async def test_subscriptions_that_are_refused(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    assert (await native.refused(SubscribePubSub(topic + "-2", 1))).code == "unknown-topic"
    assert (await native.refused(SubscribePubSub(topic, 1, overflow="panic"))).code == "invalid-request"
    assert (await native.refused(SubscribePubSub(topic, 1, max_behind=0))).code == "invalid-request"
    assert (await native.refused(SubscribePubSub(topic, 1, [{"colour": "red"}]))).code == "invalid-setting"
    assert (await native.refused(SubscribePubSub(topic, 1, [{"key": True}]))).code == "invalid-setting"
    assert (await native.refused(SubscribeLog(topic + "-2", 1))).code == "unknown-topic"


async def test_a_deleted_topic_ends_its_subscriptions(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    subscriptions = [await subscribed(native, kind) for kind in (SubscribePubSub(topic, 5), SubscribeLog(topic, 5))]
    await native.ask(DeleteTopic(topic), Done)
    for subscription in subscriptions:
        failure = await native.of(subscription)
        assert isinstance(failure, Failure)
        assert failure.code == "unknown-topic"


async def test_nothing_comes_after_unsubscribing(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    subscription = await subscribed(native, SubscribePubSub(topic, 100_000))
    for number in range(50):
        native.send_publish(topic, str(number).encode(), acks=0)
    assert await native.ask(Unsubscribe(subscription), Done) == Done(1)
    since = len(native.arrived)
    await native.publish(topic, b"after")
    await native.ask(Ping(), Done)
    assert subscription not in [came_for for came_for, _ in native.arrived[since:]]


async def test_a_slow_subscriber_is_nobody_elses_problem(server: Server, topic: str) -> None:
    slow, quick = await NativeWire.open(server.line), await NativeWire.open(server.line)
    await quick.create(topic)
    await subscribed(slow, SubscribePubSub(topic, 100_000, max_behind=20))
    subscription = await subscribed(quick, SubscribePubSub(topic, 100_000, max_behind=100_000))
    payload = bytes(100_000)
    rss_before = server.rss_bytes()
    # 30 MB, of which nobody at the slow end takes a byte; and the quick one reads only after it wrote all.
    for _ in range(300):
        quick.send_publish(topic, payload)
        await quick.writer.drain()
    assert len(await records(quick, subscription, 300)) == 300
    assert server.rss_bytes() - rss_before < 100 << 20
    slow.writer.transport.abort()
    await quick.ask(Ping(), Done)
    await quick.close()


# -- the log view -------------------------------------------------------------------------------------------


async def test_a_log_reader_begins_where_it_wants(native: NativeWire, topic: str) -> None:
    await native.create(topic, 2)
    timed = [Record(number, 1_900_000_000_000 + number, None, str(number).encode()) for number in range(5)]
    for partition in range(2):
        await native.ask(Publish(-1, [Batch(topic, partition, bytes(encode_batch(timed)))]), Published)

    async def begun(request: SubscribeLog, count: int) -> list[tuple[int, int]]:
        subscription = await subscribed(native, request)
        found = await records(native, subscription, count)
        await native.ask(Unsubscribe(subscription), Done)
        return sorted((partition, record.offset) for partition, record in found)

    every = [(partition, offset) for partition in range(2) for offset in range(5)]
    assert await begun(SubscribeLog(topic, 100), 10) == every
    assert await begun(SubscribeLog(topic, 100, {0: 4}), 6) == [(0, 4), *every[5:]]
    assert await begun(SubscribeLog(topic, 100, timestamp_ms=1_900_000_000_003), 4) == [(0, 3), (0, 4), (1, 3), (1, 4)]
    assert await begun(SubscribeLog(topic, 100, {1: 2}, earliest=False), 3) == [(1, 2), (1, 3), (1, 4)]


async def test_a_log_reader_catches_up_and_goes_on_with_what_comes(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    for start in range(0, 3000, 100):
        native.send(Publish(0, [Batch(topic, 0, batch(*[str(start + n).encode() for n in range(100)]))]))
    await native.publish(topic, b"3000")
    subscription = await subscribed(native, SubscribeLog(topic, 500))
    seen: list[bytes | None] = []
    while len(seen) < 3001:
        push = await native.reply(subscription, Records)
        found = [record.value for part in push.batches for record in opened(part.batch)]
        native.send(AddCredit(subscription, len(found)))
        seen += found
    assert seen == [str(number).encode() for number in range(3001)]
    await native.publish(topic, b"late")
    assert values(await records(native, subscription, 1)) == [b"late"]


async def test_an_offset_that_is_not_there_ends_the_subscription(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    subscription = native.send(SubscribeLog(topic, 10, {0: 99}))
    answer = await native.of(subscription)
    if isinstance(answer, Done):
        answer = await native.of(subscription)
    assert answer.code == "offset-out-of-range"


async def test_many_subscribers_of_one_connection_take_turns(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    subscriptions = [await subscribed(native, SubscribeLog(topic, 1000)) for _ in range(50)]
    for number in range(20):
        await native.publish(topic, str(number).encode())
    for subscription in subscriptions:
        assert values(await records(native, subscription, 20)) == [str(number).encode() for number in range(20)]
