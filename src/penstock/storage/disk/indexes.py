"""Loaded indexes: the open segments' stay, those of closed segments come when a reader needs them and go again.

Also the one place that appends to index files, and the only one that decides when: after the log is synced.
"""

import logging
import os
import threading
from collections import OrderedDict

from penstock.storage.disk.files import Files, read_file, write_whole
from penstock.storage.disk.index import ENTRY_BYTES, SparseIndex, unpack_index
from penstock.storage.disk.scan import Extent, scan
from penstock.storage.disk.segment import Descriptors, Segment

log = logging.getLogger(__name__)

# Entries of closed segments kept in memory at once: 24 bytes each, 64 KB of log each.
MAX_CACHED_ENTRIES = 256 * 1024
# Entries that may wait for company before they are written to the file: about 1 MB of log for a recovery to read.
FILE_EVERY_ENTRIES = 16


class Indexes:
    """Finds a segment's index, from memory or file or, if all is lost, from the log. Safe from any thread."""

    def __init__(self, files: Files, descriptors: Descriptors) -> None:
        self._files = files
        self._descriptors = descriptors
        self._cached: OrderedDict[Segment, int] = OrderedDict()  # closed segments -> entries, least recently used first
        self._cached_entries = 0
        self._guard = threading.Lock()

    def of(self, segment: Segment, *, closed: bool) -> SparseIndex:
        index = segment.index
        if index is None:
            index = self._load(segment)
            with self._guard:
                if segment.index is None:
                    segment.index = index
                index = segment.index
        if closed:
            self._keep(segment, index)
        return index

    def forget(self, segment: Segment) -> None:
        with self._guard:
            self._cached_entries -= self._cached.pop(segment, 0)

    def file(self, segment: Segment, synced: int, *, every: int = FILE_EVERY_ENTRIES, durable: bool = False) -> None:
        """Append to the index file what stands at or before `synced`, once there are `every` entries to append."""
        index = segment.index
        if index is None:
            return
        first, stop = index.filed, index.count_up_to(synced)
        if stop - first >= every or (durable and stop):
            self._file(segment, index, first, stop, durable=durable)

    def seal(self, segment: Segment, *, closed: bool) -> None:
        """Let the index tell all of a segment that is synced to its end."""
        if not segment.size:
            return
        index = self.of(segment, closed=False)
        if segment.indexed < segment.size:
            index.add(segment.end_offset, segment.size, segment.max_timestamp_ms)
            segment.indexed = segment.size
        self.file(segment, segment.size, every=1, durable=closed)
        if closed:
            self._keep(segment, index)

    def _file(self, segment: Segment, index: SparseIndex, first: int, stop: int, *, durable: bool) -> None:
        try:
            fd = self._files.open(segment.index_path, os.O_WRONLY | os.O_CREAT)
            try:
                write_whole(self._files, fd, [index.pack(first, stop)], first * ENTRY_BYTES)
                if durable:
                    self._files.fdatasync(fd)
            finally:
                self._files.close(fd)
        except OSError as error:
            # Nothing depends on it but the time that the next recovery takes; the next entry tries again.
            log.warning("cannot write %s: %s", segment.index_path, error)
            return
        index.filed = segment.entries_filed = stop

    def _load(self, segment: Segment) -> SparseIndex:
        if not segment.entries_filed:
            return SparseIndex()
        index, whole = unpack_index(read_file(self._files, segment.index_path) or b"")
        if whole and len(index) >= segment.entries_filed:
            index.drop_after(segment.indexed)
            return index
        log.warning("%s is damaged and is made again", segment.index_path)
        index = SparseIndex()
        fd = self._descriptors.acquire(segment, os.O_RDONLY)
        try:
            found = scan(self._files, fd, Extent(segment.base_offset, 0, -1), segment.synced, index, verify=False)
        finally:
            self._descriptors.release(segment)
        if not len(index) or index.positions[-1] < found.position:
            index.add(*found)
        segment.entries_filed = 0
        segment.indexed = found.position
        self._file(segment, index, 0, len(index), durable=False)
        return index

    def _keep(self, segment: Segment, index: SparseIndex) -> None:
        with self._guard:
            if segment.doomed:
                return
            if segment in self._cached:
                self._cached.move_to_end(segment)
                return
            self._cached[segment] = len(index)
            self._cached_entries += len(index)
            while self._cached_entries > MAX_CACHED_ENTRIES and len(self._cached) > 1:
                oldest, entries = self._cached.popitem(last=False)
                oldest.index = None
                self._cached_entries -= entries
