"""What is remembered of a named step: the epochs that are done, the writers that are open, and what is being ended.

Facts are told by key, and a key is told again when the ledger did not take it. Endings begin when the facts that decide
them are durable.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from penstock.delivery.decision import Decision, Fact, Moment
from penstock.delivery.offsets import TopicPartition
from penstock.delivery.transaction_events import (
    StepDescription,
    Task,
    TransactionSettings,
)
from penstock.delivery.transaction_facts import (
    DoneFact,
    DoneKey,
    WriterFact,
    WriterKey,
    done_fact,
    read_done,
    read_key,
    read_partitions,
    read_writer,
    write_partitions,
    writer_fact,
)
from penstock.delivery.writers import Ending, Retry, Writer
from penstock.model.errors import (
    ConcurrentTransactions,
    StepForgotten,
)

WRITING_EPOCH = 0  # of each writer's producer id
ENDED_EPOCH = 1  # of its markers: what comes late is fenced
STEP_HISTORY = 100

Key = WriterKey | DoneKey


@dataclass(slots=True)
class Heard:
    """When something was last heard of an epoch that has open writers, and how long they may be silent."""

    at_ms: int  # monotonic
    timeout_ms: int

    @property
    def silent_ms(self) -> int:
        """When that has been too long."""
        return self.at_ms + self.timeout_ms


@dataclass(slots=True)
class Done:
    mark: str
    committed_ms: int
    counts: tuple[int, ...] | None  # None when everyone can see it


class StepWriter(Writer):
    __slots__ = ("aborting", "epoch", "label", "timeout_ms")

    def __init__(self, epoch: int, label: str, timeout_ms: int) -> None:
        super().__init__()
        self.epoch = epoch  # of the step
        self.label = label
        self.timeout_ms = timeout_ms
        self.aborting = False


class StepEnding(Ending):
    __slots__ = ("committed", "epoch", "result", "writers")

    def __init__(
        self, token: int, epoch: int, writers: tuple[int, ...], tasks: Iterable[Task], committed: bool
    ) -> None:
        super().__init__(token, tasks)
        self.epoch = epoch
        self.writers = writers
        self.committed = committed
        self.result: object = True if committed else len(writers)


class StepRecord:
    __slots__ = (
        "_endings", "_fading", "_forgetting", "_heard", "_places", "_retry", "_telling", "_tokens", "_turns", "_untold",
        "done", "name", "settings", "writers",
    )  # fmt: skip

    def __init__(self, name: str, settings: TransactionSettings) -> None:
        self.name = name
        self.settings = settings
        self.done: dict[int, Done] = {}  # by epoch, oldest first
        self.writers: dict[int, StepWriter] = {}  # by producer id; until they are ended
        self._endings: dict[int, StepEnding] = {}
        self._heard: dict[int, Heard] = {}  # by epoch
        self._forgetting: list[int] = []  # tickets
        self._fading = False  # all commits are forgotten, and that is not durable yet
        self._tokens = 0
        self._places = 0  # at least as many as all writers have
        # Per decision on its way: what begins when it is durable. There are many names that rest, so none has a deque.
        self._turns: deque[list[StepEnding]] | None = None
        self._telling: Decision | None = None  # the newest of them
        self._untold: dict[Key, None] = {}  # could not be stored
        self._retry = Retry(settings.retry_ms, settings.max_retry_ms)

    @property
    def newest(self) -> int:
        """The newest epoch that was committed."""
        return next(reversed(self.done), -1)

    def find_done(self, epoch: int) -> Done | None:
        """How the epoch was committed, if it was. Raises if nobody can tell any more."""
        done = self.done.get(epoch)
        if done is None and epoch <= self.newest:
            raise StepForgotten(
                f"step {self.name!r} remembers its newest {STEP_HISTORY} commits, up to epoch {self.newest}; "
                f"epoch {epoch} is not among them"
            )
        return done

    def _check_known(self) -> None:
        """Nothing begins anew before what was is gone for good: a crash would bring some of the old epochs back."""
        if self._forgetting or self._fading:
            raise ConcurrentTransactions(f"step {self.name!r} is being forgotten: try again")

    def _is_open(self, writer: StepWriter) -> bool:
        return not writer.aborting and writer.epoch > self.newest

    def _hear(self, now: Moment, epoch: int, timeout_ms: int) -> None:
        heard = self._heard.setdefault(epoch, Heard(now.monotonic_ms, timeout_ms))
        heard.at_ms = now.monotonic_ms
        heard.timeout_ms = max(heard.timeout_ms, timeout_ms)

    def _tasks_of(self, writers: dict[int, StepWriter], counts: Collection[int]) -> Iterable[Task]:
        for producer_id, writer in writers.items():
            yield from writer.tasks(producer_id, ENDED_EPOCH, producer_id in counts)

    def _begin(self, epoch: int, writers: tuple[int, ...], tasks: Iterable[Task], committed: bool) -> StepEnding:
        self._tokens += 1
        ending = self._endings[self._tokens] = StepEnding(self._tokens, epoch, writers, tasks, committed)
        return ending

    # -- remembering --------------------------------------------------------------------------------------------

    def _tell(self, decision: Decision, keys: Iterable[Key], *endings: StepEnding) -> None:
        """Tell what is true of these keys; the endings begin when that is durable."""
        if self._telling is not decision:
            self._telling = decision
            if self._turns is None:
                self._turns = deque()
            self._turns.append([])
        assert self._turns is not None
        self._turns[-1].extend(endings)
        for key in keys:
            self._untold.pop(key, None)
            if isinstance(key, DoneKey):
                done = self.done.get(key.epoch)
                decision.facts.append(done_fact(self.name, key.epoch, None if done is None else _told(done)))
            else:
                writer = self.writers.get(key.producer_id)
                if writer is not None:
                    writer.told(decision)
                fact = None if writer is None else _told_writer(writer)
                decision.facts.append(writer_fact(self.name, key.producer_id, fact))
        for ending in endings:
            ending.run(decision)

    def _next_turn(self) -> list[StepEnding]:
        assert self._turns is not None
        begins = self._turns.popleft()
        if not self._turns:
            self._turns = self._telling = None
        return begins

    def recorded(self, now: Moment, facts: Sequence[Fact]) -> None:
        for ending in self._next_turn():
            ending.begun = True
        for fact in facts:
            writer = self._writer_of(fact)
            if writer is not None and fact.value is not None:
                writer.recorded()
        if not self._untold and not self._turns:
            self._fading = False
        if not self._untold and all(ending.running for ending in self._endings.values()):
            self._retry.succeeded()

    def unrecorded(self, now: Moment, facts: Sequence[Fact]) -> Decision:
        decision = Decision()
        for ending in self._next_turn():
            ending.running = False
            disappoint(ending, decision, "the end of the step could not be recorded: try again")
        for fact in facts:
            key = read_key(fact.key)
            assert isinstance(key, WriterKey | DoneKey)
            self._untold[key] = None
            writer = self._writer_of(fact)
            if writer is not None and fact.value is not None:
                writer.unrecorded()
        self._retry.failed(now)
        return decision

    def _writer_of(self, fact: Fact) -> StepWriter | None:
        key = read_key(fact.key)
        return self.writers.get(key.producer_id) if isinstance(key, WriterKey) else None

    def replay(self, key: Key, value: bytes | None) -> None:
        """A recorded fact, at start-up."""
        if isinstance(key, DoneKey):
            self.done.pop(key.epoch, None)
            if value is not None:
                done = read_done(value)
                counts = None if done.counts is None else tuple(done.counts)
                self.done[key.epoch] = Done(done.mark, done.committed_ms, counts)
        elif value is None:
            self.writers.pop(key.producer_id, None)
        else:
            fact = read_writer(value)
            writer = self.writers[key.producer_id] = StepWriter(fact.epoch, fact.label, fact.timeout_ms)
            writer.aborting = fact.aborting
            writer.restore(read_partitions(fact.partitions), fact.groups)

    def resume(self, now: Moment) -> Decision:
        """All was replayed: carry through what was decided; what is open has its whole time-out again."""
        self.done = dict(sorted(self.done.items()))
        self._places = sum(1 for writer in self.writers.values() for _ in writer.places)
        decision = Decision()
        ended = {p: w for p, w in self.writers.items() if not self._is_open(w)}
        for epoch, done in self.done.items():
            if done.counts is not None:
                over = {p: w for p, w in ended.items() if w.epoch <= epoch and not w.aborting}
                self._resume_ending(decision, epoch, over, done.counts)
                ended = {p: w for p, w in ended.items() if p not in over}
        for epoch in sorted({writer.epoch for writer in ended.values()}):
            self._resume_ending(decision, epoch, {p: w for p, w in ended.items() if w.epoch == epoch}, None)
        for writer in self.writers.values():
            if self._is_open(writer):
                self._hear(now, writer.epoch, writer.timeout_ms)
        return decision

    def _resume_ending(
        self, decision: Decision, epoch: int, over: dict[int, StepWriter], counts: Collection[int] | None
    ) -> None:
        tasks = self._tasks_of(over, frozenset(counts or ()))
        ending = self._begin(epoch, tuple(over), tasks, committed=counts is not None)
        ending.begun = True
        ending.result = False if ending.committed else 0  # whoever asks, asks again
        ending.run(decision)

    @property
    def is_blank(self) -> bool:
        """Nothing would be lost if it were forgotten now."""
        return not (self.done or self.writers or self._endings or self._untold or self._turns or self._forgetting)

    @property
    def producer_ids(self) -> Collection[int]:
        return self.writers.keys()

    def partitions(self) -> Iterable[TopicPartition]:
        return (partition for writer in self.writers.values() for partition in writer.partitions)

    # -- showing ------------------------------------------------------------------------------------------------

    def describe(self) -> StepDescription:
        labels: dict[int, list[str]] = {}
        for writer in self.writers.values():
            if self._is_open(writer):
                labels.setdefault(writer.epoch, []).append(writer.label)
        return StepDescription(
            self.name, [(epoch, done.mark) for epoch, done in self.done.items()], sorted(labels.items())
        )

    def forget_topic(self, topic: str) -> None:
        for writer in self.writers.values():
            if self._is_open(writer) and writer.forget_topic(topic):
                writer.dirty = True


def disappoint(ending: StepEnding, decision: Decision, reason: str) -> None:
    for ticket in ending.tickets:
        decision.reply(ticket, ConcurrentTransactions(reason))
    ending.tickets.clear()


def _told(done: Done) -> DoneFact:
    return DoneFact(done.mark, done.committed_ms, None if done.counts is None else list(done.counts))


def _told_writer(writer: StepWriter) -> WriterFact:
    return WriterFact(
        writer.epoch,
        writer.label,
        writer.timeout_ms,
        write_partitions(writer.partitions),
        sorted(writer.groups),
        writer.aborting,
    )
