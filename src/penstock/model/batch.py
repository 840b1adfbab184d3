"""The record batch: the one format of the wire, the memory, the disk and every other store.

Everything that reads or changes a batch's header lives here; the hot path never goes further than that. Compiled by
mypyc where it can be; the same file runs uncompiled. Whatever is malformed raises CorruptBatch and nothing else.

    offset  field               type     meaning
         0  base_offset         int64    first offset; stamped by the log                      \\  outside
         8  length              int32    bytes after this field                                 |  the
        12  leader_epoch        int32    stamped by the log                                     |  CRC
        16  magic               int8     2                                                      |
        17  crc                 uint32   CRC-32C of everything from byte 21 to the end         /
        21  attributes          int16    bits 0-2 compression, 3 log append time, 4 transactional, 5 control,
                                         6 base timestamp is the delete horizon
        23  last_offset_delta   int32    kept when compaction removes the last record
        27  base_timestamp      int64    what the records' timestamps are relative to
        35  max_timestamp       int64    largest of the records', or the log's append time
        43  producer_id         int64    -1: not idempotent
        51  producer_epoch      int16
        53  base_sequence       int32    of the first record; wraps at 2^31
        57  record_count        int32
        61  records             bytes    the records section, compressed as a whole by the codec of bits 0-2
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from crc32c import crc32c
from mypy_extensions import i64

from penstock.model.compression import compress, decompress
from penstock.model.errors import CorruptBatch
from penstock.model.record import SMALLEST_RECORD_BYTES, Record, read_records, write_records

try:
    from librt.strings import BytesWriter, read_i16_be, read_i32_be, read_i64_be
except ImportError:  # only ever in a pure install: the compiled module brings librt with it
    from penstock._librt import BytesWriter, read_i16_be, read_i32_be, read_i64_be  # type: ignore[assignment]

Buffer = bytes | bytearray | memoryview

HEADER_BYTES: Final[i64] = 61
LENGTH_END: Final[i64] = 12  # `length` counts from here
CRC_START: Final[i64] = 21
MAGIC: Final[i64] = 2

COMPRESSION_BITS: Final[i64] = 0x07
LOG_APPEND_TIME: Final[i64] = 0x08
TRANSACTIONAL: Final[i64] = 0x10
CONTROL: Final[i64] = 0x20
DELETE_HORIZON: Final[i64] = 0x40

# What one batch may become when it is opened: a bomb of a few kilobytes ends here.
MAX_OPENED_BYTES: Final[i64] = 64 << 20
MAX_OPENED_RECORDS: Final[i64] = 1 << 21

_I32_MAX: Final[i64] = 0x7FFF_FFFF
_OFFSET_MAX: Final[i64] = 0x7FFF_FFFF_FFFF_FFFF - _I32_MAX - 1  # so that no end offset overflows
_LAST_CODEC: Final[i64] = 4

_COPY_BELOW_BYTES: Final[i64] = 1024  # a copy of so few bytes is cheaper than a memoryview of them
_WINDOW_BYTES: Final[i64] = 4096

_HEADER = Struct(">qiibIhiqqqhii")
_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_EMPTY_HEADER = bytes(61)


class BatchHeader:
    """The 61 bytes, read. `position` is where in its buffer the batch begins."""

    __slots__ = (
        "attributes", "base_offset", "base_sequence", "base_timestamp_ms", "crc", "last_offset_delta", "leader_epoch",
        "max_timestamp_ms", "position", "producer_epoch", "producer_id", "record_count", "size_bytes",
    )  # fmt: skip

    def __init__(
        self,
        position: i64,
        base_offset: i64,
        size_bytes: i64,
        leader_epoch: i64,
        crc: i64,
        attributes: i64,
        last_offset_delta: i64,
        base_timestamp_ms: i64,
        max_timestamp_ms: i64,
        producer_id: i64,
        producer_epoch: i64,
        base_sequence: i64,
        record_count: i64,
    ) -> None:
        self.position: i64 = position
        self.base_offset: i64 = base_offset
        self.size_bytes: i64 = size_bytes
        self.leader_epoch: i64 = leader_epoch
        self.crc: i64 = crc
        self.attributes: i64 = attributes
        self.last_offset_delta: i64 = last_offset_delta
        self.base_timestamp_ms: i64 = base_timestamp_ms
        self.max_timestamp_ms: i64 = max_timestamp_ms
        self.producer_id: i64 = producer_id
        self.producer_epoch: i64 = producer_epoch
        self.base_sequence: i64 = base_sequence
        self.record_count: i64 = record_count

    @property
    def end_offset(self) -> i64:
        """One past the last offset."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def end_position(self) -> i64:
        return self.position + self.size_bytes

    @property
    def compression(self) -> i64:
        return self.attributes & COMPRESSION_BITS

    @property
    def log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON != 0

    @property
    def last_sequence(self) -> i64:
        """The sequence of the last record, wrapped at 2^31; -1 without an idempotent producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & _I32_MAX

    def __repr__(self) -> str:
        return (
            f"BatchHeader({self.base_offset}..{self.base_offset + self.last_offset_delta}, "
            f"{self.record_count} records, {self.size_bytes} bytes, attributes {self.attributes:#04x})"
        )


# -- reading headers ----------------------------------------------------------------------------------------


def read_header(buf: Buffer, position: i64 = 0) -> BatchHeader:
    """The header of the batch that begins here, checked by itself; the batch may be cut short after it."""
    if position < 0 or i64(len(buf)) - position < HEADER_BYTES:
        raise CorruptBatch(f"a batch header takes {HEADER_BYTES} bytes, {i64(len(buf)) - position} are here")
    head, at = _native(buf, position)
    magic: i64 = head[at + 16]
    if magic != MAGIC:
        raise CorruptBatch(f"a record batch of magic {magic}; only {MAGIC} is known")
    base_offset = read_i64_be(head, at)
    size_bytes = i64(read_i32_be(head, at + 8)) + LENGTH_END
    attributes = i64(read_i16_be(head, at + 21))
    last_offset_delta = i64(read_i32_be(head, at + 23))
    record_count = i64(read_i32_be(head, at + 57))
    if size_bytes < HEADER_BYTES:
        raise CorruptBatch(f"a batch of {size_bytes} bytes is shorter than its own header")
    if base_offset < 0 or base_offset > _OFFSET_MAX:
        raise CorruptBatch(f"a batch begins at offset {base_offset}")
    if last_offset_delta < 0 or record_count < 0 or record_count > last_offset_delta + 1:
        raise CorruptBatch(f"a batch claims {record_count} records in {last_offset_delta + 1} offsets")
    if attributes & COMPRESSION_BITS > _LAST_CODEC:
        raise CorruptBatch(f"a batch is compressed by the unknown codec {attributes & COMPRESSION_BITS}")
    if attributes & COMPRESSION_BITS == 0 and record_count > (size_bytes - HEADER_BYTES) // SMALLEST_RECORD_BYTES:
        raise CorruptBatch(f"a batch of {size_bytes} bytes cannot hold {record_count} records")
    return BatchHeader(
        position,
        base_offset,
        size_bytes,
        i64(read_i32_be(head, at + 12)),
        i64(read_i32_be(head, at + 17)) & 0xFFFF_FFFF,
        attributes,
        last_offset_delta,
        read_i64_be(head, at + 27),
        read_i64_be(head, at + 35),
        read_i64_be(head, at + 43),
        i64(read_i16_be(head, at + 51)),
        i64(read_i32_be(head, at + 53)),
        record_count,
    )


def check_batch(buf: Buffer, position: i64 = 0) -> BatchHeader:
    """The header of a batch that is here whole and whose checksum is right."""
    header = read_header(buf, position)
    if header.size_bytes > i64(len(buf)) - position:
        raise CorruptBatch(f"a batch of {header.size_bytes} bytes is cut short after {i64(len(buf)) - position}")
    if header.crc != _crc(buf, position + CRC_START, position + header.size_bytes):
        raise CorruptBatch(f"the checksum of the batch at offset {header.base_offset} is wrong")
    return header


def _native(buf: Buffer, position: i64) -> tuple[bytes, i64]:
    """The header's bytes as `bytes`, the one type that compiled code reads numbers from, and where they begin."""
    if isinstance(buf, bytes):
        return buf, position
    return bytes(memoryview(buf)[position : position + HEADER_BYTES]), 0


