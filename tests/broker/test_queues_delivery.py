"""Queue views over a real log: what is published arrives, in order, and again when it was not settled."""

import asyncio
import struct

import pytest
from crc32c import crc32c
from queue_house import QueueHouse, soon, ticks, until, values

from penstock.broker.queues import DEFAULT_VIEW, Match, Outcome, QueueSettings, Source, Status
from penstock.model.batch import check_batch, encode_batch
from penstock.model.errors import (
    InvalidRequest,
    InvalidSetting,
    InvalidViewName,
    LeaseLost,
    LimitReached,
    NotAllowed,
    StorageFull,
    UnknownPartition,
    UnknownTopic,
    UnknownView,
    ViewExists,
)
from penstock.model.message import DELAY_MS, DELIVER_AT_MS, ONLY_FOR, PRIORITY, TTL_MS
from penstock.model.record import Record
from penstock.security.acl import AllowAll, Operation, Resource
from penstock.security.principal import ANONYMOUS, Principal

# -- leasing and settling -------------------------------------------------------------------------------------------


async def test_what_was_published_is_leased_in_order_and_settled_once(queue_house: QueueHouse) -> None:
    await queue_house.create()
    await queue_house.publish(b"a", b"b", b"c")
    leased = await queue_house.lease()
    assert values(leased) == [b"a", b"b", b"c"]
    assert [(d.topic, d.partition, d.record.offset, d.attempt) for d in leased] == [
        ("orders", 0, 0, 1), ("orders", 0, 1, 1), ("orders", 0, 2, 1),
    ]  # fmt: skip
    assert await queue_house.lease() == []
    await queue_house.ack(leased)
    counts = queue_house.counts()
    assert (counts.pending, counts.processing, counts.processed, counts.acked) == (0, 0, 3, 3)


async def test_a_lease_takes_no_more_than_it_asked_for(queue_house: QueueHouse) -> None:
    await queue_house.create()
    await queue_house.publish(*(b"%d" % i for i in range(10)))
    assert values(await queue_house.lease(3)) == [b"0", b"1", b"2"]
    assert values(await queue_house.lease(3)) == [b"3", b"4", b"5"]
    assert queue_house.counts().pending == 4
    assert queue_house.counts().processing == 6


async def test_a_lease_that_waits_gets_what_is_published_meanwhile(queue_house: QueueHouse) -> None:
    await queue_house.create()
    waiting = asyncio.create_task(queue_house.lease(5, wait_ms=15_000))
    await ticks()
    assert not waiting.done()
    await queue_house.publish(b"late")
    assert values(await soon(waiting)) == [b"late"]


async def test_a_lease_that_waits_in_vain_comes_back_empty(queue_house: QueueHouse) -> None:
    await queue_house.create()
    assert await queue_house.lease(5, wait_ms=30) == []
    await queue_house.publish(b"a")
    assert values(await queue_house.lease()) == [b"a"]


