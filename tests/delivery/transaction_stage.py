"""A stage for transactions and named steps: plays the shell around the machines, with logs of a few numbers each.

The ledger takes what it is given, in order, and makes it durable when it is told to, or fails; a crash keeps some of
what was on its way, always the older part. So do the logs. What the machines want ended is done when the test says so.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from penstock.delivery.decision import Decision, Effect, Moment, Reply
from penstock.delivery.offsets import TopicPartition
from penstock.delivery.step import Step
from penstock.delivery.transaction import Transaction
from penstock.delivery.transaction_events import Conclude, Mark, ProducerIdentity, Task, TransactionSettings
from penstock.delivery.transaction_facts import TransactionKey, read_key
from penstock.model.errors import InvalidProducerEpoch, InvalidTransactionState, OutOfOrderSequence, StorageFailed
from penstock.testing.clock import ManualClock

WAITING = object()
Machine = Transaction | Step


class Entry(NamedTuple):
    producer_id: int
    epoch: int
    sequence: int  # -1: a marker
    uid: int  # of the transaction that the client believes in; of a marker 1 commit, 0 abort


class Log:
    """One partition: what a real one does with idempotent batches and markers, and no more."""

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.entries: list[Entry] = []
        self.durable = 0
        self.opened = False
        self.producers: dict[int, tuple[int, int]] = {}  # epoch and last sequence
        self.open: dict[int, int] = {}  # epoch of the open transaction

    def append(self, entry: Entry) -> int:
        """Returns how long the log must be durable for this to be."""
        epoch, last = self.producers.get(entry.producer_id, (-1, -1))
        if entry.epoch < epoch:
            raise InvalidProducerEpoch("older")
        if entry.epoch == epoch and entry.sequence <= last:
            return next(n for n, e in enumerate(self.entries, 1) if e[:3] == entry[:3])
        if entry.sequence != (last + 1 if entry.epoch == epoch else 0):
            raise OutOfOrderSequence("gap")
        if self.open.get(entry.producer_id, entry.epoch) != entry.epoch:
            raise InvalidTransactionState("another epoch's transaction is open")
        self.entries.append(entry)
        self._note(entry)
        return len(self.entries)

    def mark(self, mark: Mark) -> None:
        epoch, _ = self.producers.get(mark.producer_id, (-1, -1))
        if mark.epoch < epoch:
            raise InvalidProducerEpoch("older")
        entry = Entry(mark.producer_id, mark.epoch, -1, int(mark.commit))
        self.entries.append(entry)
        self._note(entry)

    def _note(self, entry: Entry) -> None:
        epoch, last = self.producers.get(entry.producer_id, (-1, -1))
        if entry.sequence < 0:
            self.open.pop(entry.producer_id, None)
            self.producers[entry.producer_id] = (entry.epoch, last if entry.epoch == epoch else -1)
        else:
            self.open.setdefault(entry.producer_id, entry.epoch)
            self.producers[entry.producer_id] = (entry.epoch, entry.sequence)

    def crash(self, keep: int) -> None:
        del self.entries[self.durable + keep :]
        self.durable = len(self.entries)
        self.opened = False
        self.producers.clear()
        self.open.clear()
        for entry in self.entries:
            self._note(entry)

    def results(self) -> Iterator[tuple[int, bool | None]]:
        """Of each batch its transaction, and whether it was committed; None while it is open."""
        for at, entry in enumerate(self.entries):
            if entry.sequence >= 0:
                later = (e for e in self.entries[at:] if e.producer_id == entry.producer_id and e.sequence < 0)
                marker = next(later, None)
                yield entry.uid, None if marker is None else bool(marker.uid)


class Turn:
    def __init__(self, machine: Machine, decision: Decision) -> None:
        self.machine, self.decision = machine, decision
        self.state = "waiting" if decision.facts else "durable"


class Stage:
    def __init__(self, settings: TransactionSettings | None = None, logs: int = 3) -> None:
        self.settings = settings or TransactionSettings()
        self.clock = ManualClock()
        self.ledger: dict[bytes, bytes] = {}
        self.logs = {place: Log(place) for place in (TopicPartition("t", n) for n in range(logs))}
        self.answers: dict[int, Any] = {}
        self.learners: dict[int, Callable[[Any], None]] = {}
        self.prompt = True  # what is decided is durable, and performed, at once
        self.tickets = 0
        self.ids = 100
        self._boot()

    def _boot(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.steps: dict[str, Step] = {}
        self.turns: dict[int, deque[Turn]] = {}
        self.recording: list[Turn] = []
        self.endings: list[tuple[Machine, int, list[Task]]] = []
        for key, value in self.ledger.items():
            parsed = read_key(key)
            assert parsed is not None
            if isinstance(parsed, TransactionKey):
                self.transaction(parsed.name).replay(value)
            else:
                self.step(parsed.step).replay(parsed, value)
        for machine in list(self.machines):
            self.perform(machine, machine.resume(self.now))

    # -- the shell ----------------------------------------------------------------------------------------------

    @property
    def now(self) -> Moment:
        return Moment(self.clock.monotonic_ms(), self.clock.wall_ms())

    @property
    def machines(self) -> list[Machine]:
        return [*self.transactions.values(), *self.steps.values()]

    def transaction(self, name: str) -> Transaction:
        return self.transactions.setdefault(name, Transaction(name, self.settings))

    def step(self, name: str) -> Step:
        return self.steps.setdefault(name, Step(name, self.settings))

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    def ask(
        self, machine: Machine, event: Callable[[int], Decision], learn: Callable[[Any], None] = lambda _: None
    ) -> Any:
        """The answer, if there is one already; `learn` is told in any case, unless a crash comes first."""
        self.tickets += 1
        ticket = self.tickets
        self.answers[ticket] = WAITING
        self.learners[ticket] = learn
        self.perform(machine, event(ticket))
        if self.prompt:
            self.settle()
        return self.answers[ticket]

    def perform(self, machine: Machine, decision: Decision) -> None:
        turn = Turn(machine, decision)
        self.turns.setdefault(id(machine), deque()).append(turn)
        if decision.facts:
            self.recording.append(turn)
        self._drain(machine)

    def _drain(self, machine: Machine) -> None:
        turns = self.turns.get(id(machine), deque())
        while turns and turns[0].state != "waiting":
            turn = turns.popleft()
            if turn.state == "durable":
                if turn.decision.facts:
                    machine.recorded(self.now, turn.decision.facts)
                self._do(machine, turn.decision.effects)
            else:
                for effect in turn.decision.effects:
                    if isinstance(effect, Reply):
                        self._answer(effect.ticket, StorageFailed("disk full"))
                again = machine.unrecorded(self.now, turn.decision.facts)
                assert not again.facts, "a failing ledger is not asked again at once"
                self._do(machine, again.effects)

    def _do(self, machine: Machine, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                self._answer(effect.ticket, effect.result)
            else:
                assert isinstance(effect, Conclude)
                self.endings.append((machine, effect.token, list(effect.tasks)))

    def _answer(self, ticket: int, result: object) -> None:
        assert self.answers[ticket] is WAITING, "every ticket is answered once"
        self.answers[ticket] = result
        self.learners.pop(ticket)(result)

    # -- the ledger and the logs --------------------------------------------------------------------------------

    def record(self, failing: bool = False) -> None:
        """The oldest decision on its way is durable now, or never will be."""
        turn = self.recording.pop(0)
        if not failing:
            self._write(turn)
        turn.state = "failed" if failing else "durable"
        self._drain(turn.machine)

    def _write(self, turn: Turn, count: int | None = None) -> None:
        for fact in turn.decision.facts[:count]:
            self.ledger.pop(fact.key, None)
            if fact.value is not None:
                self.ledger[fact.key] = fact.value

    def conclude(self, number: int = 0, failing: Callable[[Task], bool] = lambda _: False) -> None:
        """Do what an ending asks for, as far as it does not fail."""
        machine, token, tasks = self.endings.pop(number)
        left = [task for task in tasks if failing(task) or not self._end(task)]
        self.perform(machine, machine.concluded(self.now, token, left))
        if isinstance(machine, Step):
            self.perform(machine, machine.tidy(self.now))

    def _end(self, task: Task) -> bool:
        if isinstance(task, Mark) and task.partition in self.logs:
            log = self.open_log(task.partition)
            log.mark(task)
            log.durable = len(log.entries)  # an ending waits until its markers are durable
        return True

    def open_log(self, place: TopicPartition) -> Log:
        log = self.logs[place]
        if not log.opened:
            log.opened = True
            for producer_id, epoch in list(log.open.items()):
                self._adopt(log, ProducerIdentity(producer_id, epoch))
        return log

    def _adopt(self, log: Log, identity: ProducerIdentity) -> None:
        owner = next((m for m in self.machines if identity.producer_id in m.producer_ids), None)
        decision = None if owner is None else owner.adopt(self.now, identity, log.place)
        if owner is not None and decision is not None:
            self.perform(owner, decision)
        else:
            log.mark(Mark(log.place, *identity, False))

    def settle(self) -> None:
        """Let everything that is on its way arrive."""
        while self.recording or self.endings:
            while self.recording:
                self.record()
            if self.endings:
                self.conclude()

    # -- time and crashes ---------------------------------------------------------------------------------------

    def advance(self, ms: int) -> None:
        end_ms = self.clock.monotonic_ms() + ms
        while True:
            due = [(at, m) for m in self.machines if (at := m.next_deadline_ms(self.now)) is not None and at <= end_ms]
            if not due:
                break
            at_ms, machine = min(due, key=lambda each: each[0])
            self.clock.advance(max(0, at_ms - self.clock.monotonic_ms()))
            self.perform(machine, machine.tick(self.now))
            if self.prompt:
                self.settle()
            self.bury()
            again_ms = machine.next_deadline_ms(self.now)
            assert again_ms is None or again_ms > self.clock.monotonic_ms(), "a tick must move the deadline on"
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    def bury(self) -> None:
        for home in (self.transactions, self.steps):
            for name in [n for n, m in home.items() if m.is_blank and not self.turns.get(id(m))]:  # type: ignore[attr-defined]
                del home[name]  # type: ignore[attr-defined]

    def crash(self, kept_facts: int = 0, kept_batches: int = 0) -> None:
        """The process is gone. Of what was on its way the oldest part has survived."""
        for turn in self.recording:
            self._write(turn, max(0, kept_facts))
            kept_facts -= len(turn.decision.facts)
        for log in self.logs.values():
            log.crash(kept_batches)
        self.answers.clear()
        self.learners.clear()
        self._boot()
        if self.prompt:
            self.settle()
