"""A queue under everything that can happen to it, held against a model that is a few sets.

The ledger lags behind, fails and is cut short between any two facts by crashes; consumers come, go and settle whatever
they ever held. Nothing acknowledged comes back, nothing unacknowledged is lost.
"""

from collections import Counter, deque
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.delivery.decision import Decision, Fact, Moment, Reply
from penstock.delivery.places import OFFSET_BITS, offset_of, place_of, stream_of
from penstock.delivery.queue import LENT_LEASE_MS, Queue
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
from penstock.model.errors import LeaseLost, PenstockError
from penstock.testing.clock import ManualClock

STREAMS = (0, 3)
HOUR_MS = 3_600_000
picks = st.integers(0, 1_000)
kinds = st.builds(
    QueueSettings,
    lease_ms=st.sampled_from((0, 1_000, 30_000)),
    max_attempts=st.sampled_from((0, 1, 2, 3)),
    retry_initial_ms=st.sampled_from((0, 100, 1_000)),
    retry_ceiling_ms=st.just(5_000),
    dead_letter=st.sampled_from((None, "")),
    delay_ms=st.sampled_from((0, 0, 0, 2_000)),
    ttl_ms=st.sampled_from((0, 0, 0, 20_000)),
    max_priority=st.sampled_from((0, 0, 1, 9)),
    guarantee=st.sampled_from(("at-least-once", "at-least-once", "at-most-once", "exactly-once")),
    single_active=st.sampled_from((False, False, True)),
    ordered_by_key=st.booleans(),
    max_in_flight=st.sampled_from((3, 100_000)),
)


