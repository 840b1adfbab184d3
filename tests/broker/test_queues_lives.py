"""Random lives of a queue view, with crashes between any two steps: nothing is lost, nothing comes after its ack."""

import random

import pytest
from queue_house import QueueHouse, until

from penstock.broker.queues import Delivery, Outcome
from penstock.security.principal import ANONYMOUS

DEAD = "orders.queue.dead"
SETTINGS = [
    {"lease_ms": 5_000, "max_attempts": 3, "retry_initial_ms": 100},
    {"lease_ms": 5_000, "max_attempts": 3, "retry_initial_ms": 100, "ordered_by_key": True},
    {"lease_ms": 5_000, "max_attempts": 3, "retry_initial_ms": 100, "max_priority": 9},
]


class Life:
    """What the test knows: what was published, what was acknowledged, and what it holds."""

    def __init__(self, house: QueueHouse, seed: int) -> None:
        self.house, self.dice = house, random.Random(seed)
        self.published: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.held: list[Delivery] = []

    async def publish(self) -> None:
        values = [b"%d" % (len(self.published) + i) for i in range(self.dice.randint(1, 30))]
        self.published.update(values)
        key = b"%d" % self.dice.randint(0, 3)
        priority = (("penstock-priority", b"%d" % self.dice.randint(0, 9)),) if self.dice.random() < 0.3 else ()
        await self.house.publish(*values, key=key, headers=priority)

    async def lease(self) -> None:
        leased = await self.house.lease(self.dice.randint(1, 40))
        again = {d.record.value for d in leased} & self.acked
        assert not again, f"{again} came again"
        self.held += leased

    async def settle(self) -> None:
        self.dice.shuffle(self.held)
        count = self.dice.randint(0, len(self.held))
        chosen, self.held = self.held[:count], self.held[count:]
        outcome = self.dice.choice([Outcome.ACK, Outcome.ACK, Outcome.NACK, Outcome.REJECT, Outcome.RELEASE])
        results = await self.house.settle(outcome, chosen)
        if outcome is Outcome.ACK:
            self.acked.update(d.record.value or b"" for d, lost in zip(chosen, results, strict=True) if lost is None)

    async def time(self) -> None:
        self.house.advance(self.dice.randint(1, 4_000))

    async def crash(self) -> None:
        if self.dice.random() < 0.2:
            await (self.house.crash() if self.dice.random() < 0.7 else self.house.restart())
            self.held.clear()

    async def live(self, steps: int) -> None:
        deeds = [self.publish, self.lease, self.lease, self.settle, self.settle, self.time, self.crash]
        for _ in range(steps):
            await self.dice.choice(deeds)()
            self.check()

    def check(self) -> None:
        for view in self.house.queues._registry.by_address.values():
            view.machine.check()

    async def end(self) -> None:
        """Take everything out, and look at what became of it."""
        while True:
            self.house.advance(600_000)
            leased = await self.house.lease(1000, wait_ms=200)
            if not leased and self.house.counts().pending == 0:
                break
            await self.house.ack(leased)
            self.acked.update(d.record.value or b"" for d in leased)
        await until(lambda: self.house.counts().processing == 0)
        dead = await self.house.values_of(DEAD) if DEAD in self.house.topics.by_name else []
        # A late ack of what died meanwhile is fine, so what is acknowledged may be dead; but it died once.
        assert len(dead) == len(set(dead))
        assert self.acked | set(dead) == self.published
        assert self.house.counts().processed == len(self.published)


@pytest.mark.parametrize("settings", range(len(SETTINGS)))
@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_and_nothing_comes_after_its_ack(
    disk_queues: QueueHouse, seed: int, settings: int
) -> None:
    await disk_queues.create(partitions=2, **SETTINGS[settings])
    life = Life(disk_queues, seed)
    await life.live(60)
    await life.end()
    assert disk_queues.queues.describe(ANONYMOUS, "orders", "queue").counts.pending == 0
