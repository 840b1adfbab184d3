"""Queue views, steps and routers through the binary protocol."""

from typing import NamedTuple

import pytest
from native_wire import NativeWire, Refused, opened

from penstock.broker.queues import Delivery, Receipt
from penstock.doors.line.binary_queues import HELD_BYTES, leased_of
from penstock.model.batch import encode_batch
from penstock.model.record import Record
from penstock.testing.server import Server
from penstock.wire.native.messages import (
    AddCredit,
    Batch,
    Bind,
    BindingFields,
    ConfigureView,
    CreateRouter,
    CreateView,
    DeleteRouter,
    DeleteTopic,
    DeleteView,
    Deliveries,
    Done,
    Lease,
    ListRouters,
    ListViews,
    PauseView,
    PeekView,
    Ping,
    Publish,
    Published,
    PurgeView,
    RedriveView,
    Routers,
    Settle,
    Settled,
    Step,
    StepMessage,
    SubscribeQueue,
    Unbind,
    Unsubscribe,
    View,
    Views,
)
from servers import StartServer

QUEUE = "queue"


class Got(NamedTuple):
    partition: int
    record: Record
    receipt: tuple[int, int]
    attempt: int

    @property
    def value(self) -> bytes | None:
        return self.record.value


def got_of(deliveries: Deliveries) -> list[Got]:
    found = []
    for part in deliveries.leased:
        records = opened(part.batch)
        assert len(records) == len(part.numbers) == len(part.attempts)
        for record, number, attempt in zip(records, part.numbers, part.attempts, strict=True):
            found.append(Got(part.partition, record, (part.stream << 48 | record.offset, number), attempt))
    return found


async def subscribed(wire: NativeWire, request: SubscribeQueue) -> int:
    subscription = wire.send(request)
    await wire.reply(subscription, Done)
    return subscription


async def pushed(wire: NativeWire, subscription: int, count: int) -> list[Got]:
    found: list[Got] = []
    while len(found) < count:
        found += got_of(await wire.reply(subscription, Deliveries))
    assert len(found) == count
    return found


async def lease(wire: NativeWire, topic: str, limit: int, *, wait_ms: int = 0, view: str = QUEUE) -> list[Got]:
    return got_of(await wire.ask(Lease(topic, view, limit, wait_ms), Deliveries))


async def settle(wire: NativeWire, topic: str, outcome: str, *got: Got, **more: int) -> list[int]:
    request = Settle(topic, QUEUE, outcome, [one.receipt for one in got], **more)
    return (await wire.ask(request, Settled)).lost


async def view_of(wire: NativeWire, topic: str, view: str = QUEUE) -> View:
    (found,) = (await wire.ask(ListViews(topic, view), Views)).views
    return found


def values(got: list[Got]) -> list[bytes | None]:
    return [one.value for one in got]


# -- subscriptions ------------------------------------------------------------------------------------------


async def test_what_is_published_is_pushed_once_and_acked(native: NativeWire, topic: str) -> None:
    await native.create(topic, 2)
    await native.publish(topic, b"a", b"b")
    subscription = await subscribed(native, SubscribeQueue(topic, QUEUE, 100))
    await native.publish(topic, b"c", partition=1)
    got = await pushed(native, subscription, 3)
    assert sorted((one.partition, one.record.offset, one.value, one.attempt) for one in got) == [
        (0, 0, b"a", 1),
        (0, 1, b"b", 1),
        (1, 0, b"c", 1),
    ]
    assert await settle(native, topic, "ack", *got) == []
    assert await settle(native, topic, "ack", *got) == []  # again is fine
    counts = (await view_of(native, topic)).counts
    assert (counts["pending"], counts["processing"], counts["processed"]) == (0, 0, 3)