async def test_a_caller_that_vanishes_takes_nothing_with_it(queue_house: QueueHouse) -> None:
    await queue_house.create()
    for _ in range(20):
        waiting = asyncio.create_task(queue_house.queues.lease(ANONYMOUS, "orders", "queue", 5, wait_ms=15_000))
        await ticks(2)
        published = asyncio.create_task(queue_house.publish(b"x"))
        await ticks(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await published
        again = await queue_house.lease(wait_ms=10_000)
        assert values(again) == [b"x"]
        assert [d.attempt for d in again] == [1]
        await queue_house.ack(again)
    assert queue_house.counts().processing == 0


async def test_a_message_returns_when_its_lease_ends(queue_house: QueueHouse) -> None:
    await queue_house.create(lease_ms=1000, retry_initial_ms=0, retry_jitter=0.0)
    await queue_house.publish(b"a")
    first = await queue_house.lease()
    queue_house.advance(1001)
    second = await queue_house.lease()
    assert values(second) == [b"a"]
    assert second[0].attempt == 2
    (lost,) = await queue_house.settle(Outcome.ACK, first)
    assert isinstance(lost, LeaseLost)
    await queue_house.ack(second)


async def test_a_lease_is_extended(queue_house: QueueHouse) -> None:
    await queue_house.create(lease_ms=1000)
    await queue_house.publish(b"a")
    leased = await queue_house.lease()
    queue_house.advance(900)
    assert await queue_house.settle(Outcome.EXTEND, leased, lease_ms=5000) == [None]
    queue_house.advance(4000)
    assert await queue_house.lease() == []
    await queue_house.ack(leased)


async def test_a_nack_comes_again_after_its_back_off(queue_house: QueueHouse) -> None:
    await queue_house.create(retry_initial_ms=1000, retry_factor=2.0, retry_jitter=0.0)
    await queue_house.publish(b"a")
    assert await queue_house.settle(Outcome.NACK, await queue_house.lease()) == [None]
    assert await queue_house.lease() == []
    assert queue_house.counts().delayed == 1
    queue_house.advance(1001)
    again = await queue_house.lease()
    assert [(d.record.value, d.attempt) for d in again] == [(b"a", 2)]
    assert await queue_house.settle(Outcome.NACK, again, delay_ms=50) == [None]
    queue_house.advance(51)
    assert [d.attempt for d in await queue_house.lease()] == [3]


async def test_what_is_released_is_as_if_it_had_not_been_tried(queue_house: QueueHouse) -> None:
    await queue_house.create()
    await queue_house.publish(b"a", b"b")
    leased = await queue_house.lease()
    assert await queue_house.settle(Outcome.RELEASE, leased) == [None, None]
    again = await queue_house.lease()
    assert [(d.record.value, d.attempt) for d in again] == [(b"a", 1), (b"b", 1)]


async def test_status_is_visible_per_message(queue_house: QueueHouse) -> None:
    await queue_house.create()
    await queue_house.publish(b"a", b"b", b"c")
    first, second = await queue_house.lease(2)
    await queue_house.ack([first])
    statuses = [queue_house.queues.status_of(ANONYMOUS, "orders", "queue", 0, offset) for offset in range(3)]
    assert statuses == [Status.PROCESSED, Status.PROCESSING, Status.PENDING]
    assert second.receipt == queue_house.receipt(1, second.receipt.number)
    with pytest.raises(UnknownPartition):
        queue_house.queues.status_of(ANONYMOUS, "orders", "queue", 7, 0)


async def test_peeking_takes_nothing(queue_house: QueueHouse) -> None:
    await queue_house.create()
    await queue_house.publish(b"a", b"b", b"c")
    peeked = await queue_house.queues.peek(ANONYMOUS, "orders", "queue", 2)
    assert values(peeked) == [b"a", b"b"]
    assert {d.receipt.number for d in peeked} == {0}
    leased = await queue_house.lease(1)
    assert values(leased) == [b"a"]
    assert values(await queue_house.queues.peek(ANONYMOUS, "orders", "queue")) == [b"b", b"c"]
    assert values(await queue_house.lease()) == [b"b", b"c"]


# -- subscriptions --------------------------------------------------------------------------------------------------


async def test_a_subscriber_gets_what_is_there_and_what_comes_within_its_credit(queue_house: QueueHouse) -> None:
    await queue_house.create()
    await queue_house.publish(b"1", b"2", b"3")
    crowd = await queue_house.subscribe(2)
    await crowd.has(2)
    await ticks()
    assert crowd.values == [b"1", b"2"]
    await queue_house.ack(crowd.got[:1])
    await crowd.has(3)
    await queue_house.publish(b"4")
    crowd.subscription.add_credit(1)
    await crowd.has(4)
    assert crowd.values == [b"1", b"2", b"3", b"4"]


async def test_what_a_leaver_held_goes_to_the_others_at_once(queue_house: QueueHouse) -> None:
    await queue_house.create()
    await queue_house.publish(b"1", b"2")
    leaver = await queue_house.subscribe()
    await leaver.has(2)
    other = await queue_house.subscribe()
    leaver.subscription.close()
    await other.has(2)
    assert sorted(other.values) == [b"1", b"2"]
    leaver.subscription.close()  # twice is once
    assert queue_house.counts().consumers == 1


async def test_dispatch_is_fair(queue_house: QueueHouse) -> None:
    await queue_house.create()
    crowds = [await queue_house.subscribe(100, ack=True) for _ in range(4)]
    for i in range(40):
        await queue_house.publish(b"%d" % i)
    await until(lambda: sum(len(c.got) for c in crowds) == 40)
    assert [len(c.got) for c in crowds] == [10, 10, 10, 10]


async def test_a_subscriber_that_fails_is_closed_and_the_others_get_its_messages(queue_house: QueueHouse) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("the connection is gone")

    await queue_house.create()
    await queue_house.queues.subscribe(ANONYMOUS, "orders", "queue", fail, 10)
    await queue_house.publish(b"a")
    await until(lambda: queue_house.counts().consumers == 0)
    assert values(await queue_house.lease(wait_ms=5000)) == [b"a"]


async def test_ten_thousand_messages_pass_once_each_in_order(queue_house: QueueHouse) -> None:
    await queue_house.create()
    crowd = await queue_house.subscribe(1000, ack=True)
    sent = [b"%d" % i for i in range(10_000)]
    for start in range(0, len(sent), 500):
        await queue_house.publish(*sent[start : start + 500])
    await crowd.has(len(sent))
    assert crowd.values == sent
    await until(lambda: queue_house.counts().processed == len(sent))


async def test_what_the_shelf_could_not_keep_is_read_from_the_log(
    queue_house: QueueHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.view_records.MAX_KEPT_BYTES_PER_VIEW", 2000)
    await queue_house.create()
    sent = [b"%d" % i for i in range(500)]
    for start in range(0, len(sent), 100):
        await queue_house.publish(*sent[start : start + 100])
    got: list[bytes | None] = []
    while leased := await queue_house.lease(70):
        got += values(leased)
        await queue_house.ack(leased)
    assert got == sent


# -- several partitions, several sources ----------------------------------------------------------------------------


async def test_all_partitions_are_read_and_each_in_order(queue_house: QueueHouse) -> None:
    await queue_house.create(partitions=4)
    for i in range(40):
        await queue_house.publish(b"%d" % i, partition=i % 4)
    got = await queue_house.lease_all(40)
    for partition in range(4):
        mine = [int(d.record.value or b"") for d in got if d.partition == partition]
        assert mine == list(range(partition, 40, 4))
    await queue_house.ack(got)
    assert queue_house.counts().processed == 40


async def test_a_partition_that_is_added_is_read_by_whoever_waits(queue_house: QueueHouse) -> None:
    await queue_house.create()
    crowd = await queue_house.subscribe()
    await queue_house.topics.add_partitions("orders", 3)
    await queue_house.publish(b"there", partition=2)
    await crowd.has(1)
    assert [(d.partition, d.record.value) for d in crowd.got] == [(2, b"there")]
    assert queue_house.queues.receipt("orders", "queue", 2, 0, 5).number == 5


async def test_a_view_reads_other_topics_by_their_matches(queue_house: QueueHouse) -> None:
    await queue_house.create()
    await queue_house.topics.create("events", 1, {})
    await queue_house.publish(b"before", topic="events", key=b"order")
    source = Source("events", (Match(key="order"),))
    info = await queue_house.queues.add_source(ANONYMOUS, "orders", "queue", source)
    assert info.sources == (Source("orders"), source)
    crowd = await queue_house.subscribe(ack=True)
    await queue_house.publish(b"yes", topic="events", key=b"order")
    await queue_house.publish(b"no", topic="events", key=b"invoice")
    await queue_house.publish(b"own")
    await crowd.has(2)
    assert sorted(crowd.values) == [b"own", b"yes"]

    await queue_house.queues.add_source(ANONYMOUS, "orders", "queue", source)  # again: nothing new
    wider = Source("events", (Match(key="order"), Match(key="invoice")))
    await queue_house.queues.add_source(ANONYMOUS, "orders", "queue", wider)
    await queue_house.publish(b"now yes", topic="events", key=b"invoice")
    await crowd.has(3)
    assert crowd.values[2] == b"now yes"

    await queue_house.queues.remove_source(ANONYMOUS, "orders", "queue", "events")
    await queue_house.queues.remove_source(ANONYMOUS, "orders", "queue", "events")
    await queue_house.publish(b"nobody's", topic="events", key=b"order")
    await queue_house.publish(b"still own")
    await crowd.has(4)
    assert crowd.values[3] == b"still own"
    assert queue_house.queues.describe(ANONYMOUS, "orders", "queue").sources == (Source("orders"),)


async def test_many_views_share_one_copy_and_each_has_its_own_state(queue_house: QueueHouse) -> None:
    await queue_house.create(name="mail")
    await queue_house.create(name="stock")
    await queue_house.publish(b"a")
    mail = await queue_house.lease(name="mail")
    await queue_house.ack(mail, name="mail")
    assert (queue_house.counts(name="mail").processed, queue_house.counts(name="stock").pending) == (1, 1)
    assert values(await queue_house.lease(name="stock")) == [b"a"]
    assert await queue_house.values_of("orders") == [b"a"]


async def test_a_filter_passes_over_what_it_refuses(queue_house: QueueHouse) -> None:
    await queue_house.topics.create("orders", 1, {})
    await queue_house.queues.create(
        ANONYMOUS, "orders", "dk", matches=[Match(headers={"country": "dk"}), Match(pattern="vip.#")]
    )
    await queue_house.publish(b"1", headers=(("country", b"dk"),))
    await queue_house.publish(b"2", headers=(("country", b"se"),))
    await queue_house.publish(b"3", key=b"vip.se.7")
    leased = await queue_house.lease(name="dk")
    assert values(leased) == [b"1", b"3"]
    await queue_house.ack(leased, name="dk")
    await queue_house.queues.configure(ANONYMOUS, "orders", "dk", QueueSettings(), matches=())
    await queue_house.publish(b"4")
    assert values(await queue_house.lease(name="dk")) == [b"4"]


async def test_what_is_only_for_another_view_is_passed_over(queue_house: QueueHouse) -> None:
    await queue_house.create(name="mail")
    await queue_house.create(name="stock")
    await queue_house.publish(b"a", headers=((ONLY_FOR, b"orders/mail"),))
    assert values(await queue_house.lease(name="stock")) == []
    assert values(await queue_house.lease(name="mail")) == [b"a"]


# -- time and importance --------------------------------------------------------------------------------------------


async def test_delays_of_a_message_and_of_a_view(queue_house: QueueHouse) -> None:
    await queue_house.create(delay_ms=1000)
    crowd = await queue_house.subscribe()
    at = queue_house.clock.wall_ms() + 9000
    await queue_house.publish(b"view's")
    await queue_house.publish(b"own", headers=((DELAY_MS, b"5000"),))
    await queue_house.publish(b"at", headers=((DELIVER_AT_MS, b"%d" % at), (DELAY_MS, b"1")))
    await queue_house.publish(b"nonsense", headers=((DELAY_MS, b"soon"),))
    await until(lambda: queue_house.counts().delayed == 4)
    queue_house.advance(1000)
    await crowd.has(2)
    queue_house.advance(4000)
    await crowd.has(3)
    queue_house.advance(3999)
    await ticks()
    assert crowd.values == [b"view's", b"nonsense", b"own"]
    queue_house.advance(1)
    await crowd.has(4)
    assert crowd.values[3] == b"at"


async def test_what_outlived_its_time_is_dead(queue_house: QueueHouse) -> None:
    await queue_house.create(ttl_ms=10_000)
    await queue_house.publish(b"short", headers=((TTL_MS, b"1000"),))
    await queue_house.publish(b"long", headers=((TTL_MS, b"99999"),))
    queue_house.advance(2000)
    assert values(await queue_house.lease(1)) == [b"long"]
    queue_house.advance(8000)
    await queue_house.publish(b"fresh")
    assert values(await queue_house.lease(1, wait_ms=5000)) == [b"fresh"]
    await until(lambda: "orders.queue.dead" in queue_house.topics.by_name)
    await until(lambda: queue_house.counts().expired == 1)


async def test_the_important_overtake(queue_house: QueueHouse) -> None:
    await queue_house.create(max_priority=9)
    await queue_house.publish(b"low")
    await queue_house.publish(b"high", headers=((PRIORITY, b"9"),))
    await queue_house.publish(b"middle", headers=((PRIORITY, b"4"),))
    assert values(await queue_house.lease(1, wait_ms=1000)) == [b"high"]
    assert values(await queue_house.lease(2)) == [b"middle", b"low"]


async def test_one_key_is_with_one_consumer_at_a_time(queue_house: QueueHouse) -> None:
    await queue_house.create(ordered_by_key=True)
    for value, key in ((b"a1", b"a"), (b"a2", b"a"), (b"b1", b"b")):
        await queue_house.publish(value, key=key)
    first = await queue_house.lease()
    assert sorted(values(first)) in ([b"a1", b"a2", b"b1"], [b"a1", b"b1"])
    one = await queue_house.lease(1)
    assert one == []
    await queue_house.ack(first)


async def test_one_consumer_is_active_and_the_next_takes_over(queue_house: QueueHouse) -> None:
    await queue_house.create(single_active=True)
    first, second = await queue_house.subscribe(ack=True), await queue_house.subscribe(ack=True)
    await queue_house.publish(b"1", b"2")
    await first.has(2)
    assert second.values == []
    first.subscription.close()
    await queue_house.publish(b"3")
    await second.has(1)
    assert second.values == [b"3"]


# -- the view as a whole --------------------------------------------------------------------------------------------


async def test_a_paused_view_hands_out_nothing_until_it_goes_on(queue_house: QueueHouse) -> None:
    await queue_house.create()
    await queue_house.queues.pause(ANONYMOUS, "orders", "queue", paused=True)
    assert queue_house.queues.describe(ANONYMOUS, "orders", "queue").paused
    crowd = await queue_house.subscribe()
    await queue_house.publish(b"a")
    await ticks()
    assert crowd.got == []
    await queue_house.queues.pause(ANONYMOUS, "orders", "queue", paused=False)
    await crowd.has(1)
    assert not queue_house.queues.describe(ANONYMOUS, "orders", "queue").paused


async def test_purging_settles_what_waits_and_leaves_what_is_leased(queue_house: QueueHouse) -> None:
    await queue_house.create()
    await queue_house.publish(*(b"%d" % i for i in range(100)))
    leased = await queue_house.lease(5)
    assert await queue_house.queues.purge(ANONYMOUS, "orders", "queue") == 95
    assert await queue_house.lease() == []
    await queue_house.ack(leased)
    await queue_house.publish(b"new")
    assert values(await queue_house.lease()) == [b"new"]


async def test_views_are_made_listed_and_deleted(queue_house: QueueHouse) -> None:
    queues = queue_house.queues
    info = await queues.create(ANONYMOUS, "made", DEFAULT_VIEW)
    assert (info.topic, info.name, info.sources) == ("made", "queue", (Source("made"),))
    assert queue_house.topics.get("made").settings.settled
    with pytest.raises(ViewExists):
        await queues.create(ANONYMOUS, "made", "queue")
    same = await queues.create(ANONYMOUS, "made", "queue", QueueSettings(lease_ms=5), or_existing=True)
    assert same.settings == QueueSettings(guarantee="at-least-once")
    await queues.create(ANONYMOUS, "other", "queue")
    assert [(v.topic, v.name) for v in queues.views(ANONYMOUS)] == [("made", "queue"), ("other", "queue")]
    assert [v.topic for v in queues.views(ANONYMOUS, "other")] == ["other"]

    crowd = await queue_house.subscribe(topic="made")
    waiting = asyncio.create_task(queues.lease(ANONYMOUS, "made", "queue", 1, wait_ms=15_000))
    await ticks()
    await queues.delete(ANONYMOUS, "made", "queue")
    with pytest.raises(UnknownView):
        await soon(waiting)
    assert [type(error) for error in crowd.ended] == [UnknownView]
    crowd.subscription.close()
    for call in (
        lambda: queues.describe(ANONYMOUS, "made", "queue"),
        lambda: queues.settle(ANONYMOUS, "made", "queue", Outcome.ACK, []),
        lambda: queues.receipt("made", "queue", 0, 0, 0),
    ):
        with pytest.raises(UnknownView):
            call()
    with pytest.raises(UnknownView):
        await queues.delete(ANONYMOUS, "made", "queue")


async def test_two_who_make_the_same_view_at_once_make_one(queue_house: QueueHouse) -> None:
    made = [queue_house.queues.create(ANONYMOUS, "orders", "queue") for _ in range(3)]
    results = await asyncio.gather(*made, return_exceptions=True)
    assert sum(isinstance(result, ViewExists) for result in results) == 2


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250, "__mine"])
async def test_names_that_are_not_allowed_are_refused(queue_house: QueueHouse, name: str) -> None:
    with pytest.raises(InvalidViewName):
        await queue_house.queues.create(ANONYMOUS, "orders", name)


