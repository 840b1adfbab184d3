"""The queue machine: everything that moves a lease lives here. Pure: see `decision.py` for the protocol it obeys.

One machine is one view. It knows its messages by their places only; what they say is the shell's affair.

    unseen ──arrived──▶ ready ──▶ leased ──ack──▶ settled
                │         ▲  ▲      │ nack, time-out: after the back-off, or dead after the last attempt
                ▼         │  └──────┤ release, consumer leaves
             delayed ─────┘         └─reject──▶ dying ──buried──▶ settled

Messages are seen in log order and only as far as consumers want them, except with priorities, where all are seen so
that a late important one can overtake. What is unseen costs nothing, what is seen and waits a few bytes.

    where a message is         who keeps it
    settled, unseen            queue_progress.py: bits and floors
    ready, delayed             queue_backlog.py; queue_keys.py when it waits behind its key
    leased                     queue_leases.py
    failed before, dying       queue_troubles.py, beside where it is

Every keeper notes what it changed. At the end of an event `_conclude` hands out what can be handed out and turns these
notes into facts, so a key that changed twice is told once. Facts that could not be stored are noted again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice

from penstock.delivery.decision import Decision, Effect, Fact, Moment
from penstock.delivery.places import OFFSET_BITS, offset_of, place_of, stream_of
from penstock.delivery.queue_backlog import (
    EXPIRY_MASK,
    EXPIRY_SHIFT,
    KEY_SHIFT,
    PLACE_MASK,
    PRIORITY_SHIFT,
    Backlog,
)
from penstock.delivery.queue_events import (
    WEEKS_MS,
    Arrival,
    Bury,
    Counts,
    Deliver,
    Lease,
    Outcome,
    Perform,
    QueueSettings,
    Reason,
    Receipt,
    Status,
)
from penstock.delivery.queue_facts import (
    CHUNK,
    CHUNK_BITS,
    FLOOR,
    PAUSE,
    STEP,
    TROUBLE,
    Trouble,
    key_number,
    pause_key,
)
from penstock.delivery.queue_keys import KeyOrder
from penstock.delivery.queue_leases import Consumer, Grant, Leases
from penstock.delivery.queue_progress import IN_CHUNK, Progress, Stream
from penstock.delivery.queue_steps import MAX_UNDER_WAY, NAME_MAX_BYTES, Steps
from penstock.delivery.queue_troubles import Troubles, back_off_ms
from penstock.model.errors import InvalidRequest, LeaseLost, LimitReached, PenstockError

LOOK_AHEAD = 4_096  # messages seen beyond what consumers can take now, so that an ack finds the next one ready
MAX_SET_ASIDE = 1_000_000  # delayed, failed or parked behind their key: nothing more is seen beyond it
MAX_WAITING = 20_000_000  # seen and ready, in a view with priorities
MAX_DYING = 1_000  # on their way to the dead letters: nothing more expires until they are there
AGAIN_MS = 1_000  # what could not be stored is tried again after it
LENT_LEASE_MS = 30_000  # of a lease without an end whose consumer lent it beyond its own life

_new_lease = tuple.__new__


class Queue:
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
        self._counts = Counts()
        # Of each decision whose facts are on their way: its effects, and the messages that it settled by handing out.
        self._undecided: deque[tuple[list[Effect], dict[int, int]]] = deque()
        self._handing: dict[int, int] = {}  # of the decision that is being made; by place

    # -- streams: the partitions it reads ---------------------------------------------------------------------

    def add_stream(self, stream: int, start_offset: int) -> None:
        """Read this partition too, from here on unless replayed facts say otherwise. Added after replay."""
        self._progress.add(stream, start_offset)

    def remove_stream(self, stream: int) -> Decision:
        """Its topic is gone: so are all its messages."""
        self._forget_places(lambda place: stream_of(place) == stream, leased_too=True)
        self._progress.remove(stream)
        self._behind.pop(stream, None)
        if self._again_ms is None:
            self._again_ms = 0  # there is no moment here to lease anything from: the next tick does
        return self._told(Decision())

    def grew(self, stream: int, start_offset: int, end_offset: int) -> None:
        """What the partition holds now; for counting, and so that what retention removed is passed over."""
        found = self._progress.streams.get(stream)
        if found is None:
            return
        if found.start < 0 and end_offset < found.floor:
            self._forget_places(lambda place: stream_of(place) == stream, leased_too=True)
            self._progress.restart(found, start_offset)
        if start_offset > found.start:
            found.start = start_offset
            if start_offset > found.floor:
                found.end = max(found.end, start_offset)
                self._sweep(found, start_offset, passed=True)
        found.end = max(end_offset, found.seen)
        if found.seen < found.end:
            self._behind.setdefault(stream, found)

    def wants(self) -> list[tuple[int, int]]:
        """(stream, next offset to see) of every stream it wants to see more of now, the longest neglected first."""
        if not self._behind or not self._has_appetite():
            return []
        return [(number, stream.seen) for number, stream in self._behind.items() if stream.seen < stream.end]

    def _has_appetite(self) -> bool:
        backlog, leases = self._backlog, self._leases
        set_aside = len(backlog.delayed) + self._keys.parked_count + len(self._troubles.by_place)
        if set_aside >= MAX_SET_ASIDE:
            return False
        if self.settings.max_priority:
            return backlog.ready < MAX_WAITING
        if self._paused:
            return False
        limit, used = leases.limit, leases.used
        if self.settings.single_active and leases.consumers:
            active = next(iter(leases.consumers.values()))
            limit, used = active.limit, active.used
        free = min(limit - used, self.settings.max_in_flight - len(leases.held))
        return backlog.ready < max(0, free) + min(limit, LOOK_AHEAD)

    def arrived(self, now: Moment, stream: int, arrivals: Sequence[Arrival], next_offset: int) -> Decision:
        """These were seen, in order, up to `next_offset`. What lies between and is not named is passed over."""
        decision = Decision()
        found = self._progress.streams.get(stream)
        if found is None or next_offset <= found.seen:
            return decision
        gaps = self._see(now, found, arrivals, decision)
        if gaps or next_offset - found.seen != len(arrivals):
            last = max(arrivals[-1].offset + 1, found.seen) if arrivals else found.seen
            for start, end in (*gaps, (last, next_offset)):
                self._pass_over(found, start, end)
        found.seen = max(found.seen, next_offset)
        found.end = max(found.end, next_offset)
        self._progress.advance(found)
        self._behind.pop(stream, None)
        if found.seen < found.end:
            self._behind[stream] = found
        return self._conclude(now, decision)

    def _see(
        self, now: Moment, stream: Stream, arrivals: Sequence[Arrival], decision: Decision
    ) -> list[tuple[int, int]]:
        """Put each where it belongs. Returns the gaps between them."""
        settings, backlog, wall_ms = self.settings, self._backlog, now.wall_ms
        delay_ms, ttl_ms, top, ordered = (
            settings.delay_ms,
            settings.ttl_ms,
            settings.max_priority,
            settings.ordered_by_key,
        )
        base, expected, known_end = stream.number << OFFSET_BITS, stream.seen, stream.known_end
        gaps: list[tuple[int, int]] = []
        ready: list[list[int]] = [[] for _ in backlog.fresh]
        first_ready = ready[0]
        for offset, timestamp_ms, priority, due_ms, expires_ms, key_hash in arrivals:
            if offset != expected:
                if offset < expected:
                    continue
                gaps.append((expected, offset))
            expected = offset + 1
            place = message = base | offset
            if offset < known_end and self._is_taken(place):
                continue
            if delay_ms:
                due_ms = max(due_ms, timestamp_ms + delay_ms)
            if ttl_ms:
                expires_ms = min(expires_ms or timestamp_ms + ttl_ms, timestamp_ms + ttl_ms)
            if key_hash and ordered:
                message |= key_hash << KEY_SHIFT
            if expires_ms:
                message |= (expires_ms & EXPIRY_MASK) << EXPIRY_SHIFT
            priority = min(priority, top) if priority and top else 0
            if offset < known_end and place in self._troubles.by_place:
                self._see_again(now, message | priority << PRIORITY_SHIFT)
            elif expires_ms and expires_ms <= wall_ms:
                self._die(now, place, message, Reason.EXPIRED, decision)
            elif due_ms > wall_ms:
                backlog.delay(message | priority << PRIORITY_SHIFT, due_ms)
            elif priority:
                ready[priority].append(message)
            else:
                first_ready.append(message)
        for fifo, messages in zip(backlog.fresh, ready, strict=True):
            if messages:
                fifo.extend(messages)
        return gaps

    def _is_taken(self, place: int) -> bool:
        """It was known before it was seen, and does not wait."""
        return place in self._leases.held or place in self._dying or self._progress.is_settled(place)

    def _see_again(self, now: Moment, message: int) -> None:
        """A message that failed before a restart waits for its time, and keeps its key."""
        trouble = self._troubles.by_place[message & PLACE_MASK]
        if self._keys.claim(message):
            self._wait_again(now, message, trouble.due_ms)

    def _pass_over(self, stream: Stream, start: int, end: int) -> None:
        if start >= stream.known_end:
            self._progress.fill(stream, start, end, passed=True)
        else:
            self._fill_around(stream, start, end, passed=True)

    # -- consumers --------------------------------------------------------------------------------------------

    def attach(self, now: Moment, consumer: int, credit: int, *, lease_ms: int | None = None) -> Decision:
        """A consumer that takes up to `credit` unsettled messages. Fair: those with free credit take turns."""
        self._leases.attach(consumer, credit, lease_ms)
        return self._conclude(now, Decision())

    def add_credit(self, now: Moment, consumer: int, credit: int) -> Decision:
        """Credit for more. What is settled gives its credit back by itself, so this raises the limit.

        Who gets everything at most once need not settle: for it, this is a sign that it is done with the oldest.
        """
        found = self._leases.consumers.get(consumer)
        if found is None:
            return Decision()
        for grant in list(found.grants):
            if credit > 0 and grant.settled:
                for place, held in self._leases.of_grant(grant)[:credit]:
                    self._leases.end(place, held)
                    self._free_key(place)
                    credit -= 1
        self._leases.add_credit(found, credit)
        return self._conclude(now, Decision())

    def detach(self, now: Moment, consumer: int, *, keep_leases: bool = False) -> Decision:
        """The consumer left: what it held is ready again at once, unless the leases were lent beyond its life."""
        found = self._leases.consumers.get(consumer)
        if found is None:
            return Decision()
        grants = list(found.grants)
        self._leases.detach(found)
        for grant in grants:
            leased = self._leases.of_grant(grant)
            if keep_leases and not grant.settled:
                if not grant.deadline_ms:
                    self._move(leased, now.monotonic_ms + LENT_LEASE_MS)
                continue
            for place, held in leased:
                self._leases.end(place, held)
                if grant.settled:
                    self._free_key(place)
                else:
                    self._return(now, held[2], 0)
        return self._conclude(now, Decision())

    # -- handing out ------------------------------------------------------------------------------------------

    def _conclude(self, now: Moment, decision: Decision) -> Decision:
        """The end of every event: what is due is ready, what is ready is handed out, what changed is told."""
        self._wall_ahead_ms = now.wall_ms - now.monotonic_ms
        backlog = self._backlog
        if backlog.delayed:
            for message in backlog.ripen(now.wall_ms):
                if message & PLACE_MASK in self._troubles.by_place:
                    backlog.put_back(message, again=True)
                else:
                    backlog.put(message)
        if self._leases.hungry and not self._paused and backlog.ready:
            self._dispatch(now, decision)
        return self._told(decision)

    def _dispatch(self, now: Moment, decision: Decision) -> None:
        """Rounds in which each consumer with free credit gets an equal share."""
        leases, max_in_flight = self._leases, self.settings.max_in_flight
        settled = self.settings.guarantee == "at-most-once"
        if settled and self._again_ms is not None:
            return
        delivers: dict[int, Deliver] = {}
        while (room := min(max_in_flight - len(leases.held), self._backlog.ready)) > 0:
            before = (self._backlog.ready, self._keys.parked_count)
            takers = self._takers(room)
            share = -(-room // len(takers)) if takers else 0
            handed = 0
            for consumer in takers:
                count = min(consumer.limit - consumer.used, share, max_in_flight - len(leases.held))
                messages = self._take(now, count, decision) if count > 0 else ()
                if messages:
                    handed += len(messages)
                    given = self._hand(now, consumer, messages, settled)
                    if consumer.name in delivers:
                        delivers[consumer.name].leases += given
                    else:
                        delivers[consumer.name] = Deliver(consumer.name, given)
            if not handed and before == (self._backlog.ready, self._keys.parked_count):
                break
        decision.effects += delivers.values()

    def _takers(self, most: int) -> list[Consumer]:
        leases = self._leases
        if self.settings.single_active and leases.consumers:
            active = next(iter(leases.consumers.values()))
            return [active] if active.free > 0 else []
        return list(islice(leases.hungry.values(), most))

    def _take(self, now: Moment, count: int, decision: Decision) -> Sequence[int]:
        """Up to so many messages that can go now, the most urgent first."""
        backlog = self._backlog
        if len(backlog.fresh) == 1 and not backlog.returned[0] and not backlog.dropped and backlog.fresh[0].is_plain:
            return backlog.fresh[0].take(count)
        taken: list[int] = []
        for priority in reversed(range(len(backlog.fresh))):
            self._take_returned(now, priority, count, taken, decision)
            fifo, tag = backlog.fresh[priority], priority << PRIORITY_SHIFT
            while len(taken) < count and len(fifo) and len(self._dying) < MAX_DYING:
                plain = fifo.is_plain
                batch = backlog.without_dropped(fifo.take(count - len(taken)))
                if tag:
                    batch = [message | tag for message in batch]
                taken += batch if plain else [m for m in batch if self._may_go(now, m, decision)]
            if len(taken) == count:
                break
        return taken

    def _take_returned(self, now: Moment, priority: int, count: int, taken: list[int], decision: Decision) -> None:
        while len(taken) < count and len(self._dying) < MAX_DYING:
            entry = self._backlog.take_returned(priority)
            if entry is None:
                break
            message, again = entry
            if self._may_go(now, message, decision):
                taken.append(message)
                self._counts.redelivered += again

    def _may_go(self, now: Moment, message: int, decision: Decision) -> bool:
        expires_ms = message >> EXPIRY_SHIFT & EXPIRY_MASK
        if expires_ms and expires_ms <= now.wall_ms:
            self._die(now, message & PLACE_MASK, message, Reason.EXPIRED, decision)
            return False
        return self._keys.claim(message)

    def _hand(self, now: Moment, consumer: Consumer, messages: Sequence[int], settled: bool) -> list[Lease]:
        leases, troubles, number = self._leases, self._troubles.by_place, self._number
        lease_ms = self.settings.lease_ms if consumer.lease_ms is None else consumer.lease_ms
        deadline_ms = now.monotonic_ms + lease_ms if lease_ms else 0
        grant = leases.open(consumer, messages, len(messages), deadline_ms, settled=settled)
        held = leases.held
        given: list[Lease] = []
        for message in messages:
            number += 1
            place = message & PLACE_MASK
            held[place] = (number, grant, message)
            attempt = troubles[place].attempts + 1 if troubles and place in troubles else 1
            given.append(_new_lease(Lease, (place, number, attempt, deadline_ms)))
        self._number = number
        self._counts.delivered += len(given)
        if settled:
            for message in messages:
                self._progress.settle(message & PLACE_MASK)
                self._troubles.forget(message & PLACE_MASK)
                self._handing[message & PLACE_MASK] = message
        if consumer.name in leases.hungry:
            leases.hungry[consumer.name] = leases.hungry.pop(consumer.name)  # its turn is over
        return given

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
        decision = Decision()
        results: list[PenstockError | None]
        if outcome is Outcome.ACK:
            results = self._ack(receipts)
        elif outcome is Outcome.EXTEND:
            results = self._extend(now, receipts, lease_ms)
        else:
            results = [self._refuse(now, outcome, receipt, delay_ms, decision) for receipt in receipts]
        decision.reply(ticket, results)
        return self._conclude(now, decision)

    def _ack(self, receipts: Sequence[Receipt]) -> list[PenstockError | None]:
        """The hot loop: receipts mostly come in runs of one grant and one chunk, so both are touched once per run."""
        results: list[PenstockError | None] = [None] * len(receipts)
        leases, settle_bits = self._leases, self._progress.settle_bits
        pop = leases.held.pop
        marked = bool(self._troubles.by_place or self._keys)
        run: Grant | None = None
        count = bits = 0
        chunk = -1
        for at, (place, number) in enumerate(receipts):
            lease = pop(place, None)
            if lease is None or lease[0] != number:
                if lease is not None:
                    leases.held[place] = lease
                if bits:
                    settle_bits(chunk, bits)
                    bits = 0
                results[at] = self._ack_late(place, number)
                continue
            grant = lease[1]
            if grant is not run:
                if run is not None:
                    leases.give_back(run, count)
                run, count = grant, 0
            count += 1
            if place >> CHUNK_BITS != chunk:
                if bits:
                    settle_bits(chunk, bits)
                    bits = 0
                chunk = place >> CHUNK_BITS
            bits |= 1 << (place & IN_CHUNK)
            if marked:
                self._troubles.forget(place)
                self._free_key(place)
        if bits:
            settle_bits(chunk, bits)
        if run is not None:
            leases.give_back(run, count)
        self._counts.acked += len(receipts) - sum(map(bool, results))
        return results

    def _ack_late(self, place: int, number: int) -> LeaseLost | None:
        lost = self._lost(place, number)
        if lost is None and self._take_out(place):
            self._progress.settle(place)
            self._troubles.forget(place)
        elif lost is None and self._undecided:
            # What settled it may be on its way still: this answer depends on it, too.
            if place in self._dying:
                self._troubles.retell(place)
            else:
                self._progress.retell(place)
        return lost

    def _lost(self, place: int, number: int) -> LeaseLost | None:
        """Why a receipt whose lease is over is worth nothing; None when nobody else has the message."""
        stream = self._progress.streams.get(stream_of(place))
        if place in self._leases.held:
            return LeaseLost("the lease is over, and the message was handed out again")
        if not 0 < number <= self._number or (stream is not None and offset_of(place) >= stream.end):
            return LeaseLost("no such lease was ever given")
        return None

    def _take_out(self, place: int) -> bool:
        """A message that waits is no longer to be handed out. False when it does not wait."""
        if place in self._dying or self._progress.is_settled(place):
            return False
        if offset_of(place) < self._progress.streams[stream_of(place)].seen:
            self._backlog.dropped.add(place)
        self._free_key(place)
        return True

    def _refuse(
        self, now: Moment, outcome: Outcome, receipt: Receipt, delay_ms: int | None, decision: Decision
    ) -> LeaseLost | None:
        """Nack, release, reject."""
        place, number = receipt
        held = self._leases.held.get(place)
        if held is None or held[0] != number:
            lost = self._lost(place, number)
            if lost is None and outcome is Outcome.REJECT and self._take_out(place):
                self._progress.know(place)
                self._die(now, place, place, Reason.REJECTED, decision)
            return lost
        self._leases.end(place, held)
        message = held[2]
        if held[1].settled:
            self._free_key(place)
        elif outcome is Outcome.NACK:
            self._fail(now, place, message, delay_ms, decision)
        elif outcome is Outcome.REJECT:
            self._note_failure(now, place, 0)
            self._die(now, place, message, Reason.REJECTED, decision)
        else:
            self._return(now, message, 0)
        return None

    def _extend(self, now: Moment, receipts: Sequence[Receipt], lease_ms: int | None) -> list[PenstockError | None]:
        lease_ms = min(self.settings.lease_ms if lease_ms is None else lease_ms, WEEKS_MS)
        results: list[PenstockError | None] = []
        held = self._leases.held
        kept = []
        for place, number in dict.fromkeys(receipts):
            lease = held.get(place)
            if lease is not None and lease[0] == number:
                kept.append((place, lease))
        self._move(kept, now.monotonic_ms + lease_ms if lease_ms else 0)
        for place, number in receipts:
            lease = held.get(place)
            lost = lease is None or lease[0] != number
            results.append(LeaseLost("the lease is over") if lost else None)
        return results

    def _move(self, kept: Sequence[tuple[int, tuple[int, Grant, int]]], deadline_ms: int) -> None:
        """Leases go on under new grants, with this deadline."""
        by_owner: dict[tuple[int | None, bool], list[tuple[int, tuple[int, Grant, int]]]] = {}
        for place, lease in kept:
            consumer = lease[1].consumer
            owner = (None if consumer is None else consumer.name, lease[1].settled)
            by_owner.setdefault(owner, []).append((place, lease))
        for (_, settled), owned in by_owner.items():
            consumer = owned[0][1][1].consumer
            for _, (_, grant, _) in owned:
                self._leases.give_back(grant, 1)
            messages = [message for _, (_, _, message) in owned]
            moved = self._leases.open(consumer, messages, len(messages), deadline_ms, settled=settled)
            for place, (number, _, message) in owned:
                self._leases.held[place] = (number, moved, message)

    # -- failing ----------------------------------------------------------------------------------------------

    def _fail(self, now: Moment, place: int, message: int, delay_ms: int | None, decision: Decision) -> None:
        self._counts.failed += 1
        attempts = self._note_failure(now, place, 0)
        if 0 < self.settings.max_attempts <= attempts:
            self._die(now, place, message, Reason.ATTEMPTS, decision)
            return
        if delay_ms is None:
            delay_ms = back_off_ms(self.settings, place, attempts)
        due_ms = now.wall_ms + max(0, min(delay_ms, WEEKS_MS))
        self._troubles.set(place, self._troubles.by_place[place]._replace(due_ms=due_ms))
        self._return(now, message, due_ms)

    def _note_failure(self, now: Moment, place: int, due_ms: int) -> int:
        before = self._troubles.by_place.get(place)
        attempts = 1 if before is None else before.attempts + 1
        first_ms = now.wall_ms if before is None else before.first_failure_ms or now.wall_ms
        self._troubles.set(place, Trouble(attempts, due_ms, first_ms, now.wall_ms))
        return attempts

    def _return(self, now: Moment, message: int, due_ms: int) -> None:
        """It was handed out, and waits again."""
        stream = self._progress.streams.get(stream_of(message & PLACE_MASK))
        if stream is not None and offset_of(message & PLACE_MASK) < stream.seen:  # else it is about to be seen anew
            self._wait_again(now, message, due_ms)

    def _wait_again(self, now: Moment, message: int, due_ms: int) -> None:
        if due_ms > now.wall_ms:
            self._backlog.delay(message, due_ms)
        else:
            self._backlog.put_back(message, again=True)

    def _die(self, now: Moment, place: int, message: int, reason: Reason, decision: Decision) -> None:
        if reason is Reason.EXPIRED:
            self._counts.expired += 1
        else:
            self._counts.dead += 1
        if self.settings.dead_letter == "":
            self._progress.settle(place)
            self._troubles.forget(place)
            self._free_key(place)
            return
        trouble = self._troubles.by_place.get(place) or Trouble(0, 0, 0, 0)
        self._troubles.set(place, trouble._replace(reason=reason, due_ms=0))
        self._dying[place] = message
        decision.effects.append(self._bury(place))

    def _bury(self, place: int) -> Bury:
        attempts, _, first_ms, last_ms, reason = self._troubles.by_place[place]
        assert reason is not None
        return Bury(place, reason, attempts, first_ms, last_ms)

    def _free_key(self, place: int) -> None:
        """It is settled: the next one of its key may go."""
        while (message := self._keys.free(place)) is not None:
            place = message & PLACE_MASK
            if place not in self._backlog.dropped:
                self._backlog.put_back(message, again=False)
                return
            self._backlog.dropped.discard(place)

    def buried(self, now: Moment, place: int) -> Decision:
        if self._dying.pop(place, None) is not None:
            self._progress.settle(place)
            self._troubles.forget(place)
            self._free_key(place)
        return self._conclude(now, Decision())

    def unburied(self, now: Moment, place: int) -> Decision:
        """The dead letter could not be stored: Bury comes again after a while."""
        if place in self._dying:
            heappush(self._bury_again, (now.monotonic_ms + AGAIN_MS, place))
        return self._conclude(now, Decision())

    # -- steps ------------------------------------------------------------------------------------------------

    def step(self, now: Moment, ticket: int, step: str, receipts: Sequence[Receipt], payload: bytes) -> Decision:
        """Settle these and do what the payload says, both or neither, once however often the step is repeated.

        Replies True when it is done, False when it was done before; LeaseLost, and nothing happens, when any of the
        receipts is no longer held (a step never takes what is free again).
        """
        decision, steps = Decision(), self._steps
        if step in steps.done:
            decision.reply(ticket, False)
        elif step in steps.under_way:
            steps.under_way[step].tickets.append(ticket)
        elif len(step.encode()) > NAME_MAX_BYTES:
            decision.reply(ticket, InvalidRequest(f"the name of a step may have {NAME_MAX_BYTES} bytes"))
        elif len(steps.under_way) >= MAX_UNDER_WAY:
            decision.reply(ticket, LimitReached(f"a view has at most {MAX_UNDER_WAY} steps under way"))
        elif not all(self._is_held(receipt) for receipt in receipts):
            decision.reply(ticket, LeaseLost("a lease that the step settles is over"))
        else:
            places = tuple(dict.fromkeys(receipt.place for receipt in receipts))
            steps.begin(step, ticket, places, payload)
            self._ack(list(dict.fromkeys(receipts)))
            decision.effects.append(Perform(step, payload))
        return self._conclude(now, decision)

    def _is_held(self, receipt: Receipt) -> bool:
        held = self._leases.held.get(receipt.place)
        return held is not None and held[0] == receipt.number

    def performed(self, now: Moment, step: str) -> Decision:
        decision = Decision()
        for at, ticket in enumerate(self._steps.finish(step)):
            decision.reply(ticket, at == 0)
        return self._conclude(now, decision)

    # -- the view as a whole ----------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return self._paused

    def pause(self, now: Moment) -> Decision:
        self._paused = self._pause_is_news = True
        return self._conclude(now, Decision())

    def unpause(self, now: Moment) -> Decision:
        self._paused, self._pause_is_news = False, True
        return self._conclude(now, Decision())

    def purge(self, now: Moment, ticket: int) -> Decision:
        """Settle everything that is not leased. Replies with how many that were."""
        decision = Decision()
        count = sum(self._sweep(stream, stream.end, passed=False) for stream in self._progress.streams.values())
        decision.reply(ticket, count)
        return self._conclude(now, decision)

    def _sweep(self, stream: Stream, end: int, *, passed: bool) -> int:
        """Settle what lies below this offset and is neither leased nor dying. Returns how many that were."""
        low, high = place_of(stream.number, stream.floor), place_of(stream.number, end)
        self._forget_places(lambda place: low <= place < high, leased_too=False)
        count = self._fill_around(stream, stream.floor, end, passed=passed)
        stream.seen = max(stream.seen, end)
        self._progress.advance(stream)
        return count

    def _fill_around(self, stream: Stream, start: int, end: int, *, passed: bool) -> int:
        low, high = place_of(stream.number, start), place_of(stream.number, end)
        taken = sorted(place for place in (*self._leases.held, *self._dying) if low <= place < high)
        for place in [place for place in self._troubles.by_place if low <= place < high]:
            if place not in self._leases.held and place not in self._dying:
                self._troubles.forget(place)
        count = 0
        for place in taken:
            count += self._progress.fill(stream, start, offset_of(place), passed=passed)
            start = offset_of(place) + 1
        return count + self._progress.fill(stream, start, end, passed=passed)

    def _forget_places(self, doomed: Callable[[int], bool], *, leased_too: bool) -> None:
        """Take these out of wherever they wait; those that are leased or dying as well, if told to."""
        self._backlog.discard(doomed)
        self._keys.discard(doomed)
        if leased_too:
            self._leases.discard(doomed)
            for place in [place for place in self._dying if doomed(place)]:
                del self._dying[place]
            for place in [place for place in self._troubles.by_place if doomed(place)]:
                self._troubles.forget(place)
        for place in self._keys.held_places():
            if doomed(place) and place not in self._leases.held and place not in self._dying:
                self._free_key(place)

    def configure(self, now: Moment, settings: QueueSettings) -> Decision:
        """Everything that waits is seen anew, with the new settings (and, for all we know, new filters)."""
        self.settings = settings
        self._backlog = Backlog(settings.max_priority + 1)
        if settings.ordered_by_key:
            self._forget_places(lambda _: True, leased_too=False)
        else:
            self._keys = KeyOrder()
        for stream in self._progress.streams.values():
            stream.known_end = max(stream.known_end, stream.seen)
            stream.seen = stream.floor
            if stream.seen < stream.end:
                self._behind.setdefault(stream.number, stream)
        return self._conclude(now, Decision())

    # -- time -------------------------------------------------------------------------------------------------

    def tick(self, now: Moment) -> Decision:
        decision = Decision()
        if self._again_ms is not None and self._again_ms <= now.monotonic_ms:
            self._again_ms = None
            steps, self._perform_again = self._perform_again, []
            for step in dict.fromkeys(steps):
                if step in self._steps.under_way:
                    decision.effects.append(Perform(step, self._steps.under_way[step].intent.payload))
        for grant in self._leases.due(now.monotonic_ms):
            for place, held in self._leases.of_grant(grant):
                self._leases.end(place, held)
                if grant.settled:
                    self._free_key(place)
                else:
                    self._fail(now, place, held[2], None, decision)
        while self._bury_again and self._bury_again[0][0] <= now.monotonic_ms:
            _, place = heappop(self._bury_again)
            if place in self._dying:
                decision.effects.append(self._bury(place))
        return self._conclude(now, decision)

    def next_deadline_ms(self) -> int | None:
        """Monotonic; for wall-clock deadlines the shell's moments relate the two clocks."""
        deadlines = [self._leases.next_deadline_ms(), self._again_ms]
        due_ms = self._backlog.next_due_ms()
        if due_ms is not None:
            deadlines.append(due_ms - self._wall_ahead_ms)
        if self._bury_again:
            deadlines.append(self._bury_again[0][0])
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # -- facts ------------------------------------------------------------------------------------------------

    def _told(self, decision: Decision) -> Decision:
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

    def resume(self, now: Moment) -> Decision:
        """After replay: what was leased is ready, what was dying is buried again, begun steps are performed."""
        decision = Decision()
        self._progress.resume()
        self._steps.resume()
        for step, under_way in self._steps.under_way.items():
            for place in under_way.intent.places:
                if not self._progress.is_settled(place):
                    self._progress.settle(place)
            decision.effects.append(Perform(step, under_way.intent.payload))
        for place, trouble in list(self._troubles.by_place.items()):
            if stream_of(place) in self._progress.streams and self._progress.is_settled(place):
                self._troubles.forget(place)
                continue
            self._progress.know(place)
            if trouble.reason is not None:
                self._dying[place] = place
                decision.effects.append(self._bury(place))
        for stream in self._progress.streams.values():
            if stream.seen < stream.end:
                self._behind.setdefault(stream.number, stream)
        return self._conclude(now, decision)

    def recorded(self, now: Moment, facts: Sequence[Fact]) -> None:
        """The facts of one decision are durable. Called once for each decision that had any, in order."""
        if facts:
            self._undecided.popleft()
        for key, value in facts:
            if key[:1] == FLOOR:
                self._progress.floor_is_durable(key_number(key), value)

    def unrecorded(self, now: Moment, facts: Sequence[Fact]) -> Decision:
        """They are not, and none of the decision's effects was performed: both are tried again after a while."""
        if not facts:
            return Decision()
        again_ms = self._again_ms = now.monotonic_ms + AGAIN_MS
        for key, _ in facts:
            self._note_again(key)
        effects, handed = self._undecided.popleft()
        for effect in effects:
            if isinstance(effect, Deliver):
                for lease in effect.leases:
                    self._take_back(now, lease, handed)
            elif isinstance(effect, Bury):
                heappush(self._bury_again, (again_ms, effect.place))
            elif isinstance(effect, Perform):
                self._perform_again.append(effect.step)
        return Decision()

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

    def _take_back(self, now: Moment, lease: Lease, handed: dict[int, int]) -> None:
        """A delivery that nobody got."""
        place = lease.place
        held = self._leases.held.get(place)
        message = handed.get(place)
        if held is not None and held[0] == lease.number:
            message = held[2]
            self._leases.end(place, held)
        if place in handed:
            self._progress.unsettle(place)
        if message is not None:
            self._return(now, message, 0)

    def tombstones(self) -> Iterable[Fact]:
        """All its facts as tombstones, for a view that is deleted."""
        yield from self._progress.tombstones()
        yield from self._troubles.tombstones()
        yield from self._steps.tombstones()
        yield Fact(pause_key(self.view_id), None)

    # -- looking ----------------------------------------------------------------------------------------------

    def status_of(self, place: int) -> Status:
        if self._progress.is_settled(place):
            return Status.PROCESSED
        if place in self._leases.held or place in self._dying:
            return Status.PROCESSING
        return Status.PENDING

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
