"""What waits to be handed out. A waiting message is one whole number, so that a million of them stay small:

    bits 0-63      its place
    bits 64-67     its priority
    bits 68-111    when it is dead, wall ms; 0: never
    bits 112-175   the hash of its key; 0: none, or the view is not ordered by key

Mostly all but the place is 0 and eight bytes keep it. Each waiting message stands in one of these, once:

    fresh      by priority, first come, first served
    returned   by priority, handed out before: ahead of the fresh ones, in log order
    delayed    a heap by the time they are due
    (or parked behind its key, see queue_keys.py)

A message that is settled while it waits is not looked for: `dropped` tells to skip it when it comes up.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

PLACE_MASK = (1 << 64) - 1
PRIORITY_SHIFT = 64
EXPIRY_SHIFT = 68
KEY_SHIFT = 112
DUE_SHIFT = 176
PRIORITY_MASK = 0xF
EXPIRY_MASK = (1 << 44) - 1
KEY_MASK = (1 << 64) - 1
MESSAGE_MASK = (1 << DUE_SHIFT) - 1
WITHOUT_KEY = (1 << KEY_SHIFT) - 1

COMPACT_ABOVE = 4_096  # handed-out entries at the head of a Fifo are cut off beyond it


class Fifo:
    """First in, first out, in as few bytes as its entries need."""

    __slots__ = ("_head", "_items")

    def __init__(self) -> None:
        self._items: array[int] | list[int] = array("q")
        self._head = 0

    def __len__(self) -> int:
        return len(self._items) - self._head

    def __iter__(self) -> Iterator[int]:
        return iter(self._items[self._head :])

    @property
    def is_plain(self) -> bool:
        """Nothing in it is more than a place."""
        return isinstance(self._items, array)

    def extend(self, messages: Sequence[int]) -> None:
        items = self._items
        if isinstance(items, array):
            size = len(items)
            try:
                items.extend(messages)
            except OverflowError:
                del items[size:]
                items = self._items = list(items[self._head :])
                self._head = 0
            else:
                return
        items.extend(messages)

    def take(self, count: int) -> Sequence[int]:
        head = self._head
        taken = self._items[head : head + count]
        head += len(taken)
        if head == len(self._items):
            self._items, self._head = array("q"), 0
        elif head > COMPACT_ABOVE and 2 * head > len(self._items):
            del self._items[:head]
            self._head = 0
        else:
            self._head = head
        return taken


class Backlog:
    def __init__(self, priorities: int) -> None:
        self.fresh = [Fifo() for _ in range(priorities)]
        self.returned: list[list[tuple[int, int, bool]]] = [[] for _ in range(priorities)]
        self.delayed: list[int] = []  # heap of due << DUE_SHIFT | message
        self.dropped: set[int] = set()  # places

    @property
    def ready(self) -> int:
        if len(self.fresh) == 1:
            return len(self.fresh[0]) + len(self.returned[0])
        return sum(map(len, self.fresh)) + sum(map(len, self.returned))

    def put(self, message: int) -> None:
        """Behind all others of its priority."""
        priority = message >> PRIORITY_SHIFT & PRIORITY_MASK
        self.fresh[priority].extend((message & ~(PRIORITY_MASK << PRIORITY_SHIFT),))

    def put_back(self, message: int, *, again: bool) -> None:
        """Before all others of its priority. `again`: it was handed out before."""
        priority = min(message >> PRIORITY_SHIFT & PRIORITY_MASK, len(self.returned) - 1)
        heappush(self.returned[priority], (message & PLACE_MASK, message, again))

    def delay(self, message: int, due_ms: int) -> None:
        heappush(self.delayed, due_ms << DUE_SHIFT | message)

    def ripen(self, wall_ms: int, most: int) -> list[int]:
        """Take out what is due, the earliest first."""
        delayed, limit = self.delayed, (wall_ms + 1) << DUE_SHIFT
        ripe: list[int] = []
        while delayed and delayed[0] < limit and len(ripe) < most:
            ripe.append(heappop(delayed) & MESSAGE_MASK)
        return self.without_dropped(ripe)

    def next_due_ms(self) -> int | None:
        return self.delayed[0] >> DUE_SHIFT if self.delayed else None

    def take_returned(self, priority: int) -> tuple[int, bool] | None:
        heap = self.returned[priority]
        while heap:
            place, message, again = heappop(heap)
            if place in self.dropped:
                self.dropped.discard(place)
            else:
                return message, again
        return None

    def without_dropped(self, messages: Sequence[int]) -> list[int]:
        dropped = self.dropped
        if not dropped:
            return list(messages)
        live = []
        for message in messages:
            if message & PLACE_MASK in dropped:
                dropped.discard(message & PLACE_MASK)
            else:
                live.append(message)
        return live

    def discard(self, doomed: Callable[[int], bool]) -> None:
        """Forget these places."""
        for priority, fifo in enumerate(self.fresh):
            kept = Fifo()
            kept.extend([message for message in fifo if not doomed(message & PLACE_MASK)])
            self.fresh[priority] = kept
        for heap in self.returned:
            heap[:] = [entry for entry in heap if not doomed(entry[0])]
            heapify(heap)
        self.delayed = [entry for entry in self.delayed if not doomed(entry & PLACE_MASK)]
        heapify(self.delayed)
        self.dropped = {place for place in self.dropped if not doomed(place)}

    def delayed_count(self) -> int:
        if not self.dropped:
            return len(self.delayed)
        return sum(1 for entry in self.delayed if entry & PLACE_MASK not in self.dropped)

    def in_order(self) -> Iterator[int]:
        """The places that are ready, in the order they would be handed out."""
        for priority in reversed(range(len(self.fresh))):
            for place, _, _ in sorted(self.returned[priority]):
                if place not in self.dropped:
                    yield place
            for message in self.fresh[priority]:
                if message & PLACE_MASK not in self.dropped:
                    yield message & PLACE_MASK

    def places(self) -> Iterator[int]:
        """Everything that stands here, dropped ones included; for checks."""
        for fifo in self.fresh:
            yield from (message & PLACE_MASK for message in fifo)
        for heap in self.returned:
            yield from (place for place, _, _ in heap)
        yield from (entry & PLACE_MASK for entry in self.delayed)
