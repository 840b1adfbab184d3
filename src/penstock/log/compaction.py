"""Compaction: the newest record of every key survives, in its place, with its offset.

    |<------ clean ------>|<------------ dirty ----------->|<- open span, or open transactions ->|
    start             cleaned_end                     closed end                                end

One pass reads the dirty part and notes for each key the offset of its newest record (a digest per key, at most
MAX_KEYS of them; what does not fit waits for the next pass). Then every span before that point is rewritten without
the records that a newer one replaces. A batch that keeps all its records keeps its bytes. The batch that ends the log
stays: a reader at the end must find the end.

What was aborted replaces nothing, and goes. Nothing from the first open transaction on is touched. A marker stays while
a record of its transaction is left before it: who rebuilds the transactions from the log must find how that one ended.
Then it is kept, like a tombstone, for as long as a reader may need that began before.

Tombstones (no value) are kept for `delete.retention.ms` so that every reader can see them: the first pass that meets
one stamps its batch with the time it may go (attribute bit 6, the base timestamp holds the horizon, as in Kafka).

The work runs in slices between other work of the loop; the engine swaps the result in at once, so a crash or a reader
sees the old or the new.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b

from penstock.log.committed import AbortedBatches
from penstock.log.partition import Partition
from penstock.model.batch import BatchHeader, decode_batch, encode_batch, walk
from penstock.model.errors import CorruptBatch
from penstock.model.record import Record
from penstock.storage.engine import Chunk, Span

_log = logging.getLogger(__name__)

MAX_KEYS = 200_000
KEY_DIGEST_BYTES = 16
READ_BYTES = 1 << 20
SLICE_BYTES = 64 << 10
TIMESTAMP_TYPE_FLAG, TRANSACTIONAL_FLAG, CONTROL_FLAG, DELETE_HORIZON_FLAG = 0x08, 0x10, 0x20, 0x40


def wants_compaction(spans: Sequence[Span], partition: Partition, now_ms: int) -> bool:
    """Whether enough closed bytes were never compacted, or some have waited for too long."""
    settings = partition.settings
    closed = _compactable(spans, partition, now_ms)
    dirty = [span for span in closed if span.end_offset > partition.cleaned_end]
    if not dirty:
        return False
    if min(span.max_timestamp_ms for span in dirty) + settings.max_compaction_lag_ms <= now_ms:
        return True
    total_bytes = sum(span.size_bytes for span in closed)
    return sum(span.size_bytes for span in dirty) >= settings.min_cleanable_dirty_ratio * total_bytes


def _compactable(spans: Sequence[Span], partition: Partition, now_ms: int) -> list[Span]:
    min_lag_ms = partition.settings.min_compaction_lag_ms
    closed: list[Span] = []
    for span in spans:
        if not span.closed or span.end_offset > partition.stable_end or span.max_timestamp_ms + min_lag_ms > now_ms:
            break
        closed.append(span)
    return closed


async def compact(partition: Partition, now_ms: int) -> None:
    """One pass over everything that may be compacted now."""
    spans = _compactable(partition.spans(), partition, now_ms)
    if not spans:
        return
    aborted = AbortedBatches(partition.transactions.aborted_within(spans[0].base_offset, spans[-1].end_offset))
    start = max(partition.cleaned_end, spans[0].base_offset)
    newest, mapped_end = await _newest_offsets(partition, start, spans, aborted)
    rewritten = [span for span in spans if span.base_offset < mapped_end]
    sieve = _Sieve(newest, aborted, now_ms, partition.settings.delete_retention_ms)
    for group in _groups(rewritten, partition.settings.spec.segment_bytes):
        chunks = _surviving(partition, group[0].base_offset, group[-1].end_offset, sieve)
        await partition.engine.rewrite(partition.stream, group[0].base_offset, group[-1].end_offset, chunks)
    partition.cleaned_end = max(partition.cleaned_end, mapped_end)
    if rewritten:
        partition.transactions.prune(rewritten[-1].end_offset)


async def _newest_offsets(
    partition: Partition, start: int, spans: Sequence[Span], aborted: AbortedBatches
) -> tuple[dict[bytes, int], int]:
    newest: dict[bytes, int] = {}
    async for header, batch in _batches(partition, start, spans[-1].end_offset):
        if not header.is_control and header not in aborted:
            if len(newest) + header.record_count > MAX_KEYS and newest:
                return newest, header.base_offset
            for record in _opened(batch):
                if record.key is not None:
                    newest[_digest(record.key)] = record.offset
    return newest, spans[-1].end_offset


def _groups(spans: Sequence[Span], max_bytes: int) -> list[list[Span]]:
    """Neighbours that fit into one segment together are merged: small segments do not pile up."""
    groups: list[list[Span]] = []
    size_bytes = 0
    for span in spans:
        if not groups or size_bytes + span.size_bytes > max_bytes:
            groups.append([])
            size_bytes = 0
        groups[-1].append(span)
        size_bytes += span.size_bytes
    return groups


async def _surviving(partition: Partition, start: int, end: int, sieve: "_Sieve") -> AsyncIterator[Chunk]:
    async for header, batch in _batches(partition, start, end):
        data = sieve.sift(header, batch, is_last=header.end_offset >= partition.end_offset)
        if data is not None:
            yield Chunk(data, header.base_offset, header.end_offset, header.max_timestamp_ms)


class _Sieve:
    """What survives of each batch. One pass shows it all batches before a point, in order."""

    def __init__(self, newest: dict[bytes, int], aborted: AbortedBatches, now_ms: int, retention_ms: int) -> None:
        self._newest = newest
        self._aborted = aborted
        self._now_ms = now_ms
        self._horizon_ms = now_ms + retention_ms
        self._left: set[int] = set()  # producers of whose running transaction something was left; MAX_OPEN of them

    def sift(self, header: BatchHeader, batch: memoryview, is_last: bool) -> memoryview | bytearray | None:
        if header.is_control:
            return self._marker(header, batch, is_last)
        if header in self._aborted:
            return None
        data = batch if is_last else self._filtered(header, batch)
        if data is not None and header.is_transactional:
            self._left.add(header.producer_id)
        return data

    def _marker(self, header: BatchHeader, batch: memoryview, is_last: bool) -> memoryview | bytearray | None:
        if is_last or header.producer_id in self._left:
            self._left.discard(header.producer_id)
            return batch
        if header.has_delete_horizon:
            return None if header.base_timestamp_ms <= self._now_ms else batch
        records = _opened(batch)
        return _rewritten(header, records, DELETE_HORIZON_FLAG | CONTROL_FLAG, self._horizon_ms) if records else batch

    def _filtered(self, header: BatchHeader, batch: memoryview) -> memoryview | bytearray | None:
        records = _opened(batch)
        if not records:
            return batch
        tombstones_due = header.has_delete_horizon and header.base_timestamp_ms <= self._now_ms
        kept = [r for r in records if _survives(r, self._newest, tombstones_due)]
        if not kept:
            return None
        has_tombstone = any(r.value is None for r in kept)
        stamp_horizon = has_tombstone and not header.has_delete_horizon
        if len(kept) == len(records) and not stamp_horizon:
            return batch
        if not has_tombstone:
            return _rewritten(header, kept, 0, None)
        horizon_ms = self._horizon_ms if stamp_horizon else header.base_timestamp_ms
        return _rewritten(header, kept, DELETE_HORIZON_FLAG, horizon_ms)


def _rewritten(header: BatchHeader, records: list[Record], flags: int, base_timestamp_ms: int | None) -> bytearray:
    return encode_batch(
        records,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms if header.is_control else None,
        compression=header.compression,
        attributes=flags | (header.attributes & (TIMESTAMP_TYPE_FLAG | TRANSACTIONAL_FLAG)),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.leader_epoch,
    )


def _opened(batch: memoryview) -> list[Record]:
    """The records of a batch; none if a producer put something else into it, which is not ours to remove."""
    try:
        return decode_batch(batch)
    except CorruptBatch as error:
        _log.warning("compaction leaves a batch as it is: %s", error)
        return []


def _survives(record: Record, newest: dict[bytes, int], tombstones_due: bool) -> bool:
    if record.key is None:
        return False
    if record.offset < newest.get(_digest(record.key), 0):
        return False
    return record.value is not None or not tombstones_due


async def _batches(partition: Partition, start: int, end: int) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
    """Batches one by one, with a breath every SLICE_BYTES so that the loop serves others."""
    offset, slice_bytes = start, 0
    while offset < end:
        found = await partition.engine.read(partition.stream, offset, READ_BYTES, end)
        if not found.buffers:
            return
        for buffer in found.buffers:
            view = memoryview(buffer)
            for header in walk(buffer):
                yield header, view[header.position : header.end_position]
                slice_bytes += header.size_bytes
                if slice_bytes >= SLICE_BYTES:
                    slice_bytes = 0
                    await asyncio.sleep(0)
        offset = found.next_offset


def _digest(key: bytes) -> bytes:
    return key if len(key) < KEY_DIGEST_BYTES else blake2b(key, digest_size=KEY_DIGEST_BYTES).digest()
