"""Syncs that nobody waits for: streams that acknowledge before they sync are synced here, behind their backs.

A stream of durability `interval` is synced so long after its first unsynced write, one of durability `os` whenever
64 MB wait; then its index follows, so a recovery never has more than that to read. One timer serves all streams, and
none runs while nothing waits.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from penstock.model.errors import StorageFailed
from penstock.storage.disk.segment import Segment
from penstock.storage.disk.stream import Stream
from penstock.storage.disk.writer import Poisoned, Writer
from penstock.storage.engine import Durability

log = logging.getLogger(__name__)

# Unsynced bytes of one segment that start a sync on their own.
UNSYNCED_BYTES = 64 << 20


class Syncer:
    def __init__(self, writer: Writer, executor: ThreadPoolExecutor) -> None:
        self._writer = writer
        self._executor = executor
        self._due: dict[Stream, float] = {}  # loop time at which an interval ends
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()

    def written(self, stream: Stream) -> None:
        """The stream has acknowledged what is not synced."""
        segment = stream.segments[-1]
        if segment.size - segment.synced >= UNSYNCED_BYTES:
            self._start(stream)
        elif stream.spec.durability is Durability.INTERVAL and stream not in self._due:
            loop = asyncio.get_running_loop()
            due = loop.time() + stream.spec.sync_interval_ms / 1000
            self._due[stream] = due
            if self._timer is None or self._timer.when() > due:
                self._arm(due)

    def forget(self, stream: Stream) -> None:
        self._due.pop(stream, None)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()
        while self._running:
            await asyncio.wait(self._running)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for stream in [stream for stream, due in self._due.items() if due <= now]:
            del self._due[stream]
            self._start(stream)
        if self._due:
            self._arm(min(self._due.values()))

    def _start(self, stream: Stream) -> None:
        if stream.syncing or stream.failure is not None or not stream.segments:
            return
        stream.syncing = True
        task = asyncio.get_running_loop().create_task(self._sync(stream, stream.segments[-1]))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _sync(self, stream: Stream, segment: Segment) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, self._writer.sync, segment)
        except Poisoned as error:
            log.critical("%s takes no more appends until the server is started again: %s", stream.id, error)
            stream.failure = StorageFailed(str(error))
        except FileNotFoundError:
            log.debug("%s was removed before it was synced", segment.path)
        finally:
            stream.syncing = False
