"""From record batches to columns: the buffers of Arrow arrays, filled straight from the bytes of a batch.

Compiled by mypyc where it can be; the same file runs uncompiled. What is malformed raises CorruptBatch, as when records
are opened one by one, and nothing in here trusts a length.

No key and no value is copied here. The rows' bytes stay where they are, in the batches that were read or in what they
decompress to, and only where they begin and end is written down, as an Arrow array of bytes wants it:

    spans      int32, little-endian: begin and end of the key, then of the value, of each row, into `data`
               |key 0|  gap  |value 0|  gap  |key 1|  gap  |value 1| ...
               so every other one of the byte strings between them is a key or a value, and Arrow gathers those itself
    validity   a bit per row, least significant first, 1 for a value and 0 for null; no bytes at all: no nulls
    offsets    int64, little-endian, a row each; times likewise, in microseconds
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, final

from mypy_extensions import i32, i64

from penstock.model.batch import HEADER_BYTES, MAX_OPENED_BYTES, MAX_OPENED_RECORDS, BatchHeader, check_batch
from penstock.model.compression import decompress
from penstock.model.errors import CorruptBatch
from penstock.model.record import SMALLEST_HEADER_BYTES, SMALLEST_RECORD_BYTES, _read_varint, _read_varlong, _sum

try:
    from librt.strings import BytesWriter, write_i32_le, write_i64_le
except ImportError:  # only ever in a pure install: the compiled module brings librt with it
    from penstock._librt import BytesWriter, write_i32_le, write_i64_le  # type: ignore[assignment]

# Which columns are built: the sum of those that are wanted.
KEY: Final[i64] = 1
VALUE: Final[i64] = 2
TIMESTAMP: Final[i64] = 4
OFFSET: Final[i64] = 8
HEADERS: Final[i64] = 16

_MS_MAX: Final[i64] = 9_223_372_036_854_775  # what fits in 64 bits as microseconds


@final
class Aborted:
    """Ranges of offsets in which what a producer wrote was aborted, however many there are."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int, int]] = ()) -> None:
        """Of (producer id, first offset, last offset); those of one producer do not overlap."""
        self._firsts: dict[int, list[int]] = {}
        self._lasts: dict[int, list[int]] = {}
        for producer_id, first, last in sorted(ranges):
            self._firsts.setdefault(producer_id, []).append(first)
            self._lasts.setdefault(producer_id, []).append(last)

    def holds(self, producer_id: i64, offset: i64) -> bool:
        firsts = self._firsts.get(producer_id)
        if firsts is None:
            return False
        place = bisect_right(firsts, offset) - 1
        return place >= 0 and offset <= self._lasts[producer_id][place]


NONE_ABORTED: Final = Aborted()


@final
class Bits:
    """A bit per row. As long as all are set there is nothing."""

    __slots__ = ("_bits", "count", "zeros")

    def __init__(self) -> None:
        self._bits: bytearray = bytearray()
        self.count: i64 = 0
        self.zeros: i64 = 0

    def clear(self, row: i64) -> None:
        """This row, the last so far, is null."""
        held: i64 = len(self._bits)
        if (row >> 3) >= held:
            self._bits += b"\xff" * int((row >> 3) + 1 - held)
        self._bits[row >> 3] &= ~(1 << (row & 7)) & 0xFF
        self.zeros += 1

    def getvalue(self, rows: i64) -> bytes:
        if self.zeros == 0:
            return b""
        missing = (rows + 7) // 8 - i64(len(self._bits))
        return bytes(self._bits) + b"\xff" * int(missing)


@final
class Columns:
    """Rows of one partition, as far as they have been read."""

    __slots__ = (
        "_append_time", "data", "header_counts", "header_nulls", "header_rows", "header_spans", "key_nulls", "offsets",
        "position", "rows", "spans", "time_runs", "times", "value_nulls", "wanted",
    )  # fmt: skip

    def __init__(self, wanted: i64) -> None:
        self.wanted: i64 = wanted
        self.rows: i64 = 0
        self.position: i64 = 0  # where in the batches to go on
        self.data: bytes = b""
        self.spans: BytesWriter = BytesWriter()
        self.key_nulls: Bits = Bits()
        self.value_nulls: Bits = Bits()
        self.offsets: BytesWriter = BytesWriter()
        self.times: BytesWriter = BytesWriter()
        self.time_runs: list[tuple[int, int]] = []  # rows, timestamp type: 0 the producer's, 1 the log's
        self.header_counts: BytesWriter = BytesWriter()  # int32: how many there are before each row, and in the end
        self.header_rows: i64 = 0
        self.header_spans: BytesWriter = BytesWriter()  # of name and value, as the rows' spans are of key and value
        self.header_nulls: Bits = Bits()

    def key_validity(self) -> bytes:
        return self.key_nulls.getvalue(self.rows)

    def value_validity(self) -> bytes:
        return self.value_nulls.getvalue(self.rows)

    def header_validity(self) -> bytes:
        """Of the headers' values."""
        return self.header_nulls.getvalue(self.header_rows)


