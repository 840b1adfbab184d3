"""Offsets that transactions have handed in and that count when their transaction commits, if it does.

    an offset of a transaction      becomes of it
    ------------------------------  ------------------------------------------------------------------------------
    its transaction commits         the group's committed offset, unless a younger one has overtaken it
    its transaction aborts          nothing
    overtaken: somebody commits     nothing; what was handed in last counts, as in Kafka
    the same partition after it
    its topic, its group or its     nothing
    partition's offset is deleted

One fact per producer and partition. What was decided and is not durable yet lies over what is: a decision that builds
on an earlier one sees it, and one that could not be stored leaves no trace.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, TypeVar

from penstock.delivery.decision import Fact
from penstock.delivery.group_facts import OffsetFact, PendingKey, pending_fact, read_offset
from penstock.delivery.offsets import TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class Place(NamedTuple):
    producer_id: int
    partition: TopicPartition


class Pending(NamedTuple):
    number: int  # counts what was handed in, so that of two offsets the younger is known
    offset: OffsetFact


class PendingOffsets:
    def __init__(self, group: str) -> None:
        self.group = group
        self._kept: dict[Place, Pending] = {}
        self._in_flight: dict[Place, deque[Pending | None]] = {}  # decided, not yet durable; None: its end
        self._by_producer: dict[int, dict[TopicPartition, None]] = {}
        self._by_partition: dict[TopicPartition, dict[int, None]] = {}
        self._number = 0

    def __len__(self) -> int:
        """How many are known, decided ones counted."""
        return len(self._kept) + sum(1 for place in self._in_flight if place not in self._kept)

    @property
    def is_blank(self) -> bool:
        return not self._kept and not self._in_flight

    def partitions(self) -> Collection[TopicPartition]:
        return self._by_partition.keys()

    def of(self, producer_id: int) -> Mapping[TopicPartition, OffsetFact]:
        """What this producer has handed in and what is durable of it."""
        places = (Place(producer_id, partition) for partition in self._by_producer.get(producer_id, ()))
        return {place.partition: self._kept[place].offset for place in places if place in self._kept}

    def holds(self, partition: TopicPartition) -> bool:
        """Whether some transaction has yet to decide on this partition's offset."""
        return any(Place(producer, partition) in self._kept for producer in self._by_partition.get(partition, ()))

    def knows(self, producer_id: int, partition: TopicPartition) -> bool:
        return self._current(Place(producer_id, partition)) is not None

    # -- deciding -----------------------------------------------------------------------------------------------

    def pend(self, producer_id: int, offsets: Mapping[TopicPartition, OffsetFact]) -> list[Fact]:
        facts = []
        for partition, offset in offsets.items():
            self._number += 1
            facts.append(self._decide(Place(producer_id, partition), Pending(self._number, offset)))
        return facts

    def take(self, producer_id: int) -> tuple[dict[TopicPartition, OffsetFact], list[Fact]]:
        """All that this producer has handed in, with what ends it and whatever it overtakes."""
        taken: dict[TopicPartition, OffsetFact] = {}
        facts: list[Fact] = []
        for partition in list(self._by_producer.get(producer_id, ())):
            pending = self._current(Place(producer_id, partition))
            if pending is not None:
                taken[partition] = pending.offset
                facts.extend(self._end(partition, pending.number))
        return taken, facts

    def forget(self, producer_id: int) -> list[Fact]:
        """The transaction was aborted."""
        places = [Place(producer_id, partition) for partition in self._by_producer.get(producer_id, ())]
        return [self._decide(place, None) for place in places if self._current(place) is not None]

    def overtake(self, partitions: Collection[TopicPartition]) -> list[Fact]:
        """Somebody commits these now: what was handed in before does not count any more."""
        if not self._by_partition:
            return []
        return [fact for partition in partitions for fact in self._end(partition, self._number)]

    def drop(self, wanted: Callable[[TopicPartition], bool]) -> list[Fact]:
        return self.overtake([partition for partition in self._by_partition if wanted(partition)])

    def _end(self, partition: TopicPartition, number: int) -> Iterator[Fact]:
        """End what was handed in for the partition up to this number."""
        for producer_id in list(self._by_partition.get(partition, ())):
            place = Place(producer_id, partition)
            pending = self._current(place)
            if pending is not None and pending.number <= number:
                yield self._decide(place, None)

    def _current(self, place: Place) -> Pending | None:
        decided = self._in_flight.get(place)
        return decided[-1] if decided else self._kept.get(place)

    def _decide(self, place: Place, pending: Pending | None) -> Fact:
        self._in_flight.setdefault(place, deque()).append(pending)
        self._index(place)
        return pending_fact(self.group, place.producer_id, *place.partition, pending.offset if pending else None)

    # -- what became of it --------------------------------------------------------------------------------------

    def settle(self, key: PendingKey, durable: bool) -> None:
        """The oldest decision on this place is durable, or never will be."""
        place = _place(key)
        decided = self._in_flight[place]
        pending = decided.popleft()
        if not decided:
            del self._in_flight[place]
        if durable:
            self._keep(place, pending)
        self._index(place)

    def apply(self, key: PendingKey, value: bytes | None) -> None:
        """A recorded fact, at start-up. Facts come in the order they were recorded, so their numbers are as before."""
        place = _place(key)
        self._number += 1
        self._keep(place, None if value is None else Pending(self._number, read_offset(value)))
        self._index(place)

    def _keep(self, place: Place, pending: Pending | None) -> None:
        if pending is None:
            self._kept.pop(place, None)
        else:
            self._kept[place] = pending

    def _index(self, place: Place) -> None:
        producer_id, partition = place
        if place in self._kept or place in self._in_flight:
            self._by_producer.setdefault(producer_id, {})[partition] = None
            self._by_partition.setdefault(partition, {})[producer_id] = None
            return
        _remove(self._by_producer, producer_id, partition)
        _remove(self._by_partition, partition, producer_id)


def _place(key: PendingKey) -> Place:
    return Place(key.producer_id, TopicPartition(key.topic, key.partition))


def _remove(index: dict[K, dict[V, None]], key: K, value: V) -> None:
    values = index.get(key)
    if values is not None:
        values.pop(value, None)
        if not values:
            del index[key]
