"""Housekeeping: closes, forgets and compacts, when something is due and never before.

Each partition that has something to lose stands in a heap, at the time it next needs a look; an idle server sleeps.
A look is also due soon after a partition was first written to, altered, or grew by a segment.
"""

import asyncio
import heapq
import itertools
import logging

from penstock.log import compaction, retention
from penstock.log.partition import Partition
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError

_log = logging.getLogger(__name__)

ATTEND_AFTER_MS = 1000
MIN_BETWEEN_LOOKS_MS = 1000
RETRY_AFTER_MS = 60_000
MAX_STALE_ENTRIES = 1000


class Housekeeper:
    def __init__(self, clock: Clock, producer_expiration_ms: int) -> None:
        self._clock = clock
        self._producer_expiration_ms = producer_expiration_ms
        self._heap: list[tuple[int, int, Partition]] = []  # an entry that is not its partition's due time is stale
        self._waiting = 0  # entries that are not
        self._ticket = itertools.count()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="housekeeper")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def adopt(self, partition: Partition) -> None:
        """From now on this partition calls for attention itself."""
        partition.attend = self.attend
        if partition.end_offset > partition.start_offset:
            self.attend(partition)

    def attend(self, partition: Partition) -> None:
        """Look at this partition soon: it was opened, altered, first written to, or has grown."""
        self._schedule(partition, self._clock.wall_ms() + ATTEND_AFTER_MS)

    def _schedule(self, partition: Partition, due_ms: int) -> None:
        if partition.housekeeping_due_ms is None:
            self._waiting += 1
        elif partition.housekeeping_due_ms <= due_ms:
            return
        partition.housekeeping_due_ms = due_ms
        heapq.heappush(self._heap, (due_ms, next(self._ticket), partition))
        if len(self._heap) > 2 * self._waiting + MAX_STALE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[0] == entry[2].housekeeping_due_ms]
            heapq.heapify(self._heap)
        if self._heap[0][2] is partition:
            self._wake.set()

    async def _run(self) -> None:
        while True:
            now_ms = self._clock.wall_ms()
            if self._heap and self._heap[0][0] <= now_ms:
                due_ms, _, partition = heapq.heappop(self._heap)
                if partition.housekeeping_due_ms == due_ms:
                    partition.housekeeping_due_ms = None
                    self._waiting -= 1
                    await self._look(partition, now_ms)
                await asyncio.sleep(0)
                continue
            self._wake.clear()
            wait_s = max(0.0, (self._heap[0][0] - now_ms) / 1000) if self._heap else None
            try:
                await asyncio.wait_for(self._wake.wait(), wait_s)
            except TimeoutError:
                continue

    async def _look(self, partition: Partition, now_ms: int) -> None:
        if partition.closed:
            return
        try:
            await self.tidy(partition, now_ms)
        except (PenstockError, OSError) as error:
            if not partition.closed:
                # In the books for another try: a full disk must not end housekeeping for good.
                _log.warning("housekeeping of %s failed: %s", partition.stream, error)
                self._schedule(partition, now_ms + RETRY_AFTER_MS)

    async def tidy(self, partition: Partition, now_ms: int) -> None:
        """One look at one partition: everything that is due, then the time of the next look."""
        settings = partition.settings
        if partition.appended_bytes:
            partition.appended_bytes, partition.active_ms = 0, now_ms
        partition.grow_older(retention.grace_ms(settings), now_ms)
        if self._should_roll(partition, now_ms):
            await partition.engine.roll(partition.stream)
        start = retention.new_start(
            partition.spans(),
            settings,
            partition.start_offset,
            now_ms,
            partition.aged_end,
            partition.settled_end,
            partition.stable_end,
        )
        if start > partition.start_offset:
            _log.info("%s now starts at %d, was %d", partition.stream, start, partition.start_offset)
            await partition.trim(start)
        if settings.compacted and compaction.wants_compaction(partition.spans(), partition, now_ms):
            await compaction.compact(partition, now_ms)
        partition.producers.expire(now_ms - self._producer_expiration_ms)
        if partition.wants_checkpoint():
            await partition.checkpoint()
        due_ms = self._next_look_ms(partition, now_ms)
        if due_ms is not None:
            self._schedule(partition, max(due_ms, now_ms + MIN_BETWEEN_LOOKS_MS))

    @staticmethod
    def _should_roll(partition: Partition, now_ms: int) -> bool:
        """Close the open span when all in it may go, or when nothing came for as long as a segment may grow old."""
        spans = partition.spans()
        if not spans or spans[-1].closed or spans[-1].end_offset == spans[-1].base_offset:
            return False
        return (
            retention.is_expired(spans[-1], partition.settings, now_ms, partition.aged_end)
            or retention.is_open_span_settled(spans[-1], partition.settings, partition.settled_end)
            or partition.active_ms + partition.settings.spec.segment_ms <= now_ms
        )

    @staticmethod
    def _next_look_ms(partition: Partition, now_ms: int) -> int | None:
        spans = [span for span in partition.spans() if span.end_offset > span.base_offset]
        if not spans:
            return None
        times = []
        expiry_ms = retention.expiry_ms(spans[0], partition.settings)
        if expiry_ms is not None:
            # Expired and still here: it waits for its grace.
            aged_ms = partition.aging_since_ms + retention.grace_ms(partition.settings)
            times.append(expiry_ms if expiry_ms > now_ms else aged_ms)
        if not spans[-1].closed:
            times.append(partition.active_ms + partition.settings.spec.segment_ms)
        return min(times, default=None)