async def test_settings_that_make_no_sense_are_refused(queue_house: QueueHouse) -> None:
    for settings in (
        QueueSettings(lease_ms=-1), QueueSettings(dead_letter="orders"), QueueSettings(dead_letter="a b"),
        QueueSettings(dead_letter="__penstock_catalogue"),
    ):  # fmt: skip
        with pytest.raises(InvalidSetting):
            await queue_house.queues.create(ANONYMOUS, "orders", "queue", settings)
    with pytest.raises(InvalidSetting, match="dead_letter"):
        await queue_house.queues.create(ANONYMOUS, "o" * 200, "v" * 200)
    assert queue_house.queues.views(ANONYMOUS) == []
    await queue_house.create()
    for limit in (0, -1):
        with pytest.raises(InvalidRequest):
            await queue_house.lease(limit)


async def test_a_view_of_a_topic_that_nobody_may_make_is_refused(queue_house: QueueHouse) -> None:
    queue_house.administrator.auto_create_topics = False
    with pytest.raises(UnknownTopic):
        await queue_house.queues.create(ANONYMOUS, "orders", "queue")


async def test_the_number_of_views_is_bounded(queue_house: QueueHouse) -> None:
    queue_house.max_views = 2
    if queue_house.kind == "disk":
        await queue_house.restart()
    else:
        await queue_house.open()
    await queue_house.create(name="a")
    await queue_house.create(name="b")
    with pytest.raises(LimitReached, match="max_views"):
        await queue_house.create(name="c")


