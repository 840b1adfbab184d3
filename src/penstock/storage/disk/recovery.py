"""Opening a stream: whatever a crash left in its directory becomes a consistent stream here, before anything else.

    found                        means a crash                              and becomes
    *.cleaned, *.tmp             before a rewrite or small file was decided  nothing: removed
    <base>-<end>.swap            after a rewrite was decided                 <base>.log in place of that range
    segments before the start    between the steps of a trim                 nothing: removed
    start beyond the end         in a trim beyond the end                    an empty stream at the start offset
    bytes after the last sound   in a write                                  nothing: cut off, with a warning
      chunk of the last segment
    a missing or damaged index   (or somebody removed it)                    the same index, made from the log
    a checkpoint beyond the end  after the checkpoint, before a sync         nothing: removed

Only the last segment can have a torn tail: a segment is synced before its successor is created. It is read from its
last index entry on, with checksums unless the last shutdown was clean; where that entry is at the very end, which
a clean close sees to, nothing is read at all.
"""

import logging
import os
from typing import NamedTuple

from penstock.model.errors import StorageFailed
from penstock.model.ids import StreamId
from penstock.storage.disk import layout, marks
from penstock.storage.disk.files import Files, read_file, write_whole
from penstock.storage.disk.index import ENTRY_BYTES, SparseIndex, unpack_entry, unpack_index
from penstock.storage.disk.salvage import keep_aside
from penstock.storage.disk.scan import Extent, scan
from penstock.storage.disk.segment import Segment
from penstock.storage.engine import Checkpoint

log = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """A stream as found, made consistent."""

    segments: list[Segment]
    start_offset: int
    end_offset: int
    checkpoint: Checkpoint | None


def nothing() -> Recovered:
    """A stream that was never written to."""
    return Recovered([], 0, 0, None)


