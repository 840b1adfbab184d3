"""A stage for queues: plays the shell around one machine, with logs in lists, a ledger in a dictionary and a clock set
by hand. What is delivered is what consumers hold until they settle it."""

from collections import deque
from collections.abc import Iterable, Sequence

from penstock.delivery.decision import Decision, Fact, Moment, Reply
from penstock.delivery.places import offset_of, place_of, stream_of
from penstock.delivery.queue import Queue
from penstock.delivery.queue_events import (
    Arrival,
    Bury,
    Deliver,
    Lease,
    Outcome,
    Perform,
    QueueSettings,
    Receipt,
    Status,
)
from penstock.delivery.queue_facts import view_of
from penstock.model.errors import PenstockError
from penstock.testing.clock import ManualClock

VIEW = 7
WAITING = object()
READ_AT_ONCE = 50


class Stage:
    def __init__(self, settings: QueueSettings | None = None, *, streams: int = 1, **changes: object) -> None:
        self.settings = settings or QueueSettings(**changes)  # type: ignore[arg-type]
        self.settings.check()
        self.clock = ManualClock()
        self.ledger: dict[bytes, bytes] = {}
        self.logs: dict[int, list[Arrival | None]] = {n: [] for n in range(streams)}  # None: a filter passes it over
        self.starts: dict[int, int] = dict.fromkeys(self.logs, 0)
        self.fails = False  # the ledger
        self.buries = True  # the dead letters can be stored
        self.performs = True
        self.tickets = 0
        self.looking = False
        self.start()

    def start(self) -> None:
        """A new machine from what the ledger knows."""
        self.answers: dict[int, object] = {}
        self.held: dict[int, list[Lease]] = {}
        self.buried: list[Bury] = []
        self.performed: list[Perform] = []
        self.lost: deque[Decision] = deque()
        self.queue = Queue(VIEW, self.settings, lease_seed=self.clock.wall_ms() * 1_000)
        for key, value in self.ledger.items():
            assert view_of(key) == VIEW
            self.queue.replay(key, value)
        for stream in self.logs:
            self.queue.add_stream(stream, 0)
            self.grew(stream)
        self.decided(self.queue.resume(self.now))

    @property
    def now(self) -> Moment:
        return Moment(self.clock.monotonic_ms(), self.clock.wall_ms())

    # -- the shell ----------------------------------------------------------------------------------------------

    def grew(self, stream: int) -> None:
        self.queue.grew(stream, self.starts[stream], len(self.logs[stream]))

    def decided(self, decision: Decision) -> None:
        if decision.facts and self.fails:
            for effect in decision.effects:
                if isinstance(effect, Reply):
                    self.answers[effect.ticket] = PenstockError("the disk is full")
            assert not self.queue.unrecorded(self.now, decision.facts).facts
            return
        assert len({fact.key for fact in decision.facts}) == len(decision.facts), "a key is told once"
        self.write(decision.facts)
        if decision.facts:
            self.queue.recorded(self.now, decision.facts)
        for effect in decision.effects:
            if isinstance(effect, Reply):
                self.answers[effect.ticket] = effect.result
            elif isinstance(effect, Deliver):
                self.held.setdefault(effect.consumer, []).extend(effect.leases)
            elif isinstance(effect, Bury):
                self.buried.append(effect)
                act = self.queue.buried if self.buries else self.queue.unburied
                self.decided(act(self.now, effect.place))
            elif isinstance(effect, Perform):
                self.performed.append(effect)
                if self.performs:
                    self.decided(self.queue.performed(self.now, effect.step))
        self.look()

    def write(self, facts: Iterable[Fact]) -> None:
        for key, value in facts:
            assert view_of(key) == VIEW
            self.ledger.pop(key, None)
            if value is not None:
                self.ledger[key] = value

    def look(self) -> None:
        """Show the machine what it wants to see."""
        if self.looking:
            return
        self.looking = True
        while wanted := self.queue.wants():
            stream, offset = wanted[0]
            end = min(offset + READ_AT_ONCE, len(self.logs[stream]))
            seen = [arrival for arrival in self.logs[stream][offset:end] if arrival is not None]
            self.decided(self.queue.arrived(self.now, stream, seen, end))
        self.looking = False

    def ticket(self) -> int:
        self.tickets += 1
        self.answers[self.tickets] = WAITING
        return self.tickets

    # -- publishers ---------------------------------------------------------------------------------------------

    def publish(self, count: int = 1, *, stream: int = 0, **fields: int) -> list[int]:
        """Returns the places."""
        log = self.logs[stream]
        first = len(log)
        fields.setdefault("timestamp_ms", self.clock.wall_ms())
        log.extend(Arrival(offset, **fields) for offset in range(first, first + count))
        self.grew(stream)
        self.look()
        return [place_of(stream, offset) for offset in range(first, first + count)]

    def publish_elsewhere(self, count: int = 1, *, stream: int = 0) -> None:
        """Messages that the view's filter passes over."""
        self.logs[stream].extend([None] * count)
        self.grew(stream)
        self.look()

    def retention(self, start: int, *, stream: int = 0) -> None:
        self.starts[stream] = start
        self.grew(stream)

    # -- consumers ----------------------------------------------------------------------------------------------

    def attach(self, consumer: int = 1, credit: int = 10, *, lease_ms: int | None = None) -> None:
        self.decided(self.queue.attach(self.now, consumer, credit, lease_ms=lease_ms))

    def detach(self, consumer: int = 1, *, keep_leases: bool = False, lost: bool = False) -> None:
        self.held.pop(consumer, None)
        self.decided(self.queue.detach(self.now, consumer, keep_leases=keep_leases, lost=lost))

    def places(self, consumer: int = 1) -> list[int]:
        return [lease.place for lease in self.held.get(consumer, [])]

    def offsets(self, consumer: int = 1) -> list[int]:
        return [offset_of(place) for place in self.places(consumer)]

    def take(self, consumer: int = 1) -> list[Lease]:
        """What was delivered since the last time."""
        return self.held.pop(consumer, [])

    def settle(self, outcome: Outcome, leases: Sequence[Lease], **options: int) -> list[object]:
        ticket = self.ticket()
        receipts = [Receipt(lease.place, lease.number) for lease in leases]
        settled = {receipt.number for receipt in receipts} if outcome is not Outcome.EXTEND else set()
        for consumer, held in self.held.items():
            self.held[consumer] = [lease for lease in held if lease.number not in settled]
        self.decided(self.queue.settle(self.now, ticket, outcome, receipts, **options))  # type: ignore[arg-type]
        self.queue.check()
        answer = self.answers[ticket]
        if isinstance(answer, PenstockError):
            raise answer
        assert isinstance(answer, list)
        return answer

    def ack(self, leases: Sequence[Lease]) -> list[object]:
        return self.settle(Outcome.ACK, leases)

    def step(self, step: str, leases: Sequence[Lease], payload: bytes = b"payload") -> object:
        ticket = self.ticket()
        receipts = [Receipt(lease.place, lease.number) for lease in leases]
        self.decided(self.queue.step(self.now, ticket, step, receipts, payload))
        return self.answers[ticket]

    # -- time, and the view -------------------------------------------------------------------------------------

    def advance(self, ms: int) -> None:
        end_ms = self.clock.monotonic_ms() + ms
        while (deadline_ms := self.queue.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.clock.advance(max(0, deadline_ms - self.clock.monotonic_ms()))
            self.decided(self.queue.tick(self.now))
            again_ms = self.queue.next_deadline_ms()
            assert again_ms is None or again_ms > self.clock.monotonic_ms()
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    def purge(self) -> object:
        ticket = self.ticket()
        self.decided(self.queue.purge(self.now, ticket))
        return self.answers[ticket]

    def statuses(self, stream: int = 0) -> str:
        """One letter per message: . pending, o processing, x processed."""
        letters = {Status.PENDING: ".", Status.PROCESSING: "o", Status.PROCESSED: "x"}
        return "".join(
            letters[self.queue.status_of(place_of(stream, offset))] for offset in range(len(self.logs[stream]))
        )

    def numbers(self) -> tuple[int, int, int]:
        counts = self.queue.counts()
        return counts.pending, counts.processing, counts.processed


__all__ = ["VIEW", "WAITING", "Stage", "offset_of", "stream_of"]
