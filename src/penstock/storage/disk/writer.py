"""Writing a stream's chunks: rolls, writes, syncs. Runs in a worker thread, or on the loop for small unsynced writes.

Whoever calls owns the stream's last segment (`busy`) and changes nothing that readers see: the outcome tells the
committer, on the loop, what has become of each chunk and how far readers may go.

    a write fails     the file is cut back to where it was; these chunks fail, the next ones may do better
    a sync fails      what the page cache holds is unknown from then on, so nothing is tried again: the stream takes no
                      more appends before a restart, whose recovery looks at what really is on the disk
"""

import contextlib
import errno
import logging
import os
from collections.abc import Sequence

from penstock.model.clock import Clock
from penstock.model.errors import StorageFailed, StorageFull
from penstock.storage.disk.files import Files, write_whole
from penstock.storage.disk.index import SPACING_BYTES
from penstock.storage.disk.indexes import Indexes
from penstock.storage.disk.recovery import remove_segment_files
from penstock.storage.disk.segment import Descriptors, Segment
from penstock.storage.disk.stream import Append, Stream
from penstock.storage.engine import Durability

log = logging.getLogger(__name__)

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Poisoned(Exception):
    """A sync, or the undoing of a write, failed."""


def storage_error(action: str, error: OSError) -> StorageFailed:
    """The error of the house for one of the operating system."""
    kind = StorageFull if error.errno in _NO_SPACE else StorageFailed
    return kind(f"cannot {action}: {error.strerror or error}")


class Outcome:
    """What has become of one stream's appends."""

    __slots__ = ("appends", "error", "good", "new_segments", "poisoned", "stream", "written")

    def __init__(self, stream: Stream, appends: list[Append]) -> None:
        self.stream = stream
        self.appends = appends
        self.good = 0  # so many of the appends, from the first on, are as durable as they must be
        self.error: StorageFailed | None = None  # why the others are not
        self.poisoned = False
        self.new_segments: list[Segment] = []
        self.written: list[tuple[Segment, int]] = []  # segments that grew, and their sizes

    @property
    def segment(self) -> Segment | None:
        """The segment to write to, unless it is full."""
        if self.new_segments:
            return self.new_segments[-1]
        return self.stream.segments[-1] if self.stream.segments else None


