"""A named step: any number of writers write under (name, epoch); one commit names those that count.

    (name, epoch)      open a writer        commit                                       abort
    -----------------  -------------------  -------------------------------------------  ------------------
    newer than all     a new writer         counted writers are committed, others of     its writers are
    that were          that are open        this and older epochs aborted                aborted
    committed
    committed, among   done, with its mark  same mark: done before; other: StepMismatch  nothing
    the newest 100
    older              StepForgotten        StepForgotten                                nothing

The fact that an epoch is done names the writers that count; it is the commit. From then on the end is only carried
through. A writer that is aborted is recorded as such before its first marker is written, so that no later commit can
count it. Producer ids are never used twice: markers may be written again after a crash, and touch nothing else.

When the ledger fails, what was decided stays decided, is not acted upon, and is told again.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from penstock.delivery.decision import Decision, Fact, Moment
from penstock.delivery.offsets import TopicPartition
from penstock.delivery.transaction_events import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Opened,
    ProducerIdentity,
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
from penstock.delivery.writers import MAX_WAITING, Ending, Place, Retry, Writer
from penstock.model.errors import (
    ConcurrentTransactions,
    InvalidRequest,
    InvalidTransactionTimeout,
    LimitReached,
    PenstockError,
    ProducerFenced,
    StepAborted,
    StepForgotten,
    StepMismatch,
)

STEP_HISTORY = 100
MARK_MAX_CHARS = 1_024
LABEL_MAX_CHARS = 1_024
MAX_WRITERS = 20_000
WRITING_EPOCH = 0  # of each writer's producer id
ENDED_EPOCH = 1  # of its markers: what comes late is fenced


Key = WriterKey | DoneKey


@dataclass(slots=True)
class Heard:
    """When something was last heard of an epoch that has open writers, and how long they may be silent."""

    at_ms: int  # monotonic
    timeout_ms: int


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


class Step:
    def __init__(self, name: str, settings: TransactionSettings) -> None:
        self.name = name
        self.settings = settings
        self.done: dict[int, Done] = {}  # by epoch, oldest first
        self.writers: dict[int, StepWriter] = {}  # by producer id; until they are ended
        self._endings: dict[int, StepEnding] = {}
        self._heard: dict[int, Heard] = {}  # by epoch
        self._forgetting: list[int] = []  # tickets
        self._tokens = 0
        self._turns: deque[list[StepEnding]] = deque()  # per decision on its way: what begins when it is durable
        self._telling: Decision | None = None  # the newest of them
        self._untold: dict[Key, None] = {}  # could not be stored
        self._retry = Retry(settings.retry_ms, settings.max_retry_ms)

    # -- writers ------------------------------------------------------------------------------------------------

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

    def open(
        self,
        now: Moment,
        ticket: int,
        epoch: int,
        label: str,
        timeout_ms: int,
        new_id: int,
        groups: Collection[str] = (),
    ) -> Decision:
        """The reply is an Opened."""
        decision = Decision()
        try:
            self._check_open(epoch, label, timeout_ms)
            done = self.find_done(epoch)
            writer = StepWriter(epoch, label, timeout_ms)
            writer.check_room(groups)
        except PenstockError as error:
            decision.reply(ticket, error)
            return decision
        if done is not None:
            decision.reply(ticket, Opened(NO_PRODUCER_ID, NO_EPOCH, True, done.mark))
            return decision
        writer.add(groups)
        self.writers[new_id] = writer
        self._hear(now, epoch, timeout_ms)
        self._tell(decision, [WriterKey(self.name, new_id)])
        decision.reply(ticket, Opened(new_id, WRITING_EPOCH))
        return decision

    def _check_open(self, epoch: int, label: str, timeout_ms: int) -> None:
        if epoch < 0:
            raise InvalidRequest(f"an epoch is a number from 0 on, not {epoch}")
        if len(label) > LABEL_MAX_CHARS:
            raise InvalidRequest(f"a writer's label may have {LABEL_MAX_CHARS} characters")
        if not 0 < timeout_ms <= self.settings.step_max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"a step's time-out may be 1 to {self.settings.step_max_timeout_ms} ms (step_max_timeout_ms), "
                f"not {timeout_ms}"
            )
        if len(self.writers) >= MAX_WRITERS:
            raise LimitReached(f"a step may have {MAX_WRITERS} writers at once")
        if self._forgetting:
            raise ConcurrentTransactions(f"step {self.name!r} is being forgotten: try again")

    def _hear(self, now: Moment, epoch: int, timeout_ms: int) -> None:
        heard = self._heard.setdefault(epoch, Heard(now.monotonic_ms, timeout_ms))
        heard.at_ms = now.monotonic_ms
        heard.timeout_ms = max(heard.timeout_ms, timeout_ms)

    def covers(self, now: Moment, identity: ProducerIdentity, place: Place) -> bool:
        """Whether the place is known to be part of the step; raises unless the writer may write now."""
        writer = self._writing(identity)
        self._heard[writer.epoch].at_ms = now.monotonic_ms
        return place in writer.known and not writer.dirty

    def add(self, now: Moment, ticket: int, identity: ProducerIdentity, places: Collection[Place]) -> Decision:
        """The reply is None, when the places are known."""
        decision = Decision()
        try:
            writer = self._writing(identity)
            writer.check_room(places)
        except PenstockError as error:
            decision.reply(ticket, error)
            return decision
        self._heard[writer.epoch].at_ms = now.monotonic_ms
        if not writer.dirty and all(map(writer.has, places)):
            if writer.telling is not None:  # answered with the fact that is on its way
                writer.telling.reply(ticket, None)
            else:
                decision.reply(ticket, None)
            return decision
        writer.add(places)
        self._tell(decision, [WriterKey(self.name, identity.producer_id)])
        decision.reply(ticket, None)
        return decision

    def adopt(self, now: Moment, identity: ProducerIdentity, partition: TopicPartition) -> Decision | None:
        """A transaction of this producer is open in a partition. None: it is nobody's."""
        writer = self.writers.get(identity.producer_id)
        if writer is None:
            return None
        if partition in writer.partitions:
            return Decision()
        if not self._is_open(writer):
            return None
        decision = Decision()
        writer.add((partition,))
        self._tell(decision, [WriterKey(self.name, identity.producer_id)])
        return decision

    def _writing(self, identity: ProducerIdentity) -> StepWriter:
        writer = self.writers.get(identity.producer_id)
        if writer is None or not self._is_open(writer) or identity.epoch != WRITING_EPOCH:
            raise ProducerFenced(f"step {self.name!r} has ended the writer {identity.producer_id}")
        return writer

    def _is_open(self, writer: StepWriter) -> bool:
        return not writer.aborting and writer.epoch > self.newest

    # -- commit -------------------------------------------------------------------------------------------------

    def commit(self, now: Moment, ticket: int, epoch: int, counts: Sequence[int], mark: str) -> Decision:
        """The reply, when everyone can see what the writers wrote, is True, or False if it was done before."""
        decision = Decision()
        try:
            done = self._check_commit(epoch, counts, mark)
        except PenstockError as error:
            decision.reply(ticket, error)
            return decision
        if done is None:
            self._commit(now, ticket, decision, epoch, counts, mark)
        else:
            self._commit_again(ticket, decision, epoch)
        return decision

    def _check_commit(self, epoch: int, counts: Sequence[int], mark: str) -> Done | None:
        if epoch < 0:
            raise InvalidRequest(f"an epoch is a number from 0 on, not {epoch}")
        if len(mark) > MARK_MAX_CHARS:
            raise InvalidRequest(f"a step's mark may have {MARK_MAX_CHARS} characters")
        if self._forgetting:
            raise ConcurrentTransactions(f"step {self.name!r} is being forgotten: try again")
        done = self.find_done(epoch)
        if done is not None:
            if done.mark != mark:
                raise StepMismatch(f"epoch {epoch} of step {self.name!r} was committed for {done.mark!r}, not {mark!r}")
            return done
        for producer_id in counts:
            writer = self.writers.get(producer_id)
            if writer is None or writer.aborting or writer.epoch != epoch:
                raise StepAborted(f"epoch {epoch} of step {self.name!r} has no open writer {producer_id}")
        return None

    def _commit(
        self, now: Moment, ticket: int, decision: Decision, epoch: int, counts: Sequence[int], mark: str
    ) -> None:
        over = {p: w for p, w in self.writers.items() if w.epoch <= epoch and self._is_open(w)}
        self.done[epoch] = Done(mark, now.wall_ms, tuple(dict.fromkeys(counts)))
        for old in [old for old in self._heard if old <= epoch]:
            del self._heard[old]
        ending = self._begin(epoch, tuple(over), self._tasks_of(over, frozenset(counts)), committed=True)
        ending.tickets.append(ticket)
        # What could not be stored of the writers goes before the commit that relies on it.
        keys: list[Key] = [WriterKey(self.name, p) for p in counts if self.writers[p].dirty]
        forgotten = self._forget_old()
        self._tell(decision, [*forgotten, *keys, DoneKey(self.name, epoch)], ending)

    def _tasks_of(self, writers: dict[int, StepWriter], counts: Collection[int]) -> Iterable[Task]:
        for producer_id, writer in writers.items():
            yield from writer.tasks(producer_id, ENDED_EPOCH, producer_id in counts)

    def _forget_old(self) -> list[DoneKey]:
        surplus = list(self.done)[: max(0, len(self.done) - STEP_HISTORY)]
        gone = [epoch for epoch in surplus if self.done[epoch].counts is None]
        for epoch in gone:
            del self.done[epoch]
        return [DoneKey(self.name, epoch) for epoch in gone]

    def _commit_again(self, ticket: int, decision: Decision, epoch: int) -> None:
        ending = next((e for e in self._endings.values() if e.committed and e.epoch == epoch), None)
        if ending is None:
            decision.reply(ticket, False)
        elif len(ending.tickets) >= MAX_WAITING:
            decision.reply(ticket, ConcurrentTransactions(f"{MAX_WAITING} wait for this commit already: try again"))
        else:
            ending.tickets.append(ticket)

    # -- abort --------------------------------------------------------------------------------------------------

    def abort(self, now: Moment, ticket: int, epoch: int, only: Collection[int] | None = None) -> Decision:
        """The reply, when it is done, is the number of writers that were aborted."""
        decision = Decision()
        ending = self._abort(decision, epoch, only)
        if ending is None:
            ending = next((e for e in self._endings.values() if not e.committed and e.epoch == epoch), None)
        if ending is None or len(ending.tickets) >= MAX_WAITING:
            decision.reply(ticket, 0)
        else:
            ending.tickets.append(ticket)
        return decision

    def _abort(self, decision: Decision, epoch: int, only: Collection[int] | None = None) -> StepEnding | None:
        over = {
            producer_id: writer
            for producer_id, writer in self.writers.items()
            if writer.epoch == epoch and self._is_open(writer) and (only is None or producer_id in only)
        }
        if only is None:
            self._heard.pop(epoch, None)
        if not over:
            return None
        for writer in over.values():
            writer.aborting = True
        ending = self._begin(epoch, tuple(over), self._tasks_of(over, ()), committed=False)
        self._tell(decision, [WriterKey(self.name, producer_id) for producer_id in over], ending)
        return ending

    def forget(self, now: Moment, ticket: int) -> Decision:
        """The reply is None, when nothing is known of the step any more."""
        decision = Decision()
        if len(self._forgetting) >= MAX_WAITING:
            decision.reply(ticket, ConcurrentTransactions(f"step {self.name!r} is being forgotten: try again"))
            return decision
        self._forgetting.append(ticket)
        for epoch in list(self._heard):
            self._abort(decision, epoch)
        self._forget_if_ended(decision)
        return decision

    def _forget_if_ended(self, decision: Decision) -> None:
        if self._forgetting and not self._endings:
            keys = [DoneKey(self.name, epoch) for epoch in self.done]
            self.done.clear()
            if keys:
                self._tell(decision, keys)
            for ticket in self._forgetting:
                decision.reply(ticket, None)
            self._forgetting.clear()

    # -- endings ------------------------------------------------------------------------------------------------

    def _begin(self, epoch: int, writers: tuple[int, ...], tasks: Iterable[Task], committed: bool) -> StepEnding:
        self._tokens += 1
        ending = self._endings[self._tokens] = StepEnding(self._tokens, epoch, writers, tasks, committed)
        return ending

    def concluded(self, now: Moment, token: int, left: Sequence[Task]) -> Decision:
        """The shell has done what it could of the ending's tasks. If all is done it goes on with `tidy`."""
        decision = Decision()
        ending = self._endings.get(token)
        if ending is None or not ending.running:
            return decision
        ending.running = False
        ending.tasks = left
        if left:
            self._retry.failed(now)
            _disappoint(ending, decision, f"{len(left)} parts of the step could not be ended yet: try again")
            return decision
        for number, ticket in enumerate(ending.tickets):
            decision.reply(ticket, ending.result if number == 0 or not ending.committed else False)
        ending.tickets.clear()
        return decision

    def tidy(self, now: Moment) -> Decision:
        """Forget the writers that are ended. Apart, so that nobody waits for it."""
        decision = Decision()
        keys: list[Key] = []
        for ending in [e for e in self._endings.values() if not e.tasks and e.begun and not e.running]:
            del self._endings[ending.token]
            for producer_id in ending.writers:
                del self.writers[producer_id]
                keys.append(WriterKey(self.name, producer_id))
            done = self.done.get(ending.epoch)
            if ending.committed and done is not None:
                done.counts = None
                keys.append(DoneKey(self.name, ending.epoch))
        if keys:
            self._tell(decision, keys)
        self._forget_if_ended(decision)
        return decision

    def forget_topic(self, topic: str) -> None:
        for writer in self.writers.values():
            if self._is_open(writer) and writer.forget_topic(topic):
                writer.dirty = True

    # -- time ---------------------------------------------------------------------------------------------------

    def tick(self, now: Moment) -> Decision:
        decision = Decision()
        if self._retry.is_due(now):
            self._retry.at_ms = None
            self._try_again(now, decision)
            return decision
        for epoch in [epoch for epoch, heard in self._heard.items() if _silent_ms(heard) <= now.monotonic_ms]:
            self._abort(decision, epoch)
        return decision

    def _try_again(self, now: Moment, decision: Decision) -> None:
        waiting = [ending for ending in self._endings.values() if not ending.running]
        if self._untold:
            # Commits last: what they rely on goes before them.
            keys = sorted(self._untold, key=lambda key: isinstance(key, DoneKey))
            self._tell(decision, keys, *(ending for ending in waiting if not ending.begun))
        else:
            for ending in waiting:
                ending.run(decision)
        if any(ending.begun and not ending.running for ending in waiting):
            self._retry.failed(now)

    def next_deadline_ms(self, now: Moment) -> int | None:
        """Monotonic; when `tick` has something to do."""
        deadlines = [_silent_ms(heard) for heard in self._heard.values()]
        if self._retry.at_ms is not None:
            deadlines.append(self._retry.at_ms)
        return min(deadlines, default=None)

    # -- remembering --------------------------------------------------------------------------------------------

    def _tell(self, decision: Decision, keys: Iterable[Key], *endings: StepEnding) -> None:
        """Tell what is true of these keys; the endings begin when that is durable."""
        if self._telling is not decision:
            self._telling = decision
            self._turns.append([])
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

    def recorded(self, now: Moment, facts: Sequence[Fact]) -> None:
        for ending in self._turns.popleft():
            ending.begun = True
        for fact in facts:
            writer = self._writer_of(fact)
            if writer is not None and fact.value is not None:
                writer.recorded()
        if not self._untold and all(ending.running for ending in self._endings.values()):
            self._retry.succeeded()

    def unrecorded(self, now: Moment, facts: Sequence[Fact]) -> Decision:
        decision = Decision()
        for ending in self._turns.popleft():
            ending.running = False
            _disappoint(ending, decision, "the end of the step could not be recorded: try again")
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

    def epoch_of(self, producer_id: int) -> int:
        return ENDED_EPOCH

    # -- showing ------------------------------------------------------------------------------------------------

    def describe(self) -> StepDescription:
        labels: dict[int, list[str]] = {}
        for writer in self.writers.values():
            if self._is_open(writer):
                labels.setdefault(writer.epoch, []).append(writer.label)
        return StepDescription(
            self.name, [(epoch, done.mark) for epoch, done in self.done.items()], sorted(labels.items())
        )


def _silent_ms(heard: Heard) -> int:
    return heard.at_ms + heard.timeout_ms


def _disappoint(ending: StepEnding, decision: Decision, reason: str) -> None:
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
