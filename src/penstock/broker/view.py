"""A queue view that is at home here: its machine, the partitions it reads, and who consumes it."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.broker.alarms import Alarms
from penstock.broker.hosting import Hosted
from penstock.broker.view_arrivals import Sieve
from penstock.broker.view_records import Chunks, Shelf
from penstock.broker.views import StreamFact, ViewFact, ViewInfo
from penstock.delivery.decision import Decision, Moment
from penstock.delivery.filters import compile_filter
from penstock.delivery.queue import Queue
from penstock.delivery.queue_events import Bury, Outcome, Receipt
from penstock.log.partition import Partition
from penstock.log.topics import Topic, Topics
from penstock.model.errors import PenstockError
from penstock.model.record import Record

if TYPE_CHECKING:
    from penstock.broker.view_outbox import Outbox
    from penstock.broker.view_pump import Pump


class Delivery(NamedTuple):
    """One leased message. `receipt` settles it."""

    topic: str
    partition: int
    record: Record
    receipt: Receipt
    attempt: int


class Consumer:
    """Who is told of deliveries, and of the view's end."""

    __slots__ = ("deliver", "ended")

    def __init__(
        self, deliver: Callable[[Sequence[Delivery]], None], ended: Callable[[PenstockError], None] | None
    ) -> None:
        self.deliver = deliver
        self.ended = ended


class ViewStream:
    """One partition that the view reads; opened when first used."""

    __slots__ = ("again", "index", "known_end", "number", "retry_ms", "sieve", "topic", "watched")

    def __init__(self, number: int, topic: Topic, index: int, sieve: Sieve) -> None:
        self.number = number
        self.topic = topic
        self.index = index
        self.sieve = sieve
        self.again = False  # read before the server started, and not looked at since
        self.watched = False
        self.known_end = 0  # what lies before it may have been seen before; -1: all that is there when it is read
        self.retry_ms = 0  # after a failed read: not before this time (monotonic)

    @property
    def partition(self) -> Partition | None:
        return self.topic.partitions[self.index]


class View(Hosted[Queue]):
    __slots__ = (
        "alarm",
        "burying",
        "consumers",
        "definition",
        "edition",
        "floors",
        "gone",
        "gone_records",
        "id",
        "numbers",
        "outbox",
        "pump",
        "shelf",
        "streams",
        "topics",
        "used_ms",
        "waiters",
    )

    outbox: "Outbox"
    pump: "Pump"

    def __init__(self, view_id: int, definition: ViewFact, machine: Queue, shelf: Shelf) -> None:
        super().__init__(machine)
        self.id = view_id
        self.alarm = str(view_id)
        self.definition = definition
        self.edition = 0  # rises when all that waits is seen anew: what was read before then is not to be shown
        self.shelf = shelf
        self.streams: dict[int, ViewStream] = {}
        self.numbers: dict[tuple[str, int], int] = {}  # (topic, partition) -> stream
        self.topics: tuple[Topic, ...] = ()
        self.floors: dict[int, int] = {}  # per stream: everything before it is settled, durably
        self.consumers: dict[int, Consumer] = {}
        self.waiters: set[asyncio.Future[None]] = set()  # lease calls that look again when something happened
        self.burying: deque[Bury] = deque()  # on the way to the dead letters
        self.gone: PenstockError | None = None  # why it is no longer here
        self.gone_records = 0  # of messages that retention took before they were settled
        self.used_ms = 0  # monotonic

    @property
    def address(self) -> str:
        return self.definition.address

    @property
    def at_most_once(self) -> bool:
        return self.definition.settings.guarantee == "at-most-once"

    @property
    def attentive(self) -> bool:
        """Whether anybody wants to see anything. With priorities the late and important are looked for early."""
        return bool(self.consumers) or self.definition.settings.max_priority > 0

    @property
    def frees_log(self) -> bool:
        """Whether it reads a topic that drops what its views have settled."""
        return any(topic.settings.settled for topic in self.topics)

    def attach_streams(self, facts: Sequence[StreamFact], topics: dict[str, Topic], *, again: bool = False) -> None:
        """Read these partitions from where they say, or, when they are read `again`, where replayed facts say."""
        sieves: dict[str, Sieve] = {}
        for fact in facts:
            sieve = sieves.get(fact.topic)
            if sieve is None:
                sieve = sieves[fact.topic] = self._sieve(fact.topic)
            stream = self.streams[fact.number] = ViewStream(fact.number, topics[fact.topic], fact.partition, sieve)
            stream.again = again
            stream.known_end = -1 if again else 0
            self.numbers[fact.topic, fact.partition] = fact.number
            self.machine.add_stream(fact.number, fact.start_offset)
            self.floors[fact.number] = self.machine.floor(fact.number)
        self._note_topics()

    def detach_topic(self, topic: str) -> list[int]:
        """Read it no longer; the numbers of its streams, which the machine has yet to be told."""
        numbers = [number for number, stream in self.streams.items() if stream.topic.name == topic]
        for number in numbers:
            stream = self.streams.pop(number)
            self.pump.unwatch(stream)
            self.numbers.pop((topic, stream.index), None)
            self.floors.pop(number, None)
        self._note_topics()
        return numbers

    def _note_topics(self) -> None:
        self.topics = tuple({stream.topic.name: stream.topic for stream in self.streams.values()}.values())

    def redefine(self, definition: ViewFact) -> None:
        """Other settings or other matches."""
        self.definition = definition
        self.edition += 1
        sieves = {source.topic: self._sieve(source.topic) for source in definition.sources}
        for stream in self.streams.values():
            sieve = sieves.get(stream.topic.name)
            if sieve is not None:
                stream.sieve = sieve
            stream.known_end = -1 if stream.partition is None else stream.partition.durable_end

    def _sieve(self, topic: str) -> Sieve:
        source = self.definition.source(topic)
        test = compile_filter(source.matches) if source is not None else None
        return Sieve(self.address, self.definition.settings, test)

    def survey(self) -> None:
        """Tell the machine what its partitions hold, as far as they are open."""
        for stream in self.streams.values():
            partition = stream.partition
            if partition is not None:
                self.look(stream, partition)

    def look(self, stream: ViewStream, partition: Partition) -> None:
        """Tell the machine what a partition holds now."""
        if stream.again:
            stream.again = False
            self.machine.reopened(stream.number, partition.opened_end)
            self.floors[stream.number] = self.machine.floor(stream.number)
        # What was settled was committed, also where a crash cost the marker that said so.
        settled_end = min(self.machine.floor(stream.number), partition.durable_end)
        self.machine.grew(stream.number, partition.start_offset, max(partition.stable_end, settled_end))

    def info(self) -> ViewInfo:
        self.survey()
        definition = self.definition
        return ViewInfo(
            definition.topic,
            definition.name,
            definition.settings,
            definition.sources,
            self.machine.is_paused,
            self.machine.counts(),
        )

    def wake(self) -> None:
        """Whoever waits for a message looks again."""
        waiters, self.waiters = self.waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Home(Protocol):
    """What those who work for a view need of the place where it lives (`view_host.py`)."""

    topics: Topics
    chunks: Chunks
    chores: Alarms  # what a view wants to be done at a time, beside what its machine wants

    @property
    def now(self) -> Moment: ...

    def perform(self, hosted: View, decision: Decision) -> None: ...

    def ticket(self) -> tuple[int, asyncio.Future[Any]]: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...

    def settle_quietly(self, view: View, outcome: Outcome, receipts: Sequence[Receipt]) -> None:
        """By the broker itself; nobody waits for the answer."""
        ...

    def detach(self, view: View, consumer: int) -> None: ...
