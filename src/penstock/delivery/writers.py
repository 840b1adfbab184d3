"""What a Kafka transaction and a named step have in common: a writer, and the end of what writers wrote.

A writer has places: partitions it wrote to and groups it has pending offsets in. A place is *known* when the fact that
names it is durable; only then may anybody be told that something is stored there, for only then will it be ended after
a crash. A snapshot of all places is told at a time, so one that is stored makes up for an earlier one that was not.

An ending is a list of tasks: markers, and pending offsets to be kept or dropped. It begins when the fact that decides
it is durable, never before, and each task is tried until it is done; doing one twice changes nothing.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from penstock.delivery.decision import Decision, Moment
from penstock.delivery.offsets import TopicPartition
from penstock.delivery.transaction_events import Conclude, Mark, PendingEnd, Task
from penstock.model.errors import LimitReached

MAX_PARTITIONS = 10_000  # of one writer
MAX_GROUPS = 1_000
MAX_WAITING = 100  # who may wait for one ending

Place = TopicPartition | str


class Writer:
    __slots__ = ("_in_flight", "dirty", "groups", "known", "partitions", "telling")

    def __init__(self) -> None:
        self.partitions: set[TopicPartition] = set()
        self.groups: set[str] = set()
        self.known: set[Place] = set()
        self.dirty = False  # the newest snapshot could not be stored
        self.telling: Decision | None = None  # the newest snapshot is on its way with this decision
        self._in_flight: deque[tuple[Place, ...]] = deque()

    @property
    def places(self) -> Iterator[Place]:
        yield from self.partitions
        yield from self.groups

    @property
    def in_flight(self) -> bool:
        return bool(self._in_flight)

    def has(self, place: Place) -> bool:
        return place in (self.groups if isinstance(place, str) else self.partitions)

    def check_room(self, places: Iterable[Place]) -> None:
        partitions, groups = len(self.partitions), len(self.groups)
        for place in places:
            if isinstance(place, str):
                groups += place not in self.groups
            else:
                partitions += place not in self.partitions
        if partitions > MAX_PARTITIONS:
            raise LimitReached(f"one writer may have {MAX_PARTITIONS} partitions in a transaction")
        if groups > MAX_GROUPS:
            raise LimitReached(f"one writer may have {MAX_GROUPS} groups in a transaction")

    def add(self, places: Iterable[Place]) -> None:
        for place in places:
            if isinstance(place, str):
                self.groups.add(place)
            else:
                self.partitions.add(place)

    def told(self, decision: Decision) -> None:
        """A snapshot of all places goes with this decision."""
        self.dirty = False
        self.telling = decision
        self._in_flight.append(tuple(place for place in self.places if place not in self.known))

    def recorded(self) -> None:
        self.known.update(self._in_flight.popleft())
        if not self._in_flight:
            self.telling = None

    def unrecorded(self) -> None:
        self._in_flight.popleft()
        self.dirty = True
        if not self._in_flight:
            self.telling = None

    def forget_topic(self, topic: str) -> bool:
        gone = {partition for partition in self.partitions if partition.topic == topic}
        self.partitions -= gone
        self.known -= gone
        return bool(gone)

    def clear(self) -> None:
        self.partitions.clear()
        self.groups.clear()
        self.known.clear()

    def restore(self, partitions: Iterable[TopicPartition], groups: Iterable[str]) -> None:
        self.clear()
        self.partitions.update(partitions)
        self.groups.update(groups)
        self.known.update(self.places)

    def tasks(self, producer_id: int, epoch: int, commit: bool) -> Iterator[Task]:
        for partition in sorted(self.partitions):
            yield Mark(partition, producer_id, epoch, commit)
        for group in sorted(self.groups):
            yield PendingEnd(group, producer_id, commit)


class Retry:
    """When to try again what failed: soon, then after twice as long, up to a bound."""

    __slots__ = ("_first_ms", "_max_ms", "at_ms", "failures")

    def __init__(self, first_ms: int, max_ms: int) -> None:
        self._first_ms, self._max_ms = first_ms, max_ms
        self.failures = 0
        self.at_ms: int | None = None  # monotonic

    def failed(self, now: Moment) -> None:
        if self.at_ms is None:
            self.at_ms = now.monotonic_ms + min(self._max_ms, self._first_ms << min(self.failures, 20))
            self.failures += 1

    def is_due(self, now: Moment) -> bool:
        return self.at_ms is not None and self.at_ms <= now.monotonic_ms

    def succeeded(self) -> None:
        self.failures = 0
        self.at_ms = None


class Ending:
    __slots__ = ("begun", "running", "tasks", "tickets", "token")

    def __init__(self, token: int, tasks: Iterable[Task]) -> None:
        self.token = token
        self.tasks: Sequence[Task] = list(tasks)
        self.tickets: list[int] = []  # who waits for it
        self.begun = False  # the fact that decides it is durable
        self.running = False  # the shell is at it, or will be when the fact is durable

    def run(self, decision: Decision) -> None:
        self.running = True
        decision.effects.append(Conclude(self.token, self.tasks))