async def test_a_view_that_begins_at_the_end_sees_only_what_comes(queue_house: QueueHouse) -> None:
    await queue_house.topics.create("orders", 1, {})
    await queue_house.publish(b"old")
    await queue_house.queues.create(ANONYMOUS, "orders", "queue", start="latest")
    await queue_house.publish(b"new")
    assert values(await queue_house.lease()) == [b"new"]


async def test_a_view_takes_over_the_guarantee_of_its_topic(queue_house: QueueHouse) -> None:
    await queue_house.topics.create("orders", 1, {"delivery.guarantee": "at-most-once"})
    info = await queue_house.queues.create(ANONYMOUS, "orders", "queue")
    assert info.settings.guarantee == "at-most-once"
    await queue_house.publish(b"a", b"b")
    assert values(await queue_house.lease()) == [b"a", b"b"]
    assert queue_house.counts().processed == 2


async def test_a_view_that_nobody_uses_ends(queue_house: QueueHouse) -> None:
    await queue_house.create(expires_ms=10_000)
    queue_house.advance(9000)
    assert await queue_house.lease() == []
    crowd = await queue_house.subscribe()
    queue_house.advance(30_000)
    await ticks()
    crowd.subscription.close()
    queue_house.advance(9000)
    await ticks()
    assert len(queue_house.queues.views(ANONYMOUS)) == 1
    for _ in range(3):
        queue_house.advance(10_000)
        await ticks()
    await until(lambda: queue_house.queues.views(ANONYMOUS) == [])


