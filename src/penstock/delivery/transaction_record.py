"""What is remembered of a transactional id: one fact that says all, told again when the ledger did not take it.

An ending begins when the fact that decides it is durable. Nothing new begins before Complete is.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from penstock.delivery.decision import Decision, Fact, Moment
from penstock.delivery.offsets import TopicPartition
from penstock.delivery.transaction_events import (
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdentity,
    TransactionDescription,
    TransactionSettings,
    TransactionState,
)
from penstock.delivery.transaction_facts import (
    TransactionFact,
    read_partitions,
    read_transaction,
    transaction_fact,
    write_partitions,
)
from penstock.delivery.writers import Ending, Retry, Writer
from penstock.model.errors import (
    ConcurrentTransactions,
)

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT

PREPARED = (PREPARE_COMMIT, PREPARE_ABORT)
COMPLETE = (COMPLETE_COMMIT, COMPLETE_ABORT)
NOBODY = ProducerIdentity(NO_PRODUCER_ID, NO_EPOCH)


class TransactionRecord:
    def __init__(self, name: str, settings: TransactionSettings) -> None:
        self.name = name
        self.settings = settings
        self.state = EMPTY
        self.identity = NOBODY
        self.last: ProducerIdentity | None = None
        self.marker: ProducerIdentity | None = None  # what the markers carry, while it is being ended
        self.ended: ProducerIdentity | None = None  # and what its batches carry
        self.timeout_ms = 0
        self.started_ms = -1  # wall time
        self.updated_ms = 0  # wall time
        self.forgotten = False  # nothing of it is left; the shell drops it
        self.writer = Writer()
        self._via = 0  # the newest connection that has taken part in the transaction
        self._deadline_ms: int | None = None  # monotonic, of the transaction
        self._ending: Ending | None = None
        self._completing = False  # Complete is not durable yet
        self._forgetting = False
        self._tokens = 0
        self._telling: deque[TransactionState | None] = deque()  # the facts on their way; None is a tombstone
        self._retry = Retry(settings.retry_ms, settings.max_retry_ms)

    @property
    def wants_id(self) -> bool:
        """Whether the next bump needs a new producer id."""
        return self.identity == NOBODY or self.identity.epoch >= LAST_EPOCH

    def _next(self, new_id: int) -> ProducerIdentity | None:
        """The identity after this one, if there is one: the epochs of a producer id come to an end."""
        if not self.wants_id:
            return ProducerIdentity(self.identity.producer_id, self.identity.epoch + 1)
        return None if new_id == NO_PRODUCER_ID else ProducerIdentity(new_id, 0)

    def _begin_ending(self) -> None:
        assert self.marker is not None
        self._tokens += 1
        commit = self.state is PREPARE_COMMIT
        self._ending = Ending(self._tokens, self.writer.tasks(self.marker.producer_id, self.marker.epoch, commit))

    def _disappoint(self, decision: Decision, reason: str) -> None:
        if self._ending is not None:
            for ticket in self._ending.tickets:
                decision.reply(ticket, ConcurrentTransactions(reason))
            self._ending.tickets.clear()

    # -- remembering --------------------------------------------------------------------------------------------

    def _tell(self, now: Moment, decision: Decision) -> None:
        self.updated_ms = now.wall_ms
        self.writer.told(decision)
        self._telling.append(self.state)
        self._retry.at_ms = None
        fact = TransactionFact(
            self.identity.producer_id,
            self.identity.epoch,
            self.state.value,
            self.timeout_ms,
            self.updated_ms,
            self.started_ms,
            write_partitions(self.writer.partitions),
            sorted(self.writer.groups),
            self.marker,
            self.ended,
            self.last,
        )
        decision.facts.append(transaction_fact(self.name, fact))
        if self._ending is not None and not self._ending.begun and not self._ending.running:
            self._ending.run(decision)

    def recorded(self, now: Moment, facts: Sequence[Fact]) -> None:
        for _ in facts:
            told = self._telling.popleft()
            if told is None:
                self.forgotten = True
                continue
            self.writer.recorded()
            self._retry.succeeded()
            if told in PREPARED and self._ending is not None:
                self._ending.begun = True
            elif told in COMPLETE:
                self._completing = False

    def unrecorded(self, now: Moment, facts: Sequence[Fact]) -> Decision:
        decision = Decision()
        for _ in facts:
            told = self._telling.popleft()
            if told is None:
                self._forgetting = False
                self.updated_ms = now.wall_ms - self.settings.id_expiration_ms + self.settings.max_retry_ms
                continue
            self.writer.unrecorded()
            if told in PREPARED and self._ending is not None and not self._ending.begun:
                self._ending.running = False
                self._disappoint(decision, "the end could not be recorded: try again")
            if self._ending is not None or self._completing:
                self._retry.failed(now)
        return decision

    def replay(self, value: bytes | None) -> None:
        """A recorded fact, at start-up."""
        if value is None:
            self.forgotten = True
            return
        fact = read_transaction(value)
        self.forgotten = False
        self.state = TransactionState(fact.state)
        self.identity = ProducerIdentity(fact.producer_id, fact.epoch)
        self.marker = None if fact.marker is None else ProducerIdentity(*fact.marker)
        self.ended = None if fact.ended is None else ProducerIdentity(*fact.ended)
        self.last = None if fact.last is None else ProducerIdentity(*fact.last)
        self.timeout_ms = fact.timeout_ms
        self.started_ms, self.updated_ms = fact.started_ms, fact.updated_ms
        self.writer.restore(read_partitions(fact.partitions), fact.groups)

    def resume(self, now: Moment) -> Decision:
        """All was replayed: carry through what was prepared; what is open has its whole time-out again."""
        decision = Decision()
        if self.state is ONGOING:
            self._deadline_ms = now.monotonic_ms + self.timeout_ms
        elif self.state in PREPARED:
            self._begin_ending()
            assert self._ending is not None
            self._ending.begun = True
            self._ending.run(decision)
        return decision

    @property
    def is_blank(self) -> bool:
        """Nothing would be lost if it were forgotten now."""
        return not self._telling and (self.forgotten or self.identity == NOBODY)

    @property
    def producer_ids(self) -> set[int]:
        ids = {self.identity.producer_id}
        if self.marker is not None:
            ids.add(self.marker.producer_id)
        return ids - {NO_PRODUCER_ID}

    def partitions(self) -> Iterable[TopicPartition]:
        return self.writer.partitions

    # -- showing ------------------------------------------------------------------------------------------------

    def describe(self) -> TransactionDescription:
        return TransactionDescription(
            self.name, self.state, self.identity, self.timeout_ms, self.started_ms, sorted(self.writer.partitions)
        )