def _crc(buf: Buffer, start: i64, stop: i64) -> i64:
    if stop - start < _COPY_BELOW_BYTES and isinstance(buf, bytes):
        return i64(crc32c(buf[start:stop]))
    return i64(crc32c(memoryview(buf)[start:stop]))


# -- walking ------------------------------------------------------------------------------------------------


def whole_batches(buf: Buffer, offset: i64, end_offset: i64, verify: bool) -> tuple[i64, i64, i64]:
    """(start, stop, next_offset): the whole batches in `buf` from the one that holds `offset`, before `end_offset`.

    The first batch is the one that holds `offset`, or the next one where compaction left a hole. A batch cut short
    at the end is left out; when it is the first, start == stop is where it begins and next_offset is `offset`.
    """
    size: i64 = len(buf)
    position: i64 = 0
    start: i64 = -1
    next_offset: i64 = offset
    last_end: i64 = 0
    # Compiled code reads numbers from `bytes` only: what is not `bytes` is seen through a window copied from it.
    window = buf if isinstance(buf, bytes) else b""
    window_start: i64 = 0
    window_stop: i64 = len(window)
    view = memoryview(buf)
    checksum = crc32c
    while size - position >= HEADER_BYTES:
        if position + HEADER_BYTES > window_stop:
            window = bytes(view[position : position + _WINDOW_BYTES])
            window_start = position
            window_stop = position + len(window)
        at = position - window_start
        batch_bytes = i64(read_i32_be(window, at + 8)) + LENGTH_END
        if batch_bytes < HEADER_BYTES or i64(window[at + 16]) != MAGIC:
            raise CorruptBatch(f"no record batch begins at byte {position}, after offset {last_end}")
        base = read_i64_be(window, at)
        delta = i64(read_i32_be(window, at + 23))
        if base < last_end or base > _OFFSET_MAX or delta < 0:
            raise CorruptBatch(f"the batch at byte {position} claims offset {base} after {last_end}")
        stop = position + batch_bytes
        if base >= end_offset or stop > size:
            break
        last_end = base + delta + 1
        if last_end > offset:
            if verify:
                if batch_bytes < _COPY_BELOW_BYTES and stop <= window_stop:
                    crc = i64(checksum(window[at + CRC_START : at + batch_bytes]))
                else:
                    crc = i64(checksum(view[position + CRC_START : stop]))
                if crc != i64(read_i32_be(window, at + 17)) & 0xFFFF_FFFF:
                    raise CorruptBatch(f"the checksum of the batch at offset {base} is wrong")
            if start < 0:
                start = position
            next_offset = last_end
        position = stop
    if start < 0:
        start = position
    return start, position, next_offset