async def test_a_deleted_topic_takes_its_views_with_it(queue_house: QueueHouse) -> None:
    await queue_house.create()
    await queue_house.topics.create("events", 1, {})
    await queue_house.create("mail")
    await queue_house.queues.add_source(ANONYMOUS, "mail", "queue", Source("events"))
    await queue_house.publish(b"e", topic="events")
    crowd = await queue_house.subscribe(topic="mail")
    await crowd.has(1)
    await queue_house.administrator.delete_topic(ANONYMOUS, "events")
    await queue_house.administrator.delete_topic(ANONYMOUS, "orders")
    assert [(v.topic, v.sources) for v in queue_house.queues.views(ANONYMOUS)] == [("mail", (Source("mail"),))]
    await queue_house.publish(b"m", topic="mail")
    await crowd.has(2)
    await queue_house.ack(crowd.got[1:], topic="mail")
    # A topic of the same name is another topic.
    await queue_house.create()
    await queue_house.publish(b"new")
    assert values(await queue_house.lease()) == [b"new"]


# -- rights and failures --------------------------------------------------------------------------------------------


class ReadersOnly(AllowAll):
    """Bob may read what is there, and nothing else."""

    def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
        return principal.name != "bob" or operation is Operation.READ

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        if not self.allows(principal, operation, resource, name):
            raise NotAllowed(f"{operation} {resource} {name}")


