"""A named step: any number of writers write under (name, epoch); one commit names those that count.

    (name, epoch)      open a writer        commit                                       abort
    -----------------  -------------------  -------------------------------------------  ------------------
    newer than all     a new writer         counted writers are committed, others of     its writers are
    that were          that are open        this and older epochs aborted                aborted
    committed
    committed, among   done, with its mark  same mark: done before; other: StepMismatch  nothing
    the newest 100
    older              StepForgotten        StepForgotten                                nothing

A name under which nothing was committed for `step_expiration_ms`, and nothing is open, is forgotten with all its
epochs: whoever asks then is the first.

The fact that an epoch is done names the writers that count; it is the commit. From then on the end is only carried
through. A writer that is aborted is recorded as such before its first marker is written, so that no later commit can
count it. Producer ids are never used twice: markers may be written again after a crash, and touch nothing else.

When the ledger fails, what was decided stays decided, is not acted upon, and is told again.
"""

from collections.abc import Collection, Sequence

from penstock.delivery.decision import Decision, Moment
from penstock.delivery.offsets import TopicPartition
from penstock.delivery.step_record import (
    STEP_HISTORY,
    WRITING_EPOCH,
    Done,
    Key,
    StepEnding,
    StepRecord,
    StepWriter,
    disappoint,
)
from penstock.delivery.transaction_events import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Opened,
    ProducerIdentity,
    Task,
)
from penstock.delivery.transaction_facts import (
    DoneKey,
    WriterKey,
)
from penstock.delivery.writers import MAX_WAITING, Place
from penstock.model.errors import (
    ConcurrentTransactions,
    InvalidRequest,
    InvalidTransactionTimeout,
    LimitReached,
    PenstockError,
    ProducerFenced,
    StepAborted,
    StepMismatch,
)

MARK_MAX_CHARS = 1_024
LABEL_MAX_CHARS = 1_024
MAX_WRITERS = 20_000
MAX_PLACES = 200_000  # partitions and groups of all writers: each is to be ended


class Step(StepRecord):
    __slots__ = ()

    # -- writers ------------------------------------------------------------------------------------------------

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
        self._check_known()

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
            self._check_places(sum(not writer.has(place) for place in places))
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

    def _check_places(self, more: int) -> None:
        self._places += more
        if self._places > MAX_PLACES:  # it counts those of writers that are gone by now, too
            self._places = more + sum(1 for writer in self.writers.values() for _ in writer.places)
            if self._places > MAX_PLACES:
                raise LimitReached(f"the writers of a step may have {MAX_PLACES} partitions and groups")

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
        self._check_known()
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
            self._forget_all(decision)
            for ticket in self._forgetting:
                decision.reply(ticket, None)
            self._forgetting.clear()

    def _forget_all(self, decision: Decision) -> None:
        """Oldest first: if a crash keeps some, they are the newest, and what is older is known to be over."""
        keys = [DoneKey(self.name, epoch) for epoch in self.done]
        self.done.clear()
        if keys:
            self._fading = True
            self._tell(decision, keys)

    # -- endings ------------------------------------------------------------------------------------------------

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
            disappoint(ending, decision, f"{len(left)} parts of the step could not be ended yet: try again")
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

    # -- time ---------------------------------------------------------------------------------------------------

    def tick(self, now: Moment) -> Decision:
        decision = Decision()
        if self._retry.is_due(now):
            self._retry.at_ms = None
            self._try_again(now, decision)
            return decision
        for epoch in [epoch for epoch, heard in self._heard.items() if heard.silent_ms <= now.monotonic_ms]:
            self._abort(decision, epoch)
        if self._expires_in_ms(now) == 0:
            self._forget_all(decision)
        return decision

    def _expires_in_ms(self, now: Moment) -> int | None:
        if not self.done or self.writers or self._endings or self._untold or self._turns or self._forgetting:
            return None
        newest = self.done[self.newest]
        return max(0, newest.committed_ms + self.settings.step_expiration_ms - now.wall_ms)

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
        deadlines = [heard.silent_ms for heard in self._heard.values()]
        if self._retry.at_ms is not None:
            deadlines.append(self._retry.at_ms)
        expires_in_ms = self._expires_in_ms(now)
        if expires_in_ms is not None:
            deadlines.append(now.monotonic_ms + expires_in_ms)
        return min(deadlines, default=None)
