"""Batches written from columns hold what the columns held: the batch codec, an implementation of its own, says so."""

from collections.abc import Sequence

import pytest
from batches import CODECS, NOON_MS, fields, headers, timestamps_ms
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.batch import TRANSACTIONAL, check_batch, decode_batch, encode_batch
from penstock.model.column_writer import ColumnWriter
from penstock.model.errors import InvalidRecord, UnknownPartition
from penstock.model.partitioner import partition_for_key
from penstock.model.record import Headers, Record

pa = pytest.importorskip("pyarrow")
columns = pytest.importorskip("penstock.pipeline.columns")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Row = tuple[bytes | None, bytes | None, Headers, int | None, int | None]

rows_of = st.lists(
    st.tuples(fields, fields, headers, st.none() | timestamps_ms, st.none() | st.integers(0, 2)), max_size=40
)


def add(
    writer: ColumnWriter, rows: Sequence[Row], *, kind: object = None, junk: int = 0
) -> list[tuple[int, bytearray]]:
    """The rows as arrays that were cut out of larger ones, `junk` rows before and after."""
    lost: Row = (b"lost", b"lost", (("lost", b"lost"),), 1, 1)
    all_rows = [lost] * junk + list(rows) + [lost] * junk

    def array(index: int, of: object) -> object:
        cells = [row[index] for row in all_rows]
        if index == 2:
            cells = [[{"key": name, "value": value} for name, value in row[2]] or None for row in all_rows]  # type: ignore[misc]
        return pa.array(cells, of).slice(junk, len(rows))

    return writer.add(
        len(rows),
        columns.bytes_column(array(0, pa.binary())),
        columns.bytes_column(array(1, pa.binary())),
        columns.header_column(array(2, HEADERS)),
        columns.numbers(array(3, pa.int64())),
        columns.numbers(array(4, pa.int32())),
        NOON_MS,
    )


def records_of(batches: Sequence[tuple[int, bytearray]], partition: int) -> list[Record]:
    found: list[Record] = []
    for index, batch in batches:
        if index == partition:
            header = check_batch(batch)
            assert header.base_sequence == len(found), "sequences go on from batch to batch"
            found += [
                Record(record.offset + len(found), record.timestamp_ms, record.key, record.value, record.headers)
                for record in decode_batch(batch)
            ]
    return found


@settings(deadline=None)
@given(
    st.lists(rows_of, max_size=3), st.integers(0, 9), st.sampled_from(CODECS), st.sampled_from((200, 2_000, 1 << 20))
)
def test_batches_hold_the_rows_in_order(parts: list[list[Row]], junk: int, codec: int, max_bytes: int) -> None:
    writer = ColumnWriter("t", 3, 7, 2, compression=codec, max_bytes=max_bytes, max_records=11)
    batches: list[tuple[int, bytearray]] = []
    for part in parts:
        batches += add(writer, part, junk=junk)
    batches += writer.flush()
    for _, batch in batches:
        header = check_batch(batch)
        assert (header.producer_id, header.producer_epoch, header.attributes) == (7, 2, TRANSACTIONAL | codec)
        assert 1 <= header.record_count <= 11
        assert codec or header.size_bytes <= max_bytes or header.record_count == 1
    rows = [row for part in parts for row in part]
    assert writer.records == len(rows)
    expected: dict[int, list[Record]] = {0: [], 1: [], 2: []}
    keyless: list[Record] = []
    for key, value, pairs, time_ms, partition in rows:
        record = Record(0, NOON_MS if time_ms is None else time_ms, key, value, pairs)
        if partition is None and key is None:
            keyless.append(record)
        else:
            expected[partition if partition is not None else partition_for_key(key or b"", 3)].append(record)
    if not keyless:
        for index, records in expected.items():
            numbered = [Record(n, r.timestamp_ms, r.key, r.value, r.headers) for n, r in enumerate(records)]
            assert records_of(batches, index) == numbered
    else:
        stored = [record for index in range(3) for record in records_of(batches, index)]
        wanted = [record for records in expected.values() for record in records] + keyless
        assert sorted(map(content, stored)) == sorted(map(content, wanted))


def content(record: Record) -> str:
    return repr((record.timestamp_ms, record.key, record.value, record.headers))


@settings(deadline=None)
@given(st.lists(st.tuples(fields, fields, headers, timestamps_ms, st.just(0)), min_size=1, max_size=20))
def test_the_bytes_are_those_of_the_batch_codec(rows: list[Row]) -> None:
    writer = ColumnWriter("t", 1, 9, 1)
    assert add(writer, rows) == []
    [(_, batch)] = writer.flush()
    records = [Record(n, row[3] or 0, row[0], row[1], row[2]) for n, row in enumerate(rows)]
    wanted = encode_batch(records, producer_id=9, producer_epoch=1, base_sequence=0, attributes=TRANSACTIONAL)
    assert bytes(batch) == bytes(wanted)


@pytest.mark.parametrize("kind", ["binary", "large_binary", "string", "large_string", "binary_view"])
def test_every_kind_of_string_is_taken(kind: str) -> None:
    text = kind.endswith("string")
    cells = ["ключ", None, "", "v" * 300] if text else ["ключ".encode(), None, b"", b"v" * 300]
    array = pa.array([cells[0], *cells, cells[0]], getattr(pa, kind)()).slice(1, 4)
    writer = ColumnWriter("t", 1, 1, 0)
    writer.add(4, None, columns.bytes_column(array), None, None, None, NOON_MS)
    [(_, batch)] = writer.flush()
    stored = [record.value for record in decode_batch(batch)]
    assert stored == ["ключ".encode(), None, b"", b"v" * 300]


def test_keyless_rows_take_turns_batch_by_batch() -> None:
    writer = ColumnWriter("t", 4, 1, 0, max_records=10, turn=2)
    batches = add(writer, [(None, b"v", (), None, None)] * 35) + writer.flush()
    assert [index for index, _ in batches] == [2, 3, 0, 1]


def test_without_a_producer_id_there_is_no_sequence() -> None:
    writer = ColumnWriter("t", 1, -1, -1, transactional=False)
    add(writer, [(None, b"v", (), None, None)])
    header = check_batch(writer.flush()[0][1])
    assert (header.base_sequence, header.attributes) == (-1, 0)


def test_partition_that_is_not_there_is_named() -> None:
    with pytest.raises(UnknownPartition, match="'t' has no partition 5; it has 0 to 1"):
        add(ColumnWriter("t", 2, 1, 0), [(None, b"v", (), None, 5)])


def test_header_without_a_name_is_refused() -> None:
    array = pa.array([[{"key": None, "value": b"v"}]], HEADERS)
    with pytest.raises(InvalidRecord, match="no name"):
        ColumnWriter("t", 1, 1, 0).add(1, None, None, columns.header_column(array), None, None, NOON_MS)
