"""Which batches a topic takes in. A batch is opened only where its topic's settings leave no other way."""

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from penstock.log.settings import FOREVER, TopicSettings
from penstock.model.batch import (
    CRC_START,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    check_batch,
    decode_batch,
    encode_batch,
    read_header,
    set_append_time,
)
from penstock.model.errors import CorruptBatch, InvalidRecord, InvalidTimestamp, RecordTooLarge, UnsupportedCompression
from penstock.model.record import Record

NO_TIMESTAMP = -1
_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_KEPT_ATTRIBUTES = 0x18  # timestamp type, transactional
_LOG_APPEND_TIME, _DELETE_HORIZON = 0x08, 0x40  # what only the broker may say of a batch


class Admitted(NamedTuple):
    header: BatchHeader
    batch: bytearray | memoryview


def admit(batch: bytearray | memoryview, settings: TopicSettings, now_ms: int) -> Admitted:
    """Check a producer's batch against the rules of its topic, and make it what the topic keeps."""
    header = _checked(batch)
    _check_shape(header, len(batch), settings)
    if settings.log_append_time:
        set_append_time(batch, now_ms)
        header = read_header(batch)
    else:
        _check_times(header, settings, now_ms)
    codec = _CODECS.get(settings.compression, header.compression)
    foreign = header.attributes & (_DELETE_HORIZON if settings.log_append_time else _LOG_APPEND_TIME | _DELETE_HORIZON)
    if settings.compacted or codec != header.compression or foreign:
        records = decode_batch(batch)
        if settings.compacted and any(record.key is None for record in records):
            raise InvalidRecord("a record of a compacted topic needs a key")
        if codec != header.compression or foreign:
            batch = encode_batch(
                records,
                base_offset=header.base_offset,
                compression=codec,
                attributes=header.attributes & _KEPT_ATTRIBUTES & ~foreign,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
            )
            header = read_header(batch)
    return Admitted(header, batch)


def make_batch(
    records: Sequence[Record],
    settings: TopicSettings,
    now_ms: int,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> Admitted:
    """A batch of the broker's own making, as its topic keeps it. Its records were held against the settings before:
    what `admit` would check of a stranger's batch is so by construction, but for the size."""
    batch = encode_batch(
        records,
        compression=_CODECS.get(settings.compression, 0),
        attributes=(_LOG_APPEND_TIME if settings.log_append_time else 0) | (TRANSACTIONAL if transactional else 0),
        max_timestamp_ms=now_ms if settings.log_append_time else None,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    check_size(len(batch), settings)
    return Admitted(read_header(batch), batch)


def check_size(size_bytes: int, settings: TopicSettings) -> None:
    if size_bytes > settings.max_message_bytes:
        raise RecordTooLarge(
            f"the batch has {size_bytes} bytes, the topic takes {settings.max_message_bytes} (max.message.bytes)"
        )


def check_record(record: Record, settings: TopicSettings, now_ms: int) -> None:
    """Whether a topic takes this record, apart from its size."""
    if settings.compacted and record.key is None:
        raise InvalidRecord("a record of a compacted topic needs a key")
    if not settings.log_append_time:
        _check_time_range(record.timestamp_ms, record.timestamp_ms, settings, now_ms)


def asks_of_records(settings: TopicSettings) -> bool:
    """Whether there is anything that `check_record` could find wrong."""
    return (
        settings.compacted or settings.timestamp_after_max_ms != FOREVER or settings.timestamp_before_max_ms != FOREVER
    )


def _checked(batch: bytearray | memoryview) -> BatchHeader:
    """The header of a sound batch. What was damaged on its way may be sent again; what was never a batch may not."""
    try:
        return check_batch(batch)
    except CorruptBatch as error:
        if _is_damaged(batch):
            raise
        raise InvalidRecord(f"not a record batch as it should be: {error}") from None


def _is_damaged(batch: bytearray | memoryview) -> bool:
    """Whether this would be a whole batch, but for its checksum."""
    if len(batch) < HEADER_BYTES or batch[16] != MAGIC:
        return False
    size_bytes = int.from_bytes(batch[8:LENGTH_END], "big", signed=True) + LENGTH_END
    if not HEADER_BYTES <= size_bytes <= len(batch):
        return False
    return crc32c(batch[CRC_START:size_bytes]) != int.from_bytes(batch[CRC_START - 4 : CRC_START], "big")


def _check_shape(header: BatchHeader, given_bytes: int, settings: TopicSettings) -> None:
    if header.size_bytes != given_bytes:
        raise InvalidRecord("exactly one record batch per partition is taken in one request")
    check_size(header.size_bytes, settings)
    if header.is_control:
        raise InvalidRecord("only the broker writes control batches")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecord("a transactional batch needs a producer id")
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(f"{header.record_count} records do not fill {header.last_offset_delta + 1} offsets")
    if header.compression > 4:
        raise UnsupportedCompression(f"compression codec {header.compression} is unknown")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRecord("a batch with a producer id needs an epoch and a sequence")


def _check_times(header: BatchHeader, settings: TopicSettings, now_ms: int) -> None:
    _check_time_range(header.base_timestamp_ms, header.max_timestamp_ms, settings, now_ms)


def _check_time_range(first_ms: int, newest_ms: int, settings: TopicSettings, now_ms: int) -> None:
    after_ms, before_ms = settings.timestamp_after_max_ms, settings.timestamp_before_max_ms
    if after_ms == FOREVER and before_ms == FOREVER:
        return
    if newest_ms > now_ms + after_ms:
        raise InvalidTimestamp(
            f"a timestamp lies more than {after_ms} ms in the future (message.timestamp.after.max.ms)"
        )
    if first_ms != NO_TIMESTAMP and first_ms < now_ms - before_ms:
        raise InvalidTimestamp(
            f"a timestamp lies more than {before_ms} ms in the past (message.timestamp.before.max.ms)"
        )
