"""The catalogue: which topics there are, how each is kept, and its partitions, opened when first used.

A topic is a fact in the catalogue's ledger. Creating, altering and deleting one records the fact first and shows it
when the fact is durable. Start-up replays the ledger and touches no partition. How two topics exchange their names is
told in `log/swap.py`.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.log.ledger import Ledger
from penstock.log.partition import Partition
from penstock.log.settings import TopicSettings, topic_settings
from penstock.log.swap import RETRY_AFTER_S, Swap, check_ends, check_rest, encode_swap
from penstock.model.clock import Clock
from penstock.model.errors import (
    InvalidPartitions,
    InvalidSetting,
    LimitReached,
    PenstockError,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
    UnknownTopicId,
)
from penstock.model.ids import INTERNAL_PREFIX, StreamId, TopicId, check_topic_name
from penstock.storage.engine import Engine

_log = logging.getLogger(__name__)

CATALOGUE = f"{INTERNAL_PREFIX}catalogue"
MAX_PARTITIONS_PER_TOPIC = 10_000

_NAMESPACE = uuid.UUID("5f0e3c1a-7c52-4f0b-9d0c-70656e73746b")
_TOPIC_KEY = b"topic:"
_SWAP_KEY = b"swap:"

_INTERNAL_SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.5",
    "max.message.bytes": str(16 << 20),
}


class _TopicFact(msgspec.Struct, omit_defaults=True):
    id: str
    partitions: int
    settings: dict[str, str] = {}
    made_as: tuple[str, str] | None = None  # name and id under which its bytes lie, if they are others


async def _nothing_to_follow(swap: Swap) -> None:
    """For a catalogue that has no groups beside it."""


@dataclass(slots=True)
class Topic:
    name: str
    id: TopicId
    settings: TopicSettings
    partitions: list[Partition | None]  # None until first used
    internal: bool = False
    made_as: tuple[str, TopicId] | None = None  # name and id under which its bytes lie, if they are others

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    @property
    def stored_as(self) -> tuple[str, TopicId]:
        return self.made_as or (self.name, self.id)


@dataclass(frozen=True, slots=True)
class Engines:
    """Where topics live, by their `storage` setting. In a server without a disk both are the same."""

    disk: Engine
    memory: Engine

    def of(self, settings: TopicSettings) -> Engine:
        return self.memory if settings.in_memory else self.disk

    def all(self) -> list[Engine]:
        return [self.disk] if self.disk is self.memory else [self.disk, self.memory]


@dataclass(slots=True)
class Topics:
    """All topics by name and by id."""

    engines: Engines
    clock: Clock
    defaults: Mapping[str, str] = field(default_factory=dict)
    max_topics: int = 100_000
    max_partitions: int = 200_000
    opened: Callable[[Partition], None] = lambda partition: None  # told of each partition when it opens
    grown: Callable[[Topic], None] = lambda topic: None  # told of each topic that was given more partitions
    swapped: Callable[[Swap], Awaitable[None]] = _nothing_to_follow  # what follows a swap elsewhere, before it is shown
    by_name: dict[str, Topic] = field(default_factory=dict)
    by_id: dict[TopicId, Topic] = field(default_factory=dict)
    partition_count: int = 0
    _life: str = field(default_factory=lambda: uuid.uuid4().hex)
    _ledger: Ledger | None = None
    _opening: dict[StreamId, asyncio.Task[Partition]] = field(default_factory=dict)
    _changing: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    _unfinished: dict[str, Swap] = field(default_factory=dict)
    _unbroken: set[asyncio.Task[Any]] = field(default_factory=set)

    async def start(self) -> None:
        """Replay the catalogue."""
        topic_settings({}, self.defaults)  # a bad server-wide default is an error at start, not at first use
        self._ledger = await self.open_ledger(CATALOGUE)
        facts: dict[str, _TopicFact] = {}
        async for key, value in self._ledger.replay():
            if key.startswith(_TOPIC_KEY):
                name = key[len(_TOPIC_KEY) :].decode()
                if value is None:
                    facts.pop(name, None)
                else:
                    facts[name] = msgspec.json.decode(value, type=_TopicFact)
            elif key.startswith(_SWAP_KEY):
                self._unfinished.pop(key[len(_SWAP_KEY) :].decode(), None)
                if value is not None:
                    swap = msgspec.json.decode(value, type=Swap)
                    self._unfinished[swap.name] = swap
        for name, fact in facts.items():
            topic = self._topic(name, uuid.UUID(fact.id), fact.partitions, fact.settings)
            if fact.made_as is not None:
                topic.made_as = fact.made_as[0], uuid.UUID(fact.made_as[1])
            self._show(topic)

    async def sweep(self) -> None:
        """Remove what deletions cut short by a crash left behind. At start, after every ledger was opened."""
        kept = frozenset(topic.stored_as[1] for topic in self.by_id.values())
        for engine in self.engines.all():
            await engine.retain_only(kept)

    async def open_ledger(self, name: str) -> Ledger:
        """An internal topic of one partition that holds facts. Its id is derived from its name: no fact tells of it."""
        topic = Topic(name, uuid.uuid5(_NAMESPACE, name), topic_settings(_INTERNAL_SETTINGS), [None], internal=True)
        self._show(topic)
        return Ledger(await self.open(topic, 0))

    # -- looking ----------------------------------------------------------------------------------------------

    def get(self, name: str) -> Topic:
        topic = self.by_name.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        return topic

    def identity(self, topic: Topic) -> str:
        """Tells messages from others that have, or had, the same offsets under the same name."""
        return f"{topic.id}:{self._life}" if topic.settings.in_memory else str(topic.id)

    def get_by_id(self, topic_id: TopicId) -> Topic:
        topic = self.by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with id {topic_id}")
        return topic

    async def open(self, topic: Topic, index: int) -> Partition:
        """The partition, opened if it was not yet; two callers at once share one opening."""
        if not 0 <= index < len(topic.partitions):
            raise UnknownPartition(f"topic {topic.name!r} has {len(topic.partitions)} partitions, none is {index}")
        partition = topic.partitions[index]
        if partition is not None:
            return partition
        stream = StreamId(*topic.stored_as, index)
        opening = self._opening.get(stream)
        if opening is None:
            opening = asyncio.create_task(self._open(topic, stream))
            self._opening[stream] = opening
            opening.add_done_callback(lambda _: self._opening.pop(stream, None))
        return await asyncio.shield(opening)

    async def _open(self, topic: Topic, stream: StreamId) -> Partition:
        engine = self.engines.of(topic.settings)
        partition = await Partition.open(stream, engine, topic.settings, self.clock)
        if self.by_id.get(topic.id) is not topic:
            raise UnknownTopic(f"topic {topic.name!r} was deleted")
        partition.topic = topic.name
        topic.partitions[stream.partition] = partition
        if partition.settings is not topic.settings:  # altered meanwhile
            partition.configure(topic.settings)
        self.opened(partition)
        return partition

    def open_partitions(self) -> list[Partition]:
        return [p for topic in self.by_name.values() for p in topic.partitions if p is not None]

    # -- changing ---------------------------------------------------------------------------------------------

    def check_new(self, name: str, partitions: int, settings: Mapping[str, str]) -> TopicSettings:
        """Everything that could be wrong with a topic to be created, found before anything is recorded."""
        check_topic_name(name)
        if name in self.by_name:
            raise TopicExists(f"topic {name!r} exists already")
        self._check_count(name, partitions, partitions)
        if len(self.by_name) >= self.max_topics:
            raise LimitReached(f"the server keeps at most {self.max_topics} topics (max_topics)")
        return topic_settings(settings, self.defaults)

    async def create(
        self, name: str, partitions: int, settings: Mapping[str, str], *, or_existing: bool = False
    ) -> Topic:
        """Create a topic; with `or_existing`, one that somebody else has just created will do."""
        async with self._Change(self, name):
            if or_existing and name in self.by_name:
                return self.by_name[name]
            self.check_new(name, partitions, settings)
            topic = self._topic(name, uuid.uuid4(), partitions, settings)
            await self._record(topic, partitions, settings)
            self._show(topic)
            return topic

    async def alter(self, name: str, settings: Mapping[str, str]) -> None:
        """Replace the topic's own settings."""
        async with self._Change(self, name):
            topic = self.get(name)
            parsed = topic_settings(settings, self.defaults)
            if parsed.in_memory != topic.settings.in_memory:
                raise InvalidSetting("storage is chosen when a topic is created and cannot be altered")
            await self._record(topic, topic.partition_count, settings)
            topic.settings = parsed
            for partition in topic.partitions:
                if partition is not None:
                    partition.configure(parsed)
                    self.opened(partition)  # its next housekeeping may be due earlier now

    async def add_partitions(self, name: str, count: int) -> None:
        async with self._Change(self, name):
            topic = self.get(name)
            self.check_count_of(topic, count)
            await self._record(topic, count, topic.settings.overrides)
            added = count - topic.partition_count
            topic.partitions.extend([None] * added)
            self.partition_count += added
            self.grown(topic)

    def check_count_of(self, topic: Topic, count: int) -> None:
        """Whether a topic may have this many partitions from now on: more than now, within the bounds."""
        if count <= topic.partition_count:
            raise InvalidPartitions(
                f"topic {topic.name!r} has {topic.partition_count} partitions already; it can only be given more"
            )
        self._check_count(topic.name, count, count - topic.partition_count)

    async def delete(self, name: str) -> None:
        async with self._Change(self, name):
            topic = self.get(name)
            assert self._ledger is not None
            await self._ledger.record(_TOPIC_KEY + name.encode(), None)
            del self.by_name[name]
            del self.by_id[topic.id]
            self.partition_count -= topic.partition_count
            for partition in topic.partitions:
                if partition is not None:
                    partition.close()
            await self.engines.of(topic.settings).delete(topic.stored_as[1])

    async def swap(self, swap: Swap, ends: Sequence[int], check: Callable[[Topic], None]) -> None:
        """Let two topics exchange their names, if the first ends at `ends` and `check(topic)` of it raises nothing."""
        swapping = asyncio.get_running_loop().create_task(self._swap(swap, ends, check))
        self._unbroken.add(swapping)  # half of it must not be left because somebody stops waiting
        swapping.add_done_callback(self._unbroken.discard)
        await asyncio.shield(swapping)

    async def finish_swaps(self) -> None:
        """At start, before anybody is let in: what a crash cut short after it was recorded."""
        for swap in list(self._unfinished.values()):
            await self._follow(swap)

    async def _swap(self, swap: Swap, ends: Sequence[int], check: Callable[[Topic], None]) -> None:
        first, second = sorted((swap.name, swap.other))
        async with self._Change(self, first), self._Change(self, second):
            one, two = self.get(swap.name), self.get(swap.other)
            ours = [await self.open(one, index) for index in range(one.partition_count)]
            others = [await self.open(two, index) for index in range(two.partition_count)]
            check(one)
            check_ends(swap.name, ours, ends)
            check_rest(swap.name, ours)
            check_rest(swap.other, others)
            became = self._exchanged(one, two)
            told = [(_SWAP_KEY + swap.name.encode(), encode_swap(swap)), *map(self._fact, became)]
            for partition in (*ours, *others):
                partition.close()
            assert self._ledger is not None
            try:
                await self._checkpoint((*ours, *others))
                await self._ledger.record_together(told)
            except BaseException:
                became = [self._renewed(one), self._renewed(two)]  # as they were, to be opened again
                raise
            else:
                await self._follow(swap)
            finally:
                for topic in (one, two):
                    del self.by_id[topic.id]
                    self.partition_count -= topic.partition_count
                for topic in became:
                    self._show(topic)
                for partition in (*ours, *others):
                    partition.close()  # again, for whoever came back while there was nothing new to find

    async def _follow(self, swap: Swap) -> None:
        """Until it succeeds: the swap is recorded, so it has happened. What is recorded of it goes last, for it would
        give groups their offsets once more after a crash."""
        self._unfinished[swap.name] = swap
        assert self._ledger is not None
        is_first = True
        while True:
            try:
                await self.swapped(swap)
                await self._ledger.record(_SWAP_KEY + swap.name.encode(), None)
                break
            except PenstockError as error:
                if is_first:
                    _log.warning("topics %s and %s wait to be swapped: %s", swap.name, swap.other, error)
                is_first = False
            await asyncio.sleep(RETRY_AFTER_S)
        del self._unfinished[swap.name]

    @staticmethod
    def _exchanged(one: Topic, two: Topic) -> list[Topic]:
        return [
            Topic(name.name, uuid.uuid4(), log.settings, [None] * log.partition_count, made_as=log.stored_as)
            for name, log in ((one, two), (two, one))
        ]

    @staticmethod
    def _renewed(topic: Topic) -> Topic:
        return Topic(topic.name, topic.id, topic.settings, [None] * topic.partition_count, made_as=topic.made_as)

    async def _checkpoint(self, partitions: Sequence[Partition]) -> None:
        """So that opening them again is quick."""
        for partition in partitions:
            try:
                await partition.checkpoint()
            except PenstockError as error:
                _log.warning("no checkpoint of %s: %s", partition.stream, error)

    async def close(self) -> None:
        """Leave checkpoints behind so that the next start need not read logs, then close the engines."""
        for task in self._unbroken:
            task.cancel()
        # A full or failing disk must not keep the rest from closing; the next open reads the log instead.
        await self._checkpoint(self.open_partitions())
        for engine in self.engines.all():
            await engine.close()

    # -- within -----------------------------------------------------------------------------------------------

    class _Change:
        """One change of a topic at a time; changes of different topics go side by side."""

        def __init__(self, topics: "Topics", name: str) -> None:
            self.topics, self.name = topics, name

        async def __aenter__(self) -> None:
            while (running := self.topics._changing.get(self.name)) is not None:
                await asyncio.shield(running)
            self.topics._changing[self.name] = asyncio.get_running_loop().create_future()

        async def __aexit__(self, *_: object) -> None:
            self.topics._changing.pop(self.name).set_result(None)

    def _topic(self, name: str, topic_id: TopicId, partitions: int, settings: Mapping[str, str]) -> Topic:
        return Topic(name, topic_id, topic_settings(settings, self.defaults), [None] * partitions)

    def _show(self, topic: Topic) -> None:
        self.by_name[topic.name] = topic
        self.by_id[topic.id] = topic
        self.partition_count += topic.partition_count

    async def _record(self, topic: Topic, partitions: int, settings: Mapping[str, str]) -> None:
        assert self._ledger is not None
        await self._ledger.record(*self._fact(topic, partitions, settings))

    @staticmethod
    def _fact(topic: Topic, partitions: int = 0, settings: Mapping[str, str] | None = None) -> tuple[bytes, bytes]:
        made_as = None if topic.made_as is None else (topic.made_as[0], topic.made_as[1].hex)
        overrides = topic.settings.overrides if settings is None else settings
        fact = _TopicFact(topic.id.hex, partitions or topic.partition_count, dict(overrides), made_as)
        return _TOPIC_KEY + topic.name.encode(), msgspec.json.encode(fact)

    def _check_count(self, name: str, partitions: int, added: int) -> None:
        if not 1 <= partitions <= MAX_PARTITIONS_PER_TOPIC:
            raise InvalidPartitions(
                f"topic {name!r} may have 1 to {MAX_PARTITIONS_PER_TOPIC} partitions, not {partitions}"
            )
        if self.partition_count + added > self.max_partitions:
            raise LimitReached(f"the server keeps at most {self.max_partitions} partitions (max_partitions)")
