"""What a view reads: how far it looks, where each message goes that it sees, and what is settled without being seen.

A view looks only as far as its consumers can take, and a little further. One with priorities sees everything, so that a
late important message can overtake.
"""

from collections.abc import Callable, Sequence

from penstock.delivery.decision import Decision, Moment
from penstock.delivery.places import OFFSET_BITS, offset_of, place_of, stream_of
from penstock.delivery.queue_backlog import (
    EXPIRY_MASK,
    EXPIRY_SHIFT,
    KEY_MASK,
    KEY_SHIFT,
    PLACE_MASK,
    PRIORITY_SHIFT,
    Backlog,
)
from penstock.delivery.queue_dispatch import Dispatch
from penstock.delivery.queue_events import Arrival, QueueSettings, Reason
from penstock.delivery.queue_keys import KeyOrder
from penstock.delivery.queue_progress import Stream

LOOK_AHEAD = 4_096  # messages seen beyond what consumers can take now, so that an ack finds the next one ready
MAX_SET_ASIDE = 4_000_000  # delayed, or parked behind their key: nothing more is seen beyond it
MAX_FAILED = 1_000_000  # failed before, and not settled: the same
MAX_WAITING = 20_000_000  # seen and ready, in a view with priorities


class Intake(Dispatch):
    # -- streams: the partitions it reads --------------------------------------------------------------------

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

    def reopened(self, stream: int, end_offset: int) -> None:
        """Before anything else is said of a stream after replay: the partition ends here.

        What is known of later messages is known of messages that it lost; their offsets are given to others.
        """
        found = self._progress.streams.get(stream)
        if found is not None:
            low = place_of(stream, end_offset)
            self._forget_places(lambda place: stream_of(place) == stream and place >= low, leased_too=True)
            self._progress.cut(found, end_offset)

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
        set_aside = len(backlog.delayed) + self._keys.parked_count
        if set_aside >= MAX_SET_ASIDE or len(self._troubles.by_place) >= MAX_FAILED:
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
        delay_ms, ttl_ms = settings.delay_ms, settings.ttl_ms
        top, ordered = settings.max_priority, settings.ordered_by_key
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
            if delay_ms:
                due_ms = max(due_ms, timestamp_ms + delay_ms)
            if ttl_ms and timestamp_ms >= 0:  # what has no timestamp has no age
                expires_ms = min(expires_ms or timestamp_ms + ttl_ms, timestamp_ms + ttl_ms)
            if key_hash and ordered:
                message |= (key_hash & KEY_MASK) << KEY_SHIFT
            if expires_ms:
                message |= min(max(1, expires_ms), EXPIRY_MASK) << EXPIRY_SHIFT
            priority = min(priority, top) if priority > 0 else 0
            if offset < known_end and self._see_again(now, message | priority << PRIORITY_SHIFT):
                continue
            if expires_ms and expires_ms <= wall_ms:
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

    def _see_again(self, now: Moment, message: int) -> bool:
        """A message that was known before it is seen, from a restart or other settings. False: it just waits."""
        place = message & PLACE_MASK
        held = self._leases.held.get(place)
        if held is not None and not held[1].settled:
            self._leases.held[place] = (held[0], held[1], message)
            self._keys.hold(message)
        elif held is None and place not in self._dying and not self._progress.is_settled(place):
            trouble = self._troubles.by_place.get(place)
            if trouble is None:
                return False
            if self._keys.claim(message):
                self._wait_again(now, message, trouble.due_ms)
        return True

    def _pass_over(self, stream: Stream, start: int, end: int) -> None:
        if start >= stream.known_end:
            self._progress.fill(stream, start, end, passed=True)
        else:
            self._fill_around(stream, start, end, passed=True)

    # -- many at once ----------------------------------------------------------------------------------------

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
