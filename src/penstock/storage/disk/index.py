"""The sparse index of a segment: where to begin looking, and from where a recovery must.

An entry stands at a boundary between two chunks, one for every 64 KB of log or so:

    offset i64          every chunk that begins before `position` ends at or before this offset
    position i64        a chunk begins here, or the segment ends here
    max timestamp i64   largest timestamp of all chunks before `position`
    crc-32c u32         of the 24 bytes before it

An entry reaches the index file only after the log bytes before its position are on stable storage. So each entry that
can be read back is a safe point: recovery never looks at what lies before the last one.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right

from crc32c import crc32c

_ENTRY = struct.Struct(">qqq")
_CRC = struct.Struct(">I")
ENTRY_BYTES = _ENTRY.size + _CRC.size

# Log bytes between two entries, unless a single chunk is larger.
SPACING_BYTES = 64 * 1024


def pack_entry(offset: int, position: int, max_timestamp_ms: int) -> bytes:
    body = _ENTRY.pack(offset, position, max_timestamp_ms)
    return body + _CRC.pack(crc32c(body))


def unpack_entry(data: bytes, at: int = 0) -> tuple[int, int, int] | None:
    """(offset, position, largest timestamp), or None if the entry is damaged or cut short."""
    body = data[at : at + _ENTRY.size]
    if len(data) - at < ENTRY_BYTES or _CRC.unpack_from(data, at + _ENTRY.size)[0] != crc32c(body):
        return None
    offset, position, max_timestamp_ms = _ENTRY.unpack(body)
    return offset, position, max_timestamp_ms


class SparseIndex:
    """The entries of one segment in memory; the first `filed` of them are in the file too."""

    __slots__ = ("filed", "offsets", "positions", "timestamps")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.timestamps = array("q")
        self.filed = 0

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, offset: int, position: int, max_timestamp_ms: int) -> None:
        self.offsets.append(offset)
        self.timestamps.append(max_timestamp_ms)
        self.positions.append(position)  # last: whoever sees the new length finds the other two

    def position_before(self, offset: int) -> int:
        """Largest known position at or before the chunk that holds the offset."""
        at = bisect_right(self.offsets, offset) - 1
        return self.positions[at] if at >= 0 else 0

    def position_before_time(self, timestamp_ms: int) -> int:
        """Largest known position before which every chunk is older than this."""
        at = bisect_left(self.timestamps, timestamp_ms) - 1
        return self.positions[at] if at >= 0 else 0

    def drop_after(self, position: int) -> None:
        """Forget what the log no longer holds."""
        keep = bisect_right(self.positions, position)
        del self.offsets[keep:], self.positions[keep:], self.timestamps[keep:]
        self.filed = min(self.filed, keep)

    def count_up_to(self, position: int) -> int:
        return bisect_right(self.positions, position)

    def pack(self, first: int, stop: int) -> bytes:
        rows = zip(self.offsets[first:stop], self.positions[first:stop], self.timestamps[first:stop], strict=True)
        return b"".join(pack_entry(*row) for row in rows)


def unpack_index(data: bytes) -> tuple[SparseIndex, bool]:
    """The good entries from the beginning on, and whether those were all."""
    index = SparseIndex()
    previous = -1
    for at in range(0, len(data), ENTRY_BYTES):
        entry = unpack_entry(data, at)
        if entry is None or entry[1] <= previous:
            index.filed = len(index)
            return index, False
        index.add(*entry)
        previous = entry[1]
    index.filed = len(index)
    return index, True
