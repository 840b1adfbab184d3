"""Queue views over restarts and crashes: what was acknowledged stays settled, the rest comes again, nothing is lost."""

import asyncio

import pytest
from queue_house import QueueHouse, until, values

from penstock.broker.queues import Match, Outcome, Publication, QueueSettings, Source, Status
from penstock.model.errors import LeaseLost, NotAllowed, RecordTooLarge, StorageFull, UnknownView
from penstock.model.message import DELAY_MS, Outgoing
from penstock.security.principal import ANONYMOUS

ENDS = ["restart", "crash"]


async def end(house: QueueHouse, how: str) -> None:
    await (house.restart() if how == "restart" else house.crash())


@pytest.mark.parametrize("how", ENDS)
async def test_what_was_settled_stays_settled_and_the_rest_comes_again(disk_queues: QueueHouse, how: str) -> None:
    house = disk_queues
    await house.create(retry_initial_ms=0, retry_jitter=0.0)
    await house.publish(*(b"%d" % i for i in range(100)))
    leased = await house.lease(60)
    await house.ack([d for d in leased if d.record.offset % 3])  # out of order, with holes
    await end(house, how)
    counts = house.counts()
    assert (counts.processed, counts.processing) == (40, 0)
    again = await house.lease()
    assert [d.record.offset for d in again] == [o for o in range(100) if o >= 60 or o % 3 == 0]
    assert {d.attempt for d in again} == {1}
    assert not {d.receipt.number for d in again} & {d.receipt.number for d in leased}
    (lost,) = await house.settle(Outcome.ACK, leased[:1])
    assert isinstance(lost, LeaseLost)
    await house.ack(again)
    await end(house, how)
    assert await house.lease() == []
    assert house.counts().processed == 100


@pytest.mark.parametrize("how", ENDS)
async def test_definitions_come_back_as_they_were(disk_queues: QueueHouse, how: str) -> None:
    house = disk_queues
    await house.create(name="mail", lease_ms=7000)
    await house.topics.create("events", 2, {})
    await house.queues.add_source(ANONYMOUS, "orders", "mail", Source("events", (Match(pattern="order.*"),)))
    await house.create(name="gone")
    await house.queues.delete(ANONYMOUS, "orders", "gone")
    await house.create(name="stock")
    await house.queues.pause(ANONYMOUS, "orders", "stock", paused=True)
    await house.queues.configure(ANONYMOUS, "orders", "stock", QueueSettings(max_attempts=3), matches=[Match(key="a")])
    before = house.queues.views(ANONYMOUS)
    await end(house, how)
    assert house.queues.views(ANONYMOUS) == before
    assert [(v.name, v.paused, v.settings.max_attempts) for v in before] == [("mail", False, 20), ("stock", True, 3)]
    await house.publish(b"e", topic="events", key=b"order.new", partition=1)
    (one,) = await house.lease(name="mail")
    assert (one.topic, one.partition, one.record.value) == ("events", 1, b"e")


async def test_a_view_made_again_is_not_its_former_self(disk_queues: QueueHouse) -> None:
    house = disk_queues
    await house.create()
    await house.publish(b"a")
    await house.ack(await house.lease())
    await house.queues.delete(ANONYMOUS, "orders", "queue")
    await house.crash()
    with pytest.raises(UnknownView):
        house.counts()
    await house.create()
    assert values(await house.lease()) == [b"a"]
    await house.crash()
    assert values(await house.lease()) == [b"a"]


@pytest.mark.parametrize("how", ENDS)
async def test_delays_and_back_offs_go_on_where_they_were(disk_queues: QueueHouse, how: str) -> None:
    house = disk_queues
    await house.create(retry_initial_ms=60_000, retry_jitter=0.0)
    await house.publish(b"later", headers=((DELAY_MS, b"3600000"),))
    await house.publish(b"failed")
    assert await house.settle(Outcome.NACK, await house.lease()) == [None]
    house.advance(30_000)
    await end(house, how)
    crowd = await house.subscribe()
    house.advance(29_000)
    await asyncio.sleep(0.02)
    assert crowd.got == []
    house.advance(2_000)
    await crowd.has(1)
    assert [(d.record.value, d.attempt) for d in crowd.got] == [(b"failed", 2)]
    house.advance(3_600_000)
    await until(lambda: b"later" in crowd.values)


