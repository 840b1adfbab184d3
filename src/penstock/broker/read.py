"""Reading message by message: the log view and the pub/sub view.

A reader holds offsets, never copies: a thousand readers at the end of a partition share one opened batch. Both views
see what is committed: up to the first open transaction, and nothing that was aborted. The log view
reads everything at its own pace. The pub/sub view is bounded by how far it may fall behind; beyond that the oldest are
dropped and counted, or the subscription ends, as its subscriber chose.
"""

import asyncio
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.broker.harvest import Harvest
from penstock.broker.tail import READ_BYTES, Messages, Opened, Tail, Tails, opened_from
from penstock.delivery.filters import Match, Test, compile_filter
from penstock.log.partition import Partition
from penstock.log.topics import Topic, Topics
from penstock.model.errors import OffsetOutOfRange, PenstockError, SlowSubscriber, UnknownTopic
from penstock.model.message import Incoming
from penstock.security.acl import Authorizer, Operation, Resource
from penstock.security.principal import Principal

USUAL_MESSAGE_BYTES = 4 << 10  # who wants few messages does not have a megabyte of them opened
RELEASED_PAUSE_S = 0.05  # while the server stops nobody waits, but whoever asks again and again is slowed down

__all__ = ["Match", "Messages", "Overflow", "Reader", "Readers", "Start", "Taken"]