class Writer:
    def __init__(self, files: Files, descriptors: Descriptors, indexes: Indexes, clock: Clock) -> None:
        self._files = files
        self._descriptors = descriptors
        self._indexes = indexes
        self._clock = clock

    def must_roll(self, stream: Stream, more_bytes: int) -> bool:
        """Whether so many bytes more go, in part at least, to a segment that does not exist yet."""
        return not stream.segments or self._is_full(stream, stream.segments[-1], more_bytes, self._clock.wall_ms())

    def write(self, outcome: Outcome) -> None:
        """Write the outcome's appends and sync them if the stream wants it; never raises an OSError."""
        try:
            self._write(outcome)
        except OSError as error:
            outcome.error = storage_error(f"write to {outcome.stream.id}", error)
        except Poisoned as error:
            outcome.error = self._poison(outcome, error)
        if outcome.poisoned or outcome.stream.spec.durability is not Durability.SYNC:
            return
        try:
            for segment, _ in outcome.written:
                self.sync(segment)
        except Poisoned as error:
            outcome.error = self._poison(outcome, error)

    def sync(self, segment: Segment) -> None:
        """Bring the segment to stable storage as far as it is written now, and let its index follow."""
        size = segment.size
        if segment.synced < size:
            fd = self._descriptors.acquire(segment)
            try:
                self._files.fdatasync(fd)
            except OSError as error:
                raise Poisoned(f"cannot sync {segment.path}: {error.strerror or error}") from error
            finally:
                self._descriptors.release(segment)
            segment.synced = max(segment.synced, size)
        self._indexes.file(segment, size)

    def seal(self, segment: Segment) -> None:
        """Nothing more will be written here: sync it, and let the index tell all of it."""
        self.sync(segment)
        self._indexes.seal(segment, closed=True)

    def create(self, stream: Stream, base_offset: int) -> Segment:
        """Create a segment, and the stream's directory if need be, so that both survive a crash."""
        segment = Segment(stream.directory, base_offset, self._clock.wall_ms())
        self.make_directory(stream)
        fd = self._descriptors.acquire(segment, os.O_RDWR | os.O_CREAT)
        try:
            if self._files.size(fd):
                # Left by an attempt that failed: no chunk of it was ever acknowledged.
                self._files.truncate(fd, 0)
            self._files.sync_directory(stream.directory)
        except OSError:
            segment.doomed = True
            self._uncreate(segment)
            raise
        finally:
            self._descriptors.release(segment)
        return segment

    def _uncreate(self, segment: Segment) -> None:
        """An empty segment left behind would end the stream at its base at the next open."""
        try:
            self._files.unlink(segment.path)
        except OSError as error:
            raise Poisoned(f"cannot remove {segment.path}: {error.strerror or error}") from error

    def make_directory(self, stream: Stream) -> None:
        if os.path.isdir(stream.directory):
            return
        topic_directory = os.path.dirname(stream.directory)
        if not os.path.isdir(topic_directory):
            with contextlib.suppress(FileExistsError):  # a partition of the same topic was quicker
                self._files.mkdir(topic_directory)
            self._files.sync_directory(os.path.dirname(topic_directory))
        self._files.mkdir(stream.directory)
        self._files.sync_directory(topic_directory)

    def remove(self, segments: Sequence[Segment]) -> None:
        """Remove the files of segments that left their stream; what cannot be removed now goes at the next open."""
        for segment in segments:
            try:
                remove_segment_files(self._files, segment.directory, segment.base_offset)
            except OSError as error:
                log.warning("cannot remove %s: %s", segment.path, error)

    def _write(self, outcome: Outcome) -> None:
        stream, appends = outcome.stream, outcome.appends
        now_ms = self._clock.wall_ms()
        at = 0
        while at < len(appends):
            segment = outcome.segment
            if segment is None or self._is_full(stream, segment, len(appends[at].chunk.data), now_ms):
                if segment is not None:
                    self.seal(segment)
                segment = self.create(stream, appends[at].chunk.base_offset)
                outcome.new_segments.append(segment)
            if not segment.size:
                segment.created_ms = now_ms
            stop, size = at, segment.size
            while stop < len(appends):
                size += len(appends[stop].chunk.data)
                if size > stream.spec.segment_bytes and stop > at:
                    break
                stop += 1
            self._write_run(segment, appends[at:stop])
            outcome.written.append((segment, segment.size))
            outcome.good = at = stop

    def _write_run(self, segment: Segment, appends: Sequence[Append]) -> None:
        """All of these chunks with as few system calls as can be, or none."""
        position = segment.size
        fd = self._descriptors.acquire(segment)
        try:
            try:
                segment.size = write_whole(self._files, fd, [append.chunk.data for append in appends], position)
            except OSError:
                self._cut_back(segment, fd, position)
                raise
        finally:
            self._descriptors.release(segment)
        for chunk, _ in appends:
            if position - segment.indexed >= SPACING_BYTES:
                self._indexes.of(segment, closed=False).add(segment.end_offset, position, segment.max_timestamp_ms)
                segment.indexed = position
            position += len(chunk.data)
            segment.end_offset = chunk.end_offset
            if chunk.max_timestamp_ms > segment.max_timestamp_ms:
                segment.max_timestamp_ms = chunk.max_timestamp_ms

    def _cut_back(self, segment: Segment, fd: int, size: int) -> None:
        try:
            self._files.truncate(fd, size)
        except OSError as error:
            raise Poisoned(f"cannot undo a write to {segment.path}: {error.strerror or error}") from error

    @staticmethod
    def _is_full(stream: Stream, segment: Segment, more_bytes: int, now_ms: int) -> bool:
        if not segment.size:
            return False
        return segment.size + more_bytes > stream.spec.segment_bytes or (
            now_ms - segment.created_ms >= stream.spec.segment_ms
        )

    @staticmethod
    def _poison(outcome: Outcome, error: Poisoned) -> StorageFailed:
        log.critical("%s takes no more appends until the server is started again: %s", outcome.stream.id, error)
        outcome.poisoned = True
        outcome.good = 0
        return StorageFailed(str(error))
