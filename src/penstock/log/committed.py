"""What of the stored batches is committed: neither a marker nor part of a transaction that was aborted."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable

from penstock.log.transactions import Aborted
from penstock.model.batch import BatchHeader, decode_batch, walk
from penstock.model.record import Record
from penstock.storage.engine import Buffer, Slice


class AbortedBatches:
    """Tells batches of these aborted transactions, which come in the order of their first offsets, from others."""

    __slots__ = ("_by_producer",)

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._by_producer: dict[int, tuple[array[int], array[int]]] = {}  # first and last offsets; none overlap
        for each in aborted:
            known = self._by_producer.get(each.producer_id)
            if known is None:
                known = self._by_producer[each.producer_id] = (array("q"), array("q"))
            known[0].append(each.first_offset)
            known[1].append(each.last_offset)

    def __contains__(self, header: BatchHeader) -> bool:
        known = self._by_producer.get(header.producer_id) if header.is_transactional else None
        if known is None:
            return False
        firsts, lasts = known
        at = bisect_right(firsts, header.base_offset) - 1
        return at >= 0 and header.base_offset < lasts[at]


def committed_only(found: Slice, aborted: Iterable[Aborted], max_bytes: int) -> Slice:
    """The committed batches of what was found, as they are; at most `max_bytes`, but one if there is one.

    Neighbours stay together and nothing is copied. Nothing of it may be left: then `next_offset` tells that.
    """
    left_out = AbortedBatches(aborted)
    buffers: list[Buffer] = []
    size_bytes = 0
    for buffer in found.buffers:
        start = stop = 0  # what is kept, up to here
        for header in walk(buffer):
            if header.is_control or header in left_out:
                _keep(buffers, buffer, start, stop)
                start = stop = header.end_position
            elif size_bytes and size_bytes + header.size_bytes > max_bytes:
                _keep(buffers, buffer, start, stop)
                return Slice(buffers, size_bytes, header.base_offset)
            else:
                size_bytes += header.size_bytes
                stop = header.end_position
        _keep(buffers, buffer, start, stop)
    return Slice(buffers, size_bytes, found.next_offset)


def _keep(buffers: list[Buffer], buffer: Buffer, start: int, stop: int) -> None:
    if start < stop:
        buffers.append(buffer if stop - start == len(buffer) else memoryview(buffer)[start:stop])


def opened(found: Slice, offset: int) -> list[Record]:
    """The records of what was found from `offset` on; markers are none."""
    records: list[Record] = []
    for buffer in found.buffers:
        for header in walk(buffer):
            if not header.is_control:
                records.extend(r for r in decode_batch(buffer, header.position) if r.offset >= offset)
    return records
