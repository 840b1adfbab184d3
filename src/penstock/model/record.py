"""One record, and the records section of a batch. Whatever opens or makes records passes through here.

Compiled by mypyc where it can be; the same file runs uncompiled. Nothing in here trusts a length: every one is held
against the bytes that remain before anything is taken or allocated, and what does not fit raises CorruptBatch.

    records section = record*          (Kafka's magic 2; varints are zigzag, least significant 7 bits first)

    record    length         varint    bytes after this field
              attributes     int8      unused, 0
              timestamp      varlong   minus the batch's base timestamp
              offset         varint    minus the batch's base offset; rises from record to record
              key            varint    length, -1 for null; then the bytes
              value          varint    length, -1 for null; then the bytes
              headers        varint    count; then for each
                key          varint    length; then UTF-8
                value        varint    length, -1 for null; then the bytes
"""

from typing import Final

from mypy_extensions import i64, u8

from penstock.model.errors import CorruptBatch

try:
    from librt.strings import BytesWriter
except ImportError:  # only ever in a pure install: the compiled module brings librt with it
    from penstock._librt import BytesWriter  # type: ignore[assignment]

Headers = tuple[tuple[str, bytes | None], ...]

# Length, attributes, timestamp, offset, key, value and header count, a byte each.
SMALLEST_RECORD_BYTES: Final[i64] = 7
SMALLEST_HEADER_BYTES: Final[i64] = 2

_I32_MAX: Final[i64] = 0x7FFF_FFFF
_I64_MAX: Final[i64] = 0x7FFF_FFFF_FFFF_FFFF
_I64_MIN: Final[i64] = -0x7FFF_FFFF_FFFF_FFFF - 1
_WITHOUT_TOP_7_BITS: Final[i64] = 0x01FF_FFFF_FFFF_FFFF


