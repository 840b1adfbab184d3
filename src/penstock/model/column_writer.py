"""From columns to record batches: the bytes of a batch, written straight from the buffers of Arrow arrays.

Compiled by mypyc where it can be; the same file runs uncompiled. It knows nothing of Arrow but how its buffers lie:

    offsets    rows + 1 numbers of 32 or 64 bits, little-endian: where in the data each row begins and ends;
               the data given here is that of these rows alone, so they count from the first of them
    validity   a bit per row, least significant first, 1 for a value and 0 for a null; no bytes at all: no nulls

Rows go to the partition they name, else to that of their key as with every other door, else to the one whose turn it
is: that of the keyless changes with each batch that is cut. A lane gathers a partition's rows until a batch is full.
"""

from struct import Struct
from typing import Final, final

from crc32c import crc32c
from mypy_extensions import i64, u8

from penstock.model.batch import COMPRESSION_BITS, CRC_START, HEADER_BYTES, LENGTH_END, MAGIC, TRANSACTIONAL
from penstock.model.compression import compress
from penstock.model.errors import InvalidRecord, UnknownPartition
from penstock.model.partitioner import partition_for_key
from penstock.model.record import _field_bytes, _varint_bytes, _write_field, _write_varint, _zigzag

try:
    from librt.strings import BytesWriter, read_i32_le, read_i64_le
except ImportError:  # only ever in a pure install: the compiled module brings librt with it
    from penstock._librt import BytesWriter, read_i32_le, read_i64_le  # type: ignore[assignment]

MAX_BATCH_BYTES: Final[i64] = 512 << 10
MAX_BATCH_RECORDS: Final[i64] = 50_000
_SEQUENCE_MASK: Final[i64] = 0x7FFF_FFFF  # sequences wrap at 2^31

_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_EMPTY_HEADER = bytes(61)


@final
class Column:
    """Byte strings, one a row, some of them null."""

    __slots__ = ("_base", "_bit", "_data", "_offsets", "_validity", "_wide")

    def __init__(self, offsets: bytes, data: bytes, validity: bytes = b"", bit: i64 = 0, wide: bool = False) -> None:
        """`bit` is where in the validity the first row's stands; `wide` offsets have 64 bits."""
        self._offsets: bytes = offsets
        self._data: bytes = data
        self._validity: bytes = validity
        self._bit: i64 = bit
        self._wide: bool = wide
        self._base: i64 = read_i64_le(offsets, 0) if wide else i64(read_i32_le(offsets, 0))

    def get(self, row: i64) -> bytes | None:
        validity = self._validity
        if validity:
            bit = self._bit + row
            if not (i64(validity[bit >> 3]) >> (bit & 7)) & 1:
                return None
        offsets = self._offsets
        if self._wide:
            start = read_i64_le(offsets, row << 3)
            stop = read_i64_le(offsets, (row << 3) + 8)
        else:
            start = i64(read_i32_le(offsets, row << 2))
            stop = i64(read_i32_le(offsets, (row << 2) + 4))
        return self._data[start - self._base : stop - self._base]


@final
class Numbers:
    """Whole numbers, one a row, some of them null: of 64 bits if `wide`, else of 32."""

    __slots__ = ("_bit", "_data", "_validity", "_wide")

    def __init__(self, data: bytes, validity: bytes = b"", bit: i64 = 0, wide: bool = True) -> None:
        self._data: bytes = data
        self._validity: bytes = validity
        self._bit: i64 = bit
        self._wide: bool = wide

    def get(self, row: i64, default: i64) -> i64:
        validity = self._validity
        if validity:
            bit = self._bit + row
            if not (i64(validity[bit >> 3]) >> (bit & 7)) & 1:
                return default
        if self._wide:
            return read_i64_le(self._data, row << 3)
        return i64(read_i32_le(self._data, row << 2))


@final
class HeaderColumn:
    """Lists of headers, one a row: `offsets` (32 bits) tell which names and values are a row's. A null is empty."""

    __slots__ = ("_base", "_bit", "_names", "_offsets", "_validity", "_values")

    def __init__(self, offsets: bytes, names: Column, values: Column, validity: bytes = b"", bit: i64 = 0) -> None:
        self._offsets: bytes = offsets
        self._names: Column = names
        self._values: Column = values
        self._validity: bytes = validity
        self._bit: i64 = bit
        self._base: i64 = i64(read_i32_le(offsets, 0))

    def span(self, row: i64) -> tuple[i64, i64]:
        validity = self._validity
        if validity:
            bit = self._bit + row
            if not (i64(validity[bit >> 3]) >> (bit & 7)) & 1:
                return 0, 0
        first = i64(read_i32_le(self._offsets, row << 2)) - self._base
        return first, i64(read_i32_le(self._offsets, (row << 2) + 4)) - self._base

    def size(self, first: i64, stop: i64) -> i64:
        size_bytes = _varint_bytes((stop - first) << 1)
        at = first
        while at < stop:
            name = self._names.get(at)
            if name is None:
                raise InvalidRecord("a header has no name")
            size_bytes += _field_bytes(name) + _field_bytes(self._values.get(at))
            at += 1
        return size_bytes

    def write(self, writer: BytesWriter, first: i64, stop: i64) -> None:
        _write_varint(writer, (stop - first) << 1)
        at = first
        while at < stop:
            _write_field(writer, self._names.get(at))
            _write_field(writer, self._values.get(at))
            at += 1


