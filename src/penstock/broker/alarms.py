"""One timer for many deadlines.

A heap of (deadline, name) with at most one true entry per name; an entry that is no longer true is skipped when it
comes up. A deadline may be set too early, never too late: whoever is rung looks for itself and sets the next. So a
deadline that keeps moving away, as a session's does with each heartbeat, costs nothing until the first one is due.
"""

import asyncio
import heapq
from collections.abc import Callable

from penstock.model.clock import Clock

# So many rings, then others have their turn in the loop.
MAX_RINGS_PER_TURN = 500
# The heap is swept when stale entries outnumber true ones and there are at least so many.
SWEEP_FROM_ENTRIES = 1_000


class Alarms:
    def __init__(self, clock: Clock, ring: Callable[[str], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._due_ms: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def set(self, name: str, deadline_ms: int | None) -> None:
        """Ring for this name at the deadline (monotonic), or sooner if it was set sooner before."""
        if deadline_ms is None:
            self._due_ms.pop(name, None)
            return
        known_ms = self._due_ms.get(name)
        if known_ms is not None and known_ms <= deadline_ms:
            return
        self._due_ms[name] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, name))
        if len(self._heap) > max(SWEEP_FROM_ENTRIES, 2 * len(self._due_ms)):
            self._heap = [(due_ms, each) for each, due_ms in self._due_ms.items()]
            heapq.heapify(self._heap)
        self._arm()

    def run_due(self) -> None:
        """Ring for everything that is due. The timer calls this; a test with a clock of its own may."""
        self._disarm()
        now_ms = self._clock.monotonic_ms()
        rings = 0
        while self._heap and self._heap[0][0] <= now_ms and rings < MAX_RINGS_PER_TURN:
            deadline_ms, name = heapq.heappop(self._heap)
            if self._due_ms.get(name) == deadline_ms:
                del self._due_ms[name]
                rings += 1
                self._ring(name)
        self._arm()

    def stop(self) -> None:
        self._disarm()
        self._due_ms.clear()
        self._heap.clear()

    def _arm(self) -> None:
        if not self._heap or (self._timer is not None and self._timer_ms <= self._heap[0][0]):
            return
        self._disarm()
        self._timer_ms = self._heap[0][0]
        delay_ms = max(0, self._timer_ms - self._clock.monotonic_ms())
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.run_due)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