class Record:
    """One message as it stands in a log: immutable by custom, compared by content."""

    __slots__ = ("headers", "key", "offset", "timestamp_ms", "value")

    def __init__(
        self, offset: i64, timestamp_ms: i64, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> None:
        self.offset: i64 = offset
        self.timestamp_ms: i64 = timestamp_ms
        self.key: bytes | None = key
        self.value: bytes | None = value
        self.headers: Headers = headers

    def _content(self) -> tuple[int, int, bytes | None, bytes | None, Headers]:
        return (self.offset, self.timestamp_ms, self.key, self.value, self.headers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp_ms={self.timestamp_ms}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (Record, self._content())


# -- varints ------------------------------------------------------------------------------------------------


def _read_varint(data: bytes, position: i64, stop: i64) -> tuple[i64, i64]:
    """A zigzag number of at most 32 bits in at most 5 bytes, and the position after it."""
    raw: i64 = 0
    shift: i64 = 0
    while position < stop:
        byte: i64 = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw > 0xFFFF_FFFF:
                break
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
        if shift > 28:
            break
    raise CorruptBatch("a record holds a number that is cut short or does not fit in 32 bits")


def _read_varlong(data: bytes, position: i64, stop: i64) -> tuple[i64, i64]:
    """A zigzag number of at most 64 bits in at most 10 bytes, and the position after it."""
    raw: i64 = 0
    shift: i64 = 0
    while position < stop:
        byte: i64 = data[position]
        position += 1
        if shift == 63 and byte > 1:
            break
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((raw >> 1) & _I64_MAX) ^ -(raw & 1), position
        shift += 7
    raise CorruptBatch("a record holds a number that is cut short or does not fit in 64 bits")


def _zigzag(number: i64) -> i64:
    return (number << 1) ^ (number >> 63)


def _varint_bytes(zigzag: i64) -> i64:
    size: i64 = 1
    while zigzag > 0x7F or zigzag < 0:
        zigzag = (zigzag >> 7) & _WITHOUT_TOP_7_BITS
        size += 1
    return size


def _write_varint(writer: BytesWriter, zigzag: i64) -> None:
    while zigzag > 0x7F or zigzag < 0:
        writer.append(u8((zigzag & 0x7F) | 0x80))
        zigzag = (zigzag >> 7) & _WITHOUT_TOP_7_BITS
    writer.append(u8(zigzag))


# -- opening ------------------------------------------------------------------------------------------------


def read_records(
    data: bytes,
    position: i64,
    stop: i64,
    count: i64,
    base_offset: i64,
    last_offset_delta: i64,
    base_timestamp_ms: i64,
    append_time_ms: i64,
) -> list[Record]:
    """Exactly `count` records that fill data[position:stop]. An append time of 0 or more replaces their timestamps."""
    if count > (stop - position) // SMALLEST_RECORD_BYTES:
        raise CorruptBatch(f"a batch of {stop - position} bytes cannot hold {count} records")
    records: list[Record] = []
    last_delta: i64 = -1
    while count > 0:
        count -= 1
        size, position = _read_varint(data, position, stop)
        if size < SMALLEST_RECORD_BYTES - 1 or size > stop - position:
            raise CorruptBatch(f"a record claims {size} bytes where {stop - position} remain")
        end = position + size
        timestamp_delta, position = _read_varlong(data, position + 1, end)
        offset_delta, position = _read_varint(data, position, end)
        if offset_delta <= last_delta or offset_delta > last_offset_delta:
            raise CorruptBatch("the offsets of a batch's records do not rise within the batch's range")
        last_delta = offset_delta

        key: bytes | None = None
        value: bytes | None = None
        size, position = _read_varint(data, position, end)
        if size >= 0:
            if size > end - position:
                raise CorruptBatch("a record's key is longer than the record")
            key = data[position : position + size]
            position += size
        elif size != -1:
            raise CorruptBatch("a record's key has a negative length")
        size, position = _read_varint(data, position, end)
        if size >= 0:
            if size > end - position:
                raise CorruptBatch("a record's value is longer than the record")
            value = data[position : position + size]
            position += size
        elif size != -1:
            raise CorruptBatch("a record's value has a negative length")

        headers: Headers = ()
        if position < end and data[position] == 0:  # none, as in nearly every record
            position += 1
        else:
            headers, position = _read_headers(data, position, end)
        if position != end:
            raise CorruptBatch("a record is longer than its fields")
        timestamp_ms = append_time_ms
        if append_time_ms < 0:
            timestamp_ms = _sum(base_timestamp_ms, timestamp_delta)
        records.append(Record(base_offset + offset_delta, timestamp_ms, key, value, headers))
    if position != stop:
        raise CorruptBatch("a batch is longer than its records")
    return records


def _sum(base_timestamp_ms: i64, delta_ms: i64) -> i64:
    if delta_ms > 0 and base_timestamp_ms > _I64_MAX - delta_ms:
        raise CorruptBatch("a record's timestamp does not fit in 64 bits")
    if delta_ms < 0 and base_timestamp_ms < _I64_MIN - delta_ms:
        raise CorruptBatch("a record's timestamp does not fit in 64 bits")
    return base_timestamp_ms + delta_ms


def _read_headers(data: bytes, position: i64, end: i64) -> tuple[Headers, i64]:
    count, position = _read_varint(data, position, end)
    if count < 0 or count > (end - position) // SMALLEST_HEADER_BYTES:
        raise CorruptBatch(f"a record claims {count} headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    while count > 0:
        count -= 1
        size, position = _read_varint(data, position, end)
        if size < 0 or size > end - position:
            raise CorruptBatch("a header's key is longer than its record")
        try:
            key = data[position : position + size].decode()
        except UnicodeDecodeError as error:
            raise CorruptBatch("a header's key is not UTF-8") from error
        position += size
        value: bytes | None = None
        size, position = _read_varint(data, position, end)
        if size < -1 or size > end - position:
            raise CorruptBatch("a header's value is longer than its record")
        if size >= 0:
            value = data[position : position + size]
            position += size
        headers.append((key, value))
    return tuple(headers), position


# -- making -------------------------------------------------------------------------------------------------


def write_records(writer: BytesWriter, records: list[Record], base_offset: i64, base_timestamp_ms: i64) -> i64:
    """Append the records section to the writer and return the largest timestamp, -1 if there is none.

    Offsets may have gaps but must rise from `base_offset`.
    """
    last_delta: i64 = -1
    max_timestamp_ms: i64 = -1
    for record in records:
        offset_delta = record.offset - base_offset
        if offset_delta <= last_delta or offset_delta > _I32_MAX:
            raise ValueError(f"record offset {record.offset} does not rise from {base_offset + last_delta}")
        last_delta = offset_delta
        timestamp_ms = record.timestamp_ms
        if timestamp_ms > max_timestamp_ms:
            max_timestamp_ms = timestamp_ms
        timestamp_zigzag = _zigzag(timestamp_ms - base_timestamp_ms)
        offset_zigzag = offset_delta << 1
        key = record.key
        value = record.value
        headers = record.headers

        size: i64 = 1 + _varint_bytes(timestamp_zigzag) + _varint_bytes(offset_zigzag)
        size += _field_bytes(key) + _field_bytes(value) + (_headers_bytes(headers) if headers else 1)
        _write_varint(writer, size << 1)
        writer.append(u8(0))
        _write_varint(writer, timestamp_zigzag)
        _write_varint(writer, offset_zigzag)
        _write_field(writer, key)
        _write_field(writer, value)
        if headers:
            _write_headers(writer, headers)
        else:
            writer.append(u8(0))
    return max_timestamp_ms


def _headers_bytes(headers: Headers) -> i64:
    size = _varint_bytes(i64(len(headers)) << 1)
    for key, value in headers:
        size += _field_bytes(key.encode()) + _field_bytes(value)
    return size


def _write_headers(writer: BytesWriter, headers: Headers) -> None:
    _write_varint(writer, i64(len(headers)) << 1)
    for key, value in headers:
        _write_field(writer, key.encode())
        _write_field(writer, value)


def _field_bytes(field: bytes | None) -> i64:
    if field is None:
        return 1
    size: i64 = len(field)
    return _varint_bytes(size << 1) + size


def _write_field(writer: BytesWriter, field: bytes | None) -> None:
    if field is None:
        writer.append(u8(1))  # -1 in zigzag
    else:
        size: i64 = len(field)
        _write_varint(writer, size << 1)
        writer.write(field)
