"""A transactional id: who its producer is, and where its transaction stands.

    state              a new partition or group     end                                 init
    -----------------  ---------------------------  ----------------------------------  --------------------------
    Empty              Ongoing                      v2 abort: CompleteAbort             Empty, new epoch
    Ongoing            Ongoing                      PrepareCommit, PrepareAbort         PrepareAbort, new epoch, and
                                                                                        the caller asks again
    PrepareCommit,     ConcurrentTransactions       the same: waits for it              ConcurrentTransactions
    PrepareAbort                                    the other: InvalidTransactionState
    CompleteCommit,    Ongoing                      repeated: answered again            Empty, new epoch
    CompleteAbort                                   v2 abort: CompleteAbort

From Prepare there is one way only, Complete, when every marker and every group's offsets are durable. Nobody is told of
an end, and nothing new begins, before Complete itself is durable: else a crash would write the markers again, into the
transaction that came next.

The first protocol keeps the epoch from one transaction to the next, so a delayed EndTxn cannot be told by its epoch; it
is told by its connection, which is older than the one that began the transaction. The second (KIP-890) gives a new
epoch with every end. A producer's own re-init (KIP-360) and its v2 end are answered again to whoever repeats them
under the identity before: `last`. Whoever takes over without one, and a time-out, leaves no `last`: the old is fenced.

When the ledger fails, what was decided stays decided, is not acted upon, and is told again: an end that was asked for
cannot become the other one.
"""

from collections.abc import Collection, Iterable, Sequence

from penstock.delivery.decision import Decision, Moment
from penstock.delivery.offsets import TopicPartition
from penstock.delivery.transaction_events import (
    NO_PRODUCER_ID,
    ProducerIdentity,
    Task,
)
from penstock.delivery.transaction_facts import (
    transaction_fact,
)
from penstock.delivery.transaction_record import (
    COMPLETE,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    NOBODY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TransactionRecord,
)
from penstock.delivery.writers import MAX_WAITING, Place
from penstock.model.errors import (
    ConcurrentTransactions,
    InvalidProducerMapping,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    PenstockError,
    ProducerFenced,
)


