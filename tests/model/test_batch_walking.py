"""Walking a run of batches: where it starts, where it stops, and what it refuses."""

import pytest
from batches import plain_records, record_lists
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.batch import check_batch, decode_batch, encode_batch, walk, whole_batches
from penstock.model.errors import CorruptBatch
from penstock.model.record import Record

FOREVER = 1 << 62


def run_of(*spans: tuple[int, int], value: bytes = b"value") -> tuple[bytes, list[int]]:
    """Batches that cover the offset spans, and the positions where they begin, the end last."""
    buf = bytearray()
    positions = [0]
    for base, end in spans:
        buf += encode_batch(plain_records(end - base, base, value))
        positions.append(len(buf))
    return bytes(buf), positions


def kinds(buf: bytes) -> tuple[bytes, bytearray, memoryview]:
    return buf, bytearray(buf), memoryview(buf)


def test_walk_starts_at_the_batch_that_holds_the_offset() -> None:
    data, at = run_of((10, 13), (13, 20), (20, 21))
    for buf in kinds(data):
        assert whole_batches(buf, 10, FOREVER, True) == (0, at[3], 21)
        assert whole_batches(buf, 12, FOREVER, True) == (0, at[3], 21)
        assert whole_batches(buf, 13, FOREVER, True) == (at[1], at[3], 21)
        assert whole_batches(buf, 20, FOREVER, True) == (at[2], at[3], 21)


def test_walk_stops_before_a_batch_that_begins_at_the_end_offset() -> None:
    data, at = run_of((0, 3), (3, 8), (8, 9))
    for buf in kinds(data):
        assert whole_batches(buf, 0, 8, True) == (0, at[2], 8)
        assert whole_batches(buf, 0, 4, True) == (0, at[2], 8)
        assert whole_batches(buf, 0, 3, True) == (0, at[1], 3)
        assert whole_batches(buf, 0, 0, True) == (0, 0, 0)


def test_walk_steps_over_holes_that_compaction_left() -> None:
    data, at = run_of((5, 7), (30, 31), (90, 99))
    for buf in kinds(data):
        assert whole_batches(buf, 0, FOREVER, True) == (0, at[3], 99)
        assert whole_batches(buf, 8, FOREVER, True) == (at[1], at[3], 99)
        assert whole_batches(buf, 31, FOREVER, True) == (at[2], at[3], 99)


def test_walk_past_the_end_finds_nothing_and_stays() -> None:
    data, at = run_of((0, 3), (3, 8))
    for buf in kinds(data):
        assert whole_batches(buf, 8, FOREVER, True) == (at[2], at[2], 8)
    assert whole_batches(b"", 8, FOREVER, True) == (0, 0, 8)


@pytest.mark.parametrize("value", [b"small", b"large" * 2000], ids=["small", "large"])
def test_batch_cut_short_at_the_end_is_left_out(value: bytes) -> None:
    data, at = run_of((0, 2), (2, 5), value=value)
    for size in range(0, len(data), 1 if len(data) < 1000 else 97):
        for buf in kinds(data[:size]):
            expected = (0, at[1], 2) if size >= at[1] else (0, 0, 0)
            assert whole_batches(buf, 0, FOREVER, True) == expected
            assert [header.end_offset for header in walk(buf)] == ([2] if size >= at[1] else [])
            if size > at[1]:
                assert whole_batches(buf, 3, FOREVER, True) == (at[1], at[1], 3)


def test_damage_is_found_in_what_is_returned_and_only_when_asked() -> None:
    data, at = run_of((0, 2), (2, 5), (5, 6))
    for position in (at[1] + 40, at[1] + 70):
        damaged = bytearray(data)
        damaged[position] ^= 1
        for buf in kinds(bytes(damaged)):
            with pytest.raises(CorruptBatch, match="offset 2"):
                whole_batches(buf, 0, FOREVER, True)
            assert whole_batches(buf, 0, FOREVER, False) == (0, at[3], 6)
            assert whole_batches(buf, 5, FOREVER, True) == (at[2], at[3], 6)
            assert whole_batches(buf, 0, 2, True) == (0, at[1], 2)
            assert len(walk(buf, verify=True)) == 1
            assert len(walk(buf)) == 3
            with pytest.raises(CorruptBatch, match="checksum"):
                check_batch(buf, walk(buf, verify=True)[-1].end_position)


def test_bytes_that_are_no_batch_are_refused() -> None:
    data, _ = run_of((0, 2))
    for junk in (bytes(100), b"\xff" * 100, b"not a batch" * 10):
        with pytest.raises(CorruptBatch):
            whole_batches(data + junk, 0, FOREVER, False)
        assert len(walk(data + junk)) == 1


def test_offsets_that_run_backwards_are_refused() -> None:
    data, at = run_of((10, 12), (11, 13))
    with pytest.raises(CorruptBatch, match="claims offset 11 after 12"):
        whole_batches(data, 0, FOREVER, False)
    assert [header.end_position for header in walk(data)] == [at[1]]


def test_walk_keeps_to_the_range_it_is_given() -> None:
    data, at = run_of((0, 2), (2, 5), (5, 6))
    assert [header.position for header in walk(data, at[1], at[2])] == [at[1]]
    assert [header.position for header in walk(data, at[1])] == at[1:3]
    assert walk(data, 0, at[1] - 1) == []
    assert walk(data, at[3]) == []
    assert len(walk(data, 0, 10**9)) == 3


@given(st.lists(record_lists(base=st.just(0)), min_size=1, max_size=8), st.integers(0, 9000), st.booleans())
def test_every_record_from_the_offset_on_is_in_the_range(lists: list[list[Record]], offset: int, verify: bool) -> None:
    buf = bytearray()
    base = 0
    for records in lists:
        moved = [Record(base + r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in records]
        base = moved[-1].offset + 1
        buf += encode_batch(moved)
    start, stop, next_offset = whole_batches(bytes(buf), offset, FOREVER, verify)
    assert (start, stop, next_offset) == whole_batches(memoryview(buf), offset, FOREVER, verify)
    everything = [record for header in walk(buf) for record in decode_batch(buf, header.position)]
    found = [record for header in walk(buf, start, stop) for record in decode_batch(buf, header.position)]
    assert [r for r in found if r.offset >= offset] == [r for r in everything if r.offset >= offset]
    assert next_offset == (base if found else offset)
