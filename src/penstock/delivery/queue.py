"""The queue machine: everything that moves a lease lives here. Pure: see `decision.py` for the protocol it obeys.

One machine is one view. It knows its messages by their places only; what they say is the shell's affair.

    unseen ──arrived──▶ ready ──▶ leased ──ack──▶ settled
                │         ▲  ▲      │ nack, time-out: after the back-off, or dead after the last attempt
                ▼         │  └──────┤ release, consumer leaves
             delayed ─────┘         └─reject──▶ dying ──buried──▶ settled

Messages are seen in log order and only as far as consumers want them, except with priorities, where all are seen so
that a late important one can overtake. What is unseen costs nothing, what is seen and waits a few bytes.
"""

from collections.abc import Iterable, Sequence

from penstock.delivery.decision import Decision, Fact, Moment
from penstock.delivery.queue_events import Arrival, Counts, Outcome, QueueSettings, Receipt, Status


class Queue:
    def __init__(self, view_id: int, settings: QueueSettings, *, lease_seed: int) -> None:
        """`lease_seed` is larger than any lease number of an earlier run (the shell gives the wall clock in µs)."""

    # -- streams: the partitions it reads ---------------------------------------------------------------------

    def add_stream(self, stream: int, start_offset: int) -> None:
        """Read this partition too, from here on unless replayed facts say otherwise. Added after replay."""

    def remove_stream(self, stream: int) -> Decision:
        """Its topic is gone: so are all its messages."""

    def grew(self, stream: int, start_offset: int, end_offset: int) -> None:
        """What the partition holds now; for counting, and so that what retention removed is passed over."""

    def wants(self) -> list[tuple[int, int]]:
        """(stream, next offset to see) of every stream it wants to see more of now, the longest neglected first."""

    def arrived(self, now: Moment, stream: int, arrivals: Sequence[Arrival], next_offset: int) -> Decision:
        """These were seen, in order, up to `next_offset`. What lies between and is not named is passed over."""

    # -- consumers --------------------------------------------------------------------------------------------

    def attach(self, now: Moment, consumer: int, credit: int, *, lease_ms: int | None = None) -> Decision:
        """A consumer that takes up to `credit` unsettled messages. Fair: those with free credit take turns."""

    def add_credit(self, now: Moment, consumer: int, credit: int) -> Decision:
        """Credit for more. What is settled gives its credit back by itself, so this raises the limit."""

    def detach(self, now: Moment, consumer: int, *, keep_leases: bool = False) -> Decision:
        """The consumer left: what it held is ready again at once, unless the leases were lent beyond its life."""

    # -- settling ---------------------------------------------------------------------------------------------

    def settle(
        self,
        now: Moment,
        ticket: int,
        outcome: Outcome,
        receipts: Sequence[Receipt],
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
    ) -> Decision:
        """Replies with a list as long as `receipts`: None, or LeaseLost where somebody else has the message now.

        Settling what is settled already is fine; settling what is free again (a late ack) takes it out of the queue.
        `delay_ms`: of a nack, instead of the back-off. `lease_ms`: of an extension.
        """
        raise NotImplementedError

    def step(self, now: Moment, ticket: int, step: str, receipts: Sequence[Receipt], payload: bytes) -> Decision:
        """Settle these and do what the payload says, both or neither, once however often the step is repeated.

        Replies True when it is done, False when it was done before; LeaseLost, and nothing happens, when any of the
        receipts is no longer held (a step never takes what is free again).
        """
        raise NotImplementedError

    def performed(self, now: Moment, step: str) -> Decision:
        raise NotImplementedError

    def buried(self, now: Moment, place: int) -> Decision:
        raise NotImplementedError

    def unburied(self, now: Moment, place: int) -> Decision:
        """The dead letter could not be stored: Bury comes again after a while."""
        raise NotImplementedError

    # -- the view as a whole ----------------------------------------------------------------------------------

    def pause(self, now: Moment) -> Decision: ...

    def unpause(self, now: Moment) -> Decision: ...

    def purge(self, now: Moment, ticket: int) -> Decision:
        """Settle everything that is not leased. Replies with how many that were."""

    def configure(self, now: Moment, settings: QueueSettings) -> Decision: ...

    def tick(self, now: Moment) -> Decision: ...

    def next_deadline_ms(self) -> int | None:
        """Monotonic; for wall-clock deadlines the shell's moments relate the two clocks."""

    # -- facts ------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None: ...

    def resume(self, now: Moment) -> Decision:
        """After replay: what was leased is ready, what was dying is buried again, begun steps are performed."""

    def recorded(self, now: Moment, facts: Sequence[Fact]) -> None: ...

    def unrecorded(self, now: Moment, facts: Sequence[Fact]) -> Decision: ...

    def tombstones(self) -> Iterable[Fact]:
        """All its facts as tombstones, for a view that is deleted."""

    # -- looking ----------------------------------------------------------------------------------------------

    def status_of(self, place: int) -> Status: ...

    def waiting(self, limit: int) -> list[int]:
        """The first places that would be handed out, without handing them out."""

    def floor(self, stream: int) -> int:
        """Everything before this offset is settled: a topic with cleanup.policy=settled may forget it."""

    def counts(self) -> Counts: ...

    def check(self) -> None:
        """Assert every invariant; for tests."""
