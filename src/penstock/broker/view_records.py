"""The records that places stand for: kept from when a view saw them until it hands them out, else read from the log.

What is kept is bounded per view and over all views. Beyond the bound of a view its later records are not kept, since
they are handed out last; beyond the bound of all, the view that was used least recently loses what it kept. Nothing is
lost by that: the log has it.
"""

from collections import OrderedDict
from collections.abc import Sequence

from penstock.delivery.places import OFFSET_BITS
from penstock.log.partition import Partition
from penstock.model.errors import OffsetOutOfRange
from penstock.model.record import Record

MAX_KEPT_BYTES_PER_VIEW = 8 << 20
MAX_KEPT_BYTES = 128 << 20
RECORD_OVERHEAD_BYTES = 250  # of a record with its place, beside what it carries

READ_BYTES = 256 << 10
DENSE = 8  # when at least every eighth record is wanted, read on; else batch by batch


class Shelves:
    """What all views keep together."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._by_use: OrderedDict[Shelf, None] = OrderedDict()

    def used(self, shelf: "Shelf") -> None:
        self._by_use[shelf] = None
        self._by_use.move_to_end(shelf)
        while self.used_bytes > self.max_bytes and len(self._by_use) > 1:
            next(iter(self._by_use)).clear()

    def drop(self, shelf: "Shelf") -> None:
        self._by_use.pop(shelf, None)


class Shelf:
    """The records that one view has seen and not handed out."""

    __slots__ = ("_records", "_shelves", "used_bytes")

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._records: dict[int, Record] = {}
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, stream: int, records: Sequence[Record]) -> None:
        room = MAX_KEPT_BYTES_PER_VIEW - self.used_bytes
        high = stream << OFFSET_BITS
        kept = self._records
        used = 0
        for record in records:
            used += RECORD_OVERHEAD_BYTES + _carried_bytes(record)
            if used > room:
                used -= RECORD_OVERHEAD_BYTES + _carried_bytes(record)
                break
            kept[high | record.offset] = record
        self.used_bytes += used
        self._shelves.used_bytes += used
        self._shelves.used(self)

    def take(self, place: int) -> Record | None:
        record = self._records.pop(place, None)
        if record is not None:
            freed = RECORD_OVERHEAD_BYTES + _carried_bytes(record)
            self.used_bytes -= freed
            self._shelves.used_bytes -= freed
        return record

    def look(self, place: int) -> Record | None:
        return self._records.get(place)

    def clear(self) -> None:
        self._shelves.used_bytes -= self.used_bytes
        self._shelves.drop(self)
        self._records.clear()
        self.used_bytes = 0


def _carried_bytes(record: Record) -> int:
    key, value, headers = record.key, record.value, record.headers
    size = len(value) if value is not None else 0
    if key is not None:
        size += len(key)
    if headers:
        size += sum(64 + len(name) + len(content or b"") for name, content in headers)
    return size


async def read_offsets(partition: Partition, offsets: Sequence[int]) -> dict[int, Record]:
    """The records at these offsets, as far as they are still there; no batch is opened twice."""
    asked = set(offsets)
    wanted = sorted(asked)
    found: dict[int, Record] = {}
    at = 0
    while at < len(wanted):
        offset = wanted[at]
        if offset < partition.start_offset or offset >= partition.durable_end:
            at += 1
            continue
        left = len(wanted) - at
        is_dense = wanted[-1] - offset < DENSE * left
        try:
            records, next_offset = await partition.records(offset, READ_BYTES if is_dense else 1)
        except OffsetOutOfRange:
            continue  # trimmed meanwhile
        if left == 1:
            if records and records[0].offset == offset:
                found[offset] = records[0]
        else:
            found.update((record.offset, record) for record in records if record.offset in asked)
        while at < len(wanted) and wanted[at] < max(next_offset, offset + 1):
            at += 1
    return found
