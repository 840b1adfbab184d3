"""What a queue machine knows: its keepers, the facts they become and are made from again, and what can be asked of it.

Every keeper notes what it changed. At the end of an event `_told` turns these notes into facts, so a key that changed
twice is told once. Facts that could not be stored are noted again.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from penstock.delivery.decision import Decision, Effect, Fact, Moment
from penstock.delivery.places import place_of
from penstock.delivery.queue_backlog import Backlog
from penstock.delivery.queue_events import Counts, QueueSettings, Status
from penstock.delivery.queue_facts import CHUNK, FLOOR, PAUSE, STEP, TROUBLE, key_number, pause_key
from penstock.delivery.queue_keys import KeyOrder
from penstock.delivery.queue_leases import Leases
from penstock.delivery.queue_progress import Progress, Stream
from penstock.delivery.queue_steps import Steps
from penstock.delivery.queue_troubles import Troubles


class QueueState:
    def __init__(self, view_id: int, settings: QueueSettings, *, lease_seed: int) -> None:
        """`lease_seed` is larger than any lease number of an earlier run (the shell gives the wall clock in µs)."""
        self.view_id = view_id
        self.settings = settings
        self._progress = Progress(view_id)
        self._backlog = Backlog(settings.max_priority + 1)
        self._keys = KeyOrder()
        self._leases = Leases()
        self._troubles = Troubles(view_id)
        self._steps = Steps(view_id)
        self._dying: dict[int, int] = {}  # place: message
        self._bury_again: list[tuple[int, int]] = []  # heap of (monotonic ms, place)
        self._perform_again: list[str] = []
        self._again_ms: int | None = None  # monotonic; facts could not be stored, and are tried again then
        self._paused = False
        self._pause_is_news = False
        self._behind: dict[int, Stream] = {}  # streams with unseen messages, the longest neglected first
        self._number = lease_seed
        self._wall_ahead_ms = 0  # of the monotonic clock
        self._looked_ms = -1  # monotonic; when it last looked for what is due
        self._counts = Counts()
        # Of each decision whose facts are on their way: its very list of effects, from which the shell takes what it
        # performs at once, and the messages that it settled by handing out.
        self._undecided: deque[tuple[list[Effect], dict[int, int]]] = deque()
        self._handing: dict[int, int] = {}  # of the decision that is being made; by place

    @property
    def is_paused(self) -> bool:
        return self._paused

    # -- facts -----------------------------------------------------------------------------------------------

    def _told(self, decision: Decision) -> Decision:
        """Everything that changed goes into the decision."""
        progress = self._progress
        if progress.touched:
            progress.advance_touched()
        if progress.has_news or self._troubles.has_news or self._steps.has_news or self._pause_is_news:
            # A crash may keep any number of the first facts: intents come first, tombstones last.
            facts, tombstones = decision.facts, list[Fact]()
            self._steps.tell(facts, tombstones)
            self._troubles.tell(facts, tombstones)
            progress.tell(facts, tombstones)
            facts += tombstones
            if self._pause_is_news:
                self._pause_is_news = False
                facts.append(Fact(pause_key(self.view_id), b"\x01" if self._paused else None))
            if facts:
                self._undecided.append((decision.effects, self._handing))
                self._handing = {}
        return decision

    def replay(self, key: bytes, value: bytes | None) -> None:
        kind = key[:1]
        if kind == FLOOR:
            self._progress.replay_floor(key_number(key), value)
        elif kind == CHUNK:
            self._progress.replay_chunk(key_number(key), value)
        elif kind == TROUBLE:
            self._troubles.replay(key_number(key), value)
        elif kind == STEP:
            self._steps.replay(key, value)
        elif kind == PAUSE:
            self._paused = value is not None

    def recorded(self, now: Moment, facts: Sequence[Fact]) -> None:
        """The facts of one decision are durable. Called once for each decision that had any, in order."""
        if facts:
            self._undecided.popleft()
        for key, value in facts:
            if key[:1] == FLOOR:
                self._progress.floor_is_durable(key_number(key), value)

    def _note_again(self, key: bytes) -> None:
        kind = key[:1]
        if kind == FLOOR:
            self._progress.retell_floor(key_number(key))
        elif kind == CHUNK:
            self._progress.retell_chunk(key_number(key))
        elif kind == TROUBLE:
            self._troubles.retell(key_number(key))
        elif kind == STEP:
            self._steps.retell(key)
        else:
            self._pause_is_news = True

    def tombstones(self) -> Iterable[Fact]:
        """All its facts as tombstones, for a view that is deleted."""
        yield from self._progress.tombstones()
        yield from self._troubles.tombstones()
        yield from self._steps.tombstones()
        yield Fact(pause_key(self.view_id), None)

    # -- looking ---------------------------------------------------------------------------------------------

    def status_of(self, place: int) -> Status:
        if self._progress.is_settled(place):
            return Status.PROCESSED
        if place in self._leases.held or place in self._dying:
            return Status.PROCESSING
        return Status.PENDING

    def _is_taken(self, place: int) -> bool:
        """It was known before it was seen, and does not wait."""
        return place in self._leases.held or place in self._dying or self._progress.is_settled(place)

    def waiting(self, limit: int) -> list[int]:
        """The first places that would be handed out, without handing them out.

        After what is seen comes what is not: of that, a filter may yet pass over some, and some may be delayed.
        """
        return list(islice(self._waiting(), limit))

    def _waiting(self) -> Iterator[int]:
        yield from self._backlog.in_order()
        for stream in self._progress.streams.values():
            for offset in range(stream.seen, stream.end):
                place = place_of(stream.number, offset)
                if offset >= stream.known_end or not self._is_taken(place):
                    yield place

    def floor(self, stream: int) -> int:
        """Everything before this offset is settled: a topic with cleanup.policy=settled may forget it."""
        return self._progress.streams[stream].durable_floor

    def counts(self) -> Counts:
        counts = self._counts
        counts.processing = self._leases.processing + len(self._dying)
        counts.pending = self._progress.unsettled() - counts.processing
        counts.processed = self._progress.processed()
        counts.delayed = self._backlog.delayed_count()
        counts.consumers = len(self._leases.consumers)
        return Counts(*(getattr(counts, name) for name in Counts.__slots__))

    def check(self) -> None:
        """Assert every invariant; for tests."""
        progress, leases = self._progress, self._leases
        progress.check()
        leases.check()
        self._keys.check()
        standing = [*self._backlog.places(), *self._keys.parked_places()]
        assert len(standing) == len(set(standing)), "a message waits in one place"
        assert self._backlog.dropped <= set(standing)
        waiting = set(standing) - self._backlog.dropped
        out = {place for place, (_, grant, _) in leases.held.items() if not grant.settled}
        assert not waiting & out and not waiting & self._dying.keys() and not out & self._dying.keys()
        for place in (*waiting, *out, *self._dying):
            assert not progress.is_settled(place), "what is settled is nowhere else"
        for stream in progress.streams.values():
            for offset in range(stream.floor, stream.seen):
                place = place_of(stream.number, offset)
                assert progress.is_settled(place) or place in waiting or place in out or place in self._dying
        for place, trouble in self._troubles.by_place.items():
            assert (trouble.reason is not None) == (place in self._dying)
            assert not progress.is_settled(place)
