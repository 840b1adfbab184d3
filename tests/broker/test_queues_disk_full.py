"""Queue views while the disk takes nothing, or only a little: an error is an answer, and nothing false is said.

What was acknowledged comes no more, what was not can be acknowledged once there is space, and nothing is lost, doubled
or stuck by the time between.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from crash_house import CrashHouse
from queue_house import soon, until

from penstock.broker.queues import Delivery, Outcome, Publication, Source
from penstock.model.errors import LeaseLost, PenstockError, StorageFailed, StorageFull
from penstock.model.message import Outgoing
from penstock.security.principal import ANONYMOUS
from penstock.testing.files import FaultyFiles

DEAD = "orders.queue.dead"


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[CrashHouse]:
    house = await CrashHouse(tmp_path / "life0", FaultyFiles()).open()
    await house.topics.create("out", 1, {})
    yield house
    house.files.heal()
    await house.close()


async def test_an_ack_that_found_no_space_is_an_error_and_succeeds_later(house: CrashHouse) -> None:
    await house.create()
    await house.publish(b"a", b"b", b"c")
    leased = await house.lease_all(3)
    await house.ack(leased[:1])
    house.files.free_bytes = 0
    for _ in range(3):
        with pytest.raises(StorageFull):
            await house.settle(Outcome.ACK, leased[1:2])
    with pytest.raises(StorageFull):
        await house.publish(b"d")
    house.files.heal()
    await house.ack(leased[1:2])
    await house.publish(b"d")
    await house.crash()
    assert [one.record.value for one in await house.lease_all(2)] == [b"c", b"d"]


@pytest.mark.parametrize("outcome", [Outcome.NACK, Outcome.REJECT, Outcome.RELEASE])
async def test_every_other_outcome_finds_its_way_once_there_is_space(house: CrashHouse, outcome: Outcome) -> None:
    await house.create(retry_initial_ms=0, retry_jitter=0.0)
    await house.publish(b"a", b"b")
    leased = await house.lease_all(2)
    house.files.free_bytes = 0
    asked = house.settle(outcome, leased)
    if outcome is not Outcome.RELEASE:  # which is nothing to remember
        with pytest.raises(StorageFull):
            await asked
    else:
        assert await asked == [None, None]
    house.files.heal()
    house.advance(2_000)
    if outcome is Outcome.REJECT:
        await until(lambda: DEAD in house.topics.by_name)
        assert sorted(v or b"" for v in await house.has_values(DEAD, 2)) == [b"a", b"b"]
        assert await house.lease() == []
    else:
        again = await house.lease_all(2)
        assert {one.attempt for one in again} == {2 if outcome is Outcome.NACK else 1}


async def test_at_most_once_hands_out_nothing_that_it_could_not_settle(house: CrashHouse) -> None:
    await house.create(guarantee="at-most-once")
    await house.publish(b"a", b"b")
    house.files.free_bytes = 0
    assert await house.lease(wait_ms=50) == []
    house.files.heal()
    house.advance(2_000)
    assert [one.record.value for one in await house.lease_all(2)] == [b"a", b"b"]
    await house.crash()
    assert await house.lease() == []


async def test_views_can_be_made_and_deleted_once_there_is_space(house: CrashHouse) -> None:
    await house.create()
    await house.publish(b"a", b"b")
    await house.ack(await house.lease_all(1))
    house.files.free_bytes = 0
    with pytest.raises(StorageFull):
        await house.create(name="other")
    with pytest.raises(StorageFull):
        await house.queues.delete(ANONYMOUS, "orders", "queue")
    with pytest.raises(StorageFull):
        await house.queues.pause(ANONYMOUS, "orders", "queue", paused=True)
    house.files.heal()
    await house.crash()
    assert [one.record.value for one in await house.lease(5)] == [b"b"]
    await house.create(name="other")
    await house.queues.delete(ANONYMOUS, "orders", "queue")
    await house.crash()
    assert [view.name for view in house.queues.views(ANONYMOUS)] == ["other"]


class HardLife:
    """A random life with a disk that fills up and is emptied again, and crashes at any time."""

    def __init__(self, house: CrashHouse, seed: int) -> None:
        self.house, self.dice = house, random.Random(seed)
        self.begun = 0
        self.published: set[int] = set()
        self.acked: set[int] = set()
        self.asked_to_ack: set[int] = set()
        self.stepped: set[int] = set()
        self.asked_to_step: set[int] = set()
        self.deeds = 0
        self.came_at: dict[int, int] = {}  # the deed in which a message came last
        self.stepped_at: dict[int, int] = {}  # the deed in which a step was asked for
        self.steps = 0
        self.errors = Counter[str]()
        self.held: list[Delivery] = []

    async def live(self, deeds: int) -> None:
        dice = self.dice
        for self.deeds in range(deeds):
            deed = dice.choice([self.publish, self.lease, self.lease, self.settle, self.settle, self.step, self.time])
            if dice.random() < 0.2:
                self.house.files.free_bytes = dice.choice([0, 10, 200, 1_000, None, None])
            if dice.random() < 0.05:
                await self.crash()
            try:
                await deed()
            except PenstockError as error:
                assert isinstance(error, (StorageFailed, LeaseLost)), error
                self.errors[type(error).__name__] += 1
            for view in self.house.queues._registry.by_address.values():
                view.machine.check()

    async def crash(self) -> None:
        self.house.files.heal()
        await self.house.crash()
        self.held.clear()

    async def publish(self) -> None:
        numbers = [self.begun + at for at in range(self.dice.randint(1, 8))]
        self.begun += len(numbers)
        await self.house.publish(*(b"%d" % number for number in numbers), key=b"%d" % self.dice.randint(0, 3))
        self.published |= set(numbers)

    async def lease(self) -> None:
        leased = await self.house.lease(self.dice.randint(1, 10))
        again = {number_of(one) for one in leased} & (self.acked | self.stepped)
        assert not again, f"{again} came again"
        self.came_at |= {number_of(one): self.deeds for one in leased}
        self.held += leased

    def some(self) -> list[Delivery]:
        self.dice.shuffle(self.held)
        count = self.dice.randint(0, min(8, len(self.held)))
        chosen, self.held = self.held[:count], self.held[count:]
        return chosen

    async def settle(self) -> None:
        chosen = self.some()
        outcome = self.dice.choice([Outcome.ACK, Outcome.ACK, Outcome.NACK, Outcome.REJECT, Outcome.RELEASE])
        if outcome is Outcome.ACK:
            self.asked_to_ack |= {number_of(one) for one in chosen}
        results = await self.house.settle(outcome, chosen)
        if outcome is Outcome.ACK:
            self.acked |= {number_of(one) for one, lost in zip(chosen, results, strict=True) if lost is None}

    async def step(self) -> None:
        chosen = self.some()
        self.steps += 1
        publications = [Publication("out", tuple(Outgoing(b"%d" % self.steps, one.record.value) for one in chosen))]
        receipts = [one.receipt for one in chosen]
        self.stepped_at[self.steps] = self.deeds
        self.asked_to_step |= {number_of(one) for one in chosen}
        stepping = asyncio.ensure_future(
            self.house.queues.step(ANONYMOUS, "orders", "queue", f"step {self.steps}", receipts, publications)
        )
        await asyncio.wait([stepping], timeout=0.02)
        if not stepping.done():  # it waits for space
            self.house.files.heal()
            async with asyncio.timeout(20):
                while not stepping.done():
                    self.house.advance(1_000)
                    await asyncio.sleep(0.01)
        assert await stepping is True
        self.stepped |= {number_of(one) for one in chosen}

    async def time(self) -> None:
        self.house.advance(self.dice.randint(1, 4_000))

    async def end(self) -> None:
        self.deeds += 1
        self.house.files.heal()
        async with asyncio.timeout(30):
            while True:
                self.house.advance(600_000)
                leased = await self.house.lease(1000)
                again = {number_of(one) for one in leased} & (self.acked | self.stepped)
                assert not again, f"{again} came again"
                self.came_at |= {number_of(one): self.deeds for one in leased}
                await self.house.ack(leased)
                self.acked |= {number_of(one) for one in leased}
                counts = self.house.counts()
                if not leased and counts.pending == 0 and counts.processing == 0:
                    break
        dead, out = await self.numbers(DEAD), await self.numbers("out")
        assert max((*dead.values(), *out.values()), default=1) == 1, "nothing is there twice"
        assert self.stepped <= set(out) <= self.asked_to_step
        for record in await self.house.records_of("out"):  # a step may be taken though its answer was an error
            number, step = int(record.value), int(record.key)
            assert self.came_at[number] <= self.stepped_at[step], f"{number} came again after step {step}"
        done = self.acked | self.asked_to_ack | set(dead) | set(out)
        assert self.published <= done, f"{self.published - done} are lost"

    async def numbers(self, topic: str) -> Counter[int]:
        if topic not in self.house.topics.by_name:
            return Counter()
        return Counter(int(value or b"") for value in await soon(self.house.values_of(topic)))


def number_of(leased: Delivery) -> int:
    return int(leased.record.value or b"")


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(6))
async def test_a_life_with_a_full_disk(house: CrashHouse, seed: int, ordered: bool) -> None:
    await house.create(lease_ms=5_000, max_attempts=3, retry_initial_ms=100, ordered_by_key=ordered)
    life = HardLife(house, seed)
    await life.live(150)
    await life.end()


async def test_a_topic_deleted_on_a_full_disk_leaves_no_view_behind(house: CrashHouse) -> None:
    await house.create()
    await house.create("mail")
    await house.queues.add_source(ANONYMOUS, "mail", "queue", Source("orders"))
    await house.publish(b"old")
    deleting = house.administrator.delete_topic(ANONYMOUS, "orders")
    house.ledger.failing = StorageFull("no space left")  # the catalogue's ledger still finds some
    await deleting
    house.ledger.failing = None
    assert [view.topic for view in house.queues.views(ANONYMOUS)] == ["mail"]
    await house.create()
    await house.queues.add_source(ANONYMOUS, "mail", "queue", Source("orders"), start="earliest")
    await house.publish(b"new")
    for topic in ("orders", "mail"):
        (one,) = await house.lease_all(1, topic=topic)
        assert one.record.value == b"new"
    await house.crash()
    assert sorted(view.topic for view in house.queues.views(ANONYMOUS)) == ["mail", "orders"]


async def test_partitions_given_on_a_full_disk_are_read_in_the_end(house: CrashHouse) -> None:
    await house.create()
    house.ledger.failing = StorageFull("no space left")
    await house.topics.add_partitions("orders", 2)
    await house.publish(b"there", partition=1)
    assert await house.lease() == []
    house.ledger.failing = None
    (one,) = await house.lease_all(1)
    assert (one.partition, one.record.value) == (1, b"there")