def walk(buf: Buffer, start: i64 = 0, stop: i64 = -1, verify: bool = False) -> list[BatchHeader]:
    """The headers of the sound batches in buf[start:stop], one after another; never raises.

    It ends at the first byte that does not begin a whole, sound batch: a torn tail, most often. check_batch() at
    that position says what is wrong there.
    """
    if stop < 0 or stop > i64(len(buf)):
        stop = len(buf)
    headers: list[BatchHeader] = []
    position = start
    last_end: i64 = 0
    while stop - position >= HEADER_BYTES:
        try:
            header = read_header(buf, position)
        except CorruptBatch:
            break
        if header.size_bytes > stop - position or header.base_offset < last_end:
            break
        if verify and header.crc != _crc(buf, position + CRC_START, position + header.size_bytes):
            break
        headers.append(header)
        last_end = header.base_offset + header.last_offset_delta + 1
        position += header.size_bytes
    return headers


# -- changing in place --------------------------------------------------------------------------------------


def stamp(buf: bytearray | memoryview, base_offset: i64, leader_epoch: i64, position: i64 = 0) -> None:
    """Give a checked batch its place in the log. Both fields are outside the CRC."""
    _OFFSET.pack_into(buf, position, base_offset)
    _EPOCH.pack_into(buf, position + 12, leader_epoch)


