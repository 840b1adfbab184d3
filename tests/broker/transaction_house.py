"""Transactions over a real log, in the test's loop and with time in the test's hand."""

import asyncio
import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from queue_house import FailingLedger, soon

from penstock.broker.coordinate import Commit, Coordinator, OffsetCommit
from penstock.broker.publish import Publisher
from penstock.broker.transact import Opened, ProducerIdentity, Transactions, TransactionSettings
from penstock.delivery.offsets import TopicPartition
from penstock.log.identities import Identities
from penstock.log.partition import Appended, Partition
from penstock.log.topics import Engines, Topics
from penstock.model.batch import TRANSACTIONAL, encode_batch
from penstock.model.errors import ConcurrentTransactions
from penstock.model.ids import INTERNAL_PREFIX
from penstock.model.record import Record
from penstock.security.acl import AllowAll
from penstock.security.principal import ANONYMOUS
from penstock.storage.disk import DiskEngine
from penstock.storage.engine import Engine
from penstock.storage.memory import MemoryEngine
from penstock.testing.clock import ManualClock


class TransactionHouse:
    """One broker's transactions: opened, crashed and opened again on the same data."""

    def __init__(self, kind: str, data: Path, settings: TransactionSettings | None = None) -> None:
        self.kind, self.data, self.clock = kind, data, ManualClock()
        self.settings = settings or TransactionSettings()
        self.topics: Topics
        self.transactions: Transactions
        self.coordinator: Coordinator
        self.ledger: FailingLedger
        self.sequences: dict[tuple[ProducerIdentity, TopicPartition], int] = {}
        self.names: dict[int, str] = {}  # of producer ids; a step's writers have none
        self._lives = 0
        self._past: list[Topics] = []

    def _engine(self) -> Engine:
        return DiskEngine(self.data, self.clock) if self.kind == "disk" else MemoryEngine(self.clock)

    async def open(self) -> "TransactionHouse":
        engine = self._engine()
        self.topics = Topics(Engines(engine, engine), self.clock, opened=self._adopt)
        await self.topics.start()
        self.identities = Identities(await self.topics.open_ledger(f"{INTERNAL_PREFIX}identities"))
        await self.identities.start(None)
        self.coordinator = Coordinator(await self.topics.open_ledger(f"{INTERNAL_PREFIX}groups"), self.clock)
        await self.coordinator.start()
        self.ledger = FailingLedger(await self.topics.open_ledger(f"{INTERNAL_PREFIX}transactions"))
        self.transactions = Transactions(
            self.ledger, self.topics, self.clock, self.identities, self.coordinator, self.settings
        )
        await self.transactions.start()
        self.publisher = Publisher(self.topics, AllowAll(), self.transactions)
        return self

    def _adopt(self, partition: Partition) -> None:
        if hasattr(self, "transactions"):
            self.transactions.adopt(partition)

    async def restart(self) -> None:
        """A clean end, and a new beginning."""
        await self._stop()
        await self.topics.close()
        await self.open()

    async def crash(self) -> None:
        """What is on the disk now is all that the next life finds."""
        assert self.kind == "disk"
        await self._stop()
        self._past.append(self.topics)
        self._lives += 1
        now = self.data.with_name(f"life{self._lives}")
        shutil.copytree(self.data, now)
        self.data = now
        await self.open()

    async def _stop(self) -> None:
        with contextlib.suppress(AttributeError):
            await self.transactions.stop()
            await self.coordinator.stop()

    async def close(self) -> None:
        await self._stop()
        for topics in (*self._past, self.topics):
            await topics.close()

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.transactions.run_due()

    # -- a producer -------------------------------------------------------------------------------------------------

    async def init(self, name: str = "x", timeout_ms: int = 60_000, **given: Any) -> ProducerIdentity:
        identity = await soon(self.transactions.init(ANONYMOUS, name, timeout_ms, **given))
        self.names[identity.producer_id] = name
        return identity

    async def take_over(self, name: str = "x") -> ProducerIdentity:
        """As a client does: ask again while the transaction that was open is being ended."""
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(ConcurrentTransactions):
                    return await self.init(name)
                await asyncio.sleep(0.001)

    async def write(
        self, who: ProducerIdentity, *values: bytes, topic: str = "t", partition: int = 0, name: str | None = None,
        implicit: bool = True,
    ) -> Appended:  # fmt: skip
        """A batch, written and not yet durable."""
        at = (who, TopicPartition(topic, partition))
        sequence = self.sequences.get(at, 0)
        now_ms = self.clock.wall_ms()
        batch = encode_batch(
            [Record(n, now_ms, None, value) for n, value in enumerate(values)],
            attributes=TRANSACTIONAL,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=sequence,
        )
        appended = await self.publisher.publish(
            self.topics.get(topic),
            partition,
            batch,
            transactional_id=name or self.names.get(who.producer_id),
            implicit=implicit,
        )
        self.sequences[at] = sequence + len(values)
        return appended

    async def put(self, who: ProducerIdentity, *values: bytes, **where: Any) -> None:
        await soon((await self.write(who, *values, **where)).durable)

    async def end(
        self, who: ProducerIdentity, commit: bool = True, *, name: str = "x", bump: bool = True, via: int = 0
    ) -> ProducerIdentity:
        return await soon(self.transactions.end(ANONYMOUS, name, *who, commit, bump=bump, via=via))

    async def add(
        self, who: ProducerIdentity, *partitions: int, name: str = "x", topic: str = "t", via: int = 0
    ) -> Any:
        places = [TopicPartition(topic, partition) for partition in partitions]
        return await soon(self.transactions.add_partitions(ANONYMOUS, name, *who, places, via=via))

    async def commit_offset(
        self, who: ProducerIdentity, offset: int, *, group: str = "g", implicit: bool = True
    ) -> Any:
        commit = OffsetCommit({TopicPartition("t", 0): Commit(offset)})
        return await soon(self.transactions.commit_offsets(ANONYMOUS, "x", *who, group, commit, implicit=implicit))

    async def offset(self, group: str = "g", *, stable: bool = False) -> Any:
        found = await soon(self.coordinator.committed(ANONYMOUS, group, [TopicPartition("t", 0)], stable=stable))
        kept = found[TopicPartition("t", 0)]
        return getattr(kept, "offset", kept)

    # -- a step -----------------------------------------------------------------------------------------------------

    async def open_writer(self, epoch: int, *, name: str = "s", timeout_ms: int = 60_000) -> Opened:
        return await soon(self.transactions.open_writer(ANONYMOUS, name, epoch, "task", timeout_ms))

    async def commit_step(
        self, epoch: int, writers: Sequence[int], *, name: str = "s", mark: str = "m",
        offsets: Mapping[str, Mapping[TopicPartition, int]] | None = None,
    ) -> bool:  # fmt: skip
        return await soon(self.transactions.commit_step(ANONYMOUS, name, epoch, writers, mark, offsets or {}))

    # -- a reader ---------------------------------------------------------------------------------------------------

    async def committed(self, topic: str = "t", partition: int = 0) -> list[bytes]:
        """What a reader of what is committed sees."""
        log = await self.topics.open(self.topics.get(topic), partition)
        found, offset = [], log.start_offset
        while offset < log.stable_end:
            records, offset = await log.records(offset, 1 << 20)
            found.extend(record.value or b"" for record in records)
        return found

    async def is_stable(self, topic: str = "t", partition: int = 0) -> bool:
        log = await self.topics.open(self.topics.get(topic), partition)
        return log.stable_end == log.durable_end

    async def stable(self, topic: str = "t", partition: int = 0) -> None:
        async with asyncio.timeout(20):
            while not await self.is_stable(topic, partition):  # noqa: ASYNC110 - the log knows no event of ours
                await asyncio.sleep(0.001)
