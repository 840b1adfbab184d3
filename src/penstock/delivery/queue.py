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

    what happens               where
    reading, purging           queue_intake.py
    handing out, failing       queue_dispatch.py
    remembering, looking       queue_state.py
    what others ask for        here
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from penstock.delivery.decision import Decision, Fact, Moment
from penstock.delivery.places import offset_of, stream_of
from penstock.delivery.queue_dispatch import MAX_DUE_AT_ONCE
from penstock.delivery.queue_events import WEEKS_MS, Bury, Deliver, Lease, Outcome, Perform, Reason, Receipt
from penstock.delivery.queue_facts import CHUNK_BITS
from penstock.delivery.queue_intake import Intake
from penstock.delivery.queue_leases import Grant
from penstock.delivery.queue_progress import IN_CHUNK
from penstock.delivery.queue_steps import MAX_UNDER_WAY, NAME_MAX_BYTES
from penstock.model.errors import InvalidRequest, LeaseLost, LimitReached, PenstockError

AGAIN_MS = 1_000  # what could not be stored is tried again after it
LENT_LEASE_MS = 30_000  # of a lease without an end whose consumer lent it beyond its own life


class Queue(Intake):
    # -- consumers -------------------------------------------------------------------------------------------

    def attach(self, now: Moment, consumer: int, credit: int, *, lease_ms: int | None = None) -> Decision:
        """A consumer that takes up to `credit` unsettled messages. Fair: those with free credit take turns."""
        self._leases.attach(consumer, credit, None if lease_ms is None else max(0, min(lease_ms, WEEKS_MS)))
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

    def detach(self, now: Moment, consumer: int, *, keep_leases: bool = False, lost: bool = False) -> Decision:
        """The consumer left: what it held is ready again at once, unless the leases were lent beyond its life.

        Of a consumer that was lost it counts as a failed attempt, or a message that kills its consumers would do so
        for ever.
        """
        decision = Decision()
        found = self._leases.consumers.get(consumer)
        if found is None:
            return decision
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
                elif lost:
                    self._fail(now, place, held[2], 0, decision)
                else:
                    self._return(now, held[2], 0)
        return self._conclude(now, decision)

    # -- settling --------------------------------------------------------------------------------------------

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
        settled = False  # at most once: it was settled when it was handed out
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
                run, count, settled = grant, 0, grant.settled
            count += 1
            if not settled:
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
        lease_ms = max(0, min(self.settings.lease_ms if lease_ms is None else lease_ms, WEEKS_MS))
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

    # -- steps -----------------------------------------------------------------------------------------------

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

    def steps_under_way(self) -> list[str]:
        return list(self._steps.under_way)

    def performed(self, now: Moment, step: str) -> Decision:
        decision = Decision()
        for at, ticket in enumerate(self._steps.finish(step)):
            decision.reply(ticket, at == 0)
        return self._conclude(now, decision)

    # -- the view as a whole ---------------------------------------------------------------------------------

    def pause(self, now: Moment) -> Decision:
        self._paused = self._pause_is_news = True
        return self._conclude(now, Decision())

    def unpause(self, now: Moment) -> Decision:
        self._paused, self._pause_is_news = False, True
        return self._conclude(now, Decision())

    def tick(self, now: Moment) -> Decision:
        decision = Decision()
        if self._again_ms is not None and self._again_ms <= now.monotonic_ms:
            self._again_ms = None
            steps, self._perform_again = self._perform_again, []
            for step in dict.fromkeys(steps):
                if step in self._steps.under_way:
                    decision.effects.append(Perform(step, self._steps.under_way[step].intent.payload))
        timed_out = 0
        for grant in self._leases.due(now.monotonic_ms):
            timed_out += grant.open
            for place, held in self._leases.of_grant(grant):
                self._leases.end(place, held)
                if grant.settled:
                    self._free_key(place)
                else:
                    self._fail(now, place, held[2], None, decision)
            if timed_out >= MAX_DUE_AT_ONCE:
                break
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
        soonest_ms = min((deadline for deadline in deadlines if deadline is not None), default=None)
        # What was due at the last look and is still here was too much at once: others have their turn first.
        return None if soonest_ms is None else max(soonest_ms, self._looked_ms + 1)

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
