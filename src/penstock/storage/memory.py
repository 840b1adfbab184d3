"""The memory engine: the laws of the seam with nothing underneath; everything is gone when it closes.

A stream is a list of runs, a run a list of chunks; runs roll by size and age exactly as segments on disk do, so
retention and compaction above find the same spans. Every append is as durable as it will ever be at once.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterable, Sequence

from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import Conflict, StorageFailed
from penstock.model.ids import StreamId, TopicId
from penstock.storage.engine import Buffer, Checkpoint, Chunk, FileSpan, Grant, Slice, Span, StreamSpec, StreamState


class _Run:
    """Chunks that are removed and rewritten together."""

    __slots__ = ("base_offset", "bases", "chunks", "created_ms", "max_timestamp_ms", "size_bytes")

    def __init__(self, base_offset: int, created_ms: int) -> None:
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.chunks: list[Chunk] = []
        self.bases: list[int] = []
        self.size_bytes = 0
        self.max_timestamp_ms = -1

    def add(self, chunk: Chunk) -> None:
        # The caller may reuse its buffer once the future is done, and a view would keep all that it looks into alive.
        self.chunks.append(chunk._replace(data=bytes(chunk.data)))
        self.bases.append(chunk.base_offset)
        self.size_bytes += len(chunk.data)
        self.max_timestamp_ms = max(self.max_timestamp_ms, chunk.max_timestamp_ms)

    def position(self, offset: int) -> int:
        """Index of the chunk that holds the offset, or of the next one after it."""
        at = bisect_right(self.bases, offset) - 1
        if at < 0:
            return 0
        return at if self.chunks[at].end_offset > offset else at + 1


class _Stream:
    __slots__ = ("checkpoint", "end_offset", "runs", "spec", "start_offset")

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self.start_offset = 0
        self.end_offset = 0
        self.checkpoint: Checkpoint | None = None
        self.runs: list[_Run] = []

    def run_of(self, offset: int) -> int:
        """Index of the run that holds the offset."""
        return max(0, bisect_right(self.runs, offset, key=lambda run: run.base_offset) - 1)

    def end_of(self, at: int) -> int:
        return self.runs[at + 1].base_offset if at + 1 < len(self.runs) else self.end_offset


class MemoryEngine:
    """Keeps streams in this process's memory."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._streams: dict[StreamId, _Stream] = {}
        self._closed = False
        self.queued_bytes = 0  # nothing ever waits here

    async def open(self, stream: StreamId, spec: StreamSpec) -> StreamState:
        if self._closed:
            raise StorageFailed("the memory engine is closed")
        kept = self._streams.get(stream)
        if kept is None:
            kept = self._streams[stream] = _Stream(spec)
        kept.spec = spec
        return StreamState(kept.start_offset, kept.end_offset, kept.checkpoint)

    def configure(self, stream: StreamId, spec: StreamSpec) -> None:
        self._find(stream).spec = spec

    def append(self, stream: StreamId, chunk: Chunk) -> asyncio.Future[None]:
        kept = self._find(stream)
        if chunk.base_offset != kept.end_offset:
            raise Conflict(f"{stream} ends at {kept.end_offset}, not at {chunk.base_offset}")
        now_ms = self._clock.wall_ms()
        run = kept.runs[-1] if kept.runs else None
        if run is None or self._is_full(run, kept.spec, len(chunk.data), now_ms):
            run = _Run(chunk.base_offset, now_ms)
            kept.runs.append(run)
        elif not run.chunks:
            run.created_ms = now_ms
        run.add(chunk)
        kept.end_offset = chunk.end_offset
        future = Grant(loop=asyncio.get_running_loop())
        future.set_result(None)
        return future

    async def read(self, stream: StreamId, offset: int, max_bytes: int, end_offset: int) -> Slice:
        kept = self._find(stream)
        offset_wanted = max(offset, kept.start_offset)
        buffers: list[Buffer] = []
        size_bytes = 0
        next_offset = offset
        for at in range(kept.run_of(offset_wanted), len(kept.runs)):
            run = kept.runs[at]
            for index in range(run.position(offset_wanted), len(run.chunks)):
                chunk = run.chunks[index]
                if chunk.base_offset >= end_offset or (buffers and size_bytes + len(chunk.data) > max_bytes):
                    return Slice(buffers, size_bytes, next_offset)
                buffers.append(chunk.data)
                size_bytes += len(chunk.data)
                next_offset = chunk.end_offset
        return Slice(buffers, size_bytes, next_offset)

    async def seek(self, stream: StreamId, timestamp_ms: int) -> int | None:
        kept = self._find(stream)
        for run in kept.runs:
            if run.max_timestamp_ms < timestamp_ms:
                continue
            for chunk in run.chunks:
                if chunk.max_timestamp_ms >= timestamp_ms and chunk.end_offset > kept.start_offset:
                    return chunk.base_offset
        return None

    async def trim(self, stream: StreamId, start_offset: int) -> None:
        kept = self._find(stream)
        kept.start_offset = max(kept.start_offset, start_offset)
        if start_offset > kept.end_offset:
            kept.end_offset = start_offset
            kept.runs.clear()
        while len(kept.runs) > 1 and kept.end_of(0) <= start_offset:
            del kept.runs[0]

    def spans(self, stream: StreamId) -> Sequence[Span]:
        kept = self._find(stream)
        last = len(kept.runs) - 1
        return [
            Span(run.base_offset, kept.end_of(at), run.size_bytes, run.max_timestamp_ms, at < last)
            for at, run in enumerate(kept.runs)
            if at < last or run.chunks
        ]

    async def files(self, stream: StreamId, start_offset: int, end_offset: int) -> Sequence[FileSpan]:
        return ()

    async def roll(self, stream: StreamId) -> None:
        kept = self._find(stream)
        if kept.runs and kept.runs[-1].chunks:
            kept.runs.append(_Run(kept.end_offset, self._clock.wall_ms()))

    async def rewrite(self, stream: StreamId, base_offset: int, end_offset: int, chunks: AsyncIterable[Chunk]) -> None:
        kept = self._find(stream)
        new = _Run(base_offset, self._clock.wall_ms())
        async for chunk in chunks:
            new.add(chunk)
        # Other calls may have run meanwhile: what is replaced is looked up only now.
        bases = [run.base_offset for run in kept.runs]
        if base_offset not in bases or end_offset not in bases or base_offset >= end_offset:
            raise StorageFailed(f"{stream} has no closed spans that make up [{base_offset}, {end_offset})")
        kept.runs[bases.index(base_offset) : bases.index(end_offset)] = [new]

    async def checkpoint(self, stream: StreamId, checkpoint: Checkpoint) -> None:
        self._find(stream).checkpoint = checkpoint

    async def delete(self, topic_id: TopicId) -> None:
        for stream in [known for known in self._streams if known.topic_id == topic_id]:
            del self._streams[stream]

    async def retain_only(self, topic_ids: frozenset[TopicId]) -> None:
        for stream in [known for known in self._streams if known.topic_id not in topic_ids]:
            del self._streams[stream]

    async def close(self) -> None:
        self._closed = True
        self._streams.clear()

    def _find(self, stream: StreamId) -> _Stream:
        kept = self._streams.get(stream)
        if kept is None:
            raise StorageFailed(f"{stream} is not open")
        return kept

    @staticmethod
    def _is_full(run: _Run, spec: StreamSpec, more_bytes: int, now_ms: int) -> bool:
        if not run.chunks:
            return False
        return run.size_bytes + more_bytes > spec.segment_bytes or now_ms - run.created_ms >= spec.segment_ms
