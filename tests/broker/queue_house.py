"""Queue views over a real log, in the test's loop and with time in the test's hand."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from penstock.broker.administer import Administrator
from penstock.broker.coordinate import Coordinator
from penstock.broker.gather import Gatherer
from penstock.broker.publish import Publisher
from penstock.broker.queues import Delivery, Outcome, Queues, QueueSettings, Receipt, Subscription
from penstock.broker.transact import Transactions
from penstock.log.identities import Identities
from penstock.log.ledger import Ledger
from penstock.log.topics import Engines, Topics
from penstock.model.ids import INTERNAL_PREFIX
from penstock.model.message import Outgoing, Placed
from penstock.model.record import Headers
from penstock.security.acl import AllowAll, Authorizer
from penstock.security.principal import ANONYMOUS
from penstock.storage.disk import DiskEngine
from penstock.storage.engine import Engine
from penstock.storage.memory import MemoryEngine
from penstock.testing.clock import ManualClock

T = TypeVar("T")

QUEUES_LEDGER = f"{INTERNAL_PREFIX}queues"


class FailingLedger:
    """A ledger whose records fail while `failing` is set; nothing of them is stored."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.failing: Exception | None = None
        self.records = 0
        self.fail_from: int | None = None  # from this record on

    def replay(self) -> Any:
        return self._ledger.replay()

    def record(self, key: bytes, value: bytes | None) -> asyncio.Future[None]:
        self.records += 1
        if self.failing is not None and (self.fail_from is None or self.records >= self.fail_from):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_exception, self.failing)
            return future
        return self._ledger.record(key, value)


