"""Publishing message by message: what comes in one loop tick, from whatever door, becomes one batch per partition.

target = await gatherer.target(principal, "orders")     # once: rights, first use, partitions opened
placed = await target.publish([Outgoing(None, b"x")])   # a plain call: the order is fixed when it returns

A call's messages are checked before any of them joins the others, so a bad one is the failure of its call alone. What
waits here waits for the end of the tick; it is what the doors took in meanwhile, and bounded by their limits.
"""

import asyncio
import enum
import logging
from collections.abc import Sequence

from penstock.broker.administer import Administrator
from penstock.broker.pile import BATCH_BYTES, Call, Losses, Numbered, Pile
from penstock.broker.publish import Publisher
from penstock.log.admission import asks_of_records, check_record, make_batch
from penstock.log.named_producers import MAX_NUMBER, producer_id_of
from penstock.log.partition import Appended, Partition
from penstock.log.topics import Topic, Topics
from penstock.model.batch import HEADER_BYTES
from penstock.model.errors import InvalidRecord, InvalidRequest, PenstockError, UnknownPartition, UnknownTopic
from penstock.model.ids import TopicId
from penstock.model.message import Outgoing, Placed
from penstock.model.outgoing import by_partition, number_from, only_partition, records_of, size_bound
from penstock.model.record import Record
from penstock.security.principal import Principal

_log = logging.getLogger(__name__)

_SCATTER = 0x9E37_79B9_7F4A_7C15  # spreads the ticks over the partitions, whatever their rhythm


class Acks(enum.Enum):
    """What a publish waits for, as Kafka's acks. On one machine `leader` and `all` are the same."""

    NONE = "none"
    LEADER = "leader"
    ALL = "all"


_Run = tuple[list[Record], int]  # records of one batch, and the most bytes they take


