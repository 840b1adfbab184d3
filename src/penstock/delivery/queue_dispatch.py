"""Who gets what: consumers with free credit take turns, and what fails waits for its next turn or dies."""

from collections.abc import Sequence
from itertools import islice

from penstock.delivery.decision import Decision, Moment
from penstock.delivery.places import offset_of, stream_of
from penstock.delivery.queue_backlog import EXPIRY_MASK, EXPIRY_SHIFT, PLACE_MASK, PRIORITY_SHIFT
from penstock.delivery.queue_events import WEEKS_MS, Bury, Deliver, Lease, Reason
from penstock.delivery.queue_facts import Trouble
from penstock.delivery.queue_leases import Consumer
from penstock.delivery.queue_state import QueueState
from penstock.delivery.queue_troubles import back_off_ms

MAX_DUE_AT_ONCE = 10_000  # messages whose time has come, or is over, per event: the rest a moment later
MAX_DYING = 1_000  # on their way to the dead letters: nothing more expires until they are there

_new_lease = tuple.__new__


class Dispatch(QueueState):
    # -- handing out -----------------------------------------------------------------------------------------

    def _conclude(self, now: Moment, decision: Decision) -> Decision:
        """The end of every event: what is due is ready, what is ready is handed out, what changed is told."""
        self._wall_ahead_ms = now.wall_ms - now.monotonic_ms
        self._looked_ms = now.monotonic_ms
        backlog = self._backlog
        if backlog.delayed:
            for message in backlog.ripen(now.wall_ms, MAX_DUE_AT_ONCE):
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

    # -- failing ---------------------------------------------------------------------------------------------

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