async def test_every_verb_asks_whether_it_is_allowed(tmp_path) -> None:
    from penstock.testing.clock import ManualClock

    house = await QueueHouse("memory", tmp_path, ManualClock(), ReadersOnly()).open()
    bob, queues = Principal("bob"), house.queues
    await house.create()
    await house.publish(b"a")
    (leased,) = await queues.lease(bob, "orders", "queue", 1)
    assert await queues.settle(bob, "orders", "queue", Outcome.ACK, [leased.receipt]) == [None]
    for refused in (
        queues.create(bob, "orders", "mine"),
        queues.configure(bob, "orders", "queue", QueueSettings()),
        queues.delete(bob, "orders", "queue"),
        queues.pause(bob, "orders", "queue", paused=True),
        queues.purge(bob, "orders", "queue"),
        queues.redrive(bob, "orders", "queue"),
        queues.add_source(bob, "orders", "queue", Source("orders")),
        queues.remove_source(bob, "orders", "queue", "orders"),
    ):
        with pytest.raises(NotAllowed):
            await refused
    for call in (
        lambda: queues.describe(bob, "orders", "queue"),
        lambda: queues.status_of(bob, "orders", "queue", 0, 0),
    ):
        with pytest.raises(NotAllowed):
            call()
    assert queues.views(bob) == []
    await house.close()