class Target:
    """A topic that a principal may publish to. Not to be kept longer than the request or connection it serves."""

    __slots__ = ("_count", "_gatherer", "topic")

    def __init__(self, gatherer: "Gatherer", topic: Topic) -> None:
        self.topic = topic
        self._gatherer = gatherer
        self._count = len(topic.partitions)  # all of these are open

    def publish(
        self, messages: Sequence[Outgoing], *, acks: Acks = Acks.ALL, producer: str | None = None, sequence: int = 0
    ) -> asyncio.Future[list[Placed]]:
        """Resolves when all are durable (acks none: at once, with offset -1). Never raises: the future does.

        `producer` names whoever numbers its messages: `sequence` is that of the first of these, the others follow; a
        repeat is not stored again and gets the first one's offsets, or -1 where they are no longer known. Numbers must
        rise and may have gaps. When a publish fails, whoever sent more since repeats all of it, in order; later
        numbers are refused with OutOfOrderSequence until what failed came again (a new epoch, 2^31 higher, skips it).
        Without keys all messages of a named producer go to one partition. An idempotency key is a producer that
        publishes once.
        """
        numbers = range(sequence, sequence + len(messages)) if producer is not None else ()
        return self._publish(messages, acks, producer, numbers)

    def publish_numbered(
        self, messages: Sequence[Outgoing], producer: str, numbers: Sequence[int]
    ) -> asyncio.Future[list[Placed]]:
        """As above, with a number of its own for each message; they rise, and however a repeat is cut, what is stored
        stays stored once. For those who have one publish under way at a time and repeat what failed before they go on:
        nothing is refused to them."""
        return self._publish(messages, Acks.ALL, producer, numbers, in_turn=True)

    def check(self, messages: Sequence[Outgoing]) -> None:
        """Raise what would refuse these, whenever they are published: for promises to publish them later."""
        try:
            self._parts(messages, 0)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise InvalidRecord(f"no message: {error}") from None

    def fits_one_batch(self, messages: Sequence[Outgoing], producer: str) -> bool:
        """Whether all of these, published under this name, are one batch: then they are seen at once."""
        if len(messages) == 1:
            return True
        index = only_partition(messages, self._count, producer_id_of(producer) % self._count)
        return index >= 0 and len(self._records(messages)) == 1

    async def publish_for(
        self, messages: Sequence[Outgoing], producer_id: int, producer_epoch: int
    ) -> list[asyncio.Future[None]]:
        """Publish these under the identity of an open transaction that has written nothing here yet."""
        topic, now_ms, written = self.topic, self._gatherer.now_ms(), []
        for partition, runs, _ in self._parts(messages, producer_id % self._count):
            sequence = 0
            for records, _ in runs:
                _, batch = make_batch(
                    records,
                    topic.settings,
                    now_ms,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    base_sequence=sequence,
                    transactional=True,
                )
                sequence += len(records)
                written.append((await self._gatherer.append(topic, partition.stream.partition, batch)).durable)
        return written

    def _publish(
        self,
        messages: Sequence[Outgoing],
        acks: Acks,
        producer: str | None,
        numbers: Sequence[int],
        *,
        in_turn: bool = False,
    ) -> asyncio.Future[list[Placed]]:
        gatherer = self._gatherer
        call = Call(asyncio.get_running_loop())
        if not messages:
            call.set_result([])
            return call
        waiting = call if acks is not Acks.NONE else None
        try:
            if producer is not None:
                self._number(waiting, messages, producer, numbers, in_turn)
            else:
                self._spread(waiting, messages)
        except (PenstockError, AttributeError, TypeError, ValueError, OverflowError) as error:
            failure = error if isinstance(error, PenstockError) else InvalidRecord(f"no message: {error}")
            if waiting is not None:
                call.set_exception(failure)
                return call
            gatherer.losses.count(len(messages), self.topic.name, failure)
        if waiting is None:
            call.set_result([Placed(max(message.partition, -1), -1) for message in messages])
        return call

    # -- which partition --------------------------------------------------------------------------------------

    def _partition(self, index: int) -> Partition:
        """One of the topic's partitions; raises when there is none or the topic is gone."""
        if index >= self._count:
            raise UnknownPartition(f"topic {self.topic.name!r} has {self._count} partitions, none is {index}")
        partition = self.topic.partitions[index]
        assert partition is not None
        if partition.closed:
            raise UnknownTopic(f"topic {self.topic.name!r} was deleted")
        return partition

    def _spread(self, call: Call | None, messages: Sequence[Outgoing]) -> None:
        if len(self.topic.partitions) != self._count:
            self._count = self._gatherer.widen(self.topic) or self._count
        keyless = self._gatherer.partition_of_tick(self._count) if self._count > 1 else 0
        index = only_partition(messages, self._count, keyless)
        if index >= 0:
            partition = self._partition(index)
            self._add(call, partition, self._records(messages), messages)
            return
        # All of them are made before any joins the others: a call is refused as a whole.
        made = self._parts(messages, keyless)
        if call is not None:
            call.expect(sum(len(runs) for _, runs, _ in made), len(messages))
        for partition, runs, positions in made:
            at = 0
            for records, size_bytes in runs:
                self._join(call, partition, records, size_bytes, positions[at : at + len(records)])
                at += len(records)

    def _parts(self, messages: Sequence[Outgoing], keyless: int) -> list[tuple[Partition, list[_Run], list[int]]]:
        """Per partition its messages as records, and where they stood among the others."""
        return [
            (self._partition(index), self._records([messages[at] for at in positions]), positions)
            for index, positions in by_partition(messages, self._count, keyless).items()
        ]

    # -- joining the others -----------------------------------------------------------------------------------

    def _add(self, call: Call | None, partition: Partition, runs: list[_Run], messages: Sequence[Outgoing]) -> None:
        if len(runs) == 1:
            records, size_bytes = runs[0]
            self._join(call, partition, records, size_bytes, None)
            return
        if call is not None:
            call.expect(len(runs), len(messages))
        at = 0
        for records, size_bytes in runs:
            self._join(call, partition, records, size_bytes, range(at, at + len(records)))
            at += len(records)

    def _join(
        self,
        call: Call | None,
        partition: Partition,
        records: list[Record],
        size_bytes: int,
        positions: Sequence[int] | None,
    ) -> None:
        stretch = self._gatherer.pile(partition, self.topic).room_for(size_bytes)
        start = len(stretch.records)
        if start:
            number_from(records, start)
            stretch.records += records
        else:
            stretch.records = records
        stretch.size_bytes = size_bytes + (stretch.size_bytes or HEADER_BYTES)
        stretch.shares.append((call, start, len(stretch.records), positions))

    def _records(self, messages: Sequence[Outgoing]) -> list[_Run]:
        """Runs of records, each small enough for a batch, with the most that each of them takes."""
        settings = self.topic.settings
        now_ms = self._gatherer.now_ms()
        records, size_bytes = records_of(messages, now_ms)
        if asks_of_records(settings):
            for record in records:
                check_record(record, settings, now_ms)
        max_bytes = min(settings.max_message_bytes, BATCH_BYTES) - HEADER_BYTES
        return [(records, size_bytes)] if size_bytes <= max_bytes else self._split(records, max_bytes, now_ms)

    def _split(self, records: list[Record], max_bytes: int, now_ms: int) -> list[_Run]:
        runs: list[_Run] = []
        run: list[Record] = []
        run_bytes = 0
        for record in records:
            size_bytes = size_bound(record)
            if size_bytes > max_bytes:
                # This is the most it may take, and the topic may take more: made for real it tells, or is refused.
                make_batch([record], self.topic.settings, now_ms)
            if run and run_bytes + size_bytes > max_bytes:
                runs.append((run, run_bytes))
                run, run_bytes = [], 0
            record.offset = len(run)
            run.append(record)
            run_bytes += size_bytes
        runs.append((run, run_bytes))
        return runs

    # -- with numbers -----------------------------------------------------------------------------------------

    def _number(
        self,
        call: Call | None,
        messages: Sequence[Outgoing],
        producer: str,
        numbers: Sequence[int],
        in_turn: bool,
    ) -> None:
        if numbers[0] < 0 or numbers[-1] > MAX_NUMBER:
            raise InvalidRequest(f"a sequence is a number from 0 to {MAX_NUMBER}, not {numbers[0]}")
        if len(self.topic.partitions) != self._count:
            self._count = self._gatherer.widen(self.topic) or self._count
        producer_id = producer_id_of(producer)
        made = self._parts(messages, producer_id % self._count)
        if call is not None:
            call.expect(sum(len(runs) for _, runs, _ in made), len(messages))
        for partition, runs, positions in made:
            pile = self._gatherer.pile(partition, self.topic)
            at = 0
            for records, _ in runs:
                part = positions[at : at + len(records)]
                stretch = pile.begin(Numbered(producer_id, [numbers[position] for position in part], in_turn))
                stretch.records = records
                stretch.shares.append((call, 0, len(records), part))
                at += len(records)


