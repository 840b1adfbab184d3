"""One segment of a stream and its descriptor; everything that opens or closes a log file lives here.

A log file is whole chunks back to back. Three positions in it never pass one another:

    0 ............ synced ............ readable ............ size
      on stable storage   acknowledged             written, not yet acknowledged
    (synced may pass readable for a moment while a round ends; readable never passes size)
"""

import os
import threading
from collections import OrderedDict

from penstock.storage.disk import layout
from penstock.storage.disk.files import Files
from penstock.storage.disk.index import SparseIndex

# Where recent readers will go on, per segment: offset -> position. More readers than this at once look it up again.
MAX_HINTS = 32


class Segment:
    __slots__ = (
        "base_offset",
        "created_ms",
        "directory",
        "doomed",
        "end_offset",
        "entries_filed",
        "fd",
        "hints",
        "index",
        "indexed",
        "max_timestamp_ms",
        "name",
        "pins",
        "readable",
        "size",
        "synced",
    )

    def __init__(self, directory: str, base_offset: int, created_ms: int) -> None:
        self.directory = directory
        self.name: str | None = None  # when it is not (yet) the one that the base offset gives
        self.base_offset = base_offset
        self.end_offset = base_offset  # of the last chunk written; the next segment's base may lie beyond it
        self.size = 0
        self.readable = 0
        self.synced = 0
        self.max_timestamp_ms = -1
        self.created_ms = created_ms
        self.index: SparseIndex | None = None  # None: not loaded
        self.indexed = 0  # position of the last index entry
        self.entries_filed = 0  # index entries in the file
        self.hints: dict[int, int] | None = None
        self.fd = -1
        self.pins = 0  # users of the descriptor at this moment
        self.doomed = False  # removed from its stream: the descriptor goes with the last pin

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.name or layout.log_name(self.base_offset)}"

    @property
    def index_path(self) -> str:
        return f"{self.directory}/{layout.index_name(self.base_offset)}"

    def hint(self, offset: int, position: int) -> None:
        """Remember that the chunk that holds `offset` (or the next one) begins at `position`."""
        hints = self.hints
        if hints is None:
            hints = self.hints = {}
        elif len(hints) >= MAX_HINTS and offset not in hints:
            del hints[next(iter(hints))]
        hints[offset] = position


class Descriptors:
    """Keeps at most so many log files open; one that a thread is using is never closed. Safe from any thread."""

    def __init__(self, files: Files, max_open: int) -> None:
        self._files = files
        self._max_open = max_open
        self._open: OrderedDict[Segment, None] = OrderedDict()  # least recently used first
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def acquire(self, segment: Segment, flags: int = os.O_RDWR) -> int:
        """The segment's descriptor, pinned until release()."""
        with self._guard:
            if segment.fd < 0:
                segment.fd = self._files.open(segment.path, flags)
                self._open[segment] = None
                segment.pins += 1
                if len(self._open) > self._max_open:
                    self._close_oldest()
            else:
                segment.pins += 1
                self._open.move_to_end(segment)
            return segment.fd

    def release(self, segment: Segment) -> None:
        with self._guard:
            segment.pins -= 1
            if segment.doomed and not segment.pins:
                self._close(segment)

    def doom(self, segment: Segment) -> None:
        """The segment is gone from its stream; close its file as soon as nobody reads it."""
        with self._guard:
            segment.doomed = True
            if not segment.pins:
                self._close(segment)

    def close(self) -> None:
        with self._guard:
            for segment in list(self._open):
                segment.doomed = True
                if not segment.pins:
                    self._close(segment)

    def _close_oldest(self) -> None:
        excess = len(self._open) - self._max_open
        idle = [segment for segment in self._open if not segment.pins][:excess] if excess > 1 else None
        if idle is None:
            oldest = next((segment for segment in self._open if not segment.pins), None)
            idle = [oldest] if oldest is not None else []
        for segment in idle:
            self._close(segment)

    def _close(self, segment: Segment) -> None:
        if segment.fd >= 0:
            fd, segment.fd = segment.fd, -1
            self._open.pop(segment, None)
            self._files.close(fd)
