"""Reading chunks: find the position, read, verify, hand out. Nothing here changes a stream.

A read of what the page cache holds happens on the loop without waiting; only a read that would wait for the disk goes
to a thread. A reader that goes on where it ended finds its position among the segment's hints and never searches.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from penstock.model.batch import HEADER_BYTES, BatchHeader, read_header, walk, whole_batches
from penstock.model.errors import CorruptBatch
from penstock.storage.disk.files import Files
from penstock.storage.disk.index import SPACING_BYTES, SparseIndex
from penstock.storage.disk.indexes import Indexes
from penstock.storage.disk.segment import Descriptors, Segment
from penstock.storage.disk.stream import Stream
from penstock.storage.disk.writer import storage_error
from penstock.storage.engine import FileSpan, Slice

log = logging.getLogger(__name__)

# An index up to this size is read from its file on the loop.
INLINE_ENTRIES = 1024
_NO_END = (1 << 63) - 1


class Reader:
    def __init__(self, files: Files, descriptors: Descriptors, indexes: Indexes, executor: ThreadPoolExecutor) -> None:
        self._files = files
        self._descriptors = descriptors
        self._indexes = indexes
        self._executor = executor

    async def read(self, stream: Stream, offset: int, max_bytes: int, end_offset: int) -> Slice:
        wanted = max(offset, stream.start_offset)
        end_offset = min(end_offset, stream.durable_end)
        if wanted >= end_offset:
            return Slice((), 0, offset)
        # A rewrite or trim meanwhile changes the stream's list; this read goes on with the segments it has seen.
        segments = stream.segments[stream.segment_at(wanted) :]
        for segment in segments:
            if segment.base_offset >= end_offset:
                break
            found = await self._read_segment(stream, segment, wanted, max_bytes, end_offset)
            if found is not None:
                return found
        return Slice((), 0, offset)

    async def files(self, stream: Stream, start_offset: int, end_offset: int) -> list[FileSpan]:
        """Where the chunks of this range lie."""
        start_offset = max(start_offset, stream.start_offset)
        end_offset = min(end_offset, stream.durable_end)
        found: list[FileSpan] = []
        if start_offset >= end_offset:
            return found
        first = stream.segment_at(start_offset)
        ends = [stream.end_of(at) for at in range(first, len(stream.segments))]
        for segment, end in zip(stream.segments[first:], ends, strict=True):
            if segment.base_offset >= end_offset:
                break
            limit, position = segment.readable, 0
            fd = self._pin(segment)
            try:
                if segment.base_offset < start_offset:
                    position = await self._locate(stream, segment, fd, start_offset, limit)
                if end > end_offset:
                    limit, end = await self._limit(stream, segment, fd, end_offset, limit)
            finally:
                self._descriptors.release(segment)
            if position < limit:
                found.append(FileSpan(segment.path, segment.base_offset, end, position, limit))
        return found

    async def _limit(self, stream: Stream, segment: Segment, fd: int, end_offset: int, limit: int) -> tuple[int, int]:
        """Where in the segment the chunks end that begin before this offset, and the offset they end at."""
        position = await self._locate(stream, segment, fd, end_offset, limit)
        if position < limit:
            header = self._header(segment, await self._fill(fd, HEADER_BYTES, position), position, 0)
            if header.base_offset < end_offset:
                return position + header.size_bytes, header.end_offset
        return position, end_offset

    async def seek(self, stream: Stream, timestamp_ms: int) -> int | None:
        for segment in list(stream.segments):
            if segment.max_timestamp_ms < timestamp_ms:
                continue
            found = await self._seek_segment(stream, segment, timestamp_ms)
            if found is not None:
                return found
        return None

    async def _read_segment(
        self, stream: Stream, segment: Segment, offset: int, max_bytes: int, end_offset: int
    ) -> Slice | None:
        """Chunks of this segment, or None when it holds none from the offset on."""
        limit = segment.readable
        if not limit:
            return None
        fd = self._pin(segment)
        try:
            position = segment.hints.get(offset) if segment.hints is not None else None
            if position is None:
                position = await self._locate(stream, segment, fd, offset, limit)
            if position >= limit:
                return None
            size = min(limit - position, max(max_bytes, HEADER_BYTES))
            buffer = await self._fill(fd, size, position)
            start, stop, next_offset = self._sound(segment, buffer, position, offset, end_offset)
            if start == stop:
                header = self._header(segment, buffer, position, start)
                if header.base_offset >= end_offset:
                    return Slice((), 0, offset)
                position += start
                if header.size_bytes > limit - position:
                    raise self._corrupt(segment, position, "it is longer than the segment")
                buffer = await self._fill(fd, header.size_bytes, position)
                start, stop, next_offset = self._sound(segment, buffer, position, offset, end_offset)
            segment.hint(next_offset, position + stop)
            return Slice([memoryview(buffer)[start:stop]], stop - start, next_offset)
        finally:
            self._descriptors.release(segment)

    def _sound(
        self, segment: Segment, buffer: bytearray, position: int, offset: int, end_offset: int
    ) -> tuple[int, int, int]:
        """The whole chunks in the buffer; a damaged one ends them, and is an error only where it is the first."""
        try:
            return whole_batches(buffer, offset, end_offset, True)
        except CorruptBatch as error:
            sound = [header for header in walk(buffer, 0, -1, True) if header.end_offset > offset]
            if not sound or sound[0].base_offset >= end_offset:
                raise self._corrupt(segment, position, str(error)) from error
            return sound[0].position, sound[-1].end_position, sound[-1].end_offset

    def _header(self, segment: Segment, buffer: bytearray, position: int, start: int) -> BatchHeader:
        try:
            return read_header(buffer, start)
        except CorruptBatch as error:
            raise self._corrupt(segment, position + start, str(error)) from error

    async def _locate(self, stream: Stream, segment: Segment, fd: int, offset: int, limit: int) -> int:
        """Position of the chunk that holds the offset, or of the next one; `limit` if there is none."""
        if offset <= segment.base_offset:
            return 0
        index = await self._index(stream, segment)
        position = index.position_before(offset)
        while limit - position >= HEADER_BYTES:
            buffer = await self._fill(fd, min(SPACING_BYTES, limit - position), position)
            try:
                start, stop, _ = whole_batches(buffer, offset, _NO_END, False)
                if start < stop:
                    return position + start
                if not start:
                    # A chunk longer than the buffer.
                    header = read_header(buffer)
                    if header.end_offset > offset:
                        return position
                    start = header.size_bytes
            except CorruptBatch as error:
                raise self._corrupt(segment, position, str(error)) from error
            position += start
        return limit

    async def _seek_segment(self, stream: Stream, segment: Segment, timestamp_ms: int) -> int | None:
        limit = segment.readable
        fd = self._pin(segment)
        try:
            position = (await self._index(stream, segment)).position_before_time(timestamp_ms)
            while limit - position >= HEADER_BYTES:
                buffer = await self._fill(fd, min(SPACING_BYTES, limit - position), position)
                headers = walk(buffer)
                for header in headers:
                    if header.max_timestamp_ms >= timestamp_ms and header.end_offset > stream.start_offset:
                        return header.base_offset
                if headers:
                    position += headers[-1].end_position
                    continue
                # A chunk longer than the buffer.
                header = self._header(segment, buffer, position, 0)
                if header.max_timestamp_ms >= timestamp_ms and header.end_offset > stream.start_offset:
                    return header.base_offset
                position += header.size_bytes
            return None
        finally:
            self._descriptors.release(segment)

    async def _index(self, stream: Stream, segment: Segment) -> SparseIndex:
        closed = segment is not stream.segments[-1]
        if segment.index is not None or segment.entries_filed <= INLINE_ENTRIES:
            return self._indexes.of(segment, closed=closed)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: self._indexes.of(segment, closed=closed))

    def _pin(self, segment: Segment) -> int:
        try:
            return self._descriptors.acquire(segment)
        except OSError as error:
            raise storage_error(f"open {segment.path}", error) from error

    async def _fill(self, fd: int, size: int, position: int) -> bytearray:
        buffer = bytearray(size)
        try:
            got = max(0, self._files.preadv_cached(fd, buffer, position))
            if got < size:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._executor, self._fill_waiting, fd, buffer, got, position)
        except OSError as error:
            raise storage_error("read", error) from error
        return buffer

    def _fill_waiting(self, fd: int, buffer: bytearray, got: int, position: int) -> None:
        view = memoryview(buffer)
        while got < len(buffer):
            more = self._files.preadv(fd, view[got:], position + got)
            if not more:
                raise OSError(f"the file ends at byte {position + got}, before what was written to it")
            got += more

    @staticmethod
    def _corrupt(segment: Segment, position: int, why: str) -> CorruptBatch:
        log.error("%s: no sound chunk at byte %d: %s", segment.path, position, why)
        return CorruptBatch(f"stored data is damaged in {segment.path} at byte {position}: {why}")
