"""A table's values: what is inferred from them, and that the quick way to read them says what the law says."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.decoding import Decoder
from penstock.pipeline.inference import fields_of
from penstock.pipeline.table_values import Values

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("paid", pa.bool_()),
        ("small", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int64())])),
    ]
)

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
likely = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(2**63), 2**63 - 1) | scalars,
        "name": st.text(max_size=8) | scalars,
        "price": st.floats(allow_nan=False, allow_infinity=False) | scalars,
        "paid": st.booleans() | scalars,
        "small": st.integers(-(2**31), 2**31 - 1),
        "tags": st.lists(st.none() | st.text(max_size=4), max_size=3) | anything,
        "place": st.fixed_dictionaries(
            {}, optional={"city": st.text(max_size=4), "zip": st.integers(0, 9), "x": scalars}
        ),
        "new": anything,
        "other": scalars,
    },
)
documents = likely.map(lambda document: json.dumps(document).encode())
values_of = st.lists(
    st.none()
    | documents
    | likely.map(lambda document: json.dumps(document, indent=1, ensure_ascii=False).encode())
    | st.sampled_from(
        [b"", b"null", b"5", b"[]", b'{}, "w": 1', b"{} {}", b"\xff", b'{"id":1}}', b'{"id":1,"id":2}', b"{"]
    )
    | st.binary(max_size=12),
    max_size=12,
)


@settings(deadline=None, max_examples=200)
@given(values_of)
def test_quick_way_says_what_the_law_says(values: list[bytes | None]) -> None:
    array = pa.array(values, pa.binary())
    columns, reasons = Decoder("json", SCHEMA).decode(array)
    opened = Values("json", SCHEMA, notice_new=True).open(array)
    assert opened.reasons == reasons
    assert [column.to_pylist() for column in opened.columns] == [column.to_pylist() for column in columns]
    assert [column.type for column in opened.columns] == [column.type for column in columns]


@settings(deadline=None, max_examples=200)
@given(st.lists(likely, max_size=6))
def test_new_fields_are_noticed_either_way(rows: list[dict[str, Any]]) -> None:
    """Which way a batch goes must not decide which columns a table gets."""
    array = pa.array([json.dumps(row).encode() for row in rows], pa.binary())
    values = Values("json", SCHEMA, notice_new=True)
    opened = values.open(array)
    good = [row for number, row in enumerate(rows) if number not in opened.reasons]
    wanted = {name for name in fields_of(good) if name in ("new", "other")}
    assert set(opened.new) == wanted


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "Inf", "-Inf", "NaN", "-NaN"])
@pytest.mark.parametrize(
    "document",
    ['{"price": %s}', '{"other": %s}', '{"other": [1, [%s]]}', '{"other": {"x": %s}}', '{"place": {"x": %s}}'],
)
def test_what_is_no_number_in_json_is_none_in_any_field(number: str, document: str) -> None:
    array = pa.array([(document % number).encode(), b'{"id": 1, "name": "Inf"}'])
    _, reasons = Decoder("json", SCHEMA).decode(array)
    assert list(reasons) == [0]
    assert Values("json", SCHEMA, notice_new=True).open(array).reasons == reasons


@pytest.mark.parametrize("value", [b"1e999", b'"\xed\xa0\x80"'])
def test_field_that_cannot_be_opened_is_no_reason_where_nobody_asks_for_it(value: bytes) -> None:
    array = pa.array([b'{"id": 1, "other": %s}' % value, b'{"id": 2, "new": true}'], pa.binary())
    law, reasons = Decoder("json", SCHEMA).decode(array)
    opened = Values("json", SCHEMA, notice_new=True).open(array)
    assert opened.reasons == reasons
    assert opened.columns[0].to_pylist() == law[0].to_pylist()
    assert opened.new == {"new": pa.bool_()}


@pytest.mark.parametrize("levels", [999, 1_000, 5_000, 500_000])
@pytest.mark.parametrize(("opening", "inner", "closing"), [(b"[", b"", b"]"), (b'{"a":', b"1", b"}")])
def test_value_nested_without_end_hurts_nobody(levels: int, opening: bytes, inner: bytes, closing: bytes) -> None:
    """Arrow's reader would end the whole process."""
    deep = b'{"id": 1, "other": %s}' % (opening * levels + inner + closing * levels)
    array = pa.array([deep, b'{"id": 2, "new": true}'], pa.binary())
    _, reasons = Decoder("json", SCHEMA).decode(array)
    opened = Values("json", SCHEMA, notice_new=True).open(array)
    assert opened.reasons == reasons and 1 not in reasons
    assert opened.columns[0].to_pylist()[1] == 2
    assert opened.new["new"] == pa.bool_()


def test_quick_way_is_taken() -> None:
    values = Values("json", SCHEMA)
    array = pa.array([b'{"id":1,"name":"a","place":{"city":"b","more":[1]},"tags":[]}', None, b"null", b'{"x":\n1}'])
    assert values._open_quickly(array) is not None
    assert values._open_quickly(pa.array([b"[]"])) is None


@pytest.mark.parametrize(
    ("seen", "column"),
    [
        ([1, 2], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([2**70], pa.float64()),
        ([None, "x"], pa.string()),
        ([1, "x"], pa.string()),
        ([True, False], pa.bool_()),
        (["2026-01-31T12:00:00Z"], pa.string()),
        ([[1, None], [2.5]], pa.list_(pa.float64())),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([{"a": 1, "nothing": None}], pa.struct([("a", pa.int64())])),
        ([None], None),
        ([{}], None),
        ([[]], None),
        ([[], [None, [3]]], pa.list_(pa.list_(pa.int64()))),
    ],
)
def test_type_of_a_field_follows_from_what_was_seen(seen: list[Any], column: pa.DataType | None) -> None:
    found = fields_of([{"x": value} for value in seen])
    assert found == ({} if column is None else {"x": column})


def test_what_is_no_object_has_no_fields() -> None:
    assert fields_of([1, "x", [{"a": 1}], None, {"b": True}]) == {"b": pa.bool_()}