def read_columns(
    batches: bytes,
    position: i64,
    first_offset: i64,
    end_offset: i64,
    wanted: i64,
    max_rows: i64,
    max_bytes: i64,
    aborted: Aborted = NONE_ABORTED,
) -> Columns:
    """The rows from `first_offset` on and before `end_offset` in whole batches back to back, from a position on.

    It ends with the batch that makes `max_rows`, or `max_bytes` of opened records; `position` of the result tells where
    the next one begins, and is the length of `batches` when there is nothing more to read. Control batches are left
    out, and so are transactions that were aborted. The caller sees to it that `batches` is less than 2 GB.
    """
    columns = Columns(wanted)
    size: i64 = len(batches)
    pieces: list[bytes] = []  # what the spans point into, once it is not simply `batches`
    pieces_bytes: i64 = 0
    opened_bytes: i64 = 0
    while position < size and columns.rows < max_rows and opened_bytes < max_bytes:
        header = check_batch(batches, position)
        begin = position
        position += header.size_bytes
        if header.base_offset >= end_offset:
            position = size
            break
        if header.end_offset <= first_offset or header.is_control:
            continue
        if header.record_count == 0 and header.size_bytes == HEADER_BYTES:
            continue
        if header.is_transactional and aborted.holds(header.producer_id, header.base_offset):
            continue
        if header.record_count > MAX_OPENED_RECORDS:
            raise CorruptBatch(f"a batch of {header.record_count} records; at most {MAX_OPENED_RECORDS} are opened")
        if header.compression != 0:
            if not pieces and columns.rows > 0:
                pieces.append(batches[:begin])
                pieces_bytes = begin
            opened = decompress(
                header.compression, memoryview(batches)[begin + HEADER_BYTES : position], MAX_OPENED_BYTES
            )
            _read_rows(columns, opened, 0, len(opened), pieces_bytes, header, first_offset, end_offset)
            pieces.append(opened)
            pieces_bytes += len(opened)
            opened_bytes += len(opened)
        elif pieces:
            _read_rows(
                columns, batches, begin + HEADER_BYTES, position, pieces_bytes - begin, header, first_offset, end_offset
            )
            pieces.append(batches[begin:position])
            pieces_bytes += position - begin
            opened_bytes += position - begin
        else:
            _read_rows(columns, batches, begin + HEADER_BYTES, position, 0, header, first_offset, end_offset)
            opened_bytes += position - begin
    columns.data = b"".join(pieces) if pieces else batches
    columns.position = position
    if wanted & HEADERS:
        write_i32_le(columns.header_counts, i32(columns.header_rows))
    return columns


