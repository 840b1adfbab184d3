"""The records that places stand for: kept from when a view saw them until it hands them out, else read from the log.

What is kept is bounded per view and over all views. Beyond the bound of a view its later records are not kept, since
they are handed out last; beyond the bound of all, the view that was used least recently loses what it kept. Nothing is
lost by that: the log has it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

from penstock.delivery.places import OFFSET_BITS
from penstock.log.partition import Partition
from penstock.model.batch import decode_batch, walk
from penstock.model.errors import CorruptBatch, OffsetOutOfRange
from penstock.model.record import Record

MAX_KEPT_BYTES_PER_VIEW = 8 << 20
MAX_KEPT_BYTES = 128 << 20
RECORD_OVERHEAD_BYTES = 250  # of a record with its place, beside what it carries

MAX_SHARED_CHUNKS = 8

READ_BYTES = 256 << 10
DENSE = 8  # when at least every eighth record is wanted, read on; else batch by batch

_log = logging.getLogger(__name__)


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

    __slots__ = ("_records", "_refused", "_shelves", "used_bytes")

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._records: dict[int, Record] = {}
        self._refused = 0  # for want of room, since it was last swept
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, stream: int, records: Sequence[Record]) -> None:
        room = MAX_KEPT_BYTES_PER_VIEW - self.used_bytes
        high = stream << OFFSET_BITS
        kept = self._records
        used = 0
        for at, record in enumerate(records):
            used += RECORD_OVERHEAD_BYTES + _carried_bytes(record)
            if used > room:
                used -= RECORD_OVERHEAD_BYTES + _carried_bytes(record)
                self._refused += len(records) - at
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

    @property
    def wants_sweeping(self) -> bool:
        """It refused more than it holds: some of that may be of no use, because it was settled while it waited."""
        return self._refused > len(self._records)

    def sweep(self, waits: Callable[[int], bool]) -> None:
        """Keep only what still waits."""
        self._refused = 0
        for place in [place for place in self._records if not waits(place)]:
            self.take(place)

    def clear(self) -> None:
        self._refused = 0
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


Opened = tuple[list[Record], int]


class Chunks:
    """Opened chunks of the log. Many views of one topic want to see the same news: it is read and opened once for all.

    Only the newest few are kept, and only where several wait.
    """

    def __init__(self) -> None:
        self._shared: OrderedDict[tuple[Partition, int], asyncio.Task[Opened]] = OrderedDict()

    async def read(self, partition: Partition, offset: int, max_bytes: int) -> Opened:
        """Records from this offset on, not to be changed, and the offset to go on from."""
        if partition.watcher_count < 2:
            return await open_records(partition, offset, max_bytes)
        key = (partition, offset)
        task = self._shared.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._shared[key] = asyncio.create_task(open_records(partition, offset, max_bytes))
            if len(self._shared) > MAX_SHARED_CHUNKS:
                self._shared.popitem(last=False)
        return await asyncio.shield(task)

    def clear(self) -> None:
        self._shared.clear()


async def open_records(partition: Partition, offset: int, max_bytes: int) -> Opened:
    """As the partition's own, but what a producer filled with something else than records is passed over."""
    try:
        return await partition.records(offset, max_bytes)
    except CorruptBatch:
        # What storage itself finds to be corrupt is raised here again.
        found = await partition.read_committed(offset, 1)
    records: list[Record] = []
    for buffer in found.buffers:
        for header in walk(buffer):
            try:
                opened = [] if header.is_control else decode_batch(buffer, header.position)
                records.extend(record for record in opened if record.offset >= offset)
            except CorruptBatch as error:
                _log.warning(
                    "%s: the batch at offset %d is passed over: %s", partition.stream, header.base_offset, error
                )
    return records, found.next_offset


async def read_offsets(partition: Partition, offsets: Sequence[int]) -> dict[int, Record]:
    """The records at these offsets, as far as they are still there; no batch is opened twice."""
    asked = set(offsets)
    wanted = sorted(asked)
    found: dict[int, Record] = {}
    at = 0
    while at < len(wanted):
        offset = wanted[at]
        if offset < partition.start_offset or offset >= partition.stable_end:
            at += 1
            continue
        left = len(wanted) - at
        is_dense = wanted[-1] - offset < DENSE * left
        try:
            records, next_offset = await open_records(partition, offset, READ_BYTES if is_dense else 1)
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
