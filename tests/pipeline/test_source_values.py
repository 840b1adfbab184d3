"""Values decoded into typed columns: what fits, what does not, and how that is told."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from source_topics import create, publish, reading

from penstock.model.record import Record
from penstock.pipeline.decoding import Decoder
from penstock.pipeline.errors import InvalidOption
from penstock.testing.server import Server

ORDER = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("small", pa.int8()),
        pa.field("price", pa.decimal128(8, 2)),
        pa.field("ratio", pa.float64()),
        pa.field("paid", pa.bool_()),
        pa.field("name", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("lines", pa.list_(pa.struct([("sku", pa.string()), ("n", pa.int32())]))),
        pa.field("more", pa.map_(pa.string(), pa.float64())),
        pa.field("place", pa.struct([("x", pa.int32()), ("at", pa.timestamp("us", "UTC"))])),
    ]
)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def decode(schema: pa.Schema, *values: bytes | None) -> tuple[list[dict[str, Any]], dict[int, str]]:
    columns, reasons = Decoder("json", schema).decode(pa.array(values, pa.binary()))
    for column in columns:
        column.validate(full=True)
    return pa.RecordBatch.from_arrays(columns, schema=schema).to_pylist(), reasons


def test_every_type_that_json_can_be_read_as() -> None:
    value = (
        b'{"id": 5, "small": -128, "price": "12.50", "ratio": 3, "paid": true, "name": "\xc3\xbc", "raw": "AAE=",'
        b'"day": "2026-01-31", "at": "2026-01-31T13:00:00+01:00", "local": "2026-01-31T12:00:00", "tags": ["a", null],'
        b'"lines": [{"sku": "s", "n": 2}, null, {}], "more": {"k": 1.5, "n": null}, "place": {"x": 1, "at": null},'
        b'"unknown": [1, {"deep": true}]}'
    )
    rows, reasons = decode(ORDER, value, None, b"{}", b"null")
    assert not reasons
    nothing = dict.fromkeys(ORDER.names)
    assert rows[1:] == [nothing, nothing, nothing]
    assert rows[0] == {
        "id": 5, "small": -128, "price": Decimal("12.50"), "ratio": 3.0, "paid": True, "name": "ü", "raw": b"\x00\x01",
        "day": date(2026, 1, 31), "at": NOON, "local": NOON.replace(tzinfo=None), "tags": ["a", None],
        "lines": [{"sku": "s", "n": 2}, None, {"sku": None, "n": None}], "more": [("k", 1.5), ("n", None)],
        "place": {"x": 1, "at": None},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"id": "5"}', r"Expected `int \| null`, got `str` - at `\$.id`"),
        (b'{"id": 9223372036854775808}', "id"),
        (b'{"small": 128}', r"small"),
        (b'{"price": "12345678.99"}', "price"),
        (b'{"paid": 1}', "paid"),
        (b'{"day": "yesterday"}', "day"),
        (b'{"at": 5}', "at"),
        (b'{"raw": "*"}', "raw"),
        (b'{"lines": [{"n": "two"}]}', "lines"),
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "got `array`"),
        (b"5", "got `int`"),
        (b'{"id": 1}{"id": 2}', "trailing"),
        (b'{"id": 1},"x": 2', "trailing"),
        (b'{"name": "\xff"}', "utf-8"),
        (b"[" * 100_000, ""),
    ],
)
def test_what_does_not_fit_is_told_and_leaves_the_others_alone(value: bytes, reason: str) -> None:
    import re

    rows, reasons = decode(ORDER, b'{"id": 1}', value, b'{"id": 3}')
    assert [row["id"] for row in rows] == [1, None, 3]
    assert set(rows[1].values()) == {None}
    assert list(reasons) == [1]
    assert re.search(reason, reasons[1], re.IGNORECASE), reasons[1]


def test_a_column_that_may_not_be_null_must_be_there() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    columns, reasons = Decoder("json", schema).decode(pa.array([b'{"id": 1}', b"{}", b'{"id": null}'], pa.binary()))
    assert columns[0].to_pylist() == [1, None, None]
    assert list(reasons) == [1, 2]


def test_a_type_that_json_has_not_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"cannot be read as .* the type of period"):
        Decoder("json", pa.schema([("period", pa.duration("us"))]))


# -- through Spark ------------------------------------------------------------------------------------------


def put(server: Server, topic: str, *contents: bytes | None) -> None:
    create(server, topic)
    publish(server, topic, [Record(n, n, b"k%d" % n, value) for n, value in enumerate(contents)])


def test_json_values_become_columns(spark: SparkSession, server: Server, topic: str) -> None:
    put(server, topic, b'{"id": 1, "name": "one", "tags": ["a"]}', b'{"id": 2}', None)
    schema = "id BIGINT, name STRING, tags ARRAY<STRING>, offset INT"
    frame = reading(spark, server, topics=topic, schema=schema, columns="key,offset")
    assert frame.dtypes == [
        ("id", "bigint"), ("name", "string"), ("tags", "array<string>"), ("offset", "int"), ("key", "binary"),
        ("_offset", "bigint"),
    ]  # fmt: skip
    assert [
        (row.id, row.name, row.tags, bytes(row.key), row._offset) for row in frame.orderBy("_offset").collect()
    ] == [
        (1, "one", ["a"], b"k0", 0),
        (2, None, None, b"k1", 1),
        (None, None, None, b"k2", 2),
    ]


def test_a_schema_may_be_sparks_own_json(spark: SparkSession, server: Server, topic: str) -> None:
    put(server, topic, b'{"id": 1, "at": {"x": 2}}')
    schema = spark.createDataFrame([], "id INT, at STRUCT<x: INT>").schema.json()
    frame = reading(spark, server, topics=topic, schema=schema, valueFormat="json", columns="value")
    assert [(row.id, row.at.x, bytes(row.value)[:1]) for row in frame.collect()] == [(1, 2, b"{")]


def test_a_value_that_does_not_fit_stops_the_read(spark: SparkSession, server: Server, topic: str) -> None:
    put(server, topic, b'{"id": 1}', b'{"id": "two"}')
    with pytest.raises(PythonException) as told:
        reading(spark, server, topics=topic, schema="id BIGINT").collect()
    said = str(told.value)
    assert f"the value at offset 1 of {topic}[0] does not fit the schema" in said
    assert "set the option mode to permissive" in said


def test_permissive_reads_on_and_tells(spark: SparkSession, server: Server, topic: str) -> None:
    put(server, topic, b'{"id": 1}', b'{"id": "two"}', b"rubbish", b'{"id": 4}')
    frame = reading(spark, server, topics=topic, schema="id BIGINT", mode="permissive", columns="value,offset")
    rows = frame.orderBy("offset").collect()
    assert [(row.id, row._corrupt is None, bytes(row.value)) for row in rows] == [
        (1, True, b'{"id": 1}'),
        (None, False, b'{"id": "two"}'),
        (None, False, b"rubbish"),
        (4, True, b'{"id": 4}'),
    ]
    assert "$.id" in rows[1]._corrupt


def test_avro_values_become_columns(spark: SparkSession, server: Server, topic: str) -> None:
    schema = {
        "type": "record",
        "name": "order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "line", "fields": [
                {"name": "sku", "type": "string"}, {"name": "more", "type": {"type": "map", "values": "int"}}]}}},
        ],
    }  # fmt: skip
    order = {"id": 1, "name": None, "price": Decimal("1.25"), "at": NOON, "lines": [{"sku": "s", "more": {"k": 1}}]}
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), order)
    put(server, topic, written.getvalue(), b"\x02", written.getvalue() + b"x", None)
    text = json.dumps(schema)
    frame = reading(spark, server, topics=topic, schema=text, mode="permissive", columns="offset")
    rows = frame.selectExpr("*", "unix_millis(at) ms").orderBy("offset").collect()
    assert (rows[0].id, rows[0].name, rows[0].price, rows[0].ms) == (1, None, Decimal("1.25"), 1769860800000)
    assert [(line.sku, line.more) for line in rows[0].lines] == [("s", {"k": 1})]
    assert [row.id for row in rows[1:]] == [None, None, None]
    assert [row._corrupt is None for row in rows] == [True, False, False, True]