def _read_rows(
    columns: Columns,
    data: bytes,
    position: i64,
    stop: i64,
    shift: i64,
    header: BatchHeader,
    first_offset: i64,
    end_offset: i64,
) -> None:
    """The records that fill data[position:stop]; what stands at a position here stands at position + shift there."""
    count = header.record_count
    if count > (stop - position) // SMALLEST_RECORD_BYTES:
        raise CorruptBatch(f"a batch of {stop - position} bytes cannot hold {count} records")
    wanted = columns.wanted
    spans = columns.spans
    offsets = columns.offsets
    times = columns.times
    base_offset = header.base_offset
    last_offset_delta = header.last_offset_delta
    base_timestamp_ms = header.base_timestamp_ms
    append_time = header.log_append_time
    time_us: i64 = 0
    if append_time:
        time_us = _microseconds(header.max_timestamp_ms)
    row = columns.rows
    rows_before = row
    last_delta: i64 = -1
    byte: i64 = 0
    size: i64 = 0
    timestamp_delta: i64 = 0
    offset_delta: i64 = 0
    key_begin: i64 = 0
    key_bytes: i64 = 0
    value_begin: i64 = 0
    value_bytes: i64 = 0
    while count > 0:
        count -= 1
        size, position = _read_varint(data, position, stop)
        if size < SMALLEST_RECORD_BYTES - 1 or size > stop - position:
            raise CorruptBatch(f"a record claims {size} bytes where {stop - position} remain")
        end = position + size
        position += 1
        byte = data[position]  # a record has at least six bytes
        if byte < 0x80:
            timestamp_delta = (byte >> 1) ^ -(byte & 1)
            position += 1
        else:
            timestamp_delta, position = _read_varlong(data, position, end)
        offset_delta, position = _read_varint(data, position, end)
        if offset_delta <= last_delta or offset_delta > last_offset_delta:
            raise CorruptBatch("the offsets of a batch's records do not rise within the batch's range")
        last_delta = offset_delta

        key_bytes, position = _read_varint(data, position, end)
        key_begin = position
        if key_bytes >= 0:
            if key_bytes > end - position:
                raise CorruptBatch("a record's key is longer than the record")
            position += key_bytes
        elif key_bytes != -1:
            raise CorruptBatch("a record's key has a negative length")
        value_bytes, position = _read_varint(data, position, end)
        value_begin = position
        if value_bytes >= 0:
            if value_bytes > end - position:
                raise CorruptBatch("a record's value is longer than the record")
            position += value_bytes
        elif value_bytes != -1:
            raise CorruptBatch("a record's value has a negative length")

        offset = base_offset + offset_delta
        counts = first_offset <= offset < end_offset
        if counts and wanted & HEADERS:
            write_i32_le(columns.header_counts, i32(columns.header_rows))
        if position < end and data[position] == 0:  # none, as in nearly every record
            position += 1
        else:
            position = _read_headers(columns, data, position, end, shift, counts and wanted & HEADERS != 0)
        if position != end:
            raise CorruptBatch("a record is longer than its fields")
        if not counts:
            continue

        if wanted & KEY:
            write_i32_le(spans, i32(shift + key_begin))
            if key_bytes < 0:
                key_bytes = 0
                columns.key_nulls.clear(row)
            write_i32_le(spans, i32(shift + key_begin + key_bytes))
        if wanted & VALUE:
            write_i32_le(spans, i32(shift + value_begin))
            if value_bytes < 0:
                value_bytes = 0
                columns.value_nulls.clear(row)
            write_i32_le(spans, i32(shift + value_begin + value_bytes))
        if wanted & OFFSET:
            write_i64_le(offsets, offset)
        if wanted & TIMESTAMP:
            if not append_time:
                time_us = _microseconds(_sum(base_timestamp_ms, timestamp_delta))
            write_i64_le(times, time_us)
        row += 1
    if position != stop:
        raise CorruptBatch("a batch is longer than its records")
    columns.rows = row
    if row > rows_before:
        columns.time_runs.append((row - rows_before, 1 if append_time else 0))


def _read_headers(columns: Columns, data: bytes, position: i64, end: i64, shift: i64, keep: bool) -> i64:
    """Where the record's headers end. That their names are UTF-8 is seen to when they become an array of strings."""
    count, position = _read_varint(data, position, end)
    if count < 0 or count > (end - position) // SMALLEST_HEADER_BYTES:
        raise CorruptBatch(f"a record claims {count} headers in {end - position} bytes")
    while count > 0:
        count -= 1
        size, position = _read_varint(data, position, end)
        if size < 0 or size > end - position:
            raise CorruptBatch("a header's key is longer than its record")
        if keep:
            write_i32_le(columns.header_spans, i32(shift + position))
            write_i32_le(columns.header_spans, i32(shift + position + size))
        position += size
        size, position = _read_varint(data, position, end)
        if size < -1 or size > end - position:
            raise CorruptBatch("a header's value is longer than its record")
        if keep:
            write_i32_le(columns.header_spans, i32(shift + position))
            if size < 0:
                columns.header_nulls.clear(columns.header_rows)
            else:
                position += size
            write_i32_le(columns.header_spans, i32(shift + position))
            columns.header_rows += 1
        elif size > 0:
            position += size
    return position


def _microseconds(timestamp_ms: i64) -> i64:
    """Held at the ends of what fits: a time that is centuries off is no reason to stop a stream."""
    if timestamp_ms > _MS_MAX:
        return _MS_MAX * 1000
    if timestamp_ms < -_MS_MAX:
        return -_MS_MAX * 1000
    return timestamp_ms * 1000