def set_append_time(buf: bytearray | memoryview, timestamp_ms: i64, position: i64 = 0) -> None:
    """Let the log's time stand for every record's of a checked batch, and make the CRC right again."""
    header = read_header(buf, position)
    _ATTRIBUTES.pack_into(buf, position + 21, header.attributes | LOG_APPEND_TIME)
    _OFFSET.pack_into(buf, position + 35, timestamp_ms)
    _CRC.pack_into(buf, position + 17, _crc(buf, position + CRC_START, position + header.size_bytes))


# -- opening and making -------------------------------------------------------------------------------------


def decode_batch(buf: Buffer, position: i64 = 0, max_bytes: i64 = MAX_OPENED_BYTES) -> list[Record]:
    """The records of the batch that begins here, which must be whole; its CRC is check_batch()'s affair.

    `max_bytes` bounds what decompression may yield.
    """
    header = read_header(buf, position)
    stop = position + header.size_bytes
    if stop > i64(len(buf)):
        raise CorruptBatch(f"a batch of {header.size_bytes} bytes is cut short after {i64(len(buf)) - position}")
    if header.record_count > MAX_OPENED_RECORDS:
        raise CorruptBatch(f"a batch of {header.record_count} records; at most {MAX_OPENED_RECORDS} are opened")
    at = position + HEADER_BYTES
    if header.compression != 0:
        data = decompress(header.compression, memoryview(buf)[at:stop], max_bytes)
        at = 0
        stop = len(data)
    elif isinstance(buf, bytes):
        data = buf
    else:
        data = bytes(memoryview(buf)[at:stop])
        at = 0
        stop = len(data)
    append_time_ms: i64 = -1
    if header.log_append_time:
        append_time_ms = header.max_timestamp_ms
    return read_records(
        data,
        at,
        stop,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp_ms,
        append_time_ms,
    )


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    compression: i64 = 0,
    producer_id: i64 = -1,
    producer_epoch: i64 = -1,
    base_sequence: i64 = -1,
    last_offset_delta: int | None = None,
    base_timestamp_ms: int | None = None,
    max_timestamp_ms: int | None = None,
    attributes: i64 = 0,
    leader_epoch: i64 = 0,
) -> bytearray:
    """A batch of these records, whose offsets rise and may have gaps.

    What is not given follows from the records. Without records (compaction keeps such a batch for its producer's
    sequence) `base_offset` and `last_offset_delta` must be given.
    """
    if not records and (base_offset is None or last_offset_delta is None):
        raise ValueError("a batch without records needs its offsets given")
    first = base_offset if base_offset is not None else records[0].offset
    last_delta = last_offset_delta if last_offset_delta is not None else records[-1].offset - first
    base_time: i64 = -1
    if base_timestamp_ms is not None:
        base_time = base_timestamp_ms
    elif records:
        base_time = records[0].timestamp_ms

    writer = BytesWriter()
    writer.write(_EMPTY_HEADER)
    max_time = write_records(writer, list(records), first, base_time)
    if max_timestamp_ms is not None:
        max_time = max_timestamp_ms
    batch = bytearray(writer.getvalue())
    if compression != 0:
        batch[HEADER_BYTES:] = compress(compression, memoryview(batch)[HEADER_BYTES:])
    attributes = (attributes & ~COMPRESSION_BITS) | compression
    _HEADER.pack_into(
        batch, 0, first, len(batch) - LENGTH_END, leader_epoch, MAGIC, 0, attributes, last_delta,
        base_time, max_time, producer_id, producer_epoch, base_sequence, len(records),
    )  # fmt: skip
    _CRC.pack_into(batch, 17, _crc(batch, CRC_START, len(batch)))
    return batch