async def test_the_answer_comes_before_the_first_push(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    await native.publish(topic, *[b"x"] * 100)
    await native.ask(CreateView(topic, QUEUE), Views)
    subscription = native.send(SubscribeQueue(topic, QUEUE, 100))
    first = await native.of(subscription)
    assert isinstance(first, Done)
    assert len(await pushed(native, subscription, 100)) == 100


async def test_two_workers_share_the_work(server: Server, topic: str) -> None:
    wires = [await NativeWire.open(server.line) for _ in range(2)]
    await wires[0].create(topic)
    subscriptions = [await subscribed(wire, SubscribeQueue(topic, QUEUE, 5)) for wire in wires]
    await wires[0].publish(topic, *[str(number).encode() for number in range(10)])
    got = [await pushed(wire, subscription, 5) for wire, subscription in zip(wires, subscriptions, strict=True)]
    assert sorted(values(got[0] + got[1])) == sorted(str(number).encode() for number in range(10))
    for wire in wires:
        await wire.close()


async def test_settling_gives_credit_back_and_credit_can_be_raised(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    subscription = await subscribed(native, SubscribeQueue(topic, QUEUE, 2))
    await native.publish(topic, *[str(number).encode() for number in range(10)])
    first = await pushed(native, subscription, 2)
    assert values(first) == [b"0", b"1"]
    await native.ask(Ping(), Done)
    await settle(native, topic, "ack", first[0])
    assert values(await pushed(native, subscription, 1)) == [b"2"]
    native.send(AddCredit(subscription, 3))
    assert values(await pushed(native, subscription, 3)) == [b"3", b"4", b"5"]
    assert (await view_of(native, topic)).counts["processing"] == 5


async def test_a_message_returns_when_its_consumer_leaves(server: Server, topic: str) -> None:
    leaving, staying = await NativeWire.open(server.line), await NativeWire.open(server.line)
    await staying.create(topic)
    await staying.publish(topic, b"a", b"b", b"c")
    got = await pushed(leaving, await subscribed(leaving, SubscribeQueue(topic, QUEUE, 2)), 2)
    await settle(leaving, topic, "ack", got[0])
    leaving.writer.transport.abort()
    left = await pushed(staying, await subscribed(staying, SubscribeQueue(topic, QUEUE, 10)), 2)
    assert sorted(values(left)) == [b"b", b"c"]
    await staying.close()


async def test_unsubscribing_gives_back_what_is_unsettled(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    await native.publish(topic, b"a")
    subscription = await subscribed(native, SubscribeQueue(topic, QUEUE, 10))
    (got,) = await pushed(native, subscription, 1)
    assert await native.ask(Unsubscribe(subscription), Done) == Done(1)
    (again,) = await lease(native, topic, 1, wait_ms=15_000)
    assert again.receipt[0] == got.receipt[0]
    assert again.receipt[1] != got.receipt[1]
    assert await settle(native, topic, "ack", got, again) == [0]


async def test_large_messages_do_not_pile_up_before_a_worker_that_does_not_read(
    start_server: StartServer, topic: str
) -> None:
    server = start_server()
    helper, deaf = await NativeWire.open(server.line), await NativeWire.open(server.line)
    await helper.create(topic)
    for _ in range(100):
        await helper.publish(topic, bytes(900_000))
    rss_before = server.rss_bytes()
    subscription = await subscribed(deaf, SubscribeQueue(topic, QUEUE, 10_000))
    # While it does not read, only some are leased to it.
    assert (await view_of(helper, topic)).counts["processing"] < 100
    assert server.rss_bytes() - rss_before < 200 << 20
    # Once it does, all of them come.
    seen = 0
    while seen < 100:
        push = await deaf.reply(subscription, Deliveries)
        assert sum(len(part.batch) for part in push.leased) <= HELD_BYTES
        got = got_of(push)
        await settle(deaf, topic, "ack", *got)
        seen += len(got)
    assert (await view_of(helper, topic)).counts["processed"] == 100
    await helper.close()
    await deaf.close()


async def test_priorities_come_in_their_order(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    await native.ask(CreateView(topic, QUEUE, {"max_priority": 9}), Views)
    ranked = [
        Record(number, 1_900_000_000_000, None, rank, (("penstock-priority", rank),))
        for number, rank in enumerate((b"1", b"9", b"5", b"9"))
    ]
    await native.ask(Publish(-1, [Batch(topic, 0, bytes(encode_batch(ranked)))]), Published)
    subscription = await subscribed(native, SubscribeQueue(topic, QUEUE, 10))
    assert values(await pushed(native, subscription, 4)) == [b"9", b"9", b"5", b"1"]


def delivery(partition: int, offset: int) -> Delivery:
    record = Record(offset, 0, None, f"{partition}-{offset}".encode())
    return Delivery("t", partition, record, Receipt(partition << 48 | offset, 100 + offset), 1)


def test_deliveries_are_grouped_by_partition_with_rising_offsets() -> None:
    places = [(0, 5), (1, 3), (0, 6), (1, 4), (0, 2), (1, 9)]
    leased, size_bytes = leased_of([delivery(*place) for place in places])
    found = [[(part.partition, record.offset) for record in opened(part.batch)] for part in leased]
    assert found == [[(0, 5), (0, 6)], [(1, 3), (1, 4), (1, 9)], [(0, 2)]]
    assert size_bytes == sum(len(part.batch) for part in leased)
    assert [got.receipt for got in got_of(Deliveries(leased))] == [
        (partition << 48 | offset, 100 + offset) for part in found for partition, offset in part
    ]


def test_deliveries_that_must_not_change_their_order_do_not() -> None:
    places = [(0, 5), (1, 3), (0, 6), (0, 7), (1, 4), (0, 2), (1, 9)]
    leased, _ = leased_of([delivery(*place) for place in places], ordered=True)
    assert [(got.partition, got.record.offset) for got in got_of(Deliveries(leased))] == places
    assert len(leased) == 6


async def test_at_most_once_is_settled_before_it_comes(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    request = SubscribeQueue(topic, QUEUE, 2, settings={"guarantee": "at-most-once"})
    subscription = await subscribed(native, request)
    await native.publish(topic, b"a", b"b", b"c")
    assert values(await pushed(native, subscription, 2)) == [b"a", b"b"]
    native.send(AddCredit(subscription, 2))
    assert values(await pushed(native, subscription, 1)) == [b"c"]
    assert (await view_of(native, topic)).counts["processed"] == 3


# -- leases -------------------------------------------------------------------------------------------------


async def test_a_lease_waits_for_the_first(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    await native.ask(CreateView(topic, QUEUE), Views)
    assert await lease(native, topic, 10) == []
    waiting = native.send(Lease(topic, QUEUE, 10, 15_000))
    await native.publish(topic, b"here")
    (got,) = got_of(await native.reply(waiting, Deliveries))
    assert got.value == b"here"
    await settle(native, topic, "ack", got)


async def test_many_are_leased_at_once_and_of_large_ones_fewer(native: NativeWire, topic: str) -> None:
    await native.create(topic, 2)
    await native.ask(CreateView(topic, QUEUE), Views)
    await native.publish(topic, *[b"small"] * 3000)
    got: list[Got] = []
    while len(got) < 3000:
        got += await lease(native, topic, 10_000, wait_ms=15_000)
    assert len({one.receipt for one in got}) == 3000
    await settle(native, topic, "ack", *got)
    for _ in range(60):
        await native.publish(topic, bytes(500_000), partition=1)
    first = await lease(native, topic, 10_000, wait_ms=15_000)
    assert 0 < len(first) < 60
    seen = len(first)
    while seen < 60:
        seen += len(await lease(native, topic, 10_000, wait_ms=15_000))
    assert seen == 60


async def test_a_lease_outlives_its_connection(server: Server, native: NativeWire, topic: str) -> None:
    await native.create(topic)
    await native.ask(CreateView(topic, QUEUE), Views)
    await native.publish(topic, b"a")
    other = await NativeWire.open(server.line)
    (got,) = await lease(other, topic, 1, wait_ms=15_000)
    await other.close()
    assert await lease(native, topic, 1) == []
    assert await settle(native, topic, "ack", got) == []
    assert (await view_of(native, topic)).counts["processed"] == 1


async def test_a_lease_that_nobody_waits_for_takes_nothing(server: Server, native: NativeWire, topic: str) -> None:
    await native.create(topic)
    await native.ask(CreateView(topic, QUEUE), Views)
    for _ in range(5):
        going = await NativeWire.open(server.line)
        going.send(Lease(topic, QUEUE, 10, 600_000))
        await going.ask(Ping(), Done)
        going.writer.transport.abort()
    await native.publish(topic, b"a")
    (got,) = await lease(native, topic, 10, wait_ms=15_000)
    assert got.value == b"a"


@pytest.mark.parametrize("limit", [0, -1, 10_001])
async def test_a_limit_that_makes_no_sense(native: NativeWire, topic: str, limit: int) -> None:
    assert (await native.refused(Lease(topic, QUEUE, limit))).code == "invalid-request"
    assert (await native.refused(PeekView(topic, QUEUE, limit))).code == "invalid-request"


# -- settling -----------------------------------------------------------------------------------------------


async def test_every_outcome(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    settings = {"max_attempts": 3, "retry_initial_ms": 0}
    subscription = await subscribed(native, SubscribeQueue(topic, QUEUE, 100, settings=settings))
    await native.publish(topic, b"nack", b"reject", b"release", b"extend")
    nack, reject, release, extend = await pushed(native, subscription, 4)
    assert await settle(native, topic, "nack", nack, delay_ms=0) == []
    (again,) = await pushed(native, subscription, 1)
    assert (again.value, again.attempt) == (b"nack", 2)
    assert await settle(native, topic, "release", release) == []
    (again,) = await pushed(native, subscription, 1)
    assert (again.value, again.attempt) == (b"release", 1)
    assert await settle(native, topic, "extend", extend, lease_ms=60_000) == []
    assert await settle(native, topic, "reject", reject) == []
    dead = await subscribed(native, SubscribeQueue(f"{topic}.{QUEUE}.dead", QUEUE, 10))
    (buried,) = await pushed(native, dead, 1)
    assert buried.value == b"reject"
    assert ("penstock-dead-reason", b"rejected") in buried.record.headers
    counts = (await view_of(native, topic)).counts
    assert (counts["pending"], counts["processing"], counts["dead"]) == (0, 3, 1)


async def test_settlements_that_are_refused(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    assert (await native.refused(Settle(topic, QUEUE, "ack", [(0, 0)]))).code == "unknown-view"
    await native.ask(CreateView(topic, QUEUE), Views)
    assert (await native.refused(Settle(topic, QUEUE, "forget", [(0, 0)]))).code == "invalid-request"
    assert (await native.ask(Settle(topic, QUEUE, "ack", []), Settled)).lost == []


@pytest.mark.parametrize("place", [-1, 1 << 62, (1 << 63) - 1, 12345 << 48 | 7, (1 << 48) - 1])
async def test_receipts_of_nothing_harm_nothing(native: NativeWire, topic: str, place: int) -> None:
    await native.create(topic)
    subscription = await subscribed(native, SubscribeQueue(topic, QUEUE, 10))
    for outcome in ("ack", "nack", "reject", "release", "extend"):
        answer = await native.of(native.send(Settle(topic, QUEUE, outcome, [(place, 1), (place, -5)])))
        assert not (hasattr(answer, "code") and answer.code == "internal-error"), answer
    await native.publish(topic, b"a")
    (got,) = await pushed(native, subscription, 1)
    assert await settle(native, topic, "ack", got) == []


async def test_what_was_settled_survives_a_kill(start_server: StartServer, topic: str) -> None:
    server = start_server()
    wire = await NativeWire.open(server.line)
    await wire.create(topic)
    await wire.publish(topic, *[str(number).encode() for number in range(10)])
    got = await pushed(wire, await subscribed(wire, SubscribeQueue(topic, QUEUE, 10)), 10)
    assert await settle(wire, topic, "ack", *got[::2]) == []
    server.kill()
    server.restart()
    wire = await NativeWire.open(server.line)
    left = await pushed(wire, await subscribed(wire, SubscribeQueue(topic, QUEUE, 10)), 5)
    assert sorted(values(left)) == [str(number).encode() for number in range(1, 10, 2)]
    await wire.close()


# -- steps --------------------------------------------------------------------------------------------------


async def test_a_step_settles_and_publishes_once(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    await native.create(topic + "-out")
    subscription = await subscribed(native, SubscribeQueue(topic, QUEUE, 10))
    await native.publish(topic, b"a", b"b")
    first, second = await pushed(native, subscription, 2)
    out = [
        StepMessage(topic + "-out", b"key", b"one", [("h", b"1"), ("n", None)], 1_900_000_000_000),
        StepMessage(topic + "-out", None, b"two"),
    ]
    step = Step(topic, QUEUE, "step-1", [first.receipt], out)
    assert await native.ask(step, Done) == Done(1)
    assert await native.ask(step, Done) == Done(0)
    assert await native.values(topic + "-out") == [b"one", b"two"]
    lost = Step(topic, QUEUE, "step-2", [(second.receipt[0], 1)], out)
    assert (await native.refused(lost)).code == "lease-lost"
    assert await native.values(topic + "-out") == [b"one", b"two"]
    counts = (await view_of(native, topic)).counts
    assert (counts["processing"], counts["processed"]) == (1, 1)


# -- views --------------------------------------------------------------------------------------------------


async def test_a_view_lives_and_dies(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    await native.publish(topic, b"before")
    made = (
        await native.ask(CreateView(topic, "v", {"max_attempts": 3, "retry_factor": 1.5}, start="latest"), Views)
    ).views
    assert (made[0].topic, made[0].name, made[0].paused) == (topic, "v", False)
    assert (made[0].settings["max_attempts"], made[0].settings["retry_factor"]) == (3, 1.5)
    assert (await native.refused(CreateView(topic, "v"))).code == "view-exists"
    existing = (await native.ask(CreateView(topic, "v", or_existing=True), Views)).views
    assert existing[0].settings["max_attempts"] == 3

    request = ConfigureView(topic, "v", {"lease_ms": 5000}, [{"key": "k"}])
    (changed,) = (await native.ask(request, Views)).views
    assert (changed.settings["max_attempts"], changed.settings["lease_ms"]) == (3, 5000)
    assert changed.sources == [(topic, [{"key": "k"}])]
    assert [view.name for view in (await native.ask(ListViews(topic), Views)).views] == ["v"]
    assert (topic, "v") in [(view.topic, view.name) for view in (await native.ask(ListViews(), Views)).views]

    subscription = await subscribed(native, SubscribeQueue(topic, "v", 10, create=False))
    await native.ask(DeleteView(topic, "v"), Done)
    assert (await native.of(subscription)).code == "unknown-view"
    assert (await native.refused(ListViews(topic, "v"))).code == "unknown-view"
    assert (await native.refused(SubscribeQueue(topic, "v", 10, create=False))).code == "unknown-view"


async def test_views_that_are_refused(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    assert (await native.refused(CreateView(topic, "no/slash"))).code == "invalid-view-name"
    assert (await native.refused(CreateView(topic, "v", {"colour": "red"}))).code == "invalid-setting"
    assert (await native.refused(CreateView(topic, "v", {"max_attempts": "three"}))).code == "invalid-setting"
    assert (await native.refused(CreateView(topic, "v", {"max_attempts": -3}))).code == "invalid-setting"
    assert (await native.refused(CreateView(topic, "v", start="middle"))).code == "invalid-request"
    assert (await native.refused(ListViews(None, "v"))).code == "invalid-request"
    for request in (DeleteView, PurgeView, PeekView, RedriveView):
        assert (await native.refused(request(topic, "nothing"))).code == "unknown-view"
    assert (await native.refused(PauseView(topic, "nothing", True))).code == "unknown-view"
    assert (await native.refused(ConfigureView(topic, "nothing"))).code == "unknown-view"


async def test_peek_pause_purge_and_redrive(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    await native.ask(CreateView(topic, QUEUE), Views)
    await native.publish(topic, b"a", b"b", b"c")
    peeked = got_of(await native.ask(PeekView(topic, QUEUE, 2), Deliveries))
    assert [(one.value, one.receipt[1]) for one in peeked] == [(b"a", 0), (b"b", 0)]

    await native.ask(PauseView(topic, QUEUE, True), Done)
    assert (await view_of(native, topic)).paused
    assert await lease(native, topic, 1) == []
    await native.ask(PauseView(topic, QUEUE, False), Done)
    (got,) = await lease(native, topic, 1, wait_ms=15_000)
    await settle(native, topic, "reject", got)
    assert await native.ask(PurgeView(topic, QUEUE), Done) == Done(2)

    dead = await subscribed(native, SubscribeQueue(f"{topic}.{QUEUE}.dead", "watch", 10))
    assert values(await pushed(native, dead, 1)) == [b"a"]
    assert await native.ask(RedriveView(topic, QUEUE), Done) == Done(1)
    (again,) = await lease(native, topic, 1, wait_ms=15_000)
    assert (again.value, again.attempt) == (b"a", 1)


async def test_a_deleted_topic_takes_its_views_along(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    subscription = await subscribed(native, SubscribeQueue(topic, QUEUE, 10))
    await native.ask(DeleteTopic(topic), Done)
    assert (await native.of(subscription)).code in ("unknown-topic", "unknown-view")
    assert (await native.refused(Lease(topic, QUEUE, 1))).code in ("unknown-topic", "unknown-view")


# -- routers ------------------------------------------------------------------------------------------------


async def test_a_router_takes_messages_where_they_belong(native: NativeWire, topic: str) -> None:
    (router,) = (await native.ask(CreateRouter(topic, "topic"), Routers)).routers
    assert (router.name, router.kind, router.bindings) == (topic, "topic", [])
    paid = BindingFields(f"{topic}-work/paid", key="*.paid")
    copied = BindingFields(f"{topic}-all", key="#")
    await native.ask(Bind(topic, paid), Routers)
    (router,) = (await native.ask(Bind(topic, copied), Routers)).routers
    assert sorted(bound.to for bound in router.bindings) == sorted([paid.to, copied.to])
    assert topic in [router.name for router in (await native.ask(ListRouters(), Routers)).routers]

    now = [Record(0, 1_900_000_000_000, b"eu.paid", b"1"), Record(1, 1_900_000_000_000, b"eu.open", b"2")]
    await native.ask(Publish(-1, [Batch(topic, 0, bytes(encode_batch(now)))]), Published)
    work = await subscribed(native, SubscribeQueue(f"{topic}-work", "paid", 10, create=False))
    assert values(await pushed(native, work, 1)) == [b"1"]
    copies = await subscribed(native, SubscribeQueue(f"{topic}-all", QUEUE, 10))
    assert sorted(values(await pushed(native, copies, 2))) == [b"1", b"2"]

    (router,) = (await native.ask(Unbind(topic, copied), Routers)).routers
    assert [bound.to for bound in router.bindings] == [paid.to]
    await native.ask(DeleteRouter(topic), Done)
    assert topic not in [router.name for router in (await native.ask(ListRouters(), Routers)).routers]


async def test_routers_that_are_refused(native: NativeWire, topic: str) -> None:
    assert (await native.refused(CreateRouter(topic, "magic"))).code == "invalid-request"
    assert (await native.refused(DeleteRouter(topic))).code == "unknown-router"
    assert (await native.refused(Bind(topic, BindingFields("x")))).code == "unknown-router"
    await native.ask(CreateRouter(topic, "fanout"), Routers)
    assert (await native.refused(CreateRouter(topic, "direct"))).code == "router-exists"
    with pytest.raises(Refused, match="invalid"):
        await native.ask(Bind(topic, BindingFields("x", key="not for a fanout")), Routers)