class Gatherer:
    def __init__(self, topics: Topics, administrator: Administrator, publisher: Publisher) -> None:
        self._topics = topics
        self._administrator = administrator
        self._publisher = publisher
        self._piles: dict[Partition, Pile] = {}
        self._now_ms = -1  # one time for all that comes in a tick
        self._ticks = 0
        self._scheduled = False
        self._opening: dict[TopicId, asyncio.Task[None]] = {}
        self.losses = Losses()

    async def target(self, principal: Principal, topic: str) -> Target:
        """Raises UnknownTopic, NotAllowed, InvalidTopicName; makes the topic if the server does so on first use."""
        found = await self._administrator.topic_on_first_use(principal, topic)
        self._publisher.check(principal, found)
        if None in found.partitions:
            await self._open_all(found)
        return Target(self, found)

    def flush(self) -> None:
        """Append what was gathered now instead of at the end of the tick."""
        if self._piles:
            piles, self._piles = self._piles, {}
            now_ms, self._now_ms = self.now_ms(), -1
            self._ticks += 1
            for pile in piles.values():
                pile.append(now_ms)

    # -- for its targets --------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        if self._now_ms < 0:
            self._now_ms = self._topics.clock.wall_ms()
        return self._now_ms

    async def append(self, topic: Topic, index: int, batch: bytearray | memoryview) -> Appended:
        return await self._publisher.publish(topic, index, batch)

    def partition_of_tick(self, count: int) -> int:
        """Where messages without a key go: all of one tick to the same partition, so that they share a batch."""
        return ((self._ticks * _SCATTER >> 32) & 0xFFFF_FFFF) % count

    def pile(self, partition: Partition, topic: Topic) -> Pile:
        pile = self._piles.get(partition)
        if pile is None:
            pile = self._piles[partition] = Pile(partition, topic.settings, self.losses)
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._end_tick)
        return pile

    def _end_tick(self) -> None:
        self._scheduled = False
        self._now_ms = -1
        self.flush()

    def widen(self, topic: Topic) -> int | None:
        """The topic was given partitions: how many it has once all are open; until then they are being opened."""
        if None not in topic.partitions:
            return len(topic.partitions)
        if topic.id not in self._opening:
            task = self._opening[topic.id] = asyncio.create_task(self._open_quietly(topic))
            task.add_done_callback(lambda _: self._opening.pop(topic.id, None))
        return None

    async def _open_all(self, topic: Topic) -> None:
        for index in range(len(topic.partitions)):
            await self._topics.open(topic, index)

    async def _open_quietly(self, topic: Topic) -> None:
        try:
            await self._open_all(topic)
        except PenstockError as error:
            _log.warning("the new partitions of %s cannot be opened yet: %s", topic.name, error)