class QueueWorld(RuleBasedStateMachine):
    @initialize(settings=kinds)
    def begin(self, settings: QueueSettings) -> None:
        settings.check()
        self.settings = settings
        self.clock = ManualClock()
        self.ledger: dict[bytes, bytes] = {}
        self.logs: dict[int, list[Arrival | None]] = {stream: [] for stream in STREAMS}
        self.starts = dict.fromkeys(STREAMS, 0)
        self.current = {stream: stream for stream in STREAMS}  # a topic that is made again is another stream
        self.deleted: list[int] = []
        self.unsettled: deque[Decision] = deque()
        self.behind = False  # facts were lost, and the machine has not told them again yet
        self.known: list[Lease] = []  # every lease that a consumer ever saw
        self.done: set[int] = set()  # acknowledged, and we were told so
        self.excused: set[int] = set()  # may be gone: asked to be settled, dead, purged, expired
        self.performed: dict[str, tuple[int, ...]] = {}
        self.steps: dict[str, tuple[int, ...]] = {}
        self.failures: Counter[int] = Counter()
        self.most_attempts = settings.max_attempts
        self.shortest_ttl_ms = settings.ttl_ms
        self.always_ordered = settings.ordered_by_key and not settings.delay_ms
        self.well_ordered = True
        self.tickets = 0
        self.latest_ms = 0  # that the clock ever showed
        self.start()

    def start(self) -> None:
        self.clock.advance(1)
        self.queue = self.replayed()
        self.waiting: dict[int, Any] = {}
        self.consumers: dict[int, int] = {}  # their credit
        self.out: dict[int, tuple[int | None, int, int]] = {}  # place: consumer, number, deadline
        self.burying: list[Bury] = []
        self.performing: list[Perform] = []
        for stream in self.deleted:
            self.decided(self.queue.remove_stream(stream))
        self.decided(self.queue.resume(self.now))

    def replayed(self) -> Queue:
        queue = Queue(1, self.settings, lease_seed=self.clock.wall_ms() * 1_000)
        for key, value in self.ledger.items():
            queue.replay(key, value)
        for stream in self.logs:
            queue.add_stream(stream, 0)
            queue.grew(stream, self.starts[stream], len(self.logs[stream]))
        return queue

    @property
    def now(self) -> Moment:
        return Moment(self.clock.monotonic_ms(), self.clock.wall_ms())

    def arrival(self, place: int) -> Arrival:
        arrival = self.logs[stream_of(place)][offset_of(place)]
        assert arrival is not None, "what a filter passes over is never handed out"
        return arrival

    # -- the shell ----------------------------------------------------------------------------------------------

    def decided(self, decision: Decision) -> None:
        keys = [fact.key for fact in decision.facts]
        assert len(set(keys)) == len(keys), "a key is told once"
        for effect in decision.effects:
            if isinstance(effect, Deliver):
                self.handed_out(effect)
            elif isinstance(effect, Bury):
                self.excused.add(effect.place)
        self.important_ones_go_first(decision)
        if decision.facts or self.unsettled:
            self.unsettled.append(decision)
        else:
            self.perform(decision, None)

    def perform(self, decision: Decision, error: PenstockError | None) -> None:
        for effect in decision.effects:
            if isinstance(effect, Reply):
                learn = self.waiting.pop(effect.ticket)
                if error is None:
                    learn(effect.result)
            elif error is not None:
                continue
            elif isinstance(effect, Deliver):
                self.known += effect.leases
            elif isinstance(effect, Bury):
                self.burying.append(effect)
            elif isinstance(effect, Perform):
                self.performing.append(effect)

    def write(self, facts: list[Fact]) -> None:
        for key, value in facts:
            self.ledger.pop(key, None)
            if value is not None:
                self.ledger[key] = value

    def ticket(self, learn: Any = lambda result: None) -> int:
        self.tickets += 1
        self.waiting[self.tickets] = learn
        return self.tickets

    @rule(count=st.integers(1, 5))
    def ledger_catches_up(self, count: int) -> None:
        for _ in range(min(count, len(self.unsettled))):
            decision = self.unsettled.popleft()
            self.write(decision.facts)
            if decision.facts:
                self.behind = False
                self.queue.recorded(self.now, decision.facts)
            self.perform(decision, None)

    @precondition(lambda self: self.unsettled)
    @rule()
    def ledger_fails(self) -> None:
        """Everything not yet durable is lost, as a failed append takes the later ones with it."""
        lost, self.unsettled = self.unsettled, deque()
        for decision in lost:
            if not decision.facts:
                self.perform(decision, None)
                continue
            self.behind = True
            self.perform(decision, PenstockError("the disk is full"))
            for effect in decision.effects:
                if isinstance(effect, Deliver):
                    self.well_ordered = self.always_ordered = False  # what was handed out comes back as it was
                    for lease in effect.leases:
                        if self.out.get(lease.place, (0, 0))[1] == lease.number:
                            del self.out[lease.place]
            again = self.queue.unrecorded(self.now, decision.facts)
            assert not again.facts and not again.effects

    @rule(kept=st.integers(0, 12))
    def crash(self, kept: int) -> None:
        """Some of the facts on their way made it, in order."""
        self.write([fact for decision in self.unsettled for fact in decision.facts][:kept])
        self.unsettled.clear()
        self.behind = False
        self.start()

    @rule(count=st.integers(1, 4), most=st.sampled_from((1, 3, 100)))
    def machine_looks(self, count: int, most: int) -> None:
        for _ in range(count):
            for stream, offset in self.queue.wants()[:1]:
                end = min(offset + most, len(self.logs[stream]))
                seen = [arrival for arrival in self.logs[stream][offset:end] if arrival is not None]
                self.decided(self.queue.arrived(self.now, stream, seen, end))

    @rule(ms=st.sampled_from((1, 100, 1_000, 5_000, 31_000)))
    def time_passes(self, ms: int) -> None:
        end_ms = self.clock.monotonic_ms() + ms
        while (deadline_ms := self.queue.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.clock.advance(max(0, deadline_ms - self.clock.monotonic_ms()))
            for place, (_, _, ends_ms) in list(self.out.items()):
                if ends_ms and ends_ms <= self.clock.monotonic_ms():
                    del self.out[place]
                    self.failures[place] += 1
            self.decided(self.queue.tick(self.now))
            again_ms = self.queue.next_deadline_ms()
            assert again_ms is None or again_ms > self.clock.monotonic_ms()
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    @rule(ms=st.sampled_from((-3_000, 3_000)))
    def somebody_sets_the_clock(self, ms: int) -> None:
        self.latest_ms = max(self.latest_ms, self.clock.wall_ms())
        self.clock.set_wall(self.clock.wall_ms() + ms)

    # -- publishers ---------------------------------------------------------------------------------------------

    @rule(
        stream=st.sampled_from(STREAMS),
        count=st.integers(1, 6),
        priority=st.integers(0, 9),
        delay_ms=st.sampled_from((0, 0, 0, 500, 40_000)),
        ttl_ms=st.sampled_from((0, 0, 0, 1, 5_000)),
        key=st.integers(0, 3),
    )
    def messages_are_published(
        self, stream: int, count: int, priority: int, delay_ms: int, ttl_ms: int, key: int
    ) -> None:
        stream = self.current[stream]
        log, now_ms = self.logs[stream], self.clock.wall_ms()
        for offset in range(len(log), len(log) + count):
            log.append(
                Arrival(
                    offset,
                    now_ms,
                    priority,
                    now_ms + delay_ms if delay_ms else 0,
                    now_ms + ttl_ms if ttl_ms else 0,
                    (key << 56) + stream + 1 if key else 0,
                )
            )
        self.queue.grew(stream, self.starts[stream], len(log))

    @rule(stream=st.sampled_from(STREAMS), count=st.sampled_from((1, 2, 2, 2, 1_200)))
    def others_are_published(self, stream: int, count: int) -> None:
        stream = self.current[stream]
        if len(self.logs[stream]) < 1_200:
            self.logs[stream] += [None] * count
            self.queue.grew(stream, self.starts[stream], len(self.logs[stream]))

    @rule(stream=st.sampled_from(STREAMS), pick=picks)
    def retention_removes_some(self, stream: int, pick: int) -> None:
        stream = self.current[stream]
        start = self.starts[stream]
        self.starts[stream] = start = start + pick % 3 if start + 3 < len(self.logs[stream]) else start
        self.excused |= {place_of(stream, offset) for offset in range(start)}
        self.queue.grew(stream, start, len(self.logs[stream]))

    @rule(stream=st.sampled_from(STREAMS))
    def topic_is_deleted_and_made_again(self, stream: int) -> None:
        old, new = self.current[stream], 10 + len(self.deleted)
        self.current[stream] = new
        self.deleted.append(old)
        del self.logs[old]
        self.logs[new], self.starts[new] = [], 0
        self.out = {place: lease for place, lease in self.out.items() if stream_of(place) != old}
        self.decided(self.queue.remove_stream(old))
        self.queue.add_stream(new, 0)

    # -- consumers ----------------------------------------------------------------------------------------------

    @rule(name=st.integers(1, 3), credit=st.sampled_from((0, 1, 3, 50)), lease_ms=st.sampled_from((None, None, 500)))
    def consumer_attaches(self, name: int, credit: int, lease_ms: int | None) -> None:
        if name not in self.consumers:
            self.consumers[name] = credit
            self.decided(self.queue.attach(self.now, name, credit, lease_ms=lease_ms))

    @precondition(lambda self: self.consumers)
    @rule(pick=picks, keep=st.booleans(), lost=st.booleans())
    def consumer_leaves(self, pick: int, keep: bool, lost: bool) -> None:
        name = list(self.consumers)[pick % len(self.consumers)]
        del self.consumers[name]
        for place, (consumer, number, deadline_ms) in list(self.out.items()):
            if consumer == name and keep and place not in self.settled_out():
                self.out[place] = (None, number, deadline_ms or self.clock.monotonic_ms() + LENT_LEASE_MS)
            elif consumer == name:
                if lost and place not in self.settled_out():
                    self.failures[place] += 1
                del self.out[place]
        self.decided(self.queue.detach(self.now, name, keep_leases=keep, lost=lost))

    def settled_out(self) -> set[int]:
        return {place for place, (_, grant, _) in self.queue._leases.held.items() if grant.settled}

    @precondition(lambda self: self.consumers)
    @rule(pick=picks, credit=st.integers(-2, 5))
    def consumer_gets_credit(self, pick: int, credit: int) -> None:
        name = list(self.consumers)[pick % len(self.consumers)]
        held = [p for p in self.queue._leases.held if p in self.settled_out() and self.out[p][0] == name]
        decision = self.queue.add_credit(self.now, name, credit)
        taken = [p for p in held if self.queue._leases.held.get(p, (0,))[0] != self.out[p][1]]
        for place in taken:
            del self.out[place]
        self.consumers[name] = max(0, self.consumers[name] + credit - len(taken))
        self.decided(decision)

    def some_leases(self, pick: int, count: int) -> list[Lease]:
        """Mostly of what is out, in any order; sometimes of what was."""
        numbers = {number for _, number, _ in self.out.values()}
        current = [lease for lease in self.known if lease.number in numbers]
        leases = current if current and pick % 5 else self.known
        return [leases[(pick * 7 + i * (pick % 3 + 1)) % len(leases)] for i in range(min(count, len(leases)))]

    @precondition(lambda self: self.known)
    @rule(pick=picks, count=st.integers(1, 20))
    def consumer_acks(self, pick: int, count: int) -> None:
        leases = self.some_leases(pick, count)

        def learn(results: list[LeaseLost | None]) -> None:
            self.done |= {lease.place for lease, lost in zip(leases, results, strict=True) if lost is None}

        self.excused |= {lease.place for lease in leases}
        self.ended(leases)
        self.settle(Outcome.ACK, leases, learn)

    def ended(self, leases: list[Lease]) -> list[Lease]:
        """Those of them that were out. A stale receipt changes nothing, except that an ack may take what is free."""
        current = [lease for lease in leases if self.out.get(lease.place, (0, 0))[1] == lease.number]
        for lease in dict.fromkeys(current):
            self.out.pop(lease.place)
        return list(dict.fromkeys(current))

    def settle(self, outcome: Outcome, leases: list[Lease], learn: Any = lambda _: None, **options: int) -> None:
        receipts = [Receipt(lease.place, lease.number) for lease in leases]
        self.decided(self.queue.settle(self.now, self.ticket(learn), outcome, receipts, **options))  # type: ignore[arg-type]

    @precondition(lambda self: self.known)
    @rule(pick=picks, count=st.integers(1, 4), delay_ms=st.sampled_from((None, None, 0, 700)))
    def consumer_nacks(self, pick: int, count: int, delay_ms: int | None) -> None:
        leases = self.some_leases(pick, count)
        for lease in self.ended(leases):
            self.failures[lease.place] += 1
        self.settle(Outcome.NACK, leases, **({} if delay_ms is None else {"delay_ms": delay_ms}))

    @precondition(lambda self: self.known)
    @rule(pick=picks, count=st.integers(1, 4))
    def consumer_rejects(self, pick: int, count: int) -> None:
        leases = self.some_leases(pick, count)
        self.excused |= {lease.place for lease in leases}
        self.ended(leases)
        self.settle(Outcome.REJECT, leases)

    @precondition(lambda self: self.known)
    @rule(pick=picks, count=st.integers(1, 4))
    def consumer_releases(self, pick: int, count: int) -> None:
        leases = self.some_leases(pick, count)
        self.ended(leases)
        self.settle(Outcome.RELEASE, leases)

    @precondition(lambda self: self.known)
    @rule(pick=picks, count=st.integers(1, 4), lease_ms=st.sampled_from((0, 2_000)))
    def consumer_extends(self, pick: int, count: int, lease_ms: int) -> None:
        leases = self.some_leases(pick, count)
        for lease in leases:
            consumer, number, _ = self.out.get(lease.place, (None, 0, 0))
            if number == lease.number:
                self.out[lease.place] = (consumer, number, self.clock.monotonic_ms() + lease_ms if lease_ms else 0)
        self.settle(Outcome.EXTEND, leases, lease_ms=lease_ms)

    @precondition(lambda self: self.known)
    @rule(pick=picks, count=st.integers(0, 4), repeat=st.booleans())
    def consumer_takes_a_step(self, pick: int, count: int, repeat: bool) -> None:
        leases = self.some_leases(pick, count)
        step = list(self.steps)[pick % len(self.steps)] if repeat and self.steps else f"step {self.tickets}"
        if step not in self.steps:
            self.steps[step] = tuple(lease.place for lease in leases)
        new = step not in self.queue._steps.under_way and step not in self.queue._steps.done
        current = [lease for lease in leases if self.out.get(lease.place, (0, 0))[1] == lease.number]

        def learn(result: object) -> None:
            if not isinstance(result, PenstockError):
                assert step in self.performed

        if new and len(current) == len(leases):
            self.steps[step] = tuple(lease.place for lease in leases)
            self.ended(leases)
        receipts = [Receipt(lease.place, lease.number) for lease in leases]
        self.decided(self.queue.step(self.now, self.ticket(learn), step, receipts, b"of " + step.encode()))

    @precondition(lambda self: self.performing)
    @rule()
    def a_step_is_performed(self) -> None:
        """Its intent is durable, so what it settles never comes back."""
        effect = self.performing.pop(0)
        assert effect.payload == b"of " + effect.step.encode()
        self.performed[effect.step] = self.steps[effect.step]
        self.done |= set(self.steps[effect.step])
        self.excused |= set(self.steps[effect.step])
        self.decided(self.queue.performed(self.now, effect.step))

    @precondition(lambda self: self.burying)
    @rule(stored=st.booleans())
    def a_dead_letter_is_stored(self, stored: bool) -> None:
        place = self.burying.pop(0).place
        self.decided((self.queue.buried if stored else self.queue.unburied)(self.now, place))

    @rule(stream=st.sampled_from(STREAMS), key=st.integers(0, 3), pick=picks)
    def an_ordinary_moment(self, stream: int, key: int, pick: int) -> None:
        """What happens mostly, so that the rest happens to a queue in motion."""
        self.consumer_attaches(pick % 3 + 1, 50, None)
        self.messages_are_published(stream, pick % 6 + 1, pick % 10, 0, 0, key)
        self.machine_looks(2, 100)
        self.ledger_catches_up(10)
        if self.known:
            self.consumer_acks(pick, pick % 5 + 1)

    # -- the view -----------------------------------------------------------------------------------------------

    @rule(paused=st.booleans())
    def view_is_paused(self, paused: bool) -> None:
        self.decided((self.queue.pause if paused else self.queue.unpause)(self.now))

    @rule()
    def view_is_purged(self) -> None:
        pending = {
            place_of(stream, offset)
            for stream, log in self.logs.items()
            for offset in range(len(log))
            if self.queue.status_of(place_of(stream, offset)) is Status.PENDING
        }
        self.excused |= pending

        def learn(count: int) -> None:
            assert count == len(pending)
            self.done |= pending

        self.decided(self.queue.purge(self.now, self.ticket(learn)))

    @rule(settings=kinds)
    def view_is_configured(self, settings: QueueSettings) -> None:
        self.settings = settings
        if settings.max_attempts:
            self.most_attempts = min(self.most_attempts or settings.max_attempts, settings.max_attempts)
        self.shortest_ttl_ms = self.shortest_ttl_ms or settings.ttl_ms
        self.always_ordered &= settings.ordered_by_key and not settings.delay_ms
        self.decided(self.queue.configure(self.now, settings))

    # -- what always holds --------------------------------------------------------------------------------------

    def handed_out(self, effect: Deliver) -> None:
        settled = self.settings.guarantee == "at-most-once"
        for lease in effect.leases:
            place, arrival = lease.place, self.arrival(lease.place)
            assert place not in self.done, "nothing acknowledged comes back"
            assert place not in self.out, "nothing is with two consumers"
            assert lease.attempt <= (self.settings.max_attempts or lease.attempt) or self.most_attempts
            assert lease.attempt <= self.failures[place] + 1
            assert arrival.expires_ms == 0 or arrival.expires_ms > self.clock.wall_ms()
            self.out[place] = (effect.consumer, lease.number, lease.deadline_ms)
            if settled:
                self.excused.add(place)
            if self.always_ordered and arrival.key_hash:
                self.keys_are_in_order(place, arrival)
        held = sum(1 for consumer, _, _ in self.out.values() if consumer == effect.consumer)
        assert held <= self.consumers[effect.consumer], "credit is never exceeded"
        assert len(self.out) <= self.settings.max_in_flight
        if self.settings.single_active:
            assert effect.consumer == next(iter(self.consumers))

    def keys_are_in_order(self, place: int, arrival: Arrival) -> None:
        for other in self.out:
            assert other == place or self.arrival(other).key_hash != arrival.key_hash, "a key is out once"
        for earlier in filter(None, self.logs[stream_of(place)][self.starts[stream_of(place)] : arrival.offset]):
            if earlier.key_hash == arrival.key_hash and earlier.priority == arrival.priority and not earlier.due_ms:
                status = self.queue.status_of(place_of(stream_of(place), earlier.offset))
                assert status is not Status.PENDING, "a key's messages come in order"

    def important_ones_go_first(self, decision: Decision) -> None:
        if self.settings.ordered_by_key or not self.well_ordered:
            return  # a key that is freed half-way lets another one through
        top = self.settings.max_priority
        delivered = [e for e in decision.effects if isinstance(e, Deliver)]
        next_place = next(self.queue._backlog.in_order(), None)
        if top and delivered and next_place is not None:
            least = min(min(self.arrival(lease.place).priority, top) for e in delivered for lease in e.leases)
            assert min(self.arrival(next_place).priority, top) <= least

    @invariant()
    def the_machine_is_sound(self) -> None:
        self.queue.check()
        assert self.queue._leases.held.keys() == self.out.keys()

    @invariant()
    def a_key_is_out_once(self) -> None:
        if self.settings.ordered_by_key:
            held = [self.queue._keys._keys.get(place) for place in self.out]
            keys = [key for key in held if key is not None]
            assert len(keys) == len(set(keys))

    @invariant()
    def a_replay_gives_the_same_queue(self) -> None:
        if self.unsettled or self.behind or self.queue._again_ms is not None:
            return
        replayed = self.replayed()
        for stream in self.deleted:
            replayed.remove_stream(stream)
        replayed.resume(self.now)
        for stream, log in self.logs.items():
            assert self.queue.floor(stream) <= replayed.floor(stream) or self.starts[stream]
            for arrival in filter(None, log[self.starts[stream] :]):
                place = place_of(stream, arrival.offset)
                is_settled = self.queue.status_of(place) is Status.PROCESSED
                assert is_settled == (replayed.status_of(place) is Status.PROCESSED), (stream, arrival.offset)
        if not any(None in log for log in self.logs.values()) and not any(self.starts.values()):
            live, again = self.queue.counts(), replayed.counts()
            assert live.pending + live.processing == again.pending + again.processing
        live_troubles, troubles = self.queue._troubles.by_place, replayed._troubles.by_place
        assert troubles.keys() <= live_troubles.keys()
        for place, trouble in live_troubles.items():
            assert offset_of(place) < self.starts[stream_of(place)] or troubles.get(place) == trouble

    def teardown(self) -> None:
        """In the end everybody gets everything."""
        if not hasattr(self, "queue"):
            return
        self.ledger_catches_up(10_000)
        for name in list(self.consumers):
            self.consumers.pop(name)
            for place, (consumer, _, _) in list(self.out.items()):
                if consumer == name:
                    del self.out[place]
            self.decided(self.queue.detach(self.now, name))
        self.decided(self.queue.unpause(self.now))
        self.consumers[9] = 1_000_000
        self.decided(self.queue.attach(self.now, 9, 1_000_000))
        for _ in range(400):
            self.ledger_catches_up(10_000)
            self.machine_looks(50, 100)
            if self.performing:
                self.a_step_is_performed()
            elif self.burying:
                self.a_dead_letter_is_stored(True)
            elif not self.everything_is_acked():
                self.time_passes(5_000)
            counts = self.queue.counts()
            if not (counts.pending or counts.processing or self.unsettled or self.queue._steps.under_way):
                break
        assert not self.queue._steps.under_way and not any(self.waiting.values()), "everybody was answered"
        assert (counts.pending, counts.processing) == (0, 0), counts
        now_ms = max(self.latest_ms, self.clock.wall_ms())
        for stream, log in self.logs.items():
            for offset, arrival in enumerate(log):
                place = stream << OFFSET_BITS | offset
                if arrival is None or place in self.done or place in self.excused:
                    continue
                worn_out = self.most_attempts and self.failures[place] >= self.most_attempts
                assert worn_out or self.expiry_ms(arrival) <= now_ms, f"lost: stream {stream} offset {offset}"

    def everything_is_acked(self) -> bool:
        numbers = {number for _, number, _ in self.out.values()}
        leases = [lease for lease in self.known if lease.number in numbers]

        def learn(results: list[LeaseLost | None]) -> None:
            assert results == [None] * len(leases)
            self.done |= {lease.place for lease in leases}

        if leases:
            self.ended(leases)
            self.settle(Outcome.ACK, leases, learn)
        return bool(leases)

    def expiry_ms(self, arrival: Arrival) -> float:
        of_view = arrival.timestamp_ms + self.shortest_ttl_ms if self.shortest_ttl_ms else float("inf")
        return min(of_view, arrival.expires_ms or float("inf"))


QueueWorld.TestCase.settings = hypothesis_settings(max_examples=150, stateful_step_count=60, deadline=None)
TestQueueWorld = QueueWorld.TestCase
