"""Columns hold what records hold: whatever opens one way opens the other, and what is refused is refused by both."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, check_batch, decode_batch, encode_batch
from penstock.model.column_reader import HEADERS, KEY, OFFSET, TIMESTAMP, VALUE, Aborted, Columns, read_columns
from penstock.model.errors import CorruptBatch
from penstock.model.record import Headers, Record

ALL = KEY | VALUE | TIMESTAMP | OFFSET | HEADERS
EVER = 1 << 62
MANY = 1 << 30

fields = st.one_of(st.none(), st.binary(max_size=200))
header_lists = st.lists(st.tuples(st.text(max_size=8), fields), max_size=3).map(tuple)
bodies = st.tuples(fields, fields, header_lists, st.integers(-(2**52), 2**52), st.integers(1, 50))


def made(contents: Sequence[tuple[bytes | None, bytes | None, Headers, int, int]], first: int = 0) -> list[Record]:
    records = []
    offset = first
    for key, value, headers, timestamp_ms, gap in contents:
        records.append(Record(offset, timestamp_ms, key, value, headers))
        offset += gap
    return records


def strings(spans: bytes, data: bytes, rows: int, first: int, stride: int, validity: bytes) -> list[bytes | None]:
    numbers = struct.unpack(f"<{len(spans) // 4}i", spans)
    assert list(numbers) == sorted(numbers), "Arrow's offsets never fall"
    assert len(validity) in (0, (rows + 7) // 8)
    return [
        data[numbers[stride * row + first] : numbers[stride * row + first + 1]]
        if not validity or validity[row >> 3] >> (row & 7) & 1
        else None
        for row in range(rows)
    ]


def records_of(columns: Columns) -> list[Record]:
    """The way back, from all columns."""
    rows = columns.rows
    spans = columns.spans.getvalue()
    keys = strings(spans, columns.data, rows, 0, 4, columns.key_validity())
    values = strings(spans, columns.data, rows, 2, 4, columns.value_validity())
    offsets = struct.unpack(f"<{rows}q", columns.offsets.getvalue())
    times = struct.unpack(f"<{rows}q", columns.times.getvalue())
    counts = struct.unpack(f"<{rows + 1}i", columns.header_counts.getvalue())
    header_spans, held = columns.header_spans.getvalue(), columns.header_rows
    names = strings(header_spans, columns.data, held, 0, 4, b"")
    contents = strings(header_spans, columns.data, held, 2, 4, columns.header_validity())
    pairs = [(name.decode(), value) for name, value in zip(names, contents, strict=True) if name is not None]
    assert sum(run for run, _ in columns.time_runs) == rows
    return [
        Record(offset, time // 1000, key, value, tuple(pairs[counts[row] : counts[row + 1]]))
        for row, (offset, time, key, value) in enumerate(zip(offsets, times, keys, values, strict=True))
    ]


def read_all(batches: bytes, first: int = 0, end: int = EVER, **options: int) -> list[Record]:
    records: list[Record] = []
    position = 0
    while position < len(batches):
        columns = read_columns(
            batches, position, first, end, ALL, options.get("max_rows", MANY), options.get("max_bytes", MANY)
        )
        assert columns.position > position
        position = columns.position
        records += records_of(columns)
    return records


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.lists(bodies, min_size=1, max_size=12), st.integers(0, 4)), min_size=1, max_size=5), st.data()
)
def test_columns_hold_what_records_hold(plans: list[tuple[list, int]], data: st.DataObject) -> None:  # type: ignore[type-arg]
    batches, expected, first = bytearray(), [], 0
    for contents, codec in plans:
        records = made(contents, first)
        batches += encode_batch(records, compression=codec)
        expected += records
        first = records[-1].offset + 1 + data.draw(st.integers(0, 3))
    low = data.draw(st.integers(0, first))
    high = data.draw(st.integers(0, first + 1))
    kept = [record for record in expected if low <= record.offset < high]
    assert read_all(bytes(batches), low, high) == kept
    assert read_all(bytes(batches), max_rows=data.draw(st.integers(1, 20))) == expected
    assert read_all(bytes(batches), max_bytes=data.draw(st.integers(1, 2_000))) == expected


@pytest.mark.parametrize("wanted", range(32))
def test_only_what_is_wanted_is_built(wanted: int) -> None:
    records = [Record(0, 1, b"k0", None, (("h", b"1"),)), Record(1, 2, None, b"v1"), Record(2, 3, b"k2", b"v2")]
    columns = read_columns(bytes(encode_batch(records)), 0, 0, EVER, wanted, MANY, MANY)
    assert columns.rows == 3
    spans = 2 * bool(wanted & KEY) + 2 * bool(wanted & VALUE)
    assert len(columns.spans.getvalue()) == 4 * 3 * spans
    assert len(columns.offsets.getvalue()) == (24 if wanted & OFFSET else 0)
    assert len(columns.times.getvalue()) == (24 if wanted & TIMESTAMP else 0)
    assert columns.header_rows == (1 if wanted & HEADERS else 0)
    if wanted & KEY:
        found = strings(columns.spans.getvalue(), columns.data, 3, 0, spans, columns.key_validity())
        assert found == [b"k0", None, b"k2"]
    if wanted & VALUE:
        found = strings(columns.spans.getvalue(), columns.data, 3, spans - 2, spans, columns.value_validity())
        assert found == [None, b"v1", b"v2"]


def test_the_logs_time_stands_for_the_records_own() -> None:
    own = encode_batch([Record(0, 5, None, b"a"), Record(1, 6, None, b"b")])
    logs = encode_batch([Record(2, 5, None, b"c")], attributes=LOG_APPEND_TIME, max_timestamp_ms=99)
    columns = read_columns(bytes(own + logs), 0, 0, EVER, ALL, MANY, MANY)
    assert [record.timestamp_ms for record in records_of(columns)] == [5, 6, 99]
    assert columns.time_runs == [(2, 0), (1, 1)]


def test_a_time_beyond_what_microseconds_hold_is_held_at_the_end() -> None:
    records = [Record(0, 2**62, None, b"late"), Record(1, -(2**62), None, b"early"), Record(2, -1, None, b"none")]
    columns = read_columns(bytes(encode_batch(records)), 0, 0, EVER, TIMESTAMP, MANY, MANY)
    late, early, none = struct.unpack("<3q", columns.times.getvalue())
    assert (late, early, none) == (9_223_372_036_854_775_000, -9_223_372_036_854_775_000, -1000)


def test_control_batches_and_aborted_transactions_are_left_out() -> None:
    def batch(offset: int, producer_id: int, attributes: int = TRANSACTIONAL) -> bytearray:
        return encode_batch([Record(offset, 0, None, b"%d" % offset)], producer_id=producer_id, attributes=attributes)

    batches = batch(0, 7) + batch(1, 8) + batch(2, 7) + batch(3, 7, TRANSACTIONAL | CONTROL)
    batches += batch(4, 7) + batch(5, 7, attributes=0)
    columns = read_columns(bytes(batches), 0, 0, EVER, ALL, MANY, MANY, Aborted([(7, 0, 3), (9, 0, 9)]))
    assert [record.offset for record in records_of(columns)] == [1, 4, 5]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 9)), max_size=30))
def test_aborted_ranges_are_found_by_producer_and_offset(gaps: list[tuple[int, int, int]]) -> None:
    ranges, at = [], 0
    for producer_id, gap, size in gaps:
        ranges.append((producer_id, at + gap, at + gap + size - 1))
        at += gap + size
    aborted = Aborted(reversed(ranges))
    for producer_id in range(5):
        for offset in range(at + 2):
            held = any(one == producer_id and first <= offset <= last for one, first, last in ranges)
            assert aborted.holds(producer_id, offset) == held


def test_nothing_is_read_beyond_the_end_and_nothing_of_it_is_opened() -> None:
    batches = bytes(encode_batch([Record(0, 0, None, b"a")])) + b"".join(
        bytes(encode_batch([Record(offset, 0, None, b"b")])) for offset in range(5, 9)
    )
    columns = read_columns(batches, 0, 0, 5, ALL, MANY, MANY)
    assert columns.rows == 1
    assert columns.position == len(batches)


def test_a_wrong_checksum_is_refused() -> None:
    batch = encode_batch([Record(0, 0, b"k", b"value")])
    batch[-2] ^= 1
    with pytest.raises(CorruptBatch, match="checksum"):
        read_columns(bytes(batch), 0, 0, EVER, ALL, MANY, MANY)


def test_a_batch_cut_short_is_refused() -> None:
    batch = bytes(encode_batch([Record(0, 0, b"k", b"value")]))
    for size in range(1, len(batch)):
        with pytest.raises(CorruptBatch):
            read_columns(batch[:size], 0, 0, EVER, ALL, MANY, MANY)


def sealed(batch: bytearray) -> bytes:
    """With a checksum that is right, whatever stands in it."""
    from crc32c import crc32c

    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


@settings(max_examples=500, deadline=None)
@given(st.lists(bodies, min_size=1, max_size=4), st.data())
def test_damage_within_a_right_checksum_is_refused_by_both_or_by_neither(contents: list, data: st.DataObject) -> None:  # type: ignore[type-arg]
    batch = encode_batch(made(contents))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(23, len(batch) - 1))] = data.draw(st.integers(0, 255))
    damaged = sealed(batch)
    try:
        check_batch(damaged)
        expected = decode_batch(damaged)
    except CorruptBatch as error:
        if "UTF-8" in str(error):  # seen to when names become strings
            return
        with pytest.raises(CorruptBatch):
            read_columns(damaged, 0, 0, EVER, ALL, MANY, MANY)
        return
    columns = read_columns(damaged, 0, -(2**62), EVER, ALL, MANY, MANY)
    assert [(one.offset, one.key, one.value, one.headers) for one in records_of(columns)] == [
        (one.offset, one.key, one.value, one.headers) for one in expected
    ]


def test_batch_that_claims_no_records_and_has_some_is_refused() -> None:
    batch = encode_batch([Record(0, 1, None, b"x")])
    struct.pack_into(">i", batch, 57, 0)
    with pytest.raises(CorruptBatch):
        read_columns(sealed(batch), 0, 0, EVER, ALL, MANY, MANY)


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_and_nothing_else_happens(rubbish: bytes) -> None:
    if rubbish:
        with pytest.raises(CorruptBatch):
            read_columns(rubbish, 0, 0, EVER, ALL, MANY, MANY)