@pytest.mark.parametrize("how", ENDS)
async def test_what_was_handed_out_at_most_once_does_not_come_again(disk_queues: QueueHouse, how: str) -> None:
    house = disk_queues
    await house.create(guarantee="at-most-once")
    await house.publish(b"a", b"b", b"c")
    assert values(await house.lease(2)) == [b"a", b"b"]
    await end(house, how)
    assert values(await house.lease()) == [b"c"]


async def test_a_hundred_thousand_waiting_messages_are_there_after_a_crash(disk_queues: QueueHouse) -> None:
    house = disk_queues
    await house.create()
    for _ in range(100):
        await house.publish(*[b"x" * 20] * 1000)
    leased = await house.lease_all(10_000)
    await house.ack(leased[::2])
    await house.crash()
    await until(lambda: house.counts().pending == 95_000)
    got = 0
    while taken := await house.lease(5000):
        got += len(taken)
        await house.ack(taken)
    assert got == 95_000
    assert house.counts().processed == 100_000


async def test_start_up_opens_nothing_and_counts_are_right_soon(disk_queues: QueueHouse) -> None:
    house = disk_queues
    await house.create(partitions=3)
    await house.publish(b"a", b"b", partition=1)
    await house.crash()
    assert house.topics.get("orders").partitions == [None, None, None]
    await until(lambda: house.counts().pending == 2)


async def test_partitions_added_just_before_a_crash_are_read_after_it(disk_queues: QueueHouse) -> None:
    house = disk_queues
    await house.create()
    house.topics.grown = lambda topic: None  # the crash came before the view heard of it
    await house.topics.add_partitions("orders", 2)
    await house.publish(b"there", partition=1)
    await house.crash()
    assert values(await house.lease(wait_ms=5000)) == [b"there"]
    await house.crash()
    assert values(await house.lease(wait_ms=5000)) == [b"there"]


async def test_views_of_topics_that_went_unnoticed_are_forgotten(disk_queues: QueueHouse) -> None:
    house = disk_queues
    await house.create()
    await house.create("mail")
    await house.topics.create("events", 1, {})
    await house.queues.add_source(ANONYMOUS, "mail", "queue", Source("events"))
    await house.publish(b"e", topic="events")
    (leased,) = await house.lease(topic="mail")
    assert leased.topic == "events"
    await house.topics.delete("orders")  # the crash came before anybody else heard of it
    await house.topics.delete("events")
    await house.topics.create("orders", 1, {})
    await house.crash()
    assert [(v.topic, v.sources) for v in house.queues.views(ANONYMOUS)] == [("mail", (Source("mail"),))]
    await house.publish(b"own", topic="mail")
    assert values(await house.lease(topic="mail")) == [b"own"]
    await house.create()
    await house.crash()
    assert len(house.queues.views(ANONYMOUS)) == 2


# -- steps ------------------------------------------------------------------------------------------------------------


PUBLICATIONS = (
    Publication("mails", (Outgoing(b"k", b"dear", (("h", b"v"),)), Outgoing(None, b"sir"))),
    Publication("stock", (Outgoing(None, b"-1"),)),
)


async def step(house: QueueHouse, deliveries: list, name: str = "step-1") -> bool:
    receipts = [d.receipt for d in deliveries]
    return await asyncio.wait_for(house.queues.step(ANONYMOUS, "orders", "queue", name, receipts, PUBLICATIONS), 20)