class Recovery:
    """Opens streams' directories. Works in any thread, on one stream at a time."""

    def __init__(self, files: Files, *, clean: bool) -> None:
        self._files = files
        self._clean = clean

    def recover(self, stream: StreamId, directory: str) -> Recovered:
        try:
            contents = layout.Contents(directory)
        except FileNotFoundError:
            return nothing()
        try:
            return self._recover(stream, directory, contents)
        except OSError as error:
            raise StorageFailed(f"cannot open {stream} in {directory}: {error}") from error

    def _recover(self, stream: StreamId, directory: str, contents: layout.Contents) -> Recovered:
        for name in contents.voids:
            self._files.unlink(f"{directory}/{name}")
        for swap in contents.swaps:
            finish_swap(self._files, directory, swap)
        if contents.swaps:
            contents = layout.Contents(directory)
        for base in contents.indexes.difference(contents.logs):
            self._files.unlink(f"{directory}/{layout.index_name(base)}")

        bases = contents.logs
        start_offset = bases[0] if bases else 0
        if contents.has_state:
            kept_start = marks.read_start_offset(self._files, directory)
            if kept_start is not None:
                start_offset = max(start_offset, kept_start)
            elif not bases:
                raise StorageFailed(f"{directory}/{layout.STATE} is damaged and no segment tells where {stream} starts")
            else:
                log.error("%s: the state file is damaged; the stream starts at %d", stream, start_offset)

        while len(bases) > 1 and bases[1] <= start_offset:
            remove_segment_files(self._files, directory, bases.pop(0))
        segments = self._segments(stream, directory, bases, contents.indexes)
        end_offset = segments[-1].end_offset if segments else start_offset
        if start_offset > end_offset:
            for base in bases:
                remove_segment_files(self._files, directory, base)
            segments, end_offset = [], start_offset
        return Recovered(segments, start_offset, end_offset, self._checkpoint(directory, contents, end_offset))

    def _segments(self, stream: StreamId, directory: str, bases: list[int], indexes: set[int]) -> list[Segment]:
        segments: list[Segment] = []
        for base in bases:
            last = base == bases[-1] or (
                base == bases[-2] and not os.path.getsize(f"{directory}/{layout.log_name(bases[-1])}")
            )
            segments.append(self._segment(stream, directory, base, base in indexes, last))
        if len(segments) > 1 and not segments[-1].size and segments[-2].end_offset > segments[-1].base_offset:
            # A roll that failed, and whose file came back after a power loss: the segment before it went on.
            remove_segment_files(self._files, directory, segments.pop().base_offset)
        return segments

    def _checkpoint(self, directory: str, contents: layout.Contents, end_offset: int) -> Checkpoint | None:
        if not contents.has_checkpoint:
            return None
        checkpoint = marks.read_checkpoint(self._files, directory)
        if checkpoint is not None and checkpoint.offset > end_offset:
            # It tells of chunks that were lost. Others will take their offsets: then it would look right and be wrong.
            self._files.unlink(f"{directory}/{layout.CHECKPOINT}")
            self._files.sync_directory(directory)
            return None
        return checkpoint

    def _segment(self, stream: StreamId, directory: str, base_offset: int, has_index: bool, last: bool) -> Segment:
        segment = Segment(directory, base_offset, 0)
        status = os.stat(segment.path)
        segment.created_ms = status.st_mtime_ns // 1_000_000
        segment.size = status.st_size
        if segment.size:
            if not has_index or not self._ends_with_its_index(segment):
                self._read_to_the_end(stream, segment, last)
        elif has_index:
            self._files.unlink(segment.index_path)
        segment.readable = segment.synced = segment.size
        return segment

    def _ends_with_its_index(self, segment: Segment) -> bool:
        """The quick way: the last index entry stands at the end of the log and says all there is to know."""
        fd = self._files.open(segment.index_path, os.O_RDONLY)
        try:
            index_bytes = self._files.size(fd)
            if not index_bytes or index_bytes % ENTRY_BYTES:
                return False
            entry = unpack_entry(self._files.pread(fd, ENTRY_BYTES, index_bytes - ENTRY_BYTES))
        finally:
            self._files.close(fd)
        if entry is None or entry[1] != segment.size:
            return False
        segment.end_offset, segment.indexed, segment.max_timestamp_ms = entry
        segment.entries_filed = index_bytes // ENTRY_BYTES
        return True

    def _read_to_the_end(self, stream: StreamId, segment: Segment, last: bool) -> None:
        """The long way: from the last good index entry that the log reaches, chunk by chunk."""
        index, _ = unpack_index(read_file(self._files, segment.index_path) or b"")
        index.drop_after(segment.size)
        begin = Extent(segment.base_offset, 0, -1)
        if len(index):
            begin = Extent(index.offsets[-1], index.positions[-1], index.timestamps[-1])
        fd = self._files.open(segment.path, os.O_RDWR)
        try:
            found = scan(self._files, fd, begin, segment.size, index, verify=last and not self._clean)
            if found.position < segment.size and last:
                log.warning(
                    "%s: %d bytes after offset %d are no whole chunk, a write was cut short; %s is cut to %d bytes",
                    stream, segment.size - found.position, found.end_offset, segment.path, found.position,
                )  # fmt: skip
                aside = keep_aside(self._files, fd, segment, found.position)
                if aside is not None:
                    log.error("%s: sound chunks followed that place; what was cut off is kept in %s", stream, aside)
                self._files.truncate(fd, found.position)
                segment.size = found.position
            elif found.position < segment.size:
                log.error("%s: %s is damaged at byte %d", stream, segment.path, found.position)
            # After a kill the bytes may be in the page cache only, and from now on they count as durable.
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        segment.end_offset, _, segment.max_timestamp_ms = found
        if not len(index) or index.positions[-1] < found.position:
            index.add(*found)
        segment.indexed = found.position
        self._file_index(segment, index)

    def _file_index(self, segment: Segment, index: SparseIndex) -> None:
        fd = self._files.open(segment.index_path, os.O_WRONLY | os.O_CREAT)
        try:
            write_whole(self._files, fd, [index.pack(index.filed, len(index))], index.filed * ENTRY_BYTES)
            self._files.truncate(fd, len(index) * ENTRY_BYTES)
        finally:
            self._files.close(fd)
        segment.entries_filed = len(index)


def finish_swap(files: Files, directory: str, swap: layout.Swap) -> None:
    """Let a decided rewrite take the place of the segments it replaces; may be repeated from the start."""
    contents = layout.Contents(directory)
    for base in contents.indexes:
        if swap.base_offset <= base < swap.end_offset:
            files.unlink(f"{directory}/{layout.index_name(base)}")
    for base in contents.logs:
        if swap.base_offset <= base < swap.end_offset:
            files.unlink(f"{directory}/{layout.log_name(base)}")
    files.sync_directory(directory)
    files.rename(f"{directory}/{swap.name}", f"{directory}/{layout.log_name(swap.base_offset)}")
    files.sync_directory(directory)


def remove_segment_files(files: Files, directory: str, base_offset: int) -> None:
    """The index goes first: an index without a log is harmless, and removed at the next open."""
    for name in (layout.index_name(base_offset), layout.log_name(base_offset)):
        try:
            files.unlink(f"{directory}/{name}")
        except FileNotFoundError:
            continue