class Overflow(enum.Enum):
    DROP_OLDEST = "drop-oldest"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a log reader begins: an offset per partition, a time, or one end for all that are not named."""

    offsets: Mapping[int, int] | None = None
    timestamp_ms: int | None = None
    earliest: bool = True


class Taken(NamedTuple):
    """What a reader took. `parts` are the same messages as lists of one partition each, in the same order; readers that
    take all of what is new get the same lists, so that a door can format each once for all (see `broker/tail.py`)."""

    messages: Sequence[Incoming]
    gap: int  # messages dropped since the last take, by a pub/sub view that was too slow, or that cannot be read
    positions: Mapping[int, int]  # per partition that moved: the offset to go on from
    parts: Sequence[Messages] = ()


@dataclass(slots=True, eq=False)
class _Slot:
    """One partition of a reader."""

    index: int
    partition: Partition
    tail: Tail
    position: int
    own: Opened | None = None  # what a reader far behind opened for itself and has not used up

    def has_news(self) -> bool:
        """Something to read, or to complain of. Who stands among open transactions waits for their end."""
        partition = self.partition
        return self.position < partition.stable_end or self.position > partition.durable_end or partition.closed


class Reader:
    """One reader of some partitions of a topic. One take at a time; close it when its client is gone."""

    __slots__ = (
        "_closed",
        "_deadline",
        "_every_partition",
        "_max_behind",
        "_overflow",
        "_readers",
        "_slots",
        "_test",
        "_timer",
        "_topic",
        "_turn",
        "_waiter",
        "topic",
    )

    def __init__(
        self,
        readers: "Readers",
        topic: Topic,
        *,
        every_partition: bool,
        test: Test | None,
        max_behind: int | None,
        overflow: Overflow,
    ) -> None:
        self.topic = topic.name
        self._readers = readers
        self._topic = topic
        self._every_partition = every_partition
        self._test = test
        self._max_behind = max_behind  # None: the log view, which misses nothing
        self._overflow = overflow
        self._slots: list[_Slot] = []
        self._turn = 0  # the slot that comes first: nobody starves behind a busy one
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._closed = False

    @property
    def positions(self) -> Mapping[int, int]:
        """Per partition the offset to go on from."""
        return {slot.index: slot.position for slot in self._slots}

    async def take(self, max_messages: int, max_bytes: int, wait_ms: int) -> Taken:
        """What is there now; if nothing is, wait. In order within each partition. Empty when the time is over.

        At least one message comes, however large. Raises OffsetOutOfRange when a log reader's position is gone,
        UnknownTopic when the topic was deleted, SlowSubscriber when a pub/sub view that asked for it fell too far
        behind.
        """
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        moved: dict[int, int] = {}
        while True:
            if self._every_partition and len(self._slots) < len(self._topic.partitions):
                await self._widen()
            if self._has_news():
                harvest = Harvest(max_messages, max_bytes, self._test)
                await self._harvest(harvest)
                self._move(harvest, moved)
                parts = harvest.parts
                if parts or harvest.gap:
                    messages = parts[0] if len(parts) == 1 else [message for part in parts for message in part]
                    return Taken(messages, harvest.gap, moved, parts)
            if not await self._wait(deadline):
                return Taken([], 0, moved)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.wake()
            if self._timer is not None:
                self._timer.cancel()
            for slot in self._slots:
                slot.tail.waiting.pop(self, None)
                self._readers.tails.detach(slot.tail)
            self._slots.clear()

    # -- taking -----------------------------------------------------------------------------------------------

    async def _harvest(self, harvest: Harvest) -> None:
        count = len(self._slots)
        first = self._turn
        for at in range(count):
            number = (first + at) % count
            slot = self._slots[number]
            if not slot.has_news():
                continue
            try:
                await self._reap(number, slot, harvest)
            except PenstockError:
                if not harvest.parts:
                    raise
                return  # what was found goes out first; the next take meets the error again
            if self._closed:
                return
            self._turn = (number + 1) % count
            if harvest.full:
                return

    async def _reap(self, number: int, slot: _Slot, harvest: Harvest) -> None:
        """Take from one partition until it has no more or the harvest is full."""
        partition = slot.partition
        position = slot.position
        while not harvest.full and not self._closed:
            if partition.closed:
                raise UnknownTopic(f"topic {self.topic!r} was deleted")
            position = self._keep_up(number, slot, position, harvest)
            if position >= partition.stable_end:
                break
            opened = slot.tail.find(position)
            if opened is None and slot.tail.reaches(position):
                await slot.tail.open_next(position)
                if not slot.tail.reaches(position):
                    continue  # opened by somebody; the world may have changed meanwhile
            if opened is None:
                opened = await self._open_own(slot, position, harvest)
            if opened is None:
                break
            after = harvest.add(opened, position)
            if after == position:
                break  # it does not fit any more
            position = after
            harvest.positions[number] = position

    def _keep_up(self, number: int, slot: _Slot, position: int, harvest: Harvest) -> int:
        """Where to read on: a log reader must find its place, a pub/sub reader leaves behind what it must."""
        partition = slot.partition
        if self._max_behind is None:
            if not partition.start_offset <= position <= partition.durable_end:
                raise OffsetOutOfRange(
                    f"offset {position} of {partition.stream} is not within {partition.start_offset} to "
                    f"{partition.durable_end}"
                )
            return position
        oldest = max(partition.start_offset, partition.stable_end - self._max_behind)
        if position >= oldest:
            return position
        if self._overflow is Overflow.DISCONNECT:
            raise SlowSubscriber(
                f"the subscription is {partition.stable_end - position} messages behind in {partition.stream}; "
                f"it may be {self._max_behind}"
            )
        harvest.gap += oldest - position
        harvest.positions[number] = oldest
        return oldest

    async def _open_own(self, slot: _Slot, position: int, harvest: Harvest) -> Opened | None:
        own = slot.own
        if own is not None and own.start <= position < own.end:
            return own
        slot.own = None
        wanted_bytes = min(READ_BYTES, harvest.left_bytes, harvest.left_messages * USUAL_MESSAGE_BYTES)
        found = await slot.partition.read_committed(position, max(1, wanted_bytes))
        if found.next_offset <= position:
            return None
        slot.own = opened_from(slot.partition, found.buffers, position, found.next_offset)
        await asyncio.sleep(0)  # a long way to catch up, or a filter that takes nothing, leaves time for others
        return slot.own

    def _move(self, harvest: Harvest, moved: dict[int, int]) -> None:
        """What was found is handed over now."""
        if not self._closed:
            for number, position in harvest.positions.items():
                slot = self._slots[number]
                slot.position = moved[slot.index] = position
                if slot.own is not None and position >= slot.own.end:
                    slot.own = None

    # -- waiting ----------------------------------------------------------------------------------------------

    def _has_news(self) -> bool:
        for slot in self._slots:  # asked a thousand times per batch
            if (slot.position != slot.partition.stable_end or slot.partition.closed) and slot.has_news():
                return True
        return False

    async def _wait(self, deadline: float) -> bool:
        """Until there may be news; False when the time is over."""
        loop = asyncio.get_running_loop()
        left_s = deadline - loop.time()
        if self._closed or left_s <= 0:
            return False
        if self._readers.released:
            await asyncio.sleep(min(left_s, RELEASED_PAUSE_S))
            return False
        if self._has_news():
            return True  # came while others were being read
        self._arm(loop, deadline)
        waiter = self._waiter = loop.create_future()
        self._readers.waiting[self] = None
        for slot in self._slots:
            slot.tail.waiting[self] = None
        try:
            await waiter
        finally:
            self._waiter = None
            self._readers.waiting.pop(self, None)
            for slot in self._slots:
                slot.tail.waiting.pop(self, None)
        return self._has_news() or loop.time() < deadline

    def _arm(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        """One timer for many waits: it is left alone when news come, and set anew only when it rings too early."""
        self._deadline = deadline
        if self._timer is not None and self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._waiter is not None:
            loop = asyncio.get_running_loop()
            if loop.time() < self._deadline:
                self._arm(loop, self._deadline)
            else:
                self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- partitions -------------------------------------------------------------------------------------------

    def add(self, partition: Partition, position: int) -> None:
        tail = self._readers.tails.attach(partition)
        self._slots.append(_Slot(partition.stream.partition, partition, tail, position))

    async def _widen(self) -> None:
        """The topic was given partitions: they are read from their beginning."""
        for index in range(len(self._slots), len(self._topic.partitions)):
            partition = await self._readers.open(self._topic, index)
            if self._closed:
                return
            self.add(partition, partition.start_offset)


class Readers:
    def __init__(self, topics: Topics, authorizer: Authorizer) -> None:
        self._topics = topics
        self._authorizer = authorizer
        self.tails = Tails()
        self.waiting: dict[Reader, None] = {}
        self.released = False

    async def log(
        self,
        principal: Principal,
        topic: str,
        start: Start | None = None,
        *,
        partitions: Sequence[int] | None = None,
        matches: Sequence[Match] = (),
    ) -> Reader:
        """Start: None is the earliest."""
        found = self._find(principal, topic)
        test = compile_filter(matches) if matches else None
        begin = start or Start()
        indexes = range(len(found.partitions)) if partitions is None else list(dict.fromkeys(partitions))
        opened = [await self.open(found, index) for index in indexes]
        positions = [await _position(partition, begin) for partition in opened]
        reader = Reader(
            self,
            found,
            every_partition=partitions is None,
            test=test,
            max_behind=None,
            overflow=Overflow.DROP_OLDEST,
        )
        for partition, position in zip(opened, positions, strict=True):
            reader.add(partition, position)
        return reader

    async def pubsub(
        self,
        principal: Principal,
        topic: str,
        *,
        matches: Sequence[Match] = (),
        max_behind: int = 10_000,
        overflow: Overflow = Overflow.DROP_OLDEST,
    ) -> Reader:
        """Everything that is published, or committed, from now on. `max_behind` is per partition, filtered or not."""
        found = self._find(principal, topic)
        test = compile_filter(matches) if matches else None
        opened = [await self.open(found, index) for index in range(len(found.partitions))]
        reader = Reader(self, found, every_partition=True, test=test, max_behind=max(1, max_behind), overflow=overflow)
        for partition in opened:
            reader.add(partition, partition.stable_end)
        return reader

    def release(self) -> None:
        """The server is about to stop: nobody waits any more."""
        self.released = True
        for reader in list(self.waiting):
            reader.wake()

    async def open(self, topic: Topic, index: int) -> Partition:
        return await self._topics.open(topic, index)

    def _find(self, principal: Principal, name: str) -> Topic:
        self._authorizer.check(principal, Operation.READ, Resource.TOPIC, name)
        return self._topics.get(name)


async def _position(partition: Partition, start: Start) -> int:
    index = partition.stream.partition
    if start.offsets is not None and index in start.offsets:
        return start.offsets[index]
    if start.timestamp_ms is not None:
        found = await partition.find_time(start.timestamp_ms)
        return partition.stable_end if found is None else found.offset
    return partition.start_offset if start.earliest else partition.stable_end
