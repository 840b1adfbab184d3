"""Queue views let go of the log: what all of them have settled is removed, and nothing that one of them needs."""

import pytest
from queue_house import QueueHouse, until, values

from penstock.broker.queues import Source
from penstock.log import retention
from penstock.log.housekeeper import Housekeeper
from penstock.log.partition import Partition
from penstock.security.principal import ANONYMOUS

DAY_MS = 24 * 3600 * 1000
SMALL = {"cleanup.policy": "settled", "segment.bytes": "1024"}


async def tidied(house: QueueHouse, topic: str = "orders") -> Partition:
    """What time brings, then a look of the housekeeper."""
    house.advance(1000)
    partition = await house.topics.open(house.topics.get(topic), 0)
    await Housekeeper(house.clock, DAY_MS).tidy(partition, house.clock.wall_ms())
    return partition


async def fill(house: QueueHouse, count: int = 40, topic: str = "orders") -> None:
    for i in range(count):
        await house.publish(b"%d" % i + bytes(200), topic=topic)


async def test_the_slowest_view_keeps_what_it_needs(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.topics.create("orders", 1, SMALL)
    await house.create(name="fast")
    await house.create(name="slow")
    await fill(house)
    await house.ack(await house.lease_all(40, name="fast"), name="fast")
    assert (await tidied(house)).start_offset == 0
    taken = await house.lease_all(20, name="slow")
    await house.ack(taken, name="slow")
    start = (await tidied(house)).start_offset
    assert 10 < start <= 20
    assert [d.record.offset for d in await house.lease_all(20, name="slow")] == list(range(20, 40))


async def test_a_deleted_view_no_longer_holds_the_log(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.topics.create("orders", 1, SMALL)
    await house.create(name="fast")
    await house.create(name="slow")
    await fill(house)
    await house.ack(await house.lease_all(40, name="fast"), name="fast")
    await house.queues.delete(ANONYMOUS, "orders", "slow")
    assert (await tidied(house)).start_offset > 30


async def test_a_topic_made_for_a_queue_frees_its_space(
    queue_house: QueueHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SETTLED_ROLL_ALL_BYTES", 4000)
    house = queue_house
    await house.queues.create(ANONYMOUS, "orders", "queue")
    await fill(house)
    crowd = await house.subscribe(ack=True)
    await crowd.has(40)
    await house.queues.pause(ANONYMOUS, "orders", "queue", paused=False)  # recorded after what was settled before it
    partition = await tidied(house)
    assert partition.start_offset == 40
    assert sum(span.size_bytes for span in partition.spans()) == 0
    await house.publish(b"next")
    await crowd.has(41)
    assert house.counts().processed >= 40


async def test_a_view_that_reads_it_as_a_source_holds_it_too(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.topics.create("events", 1, SMALL)
    await house.create("orders")
    await house.queues.add_source(ANONYMOUS, "orders", "queue", Source("events"))
    await house.create("events")
    await fill(house, topic="events")
    await house.ack(await house.lease_all(40, topic="events"), topic="events")
    assert (await tidied(house, "events")).start_offset == 0
    await house.queues.remove_source(ANONYMOUS, "orders", "queue", "events")
    assert (await tidied(house, "events")).start_offset > 30


async def test_what_was_settled_goes_after_a_restart_too(disk_queues: QueueHouse) -> None:
    house = disk_queues
    await house.topics.create("orders", 1, SMALL)
    await house.create()
    await fill(house)
    taken = await house.lease_all(30)
    await house.ack(taken)
    await house.crash()
    await until(lambda: (p := house.topics.get("orders").partitions[0]) is not None and p.settled_end is not None)
    partition = await tidied(house)
    assert 20 < partition.start_offset <= 30
    assert [d.record.offset for d in await house.lease_all(10)] == list(range(30, 40))


async def test_what_waits_for_another_try_stays(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.topics.create("orders", 1, SMALL)
    await house.create()
    await fill(house)
    leased = await house.lease_all(40)
    await house.ack(leased[:5] + leased[6:])
    assert (await tidied(house)).start_offset <= 5
    await house.ack(leased[5:6])
    assert (await tidied(house)).start_offset > 30
    assert values(await house.lease()) == []