class Transaction(TransactionRecord):
    # -- init ---------------------------------------------------------------------------------------------------

    def init(
        self, now: Moment, ticket: int, timeout_ms: int, given: ProducerIdentity | None, new_id: int, via: int = 0
    ) -> Decision:
        """The reply is the producer's identity. `new_id` is used if `wants_id`."""
        decision = Decision()
        try:
            self._check_init(timeout_ms, given)
        except PenstockError as error:
            decision.reply(ticket, error)
            return decision
        if self.state is ONGOING:
            self._fence(now, decision, given)
            decision.reply(ticket, ConcurrentTransactions("the transaction that was open is being aborted: try again"))
            return decision
        if given is None or given == self.identity or self.identity == NOBODY:
            bumped = self._next(new_id)
            if bumped is None:
                decision.reply(ticket, ConcurrentTransactions("a new producer id is on its way: try again"))
                return decision
            self.last = given if given == self.identity else None
            self.identity = bumped
        self.state = EMPTY
        self.timeout_ms = timeout_ms
        self._via = via
        self._tell(now, decision)
        decision.reply(ticket, self.identity)
        return decision

    def _check_init(self, timeout_ms: int, given: ProducerIdentity | None) -> None:
        if not 0 < timeout_ms <= self.settings.max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"a transaction's time-out may be 1 to {self.settings.max_timeout_ms} ms "
                f"(transaction_max_timeout_ms), not {timeout_ms}"
            )
        self._check_rest()
        if given is not None and self.identity != NOBODY and given not in (self.identity, self.last):
            raise ProducerFenced(f"a newer producer has the transactional id {self.name!r}")

    # -- what belongs to the transaction ------------------------------------------------------------------------

    def covers(self, identity: ProducerIdentity, place: Place) -> bool:
        """Whether the place is known to be part of the transaction; raises unless the producer may write now."""
        self._check(identity)
        return self.state is ONGOING and place in self.writer.known and not self.writer.dirty

    def has(self, identity: ProducerIdentity, place: Place) -> bool:
        """Whether the place is part of the transaction, known or not yet."""
        self._check(identity)
        return self.state is ONGOING and self.writer.has(place)

    def add(
        self,
        now: Moment,
        ticket: int,
        identity: ProducerIdentity,
        places: Collection[Place],
        via: int = 0,
        result: object = None,
    ) -> Decision:
        """The reply is the given result, when the places are known. The first one begins a transaction."""
        decision = Decision()
        try:
            self._check(identity)
            self.writer.check_room(places)
        except PenstockError as error:
            decision.reply(ticket, error)
            return decision
        self._via = max(self._via, via)
        if self.state is ONGOING and not self.writer.dirty and all(map(self.writer.has, places)):
            if self.writer.telling is not None:  # answered with the fact that is on its way
                self.writer.telling.reply(ticket, result)
            else:
                decision.reply(ticket, result)
            return decision
        self._include(now, decision, places)
        decision.reply(ticket, result)
        return decision

    def adopt(self, now: Moment, identity: ProducerIdentity, partition: TopicPartition) -> Decision | None:
        """A transaction of this producer is open in a partition. None: it is not this one, and is nobody's."""
        if self.marker is not None:
            # The partition may be part of what is being ended, and hold something older that is not.
            is_ours = identity == self.ended and partition in self.writer.partitions
            return Decision() if is_ours else None
        if identity != self.identity or self._completing or self._forgetting:
            return None
        decision = Decision()
        if partition not in self.writer.partitions:
            # A crash took the fact and left the batch. Its producer may be about to repeat it, and would be told
            # that it is stored: so it is.
            self._include(now, decision, (partition,))
        return decision

    def _include(self, now: Moment, decision: Decision, places: Iterable[Place]) -> None:
        if self.state is not ONGOING:
            self.writer.clear()
            self.state = ONGOING
            self.started_ms = now.wall_ms
            self._deadline_ms = now.monotonic_ms + self.timeout_ms
        self.writer.add(places)
        self._tell(now, decision)

    def _check(self, identity: ProducerIdentity) -> None:
        if identity.producer_id != self.identity.producer_id:
            raise InvalidProducerMapping(f"{self.name!r} does not have the producer id {identity.producer_id}")
        if identity.epoch != self.identity.epoch:
            raise ProducerFenced(f"epoch {identity.epoch} of {self.name!r} is over, {self.identity.epoch} is current")
        self._check_rest()

    def _check_rest(self) -> None:
        if self.state in PREPARED or self._completing or self._forgetting:
            raise ConcurrentTransactions(f"the last transaction of {self.name!r} is still being ended: try again")

    # -- end ----------------------------------------------------------------------------------------------------

    def end(
        self,
        now: Moment,
        ticket: int,
        identity: ProducerIdentity,
        commit: bool,
        bump: bool,
        via: int = 0,
        new_id: int = NO_PRODUCER_ID,
    ) -> Decision:
        """The reply is the producer's identity from now on, when everyone can see the result."""
        decision = Decision()
        try:
            if self._repeats(identity, bump):
                self._answer_again(now, ticket, decision, commit)
            else:
                self._check(identity)
                self._end(now, ticket, decision, commit, bump, via, new_id)
        except PenstockError as error:
            decision.reply(ticket, error)
        return decision

    def _repeats(self, identity: ProducerIdentity, bump: bool) -> bool:
        """Whether the caller has asked for this end before."""
        if self.state not in PREPARED and self.state not in COMPLETE:
            return False
        return identity == (self.last if bump else self.identity)

    def _answer_again(self, now: Moment, ticket: int, decision: Decision, commit: bool) -> None:
        if commit is not (self.state in (PREPARE_COMMIT, COMPLETE_COMMIT)):
            raise InvalidTransactionState(f"{self.name!r} has ended the transaction the other way: {self.state.value}")
        if self._ending is not None:
            if len(self._ending.tickets) >= MAX_WAITING:
                raise ConcurrentTransactions(f"{MAX_WAITING} wait for this end already: try again")
            self._ending.tickets.append(ticket)
            if not self._telling and not self._ending.begun:
                self._tell(now, decision)
        elif self.writer.telling is not None and not self.writer.dirty:
            self.writer.telling.reply(ticket, self.identity)
        else:
            if self.writer.dirty:
                self._tell(now, decision)
            decision.reply(ticket, self.identity)

    def _end(
        self, now: Moment, ticket: int, decision: Decision, commit: bool, bump: bool, via: int, new_id: int
    ) -> None:
        if self.state is not ONGOING and (commit or not bump):
            raise InvalidTransactionState(f"{self.name!r} has no transaction open that could be ended")
        if not bump and 0 < via < self._via:
            raise InvalidTransactionState(f"a delayed end of an earlier transaction of {self.name!r}")
        ended = bumped = self.identity
        if bump:
            following = self._next(new_id)
            if following is None:
                raise ConcurrentTransactions("a new producer id is on its way: try again")
            bumped = following
            ended = ProducerIdentity(ended.producer_id, ended.epoch + 1)
            self.last = self.identity
        self._prepare(now, decision, commit, ended, bumped, ticket)

    def _fence(self, now: Moment, decision: Decision, last: ProducerIdentity | None = None) -> None:
        fenced = ProducerIdentity(self.identity.producer_id, self.identity.epoch + 1)
        self.last = last
        self._prepare(now, decision, False, fenced, fenced, None)

    def _prepare(
        self,
        now: Moment,
        decision: Decision,
        commit: bool,
        marker: ProducerIdentity,
        identity: ProducerIdentity,
        ticket: int | None,
    ) -> None:
        if self.state is not ONGOING:
            self.writer.clear()
        self.state = PREPARE_COMMIT if commit else PREPARE_ABORT
        self.ended, self.marker, self.identity = self.identity, marker, identity
        self._deadline_ms = None
        self._begin_ending()
        assert self._ending is not None
        if ticket is not None:
            self._ending.tickets.append(ticket)
        if self._ending.tasks:
            self._tell(now, decision)
        else:
            self._complete(now, decision)

    def concluded(self, now: Moment, token: int, left: Sequence[Task]) -> Decision:
        """The shell has done what it could of the ending's tasks."""
        decision = Decision()
        ending = self._ending
        if ending is None or ending.token != token or not ending.running:
            return decision
        ending.running = False
        ending.tasks = left
        if left:
            self._retry.failed(now)
            self._disappoint(decision, f"{len(left)} parts of the transaction could not be ended yet: try again")
        else:
            self._retry.succeeded()
            self._complete(now, decision)
        return decision

    def _complete(self, now: Moment, decision: Decision) -> None:
        assert self._ending is not None
        self.state = COMPLETE_COMMIT if self.state is PREPARE_COMMIT else COMPLETE_ABORT
        self.ended = self.marker = None
        self.started_ms = -1
        self.writer.clear()
        self._via = 0
        self._completing = True
        tickets = self._ending.tickets
        self._ending = None
        self._tell(now, decision)
        for ticket in tickets:
            decision.reply(ticket, self.identity)

    def forget_topic(self, topic: str) -> None:
        """The topic is no more. That it was part of the transaction may be told later, or never."""
        if self.state is ONGOING and self.writer.forget_topic(topic):
            self.writer.dirty = True

    # -- time ---------------------------------------------------------------------------------------------------

    def tick(self, now: Moment) -> Decision:
        decision = Decision()
        if self._retry.is_due(now):
            self._retry.at_ms = None
            self._try_again(now, decision)
        if self.state is ONGOING and self._deadline_ms is not None and self._deadline_ms <= now.monotonic_ms:
            self._fence(now, decision)
        if self._expires_in_ms(now) == 0:
            self._forgetting = True
            self._telling.append(None)
            decision.facts.append(transaction_fact(self.name, None))
        return decision

    def _try_again(self, now: Moment, decision: Decision) -> None:
        ending = self._ending
        if ending is not None and ending.begun:
            if not ending.running:
                ending.run(decision)
        elif self.writer.dirty and not self._telling:  # else the newest fact is still on its way
            self._tell(now, decision)

    def _expires_in_ms(self, now: Moment) -> int | None:
        if self.state is ONGOING or self.state in PREPARED or self._telling or self._completing or self._forgetting:
            return None
        return max(0, self.updated_ms + self.settings.id_expiration_ms - now.wall_ms)

    def next_deadline_ms(self, now: Moment) -> int | None:
        """Monotonic; when `tick` has something to do."""
        deadlines = [at_ms for at_ms in (self._retry.at_ms, self._deadline_ms) if at_ms is not None]
        expires_in_ms = self._expires_in_ms(now)
        if expires_in_ms is not None:
            deadlines.append(now.monotonic_ms + expires_in_ms)
        return min(deadlines, default=None)