async def test_a_ledger_that_fails_answers_with_its_failure_and_loses_nothing(queue_house: QueueHouse) -> None:
    await queue_house.create(retry_initial_ms=0, retry_jitter=0.0)
    await queue_house.publish(b"a", b"b")
    leased = await queue_house.lease()
    queue_house.ledger.failing = StorageFull("no space left")
    with pytest.raises(StorageFull):
        await queue_house.settle(Outcome.ACK, leased)
    with pytest.raises(StorageFull):
        await queue_house.queues.create(ANONYMOUS, "orders", "another")
    with pytest.raises(StorageFull):
        await queue_house.queues.delete(ANONYMOUS, "orders", "queue")
    queue_house.ledger.failing = None
    assert [v.name for v in queue_house.queues.views(ANONYMOUS)] == ["queue"]
    results = await queue_house.settle(Outcome.ACK, leased)
    if results != [None, None]:  # it came back meanwhile
        await queue_house.ack(await queue_house.lease(wait_ms=5000))
    assert queue_house.counts().processed == 2


async def test_release_ends_every_wait(queue_house: QueueHouse) -> None:
    await queue_house.create()
    waiting = asyncio.create_task(queue_house.lease(wait_ms=15_000))
    await ticks()
    queue_house.queues.release()
    assert await soon(waiting) == []
    assert await queue_house.lease(wait_ms=15_000) == []


async def test_a_batch_that_holds_no_records_is_passed_over(queue_house: QueueHouse) -> None:
    await queue_house.create()
    await queue_house.publish(b"before")
    partition = await queue_house.topics.open(queue_house.topics.get("orders"), 0)
    junk = encode_batch([Record(0, 0, None, b"x" * 30)])
    junk[61:66] = b"\xff" * 5
    struct.pack_into(">I", junk, 17, crc32c(bytes(junk[21:])))
    await partition.append(check_batch(junk), junk).durable
    await queue_house.publish(b"after")
    crowd = await queue_house.subscribe(ack=True)
    await crowd.has(2)
    assert crowd.values == [b"before", b"after"]
    await until(lambda: queue_house.counts().pending == 0)


async def test_a_hundred_views_of_one_topic_get_everything_each(queue_house: QueueHouse) -> None:
    queue_house.max_views = 1000
    names = [f"v{i}" for i in range(100)]
    for name in names:
        await queue_house.create(name=name)
    crowds = [await queue_house.subscribe(name=name, ack=True) for name in names]
    for i in range(5):
        await queue_house.publish(b"%d" % i)
    for crowd in crowds:
        await crowd.has(5)
        assert crowd.values == [b"0", b"1", b"2", b"3", b"4"]


async def test_nothing_is_passed_over_when_settings_change_in_the_middle_of_reading(
    queue_house: QueueHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.view_pump.MAX_SHOWN_AT_ONCE", 7)
    await queue_house.create()
    sent = [b"%d" % i for i in range(1000)]
    for start in range(0, 1000, 100):
        await queue_house.publish(*sent[start : start + 100])
    crowd = await queue_house.subscribe(50, ack=True)
    for i in range(40):
        await ticks(3)
        await queue_house.queues.configure(ANONYMOUS, "orders", "queue", QueueSettings(lease_ms=10_000 + i))
    await crowd.has(1000)
    assert sorted(crowd.values) == sorted(sent)
    await until(lambda: queue_house.counts().processed == 1000)
    assert queue_house.counts().acked == 1000
