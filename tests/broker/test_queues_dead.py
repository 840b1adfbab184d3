"""Dead letters and redriving: what failed for good is kept with its story, and goes back once when asked."""

import asyncio

from queue_house import QueueHouse, until, values

from penstock.broker.queues import Outcome, QueueSettings, Source
from penstock.model.errors import StorageFull
from penstock.model.message import ONLY_FOR, TTL_MS
from penstock.security.principal import ANONYMOUS

DEAD = "orders.queue.dead"


async def die(house: QueueHouse, *, name: str = "queue", **terms: int) -> None:
    """Reject everything that is there, and wait until it is buried."""
    leased = await house.lease(1000, name=name)
    assert await house.settle(Outcome.REJECT, leased, name=name) == [None] * len(leased)
    await until(lambda: house.counts(name=name).processing == 0)


async def test_a_dead_letter_tells_its_story(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create(max_attempts=2, retry_initial_ms=1000, retry_jitter=0.0)
    first_ms = house.clock.wall_ms()
    await house.publish(b"value", key=b"key", headers=(("own", b"1"),))
    assert await house.settle(Outcome.NACK, await house.lease()) == [None]
    house.advance(1000)
    assert await house.settle(Outcome.NACK, await house.lease()) == [None]
    await until(lambda: house.counts().processing == 0)
    (letter,) = await house.records_of(DEAD)
    assert (letter.key, letter.value, letter.timestamp_ms) == (b"key", b"value", first_ms)
    assert dict(letter.headers) == {
        "own": b"1",
        "penstock-dead-reason": b"max-attempts",
        "penstock-dead-attempts": b"2",
        "penstock-dead-first-failure-ms": b"%d" % first_ms,
        "penstock-dead-last-failure-ms": b"%d" % (first_ms + 1000),
        "penstock-dead-topic": b"orders",
        "penstock-dead-partition": b"0",
        "penstock-dead-offset": b"0",
        "penstock-dead-view": b"orders/queue",
    }
    counts = house.counts()
    assert (counts.pending, counts.dead, counts.processed) == (0, 1, 1)
    assert house.topics.get(DEAD).settings.retention_ms == -1


async def test_rejected_and_expired_letters_say_so(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create(dead_letter="morgue")
    await house.publish(b"bad")
    await house.publish(b"old", headers=((TTL_MS, b"10"),))
    house.advance(20)
    await die(house)
    reasons = {r.value: dict(r.headers)["penstock-dead-reason"] for r in await house.records_of("morgue")}
    assert reasons == {b"bad": b"rejected", b"old": b"expired"}


async def test_a_view_may_want_no_dead_letters(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create(dead_letter="")
    await house.publish(b"a", b"b")
    await die(house)
    assert set(house.topics.by_name) & {DEAD, ""} == set()
    assert house.counts().processed == 2
    assert await house.queues.redrive(ANONYMOUS, "orders", "queue") == 0


async def test_many_die_together(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create()
    await house.publish(*(b"%d" % i for i in range(1200)))
    for _ in range(2):
        await die(house)
    assert sorted(await house.values_of(DEAD)) == sorted(b"%d" % i for i in range(1200))


async def test_a_dead_letter_that_cannot_be_stored_is_tried_again(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create()
    await house.publish(b"a")
    house.topics.max_topics = len(house.topics.by_name)
    leased = await house.lease()
    await house.settle(Outcome.REJECT, leased)
    await asyncio.sleep(0.05)
    assert house.counts().processing == 1
    house.topics.max_topics += 10
    async with asyncio.timeout(20):
        while house.counts().processing:
            house.advance(10_000)
            await asyncio.sleep(0.01)
    assert await house.values_of(DEAD) == [b"a"]


async def test_letters_that_their_topic_refuses_for_good_go_to_the_views_own(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.topics.create("morgue", 1, {"cleanup.policy": "compact"})
    await house.create(dead_letter="morgue")
    await house.publish(b"without a key")
    await house.publish(b"with one", key=b"k")
    await die(house)
    assert [letter.value for letter in await house.records_of("morgue")] == [b"with one"]
    assert [letter.value for letter in await house.records_of(DEAD)] == [b"without a key"]
    counts = house.counts()
    assert (counts.pending, counts.processing, counts.processed) == (0, 0, 2)


async def test_a_burial_that_a_crash_cut_short_stores_one_letter(disk_queues: QueueHouse) -> None:
    house = disk_queues
    await house.create()
    await house.topics.create(DEAD, 1, {"retention.ms": "-1"})
    await house.publish(b"a")
    leased = await house.lease()
    await house.settle(Outcome.REJECT, leased)
    # What says that it is buried cannot be recorded: the next life buries it again.
    house.ledger.failing = StorageFull("no space left")
    assert await house.has_values(DEAD, 1) == [b"a"]
    await house.crash()
    await until(lambda: house.counts().processed == 1)
    assert await house.values_of(DEAD) == [b"a"]


async def test_redriven_letters_return_once_and_only_to_their_view(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create()
    await house.create(name="other")
    await house.publish(b"a", key=b"k", headers=(("own", b"1"),))
    await house.publish(b"b")
    await house.ack(await house.lease(name="other"), name="other")
    await die(house)
    assert await house.queues.redrive(ANONYMOUS, "orders", "queue") == 2
    assert await house.queues.redrive(ANONYMOUS, "orders", "queue") == 0
    again = await house.lease()
    assert sorted(values(again)) == [b"a", b"b"]
    first = next(d for d in again if d.record.value == b"a")
    assert (first.record.key, first.attempt) == (b"k", 1)
    assert dict(first.record.headers) == {"own": b"1", ONLY_FOR: b"orders/queue"}
    assert await house.lease(name="other") == []
    # It fails again, and may be redriven again.
    assert await house.settle(Outcome.REJECT, again) == [None, None]
    await until(lambda: house.counts().processing == 0)
    assert await house.queues.redrive(ANONYMOUS, "orders", "queue", 1) == 1
    assert len(await house.lease()) == 1
    assert await house.queues.redrive(ANONYMOUS, "orders", "queue") == 1


async def test_views_that_share_their_dead_letters_redrive_their_own(queue_house: QueueHouse) -> None:
    house = queue_house
    for name in ("mail", "stock"):
        await house.create(name=name, dead_letter="morgue")
    await house.publish(b"a")
    for name in ("mail", "stock"):
        await die(house, name=name)
    assert len(await house.values_of("morgue")) == 2
    assert await house.queues.redrive(ANONYMOUS, "orders", "mail") == 1
    assert values(await house.lease(name="mail")) == [b"a"]
    assert await house.lease(name="stock") == []
    assert await house.queues.redrive(ANONYMOUS, "orders", "stock") == 1
    assert values(await house.lease(name="stock")) == [b"a"]


async def test_a_redrive_that_a_crash_cut_short_happens_once(disk_queues: QueueHouse) -> None:
    house = disk_queues
    await house.create()
    await house.publish(b"a")
    await die(house)
    await house.queues.create(ANONYMOUS, DEAD, "redrive", QueueSettings(dead_letter=""))
    house.ledger.failing = StorageFull("no space left")
    redriving = asyncio.create_task(house.queues.redrive(ANONYMOUS, "orders", "queue"))
    assert await house.has_values("orders", 2) == [b"a", b"a"]
    await asyncio.gather(redriving, return_exceptions=True)
    await house.crash()
    await house.queues.redrive(ANONYMOUS, "orders", "queue")
    assert await house.values_of("orders") == [b"a", b"a"]
    assert values(await house.lease()) == [b"a"]


async def test_letters_of_another_source_go_back_there_or_to_the_view(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create()
    for name in ("events", "news"):
        await house.topics.create(name, 1, {})
        await house.queues.add_source(ANONYMOUS, "orders", "queue", Source(name))
        await house.publish(name.encode(), topic=name)
    leased = await house.lease_all(2)
    assert await house.settle(Outcome.REJECT, leased) == [None, None]
    await until(lambda: house.counts().processing == 0)
    await house.queues.remove_source(ANONYMOUS, "orders", "queue", "news")
    assert await house.queues.redrive(ANONYMOUS, "orders", "queue") == 2
    assert await house.values_of("events") == [b"events", b"events"]
    assert await house.values_of("orders") == [b"news"]
    got = await house.lease_all(2)
    assert sorted(values(got)) == [b"events", b"news"]


async def test_a_message_that_retention_took_is_settled_silently(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create(retry_initial_ms=1000, retry_jitter=0.0)
    await house.publish(b"a", b"b")
    await house.publish(b"c")
    leased = await house.lease(2)
    await house.settle(Outcome.NACK, leased)
    partition = await house.topics.open(house.topics.get("orders"), 0)
    await partition.trim(2)
    house.advance(1000)
    got = []
    while not got:
        got = await house.lease(wait_ms=5000)
    assert values(got) == [b"c"]
    await house.ack(got)
    await until(lambda: house.counts().pending == 0)
    assert house.counts().processing == 0