@final
class Lane:
    """The batch that is being filled for one partition."""

    __slots__ = ("base_timestamp_ms", "count", "max_timestamp_ms", "sequence", "size_bytes", "writer")

    def __init__(self) -> None:
        self.writer: BytesWriter = BytesWriter()
        self.size_bytes: i64 = 0
        self.count: i64 = 0
        self.sequence: i64 = 0  # of the first record in it
        self.base_timestamp_ms: i64 = -1
        self.max_timestamp_ms: i64 = -1

    def begin(self) -> None:
        self.writer = BytesWriter()
        self.writer.write(_EMPTY_HEADER)
        self.size_bytes = HEADER_BYTES
        self.count = 0
        self.max_timestamp_ms = -1


@final
class ColumnWriter:
    """One producer's batches for one topic."""

    __slots__ = (
        "_attributes", "_compression", "_lanes", "_max_bytes", "_max_records", "_producer_epoch", "_producer_id",
        "_topic", "_turn", "records",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partitions: i64,
        producer_id: i64,
        producer_epoch: i64,
        *,
        transactional: bool = True,
        compression: i64 = 0,
        max_bytes: i64 = MAX_BATCH_BYTES,
        max_records: i64 = MAX_BATCH_RECORDS,
        turn: i64 = 0,
    ) -> None:
        """`turn`: the partition that the first rows without a key go to."""
        self._topic: str = topic
        self._producer_id: i64 = producer_id
        self._producer_epoch: i64 = producer_epoch
        self._compression: i64 = compression
        self._attributes: i64 = (TRANSACTIONAL if transactional else i64(0)) | (compression & COMPRESSION_BITS)
        self._max_bytes: i64 = max_bytes
        self._max_records: i64 = max_records
        self._turn: i64 = turn % partitions
        self._lanes: list[Lane] = [Lane() for _ in range(partitions)]
        self.records: i64 = 0  # taken so far

    def add(
        self,
        rows: i64,
        key: Column | None,
        value: Column | None,
        headers: HeaderColumn | None,
        timestamps_ms: Numbers | None,
        partitions: Numbers | None,
        now_ms: i64,
    ) -> list[tuple[int, bytearray]]:
        """Take these rows; the batches that became full, each with its partition, in order."""
        full: list[tuple[int, bytearray]] = []
        count: i64 = len(self._lanes)
        row: i64 = 0
        while row < rows:
            key_bytes: bytes | None = None
            if key is not None:
                key_bytes = key.get(row)
            chosen: i64 = -1
            keyless = False
            if partitions is not None:
                chosen = partitions.get(row, -1)
            if chosen < 0:
                if count == 1:
                    chosen = 0
                elif key_bytes is None:
                    keyless = True
                    chosen = self._turn
                else:
                    chosen = partition_for_key(key_bytes, count)
            elif chosen >= count:
                raise UnknownPartition(f"topic {self._topic!r} has no partition {chosen}; it has 0 to {count - 1}")
            value_bytes: bytes | None = None
            if value is not None:
                value_bytes = value.get(row)
            timestamp_ms = now_ms
            if timestamps_ms is not None:
                timestamp_ms = timestamps_ms.get(row, now_ms)

            first: i64 = 0
            stop: i64 = 0
            body: i64 = _field_bytes(key_bytes) + _field_bytes(value_bytes) + 1
            if headers is not None:
                first, stop = headers.span(row)
                if first != stop:
                    body += headers.size(first, stop) - 1
            lane = self._lanes[chosen]
            # Attributes, and three numbers of at most 5, 10 and 5 bytes: the record is never longer than this.
            while lane.count and (lane.size_bytes + body + 21 > self._max_bytes or lane.count >= self._max_records):
                full.append((int(chosen), self._cut(lane)))
                if keyless:
                    chosen = (chosen + 1) % count
                    self._turn = chosen
                    lane = self._lanes[chosen]
            if lane.count == 0:
                lane.begin()
                lane.base_timestamp_ms = timestamp_ms
            if timestamp_ms > lane.max_timestamp_ms:
                lane.max_timestamp_ms = timestamp_ms

            timestamp_zigzag = _zigzag(timestamp_ms - lane.base_timestamp_ms)
            offset_zigzag = lane.count << 1
            size = 1 + _varint_bytes(timestamp_zigzag) + _varint_bytes(offset_zigzag) + body
            writer = lane.writer
            _write_varint(writer, size << 1)
            writer.append(u8(0))
            _write_varint(writer, timestamp_zigzag)
            _write_varint(writer, offset_zigzag)
            _write_field(writer, key_bytes)
            _write_field(writer, value_bytes)
            if headers is not None and first != stop:
                headers.write(writer, first, stop)
            else:
                writer.append(u8(0))
            lane.size_bytes = len(writer)
            lane.count += 1
            row += 1
        self.records += rows
        return full

    def flush(self) -> list[tuple[int, bytearray]]:
        """What is left, however little."""
        left: list[tuple[int, bytearray]] = []
        for partition, lane in enumerate(self._lanes):
            if lane.count:
                left.append((partition, self._cut(lane)))
        return left

    def _cut(self, lane: Lane) -> bytearray:
        """The lane's batch, finished; the lane is empty again and goes on counting."""
        batch = bytearray(lane.writer.getvalue())
        if self._compression != 0:
            batch[HEADER_BYTES:] = compress(self._compression, memoryview(batch)[HEADER_BYTES:])
        _HEADER.pack_into(
            batch, 0, 0, len(batch) - LENGTH_END, 0, MAGIC, 0, self._attributes, lane.count - 1, lane.base_timestamp_ms,
            lane.max_timestamp_ms, self._producer_id, self._producer_epoch,
            lane.sequence if self._producer_id >= 0 else -1, lane.count,
        )  # fmt: skip
        _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))
        lane.sequence = (lane.sequence + lane.count) & _SEQUENCE_MASK
        lane.count = 0
        lane.writer = BytesWriter()
        return batch