async def test_a_step_settles_and_publishes_once(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create(guarantee="exactly-once")
    await house.publish(b"a")
    leased = await house.lease()
    assert await step(house, leased) is True
    assert await step(house, leased) is False
    assert await house.values_of("mails") == [b"dear", b"sir"]
    assert await house.values_of("stock") == [b"-1"]
    assert house.counts().processed == 1
    (first, _) = await house.records_of("mails")
    assert (first.key, first.headers) == (b"k", (("h", b"v"),))


async def test_a_step_whose_lease_is_over_does_nothing(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create(lease_ms=1000, retry_initial_ms=0, retry_jitter=0.0)
    await house.publish(b"a")
    leased = await house.lease()
    house.advance(1001)
    with pytest.raises(LeaseLost):
        await step(house, leased)
    assert await house.values_of("mails") == []
    again = await house.lease()
    assert await step(house, again, "step-2") is True


async def test_a_step_happens_once_wherever_the_crash_comes(disk_queues: QueueHouse) -> None:
    """Each life's copy of the disk is a crash; they are taken at every write between asking and the answer."""
    house = disk_queues
    await house.create()
    for name in ("mails", "stock"):
        await house.topics.create(name, 1, {})
    await house.publish(b"a")
    for attempt in range(12):
        leased = await house.lease()
        if leased:
            asked = asyncio.create_task(step(house, leased))
            for _ in range(attempt):
                await asyncio.sleep(0.0005)
            await house.crash()
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        done = house.queues.status_of(ANONYMOUS, "orders", "queue", 0, 0) is Status.PROCESSED
        if done:
            assert await house.has_values("stock", 1) == [b"-1"]
            assert await house.has_values("mails", 2) == [b"dear", b"sir"]
            await house.crash()
    leased = await house.lease()
    if leased:
        await step(house, leased)
    assert await step(house, []) is False
    assert await house.values_of("mails") == [b"dear", b"sir"]
    assert await house.values_of("stock") == [b"-1"]


async def test_a_step_whose_end_cannot_be_recorded_is_not_published_again(disk_queues: QueueHouse) -> None:
    house = disk_queues
    await house.create()
    await house.publish(b"a")
    leased = await house.lease()
    house.ledger.failing, house.ledger.fail_from = StorageFull("no space left"), house.ledger.records + 4
    asked = asyncio.create_task(step(house, leased))
    await until(lambda: "stock" in house.topics.by_name)
    assert await house.has_values("stock", 1) == [b"-1"]
    await asyncio.wait([asked], timeout=0.2)
    await house.crash()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert await step(house, []) in (True, False)
    assert await house.lease() == []
    assert await house.values_of("mails") == [b"dear", b"sir"]
    assert await house.values_of("stock") == [b"-1"]


async def test_a_step_whose_intent_cannot_be_stored_is_done_once_it_can(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create()
    await house.topics.create("mails", 1, {})
    await house.topics.create("stock", 1, {})
    await house.publish(b"a")
    leased = await house.lease()
    house.ledger.failing = StorageFull("no space left")
    asked = asyncio.create_task(step(house, leased))
    await until(lambda: house.ledger.records > 2)
    assert await house.values_of("mails") == []
    house.ledger.failing = None
    async with asyncio.timeout(20):
        while not asked.done():
            house.advance(1000)
            await asyncio.sleep(0.01)
    assert await asked is True
    assert house.counts().processed == 1
    assert await house.values_of("mails") == [b"dear", b"sir"]


async def test_a_step_that_could_not_be_published_is_refused_before_anything_happens(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create()
    await house.topics.create("small", 1, {"max.message.bytes": "1000"})
    await house.publish(b"a")
    (leased,) = await house.lease()
    large = [Publication("small", (Outgoing(None, bytes(2000)),))]
    with pytest.raises(RecordTooLarge):
        await house.queues.step(ANONYMOUS, "orders", "queue", "s", [leased.receipt], large)
    internal = [Publication("__penstock_catalogue", (Outgoing(b"k", b"v"),))]
    with pytest.raises(NotAllowed):
        await house.queues.step(ANONYMOUS, "orders", "queue", "s", [leased.receipt], internal)
    assert house.counts().processing == 1
    fitting = [Publication("small", (Outgoing(None, b"fits"),))]
    assert await house.queues.step(ANONYMOUS, "orders", "queue", "s", [leased.receipt], fitting) is True
    assert await house.values_of("small") == [b"fits"]
