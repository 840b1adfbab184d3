"""A batch opens to what it was made of, and its header tells the truth about it."""

import copy
import pickle

import pytest
from batches import CODECS, NOON_MS, plain_records, record_lists, rich_records
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import batch
from penstock.model.batch import (
    check_batch,
    decode_batch,
    encode_batch,
    read_header,
    set_append_time,
    stamp,
)
from penstock.model.errors import CorruptBatch
from penstock.model.record import Record


@given(record_lists(), st.sampled_from(CODECS), st.binary(max_size=30), st.binary(max_size=30))
def test_batch_opens_to_what_it_was_made_of(records: list[Record], codec: int, before: bytes, after: bytes) -> None:
    made = encode_batch(records, compression=codec)
    placed = before + bytes(made) + after
    for buf in (placed, bytearray(placed), memoryview(placed)):
        assert check_batch(buf, len(before)).size_bytes == len(made)
        assert decode_batch(buf, len(before)) == records


@given(record_lists(), st.integers(-1, 2**62), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1))
def test_header_says_what_was_asked_for(records: list[Record], producer: int, epoch: int, sequence: int) -> None:
    made = encode_batch(
        records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, leader_epoch=7, attributes=0x10
    )
    header = read_header(made)
    assert (header.base_offset, header.end_offset) == (records[0].offset, records[-1].offset + 1)
    assert header.last_offset_delta == records[-1].offset - records[0].offset
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer, epoch, sequence)
    assert (header.size_bytes, header.end_position, header.record_count) == (len(made), len(made), len(records))
    assert header.base_timestamp_ms == records[0].timestamp_ms
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
    assert header.leader_epoch == 7
    assert header.is_transactional
    assert not header.is_control and not header.log_append_time and not header.has_delete_horizon


def test_sequences_wrap_to_zero_after_the_largest() -> None:
    made = encode_batch(plain_records(5), producer_id=1, producer_epoch=0, base_sequence=2**31 - 3)
    assert read_header(made).last_sequence == 1
    assert read_header(encode_batch(plain_records(5))).last_sequence == -1


def test_offsets_keep_their_holes_and_the_batch_its_range() -> None:
    survivors = [Record(12, NOON_MS, b"a", b"1"), Record(17, NOON_MS, b"b", b"2")]
    made = encode_batch(survivors, base_offset=10, last_offset_delta=9)
    header = check_batch(made)
    assert (header.base_offset, header.end_offset, header.record_count) == (10, 20, 2)
    assert decode_batch(made) == survivors


def test_batch_may_lose_all_its_records_and_keep_its_place() -> None:
    made = encode_batch([], base_offset=10, last_offset_delta=4, producer_id=9, producer_epoch=1, base_sequence=3)
    header = check_batch(made)
    assert (header.end_offset, header.record_count, header.last_sequence) == (15, 0, 7)
    assert decode_batch(made) == []
    with pytest.raises(ValueError, match="needs its offsets"):
        encode_batch([])


def test_stamping_moves_the_batch_without_touching_its_checksum() -> None:
    made = encode_batch(rich_records())
    crc = read_header(made).crc
    stamp(made, 2**40, 5)
    header = check_batch(made)
    assert (header.base_offset, header.leader_epoch, header.crc) == (2**40, 5, crc)
    assert [record.offset - 2**40 for record in decode_batch(made)] == [0, 1, 3, 4, 50]


def test_stamping_reaches_a_batch_in_the_middle_of_a_buffer() -> None:
    first, second = encode_batch(plain_records(1)), encode_batch(plain_records(2))
    buf = bytearray(first + second)
    stamp(memoryview(buf), 1, 0, len(first))
    assert buf[: len(first)] == first
    assert check_batch(buf, len(first)).base_offset == 1


@pytest.mark.parametrize("codec", CODECS)
def test_append_time_stands_for_every_record(codec: int) -> None:
    made = encode_batch(rich_records(), compression=codec)
    set_append_time(made, NOON_MS + 99)
    header = check_batch(made)
    assert header.log_append_time
    assert header.compression == codec
    assert header.max_timestamp_ms == NOON_MS + 99
    assert {record.timestamp_ms for record in decode_batch(made)} == {NOON_MS + 99}


def test_append_time_is_set_in_the_middle_of_a_buffer() -> None:
    first, second = encode_batch(plain_records(1)), encode_batch(plain_records(2))
    buf = bytearray(first + second)
    set_append_time(memoryview(buf), 5, len(first))
    assert buf[: len(first)] == first
    assert [record.timestamp_ms for record in decode_batch(buf, len(first))] == [5, 5]


@given(record_lists(), st.integers(0, 2**45))
def test_delete_horizon_takes_the_base_timestamp_and_no_record_notices(records: list[Record], horizon_ms: int) -> None:
    made = encode_batch(records, attributes=batch.DELETE_HORIZON, base_timestamp_ms=horizon_ms)
    header = check_batch(made)
    assert header.has_delete_horizon
    assert header.base_timestamp_ms == horizon_ms
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
    assert decode_batch(made) == records


def test_control_batches_open_like_others() -> None:
    marker = [Record(7, NOON_MS, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00")]
    made = encode_batch(marker, attributes=batch.CONTROL | batch.TRANSACTIONAL, producer_id=3, producer_epoch=0)
    header = read_header(made)
    assert header.is_control and header.is_transactional
    assert decode_batch(made) == marker


def test_extreme_timestamps_survive() -> None:
    records = [Record(0, -(2**62), None, None), Record(1, 2**62 - 1, None, None)]
    assert decode_batch(encode_batch(records)) == records


def test_timestamp_beyond_64_bits_is_corrupt() -> None:
    made = encode_batch([Record(0, 2**62, None, None)], base_timestamp_ms=0)
    made[27:35] = (2**63 - 1).to_bytes(8, "big")
    with pytest.raises(CorruptBatch, match="64 bits"):
        decode_batch(made)


def test_offsets_that_do_not_rise_are_refused() -> None:
    falling = [Record(5, 0, None, None), Record(5, 0, None, None)]
    with pytest.raises(ValueError, match="does not rise"):
        encode_batch(falling)
    with pytest.raises(ValueError, match="does not rise"):
        encode_batch(plain_records(2, offset=4), base_offset=5)


def test_records_are_values() -> None:
    record = Record(1, 2, b"k", b"v", (("h", None),))
    assert record == Record(1, 2, b"k", b"v", (("h", None),))
    assert record != Record(1, 2, b"k", b"v")
    assert record != "a record"
    assert len({record, copy.copy(record), pickle.loads(pickle.dumps(record))}) == 1
    assert eval(repr(record)) == record
