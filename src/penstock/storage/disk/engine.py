"""The disk engine: the storage seam over segment files. This file is the table of contents; each verb is one screen.

layout      every name on disk                   committer   group commit
files       the system calls                     writer      write, roll, sync
segment     a log file and its descriptor        syncer      syncs that nobody waits for
index(es)   the sparse index, in file and cache  reader      read, seek
marks       start offset and checkpoint          rewrite     replacing closed segments
scan        walking a log                        recovery    opening what a crash left
salvage     what recovery cut off
directory   lock, clean mark, topics
"""

import asyncio
import logging
import os
import resource
from collections.abc import AsyncIterable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import Conflict, StorageFailed
from penstock.model.ids import StreamId, TopicId
from penstock.storage.disk import layout, marks
from penstock.storage.disk.committer import MAX_QUEUED_BYTES, Committer
from penstock.storage.disk.directory import DataDirectory
from penstock.storage.disk.files import Files
from penstock.storage.disk.indexes import Indexes
from penstock.storage.disk.reader import Reader
from penstock.storage.disk.recovery import Recovery, nothing
from penstock.storage.disk.rewrite import Rewriter
from penstock.storage.disk.segment import Descriptors, Segment
from penstock.storage.disk.stream import Stream, unbroken
from penstock.storage.disk.syncer import Syncer
from penstock.storage.disk.writer import Poisoned, Writer, storage_error
from penstock.storage.engine import Checkpoint, Chunk, FileSpan, Slice, Span, StreamSpec, StreamState

log = logging.getLogger(__name__)

# Threads for reads that wait for the disk, and for everything else that is not a commit.
THREADS = 4
MAX_OPEN_FILES = 1024

T = TypeVar("T")


