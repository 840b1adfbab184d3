"""Housekeeping: closes, forgets and compacts, when something is due and never before.

Each partition that has something to lose stands at most once in a heap, at the time it next needs a look; an idle
server sleeps. A look is also due when a partition grew by a segment since the last one.
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


class Housekeeper:
    def __init__(self, clock: Clock, producer_expiration_ms: int) -> None:
        self._clock = clock
        self._producer_expiration_ms = producer_expiration_ms
        self._heap: list[tuple[int, int, Partition]] = []
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
        if partition.housekeeping_due_ms is not None and partition.housekeeping_due_ms <= due_ms:
            return
        partition.housekeeping_due_ms = due_ms
        heapq.heappush(self._heap, (due_ms, next(self._ticket), partition))
        if self._heap[0][2] is partition:
            self._wake.set()

    async def _run(self) -> None:
        while True:
            now_ms = self._clock.wall_ms()
            if self._heap and self._heap[0][0] <= now_ms:
                due_ms, _, partition = heapq.heappop(self._heap)
                if partition.housekeeping_due_ms == due_ms:
                    partition.housekeeping_due_ms = None
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
        try:
            await self.tidy(partition, now_ms)
        except (PenstockError, OSError) as error:
            # Kept in the books for another try: a full disk or a deleted topic must not end housekeeping for the rest.
            _log.warning("housekeeping of %s failed: %s", partition.stream, error)
            self._schedule(partition, now_ms + RETRY_AFTER_MS)

    async def tidy(self, partition: Partition, now_ms: int) -> None:
        """One look at one partition: everything that is due, then the time of the next look."""
        partition.appended_bytes = 0
        settings = partition.settings
        spans = partition.spans()
        if spans and not spans[-1].closed and self._roll_due_ms(partition, spans[-1].max_timestamp_ms) <= now_ms:
            await partition.engine.roll(partition.stream)
            spans = partition.spans()
        start = retention.new_start(spans, settings, partition.start_offset, now_ms)
        if start > partition.start_offset:
            _log.info("%s now starts at %d, was %d", partition.stream, start, partition.start_offset)
            await partition.trim(start)
        if settings.compacted and compaction.wants_compaction(partition.spans(), partition, now_ms):
            await compaction.compact(partition, now_ms)
        partition.producers.expire(now_ms - self._producer_expiration_ms)
        if partition.wants_checkpoint():
            await partition.checkpoint()
        due_ms = self._next_look_ms(partition)
        if due_ms is not None:
            self._schedule(partition, max(due_ms, now_ms + MIN_BETWEEN_LOOKS_MS))

    @staticmethod
    def _roll_due_ms(partition: Partition, newest_ms: int) -> int:
        """The open span is closed when nothing was added to it for as long as a segment may grow old."""
        return newest_ms + partition.settings.spec.segment_ms

    def _next_look_ms(self, partition: Partition) -> int | None:
        spans = [span for span in partition.spans() if span.end_offset > span.base_offset]
        if not spans:
            return None
        times = [retention.next_expiry_ms(spans, partition.settings)]
        if not spans[-1].closed and (partition.settings.compacted or partition.settings.deleted):
            times.append(self._roll_due_ms(partition, spans[-1].max_timestamp_ms))
        return min((t for t in times if t is not None), default=None)
