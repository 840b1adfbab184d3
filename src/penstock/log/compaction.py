"""Compaction: the newest record of every key survives, in its place, with its offset.

    |<------ clean ------>|<------------ dirty ----------->|<- open span ->|
    start             cleaned_end                     closed end          end

One pass reads the dirty part and notes for each key the offset of its newest record (a digest per key, at most
MAX_KEYS of them; what does not fit waits for the next pass). Then every span before that point is rewritten without
the records that a newer one replaces. A batch that keeps all its records keeps its bytes. Transaction markers stay,
and so does the batch that ends the log: a reader at the end must find the end.

Tombstones (no value) are kept for `delete.retention.ms` so that every reader can see them: the first pass that meets
one stamps its batch with the time it may go (attribute bit 6, the base timestamp holds the horizon, as in Kafka).

The work runs in slices between other work of the loop; the engine swaps the result in at once, so a crash or a reader
sees the old or the new.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b

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
DELETE_HORIZON_FLAG = 0x40
TIMESTAMP_TYPE_FLAG = 0x08


def wants_compaction(spans: Sequence[Span], partition: Partition, now_ms: int) -> bool:
    """Whether enough closed bytes were never compacted, or some have waited for too long."""
    settings = partition.settings
    closed = _compactable(spans, settings.min_compaction_lag_ms, now_ms)
    dirty = [span for span in closed if span.end_offset > partition.cleaned_end]
    if not dirty:
        return False
    if min(span.max_timestamp_ms for span in dirty) + settings.max_compaction_lag_ms <= now_ms:
        return True
    total_bytes = sum(span.size_bytes for span in closed)
    return sum(span.size_bytes for span in dirty) >= settings.min_cleanable_dirty_ratio * total_bytes


def _compactable(spans: Sequence[Span], min_lag_ms: int, now_ms: int) -> list[Span]:
    closed: list[Span] = []
    for span in spans:
        if not span.closed or span.max_timestamp_ms + min_lag_ms > now_ms:
            break
        closed.append(span)
    return closed


async def compact(partition: Partition, now_ms: int) -> None:
    """One pass over everything that may be compacted now."""
    spans = _compactable(partition.spans(), partition.settings.min_compaction_lag_ms, now_ms)
    if not spans:
        return
    newest, mapped_end = await _newest_offsets(partition, max(partition.cleaned_end, spans[0].base_offset), spans)
    for group in _groups([s for s in spans if s.base_offset < mapped_end], partition.settings.spec.segment_bytes):
        chunks = _surviving(partition, group[0].base_offset, group[-1].end_offset, newest, now_ms)
        await partition.engine.rewrite(partition.stream, group[0].base_offset, group[-1].end_offset, chunks)
    partition.cleaned_end = max(partition.cleaned_end, mapped_end)


async def _newest_offsets(partition: Partition, start: int, spans: Sequence[Span]) -> tuple[dict[bytes, int], int]:
    newest: dict[bytes, int] = {}
    async for header, batch in _batches(partition, start, spans[-1].end_offset):
        if not header.is_control:
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


async def _surviving(
    partition: Partition, start: int, end: int, newest: dict[bytes, int], now_ms: int
) -> AsyncIterator[Chunk]:
    horizon_ms = now_ms + partition.settings.delete_retention_ms
    async for header, batch in _batches(partition, start, end):
        data: memoryview | bytearray | None = batch
        if not header.is_control and header.end_offset < partition.end_offset:
            data = _filtered(header, batch, newest, now_ms, horizon_ms)
        if data is not None:
            yield Chunk(data, header.base_offset, header.end_offset, header.max_timestamp_ms)


def _filtered(
    header: BatchHeader, batch: memoryview, newest: dict[bytes, int], now_ms: int, horizon_ms: int
) -> memoryview | bytearray | None:
    records = _opened(batch)
    if not records:
        return batch
    tombstones_due = header.has_delete_horizon and header.base_timestamp_ms <= now_ms
    kept = [r for r in records if _survives(r, newest, tombstones_due)]
    if not kept:
        return None
    stamp_horizon = not header.has_delete_horizon and any(r.value is None for r in kept)
    if len(kept) == len(records) and not stamp_horizon:
        return batch
    flags = header.attributes & TIMESTAMP_TYPE_FLAG
    base_timestamp_ms = None
    if stamp_horizon or (header.has_delete_horizon and any(r.value is None for r in kept)):
        flags |= DELETE_HORIZON_FLAG
        base_timestamp_ms = horizon_ms if stamp_horizon else header.base_timestamp_ms
    return encode_batch(
        kept,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        compression=header.compression,
        attributes=flags | (header.attributes & 0x10),
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
