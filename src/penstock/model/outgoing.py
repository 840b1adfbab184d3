"""From messages to records: the loops over what a door publishes. Nothing here decides, it only goes through them.

Compiled by mypyc where it can be; the same file runs uncompiled.
"""

from collections.abc import Sequence
from typing import Final

from mypy_extensions import i64

from penstock.model.partitioner import partition_for_key
from penstock.model.record import Headers, Record

# model.message.Outgoing, as the tuple it is: key, value, headers, timestamp, partition.
Message = tuple[bytes | None, bytes | None, Headers, i64, i64]

# The most that a record takes besides its key, value and headers: seven numbers of five or ten bytes.
RECORD_OVERHEAD_BYTES: Final[i64] = 36
HEADER_OVERHEAD_BYTES: Final[i64] = 10


def records_of(messages: Sequence[Message], now_ms: i64) -> tuple[list[Record], i64]:
    """Records numbered from 0, and the most bytes they take in a batch. A negative timestamp is now."""
    records: list[Record] = []
    size_bytes: i64 = 0
    for offset, (key, value, headers, timestamp_ms, _) in enumerate(messages):
        if timestamp_ms < 0:
            timestamp_ms = now_ms
        record = Record(offset, timestamp_ms, key, value, headers)
        size_bytes += size_bound(record)
        records.append(record)
    return records, size_bytes


def size_bound(record: Record) -> i64:
    """The most that this record takes in a batch."""
    size_bytes: i64 = RECORD_OVERHEAD_BYTES
    key = record.key
    if key is not None:
        size_bytes += len(key)
    value = record.value
    if value is not None:
        size_bytes += len(value)
    if record.headers:
        for name, header in record.headers:
            size_bytes += len(name.encode()) + HEADER_OVERHEAD_BYTES
            if header is not None:
                size_bytes += len(header)
    return size_bytes


def only_partition(messages: Sequence[Message], count: i64, keyless: i64) -> i64:
    """The one partition that all these go to, -1 if they go to several."""
    found: i64 = -1
    for key, _, _, _, partition in messages:
        if partition < 0:
            partition = 0
            if count > 1:
                partition = keyless if key is None else partition_for_key(key, count)
        if partition != found:
            if found >= 0:
                return -1
            found = partition
    return found


def by_partition(messages: Sequence[Message], count: i64, keyless: i64) -> dict[int, list[int]]:
    """Per partition the positions of the messages that go there, in order."""
    found: dict[int, list[int]] = {}
    for position, (key, _, _, _, partition) in enumerate(messages):
        if partition < 0:
            partition = keyless if key is None else partition_for_key(key, count)
        index = int(partition)
        if index in found:
            found[index].append(position)
        else:
            found[index] = [position]
    return found


def number_from(records: list[Record], offset: i64) -> None:
    """Give the records these places, one after another."""
    for record in records:
        record.offset = offset
        offset += 1
