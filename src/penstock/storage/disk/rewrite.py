"""Replacing closed segments by a rewritten one so that a crash at any point leaves all of the old or all of the new.

    step                                                     a crash before the next step leaves
    1  write <base>.cleaned, sync it                         the old; recovery removes *.cleaned
    2  rename it to <base>-<end>.swap, sync the directory    the new: the decision. Recovery does steps 3 and 4
    3  remove the old indexes and logs, sync the directory   the new, under its .swap name. Recovery does 3 and 4
    4  rename it to <base>.log, sync the directory           the new; its index, if not yet there, is made again

However many segments go in, one comes out: the name of one file can carry a decision. The stream shows the new segment
between steps 2 and 3. A reader that has the descriptor of an old one finishes with it; the new segment's descriptor
is pinned until it has its final name, so nobody opens it by a name that is about to change.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterable
from concurrent.futures import ThreadPoolExecutor

from penstock.model.clock import Clock
from penstock.model.errors import StorageFailed
from penstock.storage.disk import layout
from penstock.storage.disk.files import Files, write_whole
from penstock.storage.disk.index import SPACING_BYTES
from penstock.storage.disk.indexes import Indexes
from penstock.storage.disk.recovery import finish_swap
from penstock.storage.disk.segment import Descriptors, Segment
from penstock.storage.disk.stream import Stream, unbroken
from penstock.storage.disk.writer import storage_error
from penstock.storage.engine import Buffer, Chunk

log = logging.getLogger(__name__)

# Chunks gathered for one write.
WRITE_BYTES = 1 << 20


class Rewriter:
    def __init__(
        self, files: Files, descriptors: Descriptors, indexes: Indexes, clock: Clock, executor: ThreadPoolExecutor
    ) -> None:
        self._files = files
        self._descriptors = descriptors
        self._indexes = indexes
        self._clock = clock
        self._executor = executor
        self.closing = False  # rewrites under way give up

    async def rewrite(self, stream: Stream, base_offset: int, end_offset: int, chunks: AsyncIterable[Chunk]) -> None:
        """The caller holds the stream's maintenance lock: its closed segments change by no other hand."""
        if not stream.rewritable:
            raise StorageFailed(f"{stream.id} is not rewritten before a restart: an earlier rewrite was left half way")
        self._range(stream, base_offset, end_offset)
        new = Segment(stream.directory, base_offset, self._clock.wall_ms())
        new.name = layout.cleaned_name(base_offset)
        swap = layout.Swap(layout.swap_name(base_offset, end_offset), base_offset, end_offset)
        try:
            self._descriptors.acquire(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise storage_error(f"rewrite {stream.id}", error) from error
        try:
            await self._fill(stream, new, chunks)
        except BaseException as error:
            self._undo(stream, new)
            self._descriptors.release(new)
            if isinstance(error, OSError):
                raise storage_error(f"rewrite {stream.id}", error) from error
            raise
        # From here on a cancelled caller changes nothing any more.
        await unbroken(self._replace(stream, new, swap))

    async def _replace(self, stream: Stream, new: Segment, swap: layout.Swap) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, self._decide, new, swap)
        except OSError as error:
            self._undo(stream, new)
            self._descriptors.release(new)
            raise storage_error(f"rewrite {stream.id}", error) from error
        first, last = self._range(stream, swap.base_offset, swap.end_offset)
        old = stream.segments[first:last]
        new.readable = new.size
        stream.segments[first:last] = [new]
        for segment in old:
            self._descriptors.doom(segment)
            self._indexes.forget(segment)
        try:
            await loop.run_in_executor(self._executor, self._settle, new, swap)
            self._descriptors.release(new)
        except OSError as error:
            # The decision stands and is shown; the names follow at the next open. The descriptor stays pinned, as
            # the name may or may not have changed, and a second decision for these offsets would meet the first.
            log.warning("%s: a rewrite keeps its provisional name %s: %s", stream.id, new.path, error)
            stream.rewritable = False

    @staticmethod
    def _range(stream: Stream, base_offset: int, end_offset: int) -> tuple[int, int]:
        bases = [segment.base_offset for segment in stream.segments]
        if base_offset not in bases or end_offset not in bases or base_offset >= end_offset:
            raise StorageFailed(f"{stream.id} has no closed spans that make up [{base_offset}, {end_offset})")
        return bases.index(base_offset), bases.index(end_offset)

    async def _fill(self, stream: Stream, new: Segment, chunks: AsyncIterable[Chunk]) -> None:
        loop = asyncio.get_running_loop()
        index = self._indexes.of(new, closed=False)
        buffers: list[Buffer] = []
        gathered = 0
        async for chunk in chunks:
            if stream.failure is not None or self.closing:
                raise StorageFailed(f"the rewrite of {stream.id} was given up")
            position = new.size + gathered
            if position - new.indexed >= SPACING_BYTES:
                index.add(new.end_offset, position, new.max_timestamp_ms)
                new.indexed = position
            buffers.append(chunk.data)
            gathered += len(chunk.data)
            new.end_offset = chunk.end_offset
            new.max_timestamp_ms = max(new.max_timestamp_ms, chunk.max_timestamp_ms)
            if gathered >= WRITE_BYTES:
                new.size = await loop.run_in_executor(
                    self._executor, write_whole, self._files, new.fd, buffers, new.size
                )
                buffers, gathered = [], 0
        new.size = await loop.run_in_executor(self._executor, write_whole, self._files, new.fd, buffers, new.size)

    def _decide(self, new: Segment, swap: layout.Swap) -> None:
        self._files.fdatasync(new.fd)
        self._files.rename(new.path, f"{new.directory}/{swap.name}")
        new.name = swap.name
        self._files.sync_directory(new.directory)
        new.synced = new.size

    def _settle(self, new: Segment, swap: layout.Swap) -> None:
        finish_swap(self._files, new.directory, swap)
        new.name = None
        self._indexes.seal(new, closed=True)

    def _undo(self, stream: Stream, new: Segment) -> None:
        """Whatever the error, the old segments stay; a decision that may or may not have reached the disk is void."""
        self._descriptors.doom(new)
        try:
            self._files.unlink(new.path)
            self._files.sync_directory(new.directory)
        except OSError as error:
            log.warning("cannot remove %s: %s", new.path, error)
            stream.rewritable = False
