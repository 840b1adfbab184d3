"""A broker's verbs over one engine, in the test's own loop, with time in the test's hand."""

from collections.abc import Sequence
from pathlib import Path

from penstock.broker.administer import Administrator
from penstock.broker.gather import Gatherer
from penstock.broker.publish import Publisher
from penstock.broker.read import Readers
from penstock.log.partition import Partition
from penstock.log.topics import Engines, Topics
from penstock.model.message import Outgoing
from penstock.model.record import Record
from penstock.security.acl import AllowAll, Authorizer
from penstock.security.principal import ANONYMOUS
from penstock.storage.disk import DiskEngine
from penstock.storage.disk.files import Files
from penstock.storage.engine import Engine
from penstock.storage.memory import MemoryEngine
from penstock.testing.clock import ManualClock


class BrokerHouse:
    """Topics, gatherer and readers that can be closed, or dropped as by a crash, and opened again."""

    def __init__(
        self,
        kind: str,
        data: Path,
        *,
        files: Files | None = None,
        authorizer: Authorizer | None = None,
        default_partitions: int = 1,
    ) -> None:
        self.kind, self.data, self.files = kind, data, files
        self.clock = ManualClock()
        self.authorizer = authorizer or AllowAll()
        self.default_partitions = default_partitions

    async def open(self) -> "BrokerHouse":
        self.engine = self._engine()
        self.topics = Topics(Engines(self.engine, self.engine), self.clock)
        await self.topics.start()
        self.administrator = Administrator(
            self.topics,
            self.authorizer,
            default_partitions=self.default_partitions,
            auto_create_topics=True,
            topic_deleted=self.topic_deleted,
        )
        self.publisher = Publisher(self.topics, self.authorizer)
        self.gatherer = Gatherer(self.topics, self.administrator, self.publisher)
        self.readers = Readers(self.topics, self.authorizer)
        return self

    def _engine(self) -> Engine:
        if self.kind == "memory":
            return MemoryEngine(self.clock)
        return DiskEngine(self.data, self.clock, files=self.files) if self.files else DiskEngine(self.data, self.clock)

    async def topic_deleted(self, name: str) -> None:
        pass

    async def close(self) -> None:
        await self.topics.close()

    async def crash(self) -> None:
        """As a crash leaves it: no checkpoint is written; the lock is the only thing given back."""
        await self.engine.close()

    # -- what tests say often ---------------------------------------------------------------------------------

    async def create(self, name: str, partitions: int = 1, **settings: str) -> None:
        await self.topics.create(name, partitions, {k.replace("_", "."): v for k, v in settings.items()})

    async def publish(self, topic: str, *values: bytes, **options: object) -> list[tuple[int, int]]:
        messages = [Outgoing(None, value) for value in values]
        return await self.send(topic, messages, **options)

    async def send(self, topic: str, messages: Sequence[Outgoing], **options: object) -> list[tuple[int, int]]:
        target = await self.gatherer.target(ANONYMOUS, topic)
        return [tuple(placed) for placed in await target.publish(messages, **options)]  # type: ignore[arg-type,misc]

    async def partition(self, topic: str, index: int = 0) -> Partition:
        return await self.topics.open(self.topics.get(topic), index)

    async def records(self, topic: str, index: int = 0) -> list[Record]:
        partition = await self.partition(topic, index)
        offset, records = partition.start_offset, []
        while offset < partition.durable_end:
            found, offset = await partition.records(offset, 1 << 20)
            records.extend(found)
        return records

    async def values(self, topic: str, index: int = 0) -> list[bytes | None]:
        return [record.value for record in await self.records(topic, index)]

    async def batches(self, topic: str, index: int = 0) -> int:
        """How many batches a partition holds."""
        from penstock.model.batch import walk

        partition = await self.partition(topic, index)
        found = await partition.read(partition.start_offset, 1 << 30)
        return sum(len(walk(buffer)) for buffer in found.buffers)
