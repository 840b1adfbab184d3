"""Markers: what we write others read as Kafka's own, and what is none is told apart."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch

from penstock.model.batch import CONTROL, TRANSACTIONAL, check_batch, encode_batch
from penstock.model.errors import CorruptBatch
from penstock.model.marker import Marker, encode_marker, read_marker
from penstock.model.record import Record


@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_is_read_as_it_was_written(commit: bool) -> None:
    marker = encode_marker(2**40, 7, commit, 1_700_000_000_000, coordinator_epoch=3)
    header = check_batch(marker)
    assert (header.is_control, header.is_transactional) == (True, True)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 7, -1)
    assert (header.record_count, header.last_offset_delta, header.max_timestamp_ms) == (1, 0, -1)
    assert read_marker(marker) == Marker(commit, 3)
    assert read_marker(b"before" + marker, 6) == Marker(commit, 3)


@pytest.mark.parametrize("commit", [False, True])
def test_others_read_our_markers(commit: bool) -> None:
    batch = AioBatch(bytes(encode_marker(9, 1, commit, 1000)))
    assert (batch.is_control_batch, batch.is_transactional, batch.producer_id) == (True, True, 9)
    assert batch.validate_crc()
    (record,) = list(batch)
    assert record.key == (b"\x00\x00\x00\x01" if commit else b"\x00\x00\x00\x00")
    assert record.value == b"\x00\x00\x00\x00\x00\x00"


def test_other_control_batches_end_nothing() -> None:
    def control(key: bytes | None, value: bytes | None) -> bytearray:
        return encode_batch([Record(0, 0, key, value)], attributes=CONTROL | TRANSACTIONAL)

    assert read_marker(control(b"\x00\x00\x00\x02", b"leader change")) is None
    assert read_marker(encode_batch([], base_offset=0, last_offset_delta=0, attributes=CONTROL)) is None
    for key, value in ((None, b""), (b"\x00", b""), (b"\x00\x00\x00\x01", b"\x00"), (b"\x00\x00\x00\x00", None)):
        with pytest.raises(CorruptBatch):
            read_marker(control(key, value))