class DiskEngine:
    """Keeps streams under a data directory, which it owns from construction to close()."""

    max_queued_bytes = MAX_QUEUED_BYTES

    def __init__(
        self, data_dir: str | os.PathLike[str], clock: Clock | None = None, *, files: Files | None = None
    ) -> None:
        clock = clock or SystemClock()
        self._files = files or Files()
        self._directory = DataDirectory(os.fspath(data_dir), self._files)
        self._executor = ThreadPoolExecutor(THREADS, "penstock-disk")
        self._descriptors = Descriptors(self._files, _open_files_bound())
        self._indexes = Indexes(self._files, self._descriptors)
        self._writer = Writer(self._files, self._descriptors, self._indexes, clock)
        self._syncer = Syncer(self._writer, self._executor)
        self._committer = Committer(self._writer, self._syncer.written)
        self._reader = Reader(self._files, self._descriptors, self._indexes, self._executor)
        self._rewriter = Rewriter(self._files, self._descriptors, self._indexes, clock, self._executor)
        self._recovery = Recovery(self._files, clean=self._directory.was_clean)
        self._streams: dict[StreamId, Stream] = {}
        self._opening: dict[StreamId, asyncio.Task[StreamState]] = {}
        self._closed = False

    @property
    def queued_bytes(self) -> int:
        """Bytes that were appended and are not yet written; above `max_queued_bytes` producers should wait."""
        return self._committer.queued_bytes

    # -- streams --------------------------------------------------------------------------------------------

    async def open(self, stream: StreamId, spec: StreamSpec) -> StreamState:
        if self._closed:
            raise StorageFailed("the disk engine is closed")
        opening = self._opening.get(stream)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(stream, spec))
            self._opening[stream] = opening
            opening.add_done_callback(lambda _: self._opening.pop(stream, None))
        return await asyncio.shield(opening)

    async def _open(self, stream: StreamId, spec: StreamSpec) -> StreamState:
        kept = self._streams.get(stream)
        if kept is not None:
            kept.spec = spec
            checkpoint = await self._run(marks.read_checkpoint, self._files, kept.directory)
            return StreamState(kept.start_offset, kept.end_offset, checkpoint)
        kept = Stream(stream, spec, layout.stream_directory(self._directory.path, stream))
        found = nothing()
        if os.path.isdir(kept.directory):
            found = await self._run(self._recovery.recover, stream, kept.directory)
        kept.segments = found.segments
        kept.start_offset = found.start_offset
        kept.end_offset = kept.durable_end = found.end_offset
        self._streams[stream] = kept
        return StreamState(found.start_offset, found.end_offset, found.checkpoint)

    def configure(self, stream: StreamId, spec: StreamSpec) -> None:
        self._find(stream).spec = spec

    def append(self, stream: StreamId, chunk: Chunk) -> asyncio.Future[None]:
        kept = self._streams.get(stream)
        if kept is None or self._closed:
            raise StorageFailed(f"{stream} is not open")
        if kept.failure is not None:
            raise StorageFailed(*kept.failure.args)
        if chunk.base_offset != kept.end_offset:
            raise Conflict(f"{stream} ends at {kept.end_offset}, not at {chunk.base_offset}")
        return self._committer.append(kept, chunk)

    async def read(self, stream: StreamId, offset: int, max_bytes: int, end_offset: int) -> Slice:
        return await self._reader.read(self._find(stream), offset, max_bytes, end_offset)

    async def seek(self, stream: StreamId, timestamp_ms: int) -> int | None:
        return await self._reader.seek(self._find(stream), timestamp_ms)

    async def files(self, stream: StreamId, start_offset: int, end_offset: int) -> Sequence[FileSpan]:
        return await self._reader.files(self._find(stream), start_offset, end_offset)

    def spans(self, stream: StreamId) -> Sequence[Span]:
        return self._find(stream).spans()

    # -- maintenance ----------------------------------------------------------------------------------------

    async def trim(self, stream: StreamId, start_offset: int) -> None:
        await unbroken(self._trim(self._find(stream), start_offset))

    async def _trim(self, kept: Stream, start_offset: int) -> None:
        async with kept.maintenance():
            if start_offset > kept.durable_end:
                await kept.drained()
            self._check(kept)
            if start_offset <= kept.start_offset:
                return
            if start_offset > kept.end_offset:
                await self._trim_beyond(kept, start_offset)
                return
            await self._run(marks.write_start_offset, self._files, kept.directory, start_offset)
            kept.start_offset = start_offset
            gone = 0
            while gone < len(kept.segments) - 1 and kept.end_of(gone) <= start_offset:
                gone += 1
            await self._drop(kept.segments[:gone], kept, kept.segments[gone:])

    async def _trim_beyond(self, kept: Stream, start_offset: int) -> None:
        """The stream goes on from there at once; appends to it wait until that is durable."""
        end_offset, kept.end_offset = kept.end_offset, start_offset
        kept.held = True
        try:
            fresh = await self._run(self._begin_at, kept, start_offset)
        except StorageFailed as error:
            self._committer.fail_pending(kept, error, end_offset)
            raise
        except Poisoned as error:
            kept.failure = StorageFailed(str(error))
            self._committer.fail_pending(kept, kept.failure, end_offset)
            raise kept.failure from error
        else:
            kept.start_offset = kept.durable_end = start_offset
            await self._drop(kept.segments, kept, [fresh])
        finally:
            self._committer.release(kept)

    def _begin_at(self, kept: Stream, start_offset: int) -> Segment:
        self._writer.make_directory(kept)
        try:
            marks.write_start_offset(self._files, kept.directory, start_offset)
            return self._writer.create(kept, start_offset)
        except OSError:
            # A start beyond the end must not stay on disk: what is appended now would be gone at the next open.
            try:
                marks.write_start_offset(self._files, kept.directory, kept.start_offset)
            except OSError as error:
                raise Poisoned(f"cannot undo a trim of {kept.id}: {error.strerror or error}") from error
            raise

    async def _drop(self, gone: Sequence[Segment], kept: Stream, left: list[Segment]) -> None:
        kept.segments = left
        for segment in gone:
            self._descriptors.doom(segment)
            self._indexes.forget(segment)
        if gone:
            await self._run(self._writer.remove, gone)

    async def roll(self, stream: StreamId) -> None:
        await unbroken(self._roll(self._find(stream)))

    async def _roll(self, kept: Stream) -> None:
        async with kept.maintenance():
            await kept.hold()
            try:
                self._check(kept)
                if kept.segments and kept.segments[-1].size:
                    kept.segments.append(await self._run(self._next_segment, kept))
            finally:
                self._committer.release(kept)

    def _next_segment(self, kept: Stream) -> Segment:
        try:
            self._writer.seal(kept.segments[-1])
            return self._writer.create(kept, kept.durable_end)
        except Poisoned as error:
            kept.failure = StorageFailed(str(error))
            raise kept.failure from error

    async def rewrite(self, stream: StreamId, base_offset: int, end_offset: int, chunks: AsyncIterable[Chunk]) -> None:
        kept = self._find(stream)
        async with kept.maintenance():
            self._check(kept)
            await self._rewriter.rewrite(kept, base_offset, end_offset, chunks)

    async def checkpoint(self, stream: StreamId, checkpoint: Checkpoint) -> None:
        await unbroken(self._checkpoint(self._find(stream), checkpoint))

    async def _checkpoint(self, kept: Stream, checkpoint: Checkpoint) -> None:
        async with kept.maintenance():
            if checkpoint.offset > kept.durable_end:
                await kept.drained()
            self._check(kept)
            if checkpoint.offset > kept.durable_end:
                raise StorageFailed(f"{kept.id} ends at {kept.durable_end}: no checkpoint for {checkpoint.offset}")
            if kept.segments:  # of a stream that never held anything there is nothing to know, nor a place for it
                await self._run(marks.write_checkpoint, self._files, kept.directory, checkpoint)

    async def delete(self, topic_id: TopicId) -> None:
        await unbroken(self._delete(topic_id))

    async def _delete(self, topic_id: TopicId) -> None:
        opening = [task for stream, task in self._opening.items() if stream.topic_id == topic_id]
        if opening:
            await asyncio.wait(opening)
        for kept in [kept for stream, kept in self._streams.items() if stream.topic_id == topic_id]:
            kept.deleted = True
            kept.failure = StorageFailed(f"{kept.id} was deleted")
            async with kept.maintenance():
                await kept.hold()
                self._streams.pop(kept.id, None)
                self._syncer.forget(kept)
                self._committer.fail_pending(kept, kept.failure, kept.durable_end)
                for segment in kept.segments:
                    self._descriptors.doom(segment)
                    self._indexes.forget(segment)
                kept.wake()
        await self._run(self._directory.remove_topic, topic_id)

    async def retain_only(self, topic_ids: frozenset[TopicId]) -> None:
        await self._run(self._directory.retain_only, topic_ids)

    # -- the end --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._opening:
            await asyncio.wait(list(self._opening.values()))
        self._rewriter.closing = True
        for kept in list(self._streams.values()):
            if kept.lock is not None:
                async with kept.lock:
                    await kept.drained()
            elif kept.busy or kept.pending:
                await kept.drained()
        await self._syncer.close()
        grown = [kept for kept in self._streams.values() if kept.segments and kept.failure is None and _has_grown(kept)]
        shares = [self._run(self._finish, grown[first::THREADS]) for first in range(THREADS) if grown[first::THREADS]]
        await asyncio.gather(*shares)
        failed = [kept for kept in self._streams.values() if kept.failure is not None]
        self._streams.clear()
        self._committer.shutdown()
        self._executor.shutdown()
        self._descriptors.close()
        self._directory.release(clean=not failed)

    def _finish(self, grown: Sequence[Stream]) -> None:
        """Sync what is not, and let each index end where its log ends: the next open reads nothing but that entry."""
        for kept in grown:
            segment = kept.segments[-1]
            try:
                self._writer.sync(segment)
                self._indexes.seal(segment, closed=False)
            except Poisoned as error:
                log.critical("%s: %s", kept.id, error)
                kept.failure = StorageFailed(str(error))

    # -- helpers --------------------------------------------------------------------------------------------

    def _find(self, stream: StreamId) -> Stream:
        kept = self._streams.get(stream)
        if kept is None:
            raise StorageFailed(f"{stream} is not open")
        return kept

    @staticmethod
    def _check(kept: Stream) -> None:
        """Whether the stream may still be changed, asked again after every wait."""
        if kept.failure is not None:
            raise StorageFailed(*kept.failure.args)

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        """Do this in a thread; what the operating system says against it becomes one of our errors."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
        except OSError as error:
            raise storage_error(f"use {error.filename or self._directory.path}", error) from error


def _has_grown(kept: Stream) -> bool:
    segment = kept.segments[-1]
    return (
        segment.synced < segment.size
        or segment.indexed < segment.size
        or (segment.index is not None and segment.index.filed < len(segment.index))
    )


def _open_files_bound() -> int:
    """Half of what the system allows us at most: connections need descriptors too."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return MAX_OPEN_FILES
    return max(16, min(MAX_OPEN_FILES, allowed // 2))
