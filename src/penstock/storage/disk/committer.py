"""Group commit: whoever appends in one tick of the loop shares one write, and one sync, with everyone else.

append() only queues. At the end of the tick each stream with something queued goes one of two ways:

    at once       small, and nobody waits for a sync: written here and now, resolved before the loop goes on
    to a worker   up to four workers share the waiting streams; each writes its streams, syncs them one after the other
                  and reports them together. What arrives for a stream meanwhile forms its next write

A stream is with one worker at a time, so its futures resolve in the order of its appends. When one fails, every later
one that is still queued fails with it, and the stream ends where the last good one ended.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from penstock.model.errors import StorageFailed
from penstock.storage.disk.stream import Append, Stream
from penstock.storage.disk.writer import Outcome, Writer
from penstock.storage.engine import Chunk, Durability, Grant

log = logging.getLogger(__name__)

# Syncs that run side by side. Measured: 12 files of 64 KB take 3.4 ms one after the other and 1.8 ms by four.
WORKERS = 4
# So much is copied to the page cache without leaving the loop; it takes about as long as handing it to a thread.
INLINE_BYTES = 256 * 1024
# Above this the layers above should stop reading from producers until `queued_bytes` falls again.
MAX_QUEUED_BYTES = 64 << 20


class Committer:
    def __init__(self, writer: Writer, on_unsynced: Callable[[Stream], None]) -> None:
        self._writer = writer
        self._on_unsynced = on_unsynced
        self._executor = ThreadPoolExecutor(WORKERS, "penstock-commit")
        self._ready: dict[Stream, None] = {}  # streams with something queued, in order of arrival
        self._tick: asyncio.Handle | None = None
        self._workers_busy = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.queued_bytes = 0
        self.rounds = 0  # worker rounds so far

    def append(self, stream: Stream, chunk: Chunk) -> asyncio.Future[None]:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        future = Grant(loop=loop)
        stream.pending.append(Append(chunk, future))
        stream.end_offset = chunk.end_offset
        self.queued_bytes += len(chunk.data)
        self._ready[stream] = None
        if self._tick is None:
            self._tick = loop.call_soon(self._commit)
        return future

    def release(self, stream: Stream) -> None:
        """End a hold: what was queued meanwhile goes its way."""
        stream.held = False
        if stream.pending:
            self._ready[stream] = None
            self._schedule()

    def fail_pending(self, stream: Stream, error: StorageFailed, end_offset: int) -> None:
        """Fail all that is queued and let the stream end here."""
        pending, stream.pending = stream.pending, []
        stream.end_offset = end_offset
        self._fail(pending, error)

    def shutdown(self) -> None:
        self._executor.shutdown()

    def _schedule(self) -> None:
        if self._tick is None and self._loop is not None:
            self._tick = self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        self._tick = None
        inline_left = INLINE_BYTES
        waiting: list[Stream] = []
        for stream in list(self._ready):
            if stream.busy or stream.held or not stream.pending:
                del self._ready[stream]  # comes back when it is free again
                continue
            if stream.spec.durability is Durability.SYNC or stream.syncing:
                waiting.append(stream)
                continue
            size = sum(len(append.chunk.data) for append in stream.pending)
            if size > inline_left or self._writer.must_roll(stream, size):
                waiting.append(stream)
                continue
            inline_left -= size
            del self._ready[stream]
            outcome = self._take(stream)
            self._write(outcome)
            self._settle(outcome)
        free = WORKERS - self._workers_busy
        if waiting and free:
            shares = min(free, len(waiting))
            for share in range(shares):
                self._send(waiting[share::shares])

    def _take(self, stream: Stream) -> Outcome:
        appends, stream.pending = stream.pending, []
        stream.busy = True
        return Outcome(stream, appends)

    def _send(self, streams: Sequence[Stream]) -> None:
        outcomes = []
        for stream in streams:
            del self._ready[stream]
            outcomes.append(self._take(stream))
        self._workers_busy += 1
        self.rounds += 1
        self._executor.submit(self._work, outcomes)

    def _work(self, outcomes: list[Outcome]) -> None:
        """In a worker thread."""
        for outcome in outcomes:
            self._write(outcome)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._done, outcomes)

    def _write(self, outcome: Outcome) -> None:
        try:
            self._writer.write(outcome)
        except BaseException as error:
            # A defect, not a fault of the disk: nobody may wait for ever because of it, nor trust what was written.
            log.exception("a commit failed for a reason that is not the disk's")
            outcome.good, outcome.poisoned = 0, True
            outcome.error = StorageFailed(f"the write failed: {error!r}")

    def _done(self, outcomes: list[Outcome]) -> None:
        self._workers_busy -= 1
        for outcome in outcomes:
            self._settle(outcome)
        if self._ready:
            self._schedule()

    def _settle(self, outcome: Outcome) -> None:
        """On the loop: durable first, then visible, then acknowledged."""
        stream = outcome.stream
        stream.busy = False
        error = outcome.error
        if stream.deleted:
            error = error or StorageFailed(f"{stream.id} was deleted")
            outcome.good = 0
        good = outcome.good
        if good:
            self._show(outcome)
        elif outcome.new_segments and not outcome.poisoned:
            stream.segments.extend(outcome.new_segments)
        if error is None:
            self._resolve(outcome.appends)
        else:
            if outcome.poisoned:
                stream.failure = error
            self._resolve(outcome.appends[:good])
            self._fail(outcome.appends[good:], error)
            self.fail_pending(stream, error, stream.durable_end)
        if stream.pending and not stream.held:
            self._ready[stream] = None
        if good and stream.spec.durability is not Durability.SYNC:
            self._on_unsynced(stream)
        stream.wake()

    @staticmethod
    def _show(outcome: Outcome) -> None:
        """Let readers go as far as the good appends reach."""
        stream = outcome.stream
        stream.segments.extend(outcome.new_segments)
        for segment, size in outcome.written:
            segment.readable = size
        stream.durable_end = outcome.appends[outcome.good - 1].chunk.end_offset

    def _resolve(self, appends: Sequence[Append]) -> None:
        for chunk, future in appends:
            self.queued_bytes -= len(chunk.data)
            if not future.done():
                future.set_result(None)

    def _fail(self, appends: Sequence[Append], error: StorageFailed) -> None:
        for chunk, future in appends:
            self.queued_bytes -= len(chunk.data)
            if not future.done():
                future.set_exception(type(error)(*error.args))