class QueueHouse:
    """One broker's queues: opened, crashed and opened again on the same data."""

    def __init__(self, kind: str, data: Path, clock: ManualClock, authorizer: Authorizer | None = None) -> None:
        self.kind, self.data, self.clock = kind, data, clock
        self.authorizer = authorizer or AllowAll()
        self.max_views = 100
        self.auto_create = True
        self.with_transactions = False
        self.transactions: Transactions | None = None
        self.coordinator: Coordinator
        self._lives = 0
        self._past: list[Topics] = []
        self.topics: Topics
        self.queues: Queues
        self.ledger: FailingLedger
        self.gatherer: Gatherer
        self.administrator: Administrator
        self.crowd: list[Crowd] = []

    def _engine(self) -> Engine:
        return DiskEngine(self.data, self.clock) if self.kind == "disk" else MemoryEngine(self.clock)

    async def open(self) -> "QueueHouse":
        engine = self._engine()
        self.topics = Topics(Engines(engine, engine), self.clock)
        await self.topics.start()
        if self.with_transactions:
            await self._open_transactions()
        publisher = Publisher(self.topics, self.authorizer, self.transactions)
        self.administrator = Administrator(
            self.topics, self.authorizer, default_partitions=1, auto_create_topics=self.auto_create,
            topic_deleted=self._forget_topic,
        )  # fmt: skip
        self.gatherer = Gatherer(self.topics, self.administrator, publisher)
        self.ledger = FailingLedger(await self.topics.open_ledger(QUEUES_LEDGER))
        self.queues = Queues(
            self.ledger, self.topics, self.clock, self.authorizer, self.administrator, self.gatherer,
            max_views=self.max_views, transactions=self.transactions,
        )  # fmt: skip
        await self.queues.start()
        return self

    async def _open_transactions(self) -> None:
        identities = Identities(await self.topics.open_ledger(f"{INTERNAL_PREFIX}identities"))
        await identities.start(None)
        self.coordinator = Coordinator(await self.topics.open_ledger(f"{INTERNAL_PREFIX}groups"), self.clock)
        await self.coordinator.start()
        ledger = await self.topics.open_ledger(f"{INTERNAL_PREFIX}transactions")
        self.transactions = Transactions(ledger, self.topics, self.clock, identities, self.coordinator)
        self.topics.opened = self.transactions.adopt
        await self.transactions.start()

    async def stop(self) -> None:
        """Nothing of this life does anything any more."""
        await self.queues.stop()
        if self.transactions is not None:
            await self.transactions.stop()
            await self.coordinator.stop()

    async def _forget_topic(self, name: str) -> None:
        await self.queues.forget_topic(name)

    async def restart(self) -> None:
        """A clean end, and a new beginning."""
        assert self.kind == "disk"
        await self.stop()
        await self.topics.close()
        await self.open()

    async def crash(self) -> None:
        """What is on the disk now is all that the next life finds."""
        assert self.kind == "disk"
        await self.stop()
        self._past.append(self.topics)
        self._lives += 1
        now = self.data.with_name(f"life{self._lives}")
        shutil.copytree(self.data, now)
        self.data = now
        await self.open()

    async def close(self) -> None:
        await self.stop()
        for topics in (*self._past, self.topics):
            await topics.close()

    # -- doing ------------------------------------------------------------------------------------------------------

    async def create(self, topic: str = "orders", name: str = "queue", partitions: int = 1, **settings: Any) -> None:
        """A view of a topic that is kept whole, so that a test can look at it."""
        if topic not in self.topics.by_name:
            await self.topics.create(topic, partitions, {})
        await self.queues.create(ANONYMOUS, topic, name, QueueSettings(**settings))

    async def publish(
        self, *values: bytes, topic: str = "orders", key: bytes | None = None, headers: Headers = (),
        partition: int = -1,
    ) -> list[Placed]:  # fmt: skip
        target = await self.gatherer.target(ANONYMOUS, topic)
        return await soon(target.publish([Outgoing(key, value, headers, -1, partition) for value in values]))

    async def lease(
        self, limit: int = 100, *, topic: str = "orders", name: str = "queue", wait_ms: int = 0, **terms: Any
    ) -> list[Delivery]:
        return await soon(self.queues.lease(ANONYMOUS, topic, name, limit, wait_ms=wait_ms, **terms))

    async def lease_all(self, count: int, **where: Any) -> list[Delivery]:
        """So many, in as many calls as it takes."""
        got: list[Delivery] = []
        while len(got) < count:
            more = await self.lease(count - len(got), wait_ms=10_000, **where)
            assert more, f"{len(got)} of {count} came"
            got += more
        return got

    def settle(
        self, outcome: Outcome, deliveries: Sequence[Delivery], *, topic: str = "orders", name: str = "queue",
        **terms: Any,
    ) -> Awaitable[Any]:  # fmt: skip
        receipts = [delivery.receipt for delivery in deliveries]
        return soon(self.queues.settle(ANONYMOUS, topic, name, outcome, receipts, **terms))

    async def ack(self, deliveries: Sequence[Delivery], **where: Any) -> None:
        assert await self.settle(Outcome.ACK, deliveries, **where) == [None] * len(deliveries)

    async def subscribe(
        self, credit: int = 10, *, topic: str = "orders", name: str = "queue", ack: bool = False
    ) -> "Crowd":
        return await Crowd(self, topic, name, ack).join(credit)

    def counts(self, topic: str = "orders", name: str = "queue") -> Any:
        return self.queues.describe(ANONYMOUS, topic, name).counts

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.queues.run_due()

    async def values_of(self, topic: str) -> list[bytes | None]:
        return [record.value for record in await self.records_of(topic)]

    async def has_values(self, topic: str, count: int) -> list[bytes | None]:
        """Wait until the topic holds so many."""
        async with asyncio.timeout(20):
            while len(found := await self.values_of(topic)) < count:  # noqa: ASYNC110 - the log knows no event of ours
                await asyncio.sleep(0.001)
        return found

    async def records_of(self, topic: str) -> list[Any]:
        found = []
        known = self.topics.get(topic)
        for index in range(known.partition_count):
            partition = await self.topics.open(known, index)
            offset = partition.start_offset
            while offset < partition.durable_end:
                records, offset = await partition.records(offset, 1 << 20)
                found.extend(records)
        return found

    def receipt(self, offset: int, number: int = 0, topic: str = "orders", name: str = "queue") -> Receipt:
        return self.queues.receipt(topic, name, 0, offset, number)


class Crowd:
    """A subscriber that notes what it gets."""

    def __init__(self, house: QueueHouse, topic: str, name: str, ack: bool) -> None:
        self.house, self.topic, self.name, self.ack = house, topic, name, ack
        self.got: list[Delivery] = []
        self.ended: list[Exception] = []
        self.subscription: Subscription

    async def join(self, credit: int) -> "Crowd":
        self.subscription = await self.house.queues.subscribe(
            ANONYMOUS, self.topic, self.name, self._deliver, credit, ended=self.ended.append
        )
        return self

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        self.got.extend(deliveries)
        if self.ack:
            receipts = [delivery.receipt for delivery in deliveries]
            self.house.queues.settle(ANONYMOUS, self.topic, self.name, Outcome.ACK, receipts)

    @property
    def values(self) -> list[bytes | None]:
        return values(self.got)

    async def has(self, count: int) -> None:
        await until(lambda: len(self.got) >= count, lambda: f"{len(self.got)} of {count} came")


def values(deliveries: Sequence[Delivery]) -> list[bytes | None]:
    return [delivery.record.value for delivery in deliveries]


async def soon(future: Awaitable[T]) -> T:
    return await asyncio.wait_for(future, 20)


async def until(condition: Callable[[], bool], what: Callable[[], str] = lambda: "it did not happen") -> None:
    """Let the loop run until this holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - conditions of others, who know no event of ours
            await asyncio.sleep(0.001)


async def ticks(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
