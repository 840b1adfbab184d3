"""The table job against a real server and a real Spark: each record is one row, or one quarantined record, once."""

import datetime
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sink_stories import FaultyTableSource, records_in
from source_topics import MOMENT_MS, create, publish

from penstock.model.message import DEAD_OFFSET, DEAD_PARTITION, DEAD_REASON, DEAD_TOPIC
from penstock.model.record import Record
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.jobs import table as job
from penstock.pipeline.jobs.table import TableOptions, TableResult
from penstock.pipeline.table_sink import TableDataSource
from penstock.pipeline.tables import FORMATS, open_table
from penstock.testing.server import Server

formats = pytest.mark.parametrize("kind", FORMATS)


def orders(first: int, count: int, **more: Any) -> list[dict[str, Any]]:
    nested: dict[str, Any] = {"tags": ["a", None], "place": {"city": "x"}, "lines": [{"sku": "s", "n": 1}]}
    return [{"id": n, "name": f"n{n}", "price": n / 2, **nested, **more} for n in range(first, first + count)]


def put(server: Server, topic: str, documents: Sequence[Any], partition: int = 0) -> None:
    records = [
        Record(n, MOMENT_MS + n, b"k", one if isinstance(one, bytes) else json.dumps(one).encode())
        for n, one in enumerate(documents)
    ]
    publish(server, topic, records, partition)


def options(server: Server, topic: str, home: Path, kind: str = "parquet", **more: Any) -> TableOptions:
    target = str(home / "lake" / "ns" / "t")
    given = {"server": server.line, "topics": [topic], "target": target, "checkpoint": str(home / "c"), "format": kind}
    return TableOptions(**{**given, **more})


def rows(chosen: TableOptions, *columns: str) -> list[dict[str, Any]]:
    table = open_table(chosen.format, chosen.target)
    return sorted(table.read(columns or None).to_pylist(), key=lambda row: json.dumps(row, default=str))


def ids(chosen: TableOptions) -> list[int]:
    return sorted(row["id"] for row in rows(chosen, "id"))


@pytest.fixture
def topic(topic: str, server: Server) -> str:
    create(server, topic, 2)
    return topic


@formats
def test_topic_becomes_a_table_and_the_table_grows(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path, kind: str
) -> None:
    put(server, topic, orders(0, 50), 0)
    put(server, topic, orders(50, 50), 1)
    chosen = options(server, topic, tmp_path, kind, partition_by="date", group=f"{topic}-g", max_records_per_trigger=60)
    result = job.run(spark, chosen)
    assert (result.rows, result.quarantined) == (100, 0)
    assert result.batches >= 2
    assert "`id` BIGINT, `name` STRING, `price` DOUBLE" in result.schema
    assert ids(chosen) == list(range(100))
    first = next(row for row in rows(chosen) if row["id"] == 3)
    assert first == {
        "id": 3,
        "name": "n3",
        "price": 1.5,
        "tags": ["a", None],
        "place": {"city": "x"},
        "lines": [{"sku": "s", "n": 1}],
        "date": datetime.date(2026, 1, 1),
        "_topic": topic,
        "_partition": 0,
        "_offset": 3,
        "_timestamp": datetime.datetime(2026, 1, 1, 0, 0, 0, 3000, tzinfo=datetime.UTC),
        "_key": b"k",
    }
    with server.sync_client() as client:
        assert client.committed(f"{topic}-g") == {(topic, 0): 50, (topic, 1): 50}

    put(server, topic, orders(100, 10, country="NL"), 0)
    put(server, topic, [b"not JSON", {"id": "text"}], 1)
    result = job.run(spark, chosen)
    assert (result.rows, result.quarantined) == (10, 2)
    assert "`country` STRING" in result.schema
    assert ids(chosen) == list(range(110))
    assert {row["country"] for row in rows(chosen, "id", "country") if row["id"] >= 100} == {"NL"}
    assert {row["country"] for row in rows(chosen, "id", "country") if row["id"] < 100} == {None}


def test_bad_records_are_set_aside_with_the_reason(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    put(server, topic, [{"id": 1}, b"nonsense", {"id": "one"}, b"", {"id": 2}], 1)
    publish(server, topic, [Record(0, MOMENT_MS, b"tombstone", None)])
    result = job.run(spark, options(server, topic, tmp_path, schema="id BIGINT NOT NULL"))
    assert (result.rows, result.quarantined) == (3, 3)
    found = records_in(server, f"{topic}.quarantine")
    assert [record.value for record in found] == [b"nonsense", b'{"id": "one"}', b""]
    told = [dict(record.headers) for record in found]
    assert [one[DEAD_OFFSET] for one in told] == [b"1", b"2", b"4"] or [one[DEAD_OFFSET] for one in told] == [
        b"1",
        b"2",
        b"3",
    ]
    assert {one[DEAD_TOPIC] for one in told} == {topic.encode()}
    assert {one[DEAD_PARTITION] for one in told} == {b"1"}
    assert b"malformed" in (told[0][DEAD_REASON] or b"")
    assert b"$.id" in (told[1][DEAD_REASON] or b"")
    assert {record.timestamp_ms for record in found} <= set(range(MOMENT_MS, MOMENT_MS + 5))


def test_fields_that_appear_while_it_runs_become_columns(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    """The sample is of the ends of the topic; what is new stands in its middle."""
    put(server, topic, orders(0, 20))
    put(server, topic, orders(20, 20, colour="red", size={"w": 1, "h": 2.5}, _topic=1, nothing=None))
    put(server, topic, orders(40, 20))
    starts: list[Any] = []
    chosen = options(server, topic, tmp_path, sample_records=8, max_records_per_trigger=25)
    result = job.run(spark, chosen, started=starts.append)
    assert len(starts) == 2
    assert result.rows == 60
    found = {row["id"]: row for row in rows(chosen)}
    assert len(found) == 60
    assert (found[25]["colour"], found[25]["size"]) == ("red", {"w": 1, "h": 2.5})
    assert (found[5]["colour"], found[5]["size"]) == (None, None)


def test_fields_that_nobody_wants_are_left_out(spark: SparkSession, server: Server, topic: str, tmp_path: Path) -> None:
    put(server, topic, orders(0, 5, secret=1))
    chosen = options(server, topic, tmp_path, schema="id BIGINT, at TIMESTAMP", metadata=False)
    job.run(spark, chosen)
    assert rows(chosen) == [{"id": n, "at": None} for n in range(5)]
    wider = options(server, topic, tmp_path, schema="id BIGINT, price DOUBLE", metadata=False)
    put(server, topic, orders(5, 1))
    job.run(spark, wider)
    assert rows(wider)[-1] == {"id": 5, "at": None, "price": 2.5}


def test_avro_and_raw_values(spark: SparkSession, server: Server, topic: str, tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "order",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
    }
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(schema))

    def encoded(record: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
        return stream.getvalue()

    values = [encoded({"id": 1, "note": "x"}), encoded({"id": 2, "note": None}), b"\xff\xff"]
    put(server, topic, values)
    chosen = options(
        server, topic, tmp_path, values="avro", schema=str(path), metadata=False, quarantine=f"{topic}-bad"
    )
    result = job.run(spark, chosen)
    assert (result.rows, result.quarantined) == (2, 1)
    assert rows(chosen) == [{"id": 1, "note": "x"}, {"id": 2, "note": None}]
    assert [record.value for record in records_in(server, f"{topic}-bad")] == [b"\xff\xff"]
    raw = options(server, topic, tmp_path / "raw", values="raw")
    (tmp_path / "raw").mkdir()
    assert job.run(spark, raw).rows == 3
    assert {row["value"] for row in rows(raw, "value")} == set(values)


def test_small_files_are_compacted_every_so_many_batches(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    chosen = options(server, topic, tmp_path, compact_every=2, max_records_per_trigger=10)
    put(server, topic, orders(0, 40))
    job.run(spark, chosen)
    assert ids(chosen) == list(range(40))
    files = list(Path(chosen.target).glob("*.parquet"))
    assert len(files) < 4
    put(server, topic, orders(40, 10))
    job.run(spark, chosen)
    assert job.compact(chosen.target) >= 2
    assert ids(chosen) == list(range(50))
    assert sorted(row.id for row in spark.read.parquet(chosen.target).select("id").collect()) == list(range(50))


# -- whatever fails -----------------------------------------------------------------------------------------------


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The job uses a sink that fails as long as this file is there."""
    monkeypatch.setattr("penstock.pipeline.table_sink.TableDataSource", FaultyTableSource)
    flag = tmp_path / "flag"
    flag.touch()
    yield flag
    FaultyTableSource.fault = {}


@pytest.mark.parametrize(
    ("kind", "point"),
    [("parquet", "before"), ("parquet", "between"), ("parquet", "after"), ("delta", "between"), ("iceberg", "between")],
)
def test_batch_that_failed_is_repeated_and_counts_once(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path, faults: Path, kind: str, point: str
) -> None:
    put(server, topic, orders(0, 30), 0)
    put(server, topic, [b"bad", *orders(30, 10)], 1)
    chosen = options(server, topic, tmp_path, kind, schema="id BIGINT, name STRING", group=topic)
    FaultyTableSource.fault = {"fault": point, "flag": str(faults)}
    with pytest.raises(PySparkException, match=f"failed at '{point}'"):
        job.run(spark, chosen)
    assert ids(chosen) == ([] if point == "before" else list(range(40)))
    faults.unlink()
    job.run(spark, chosen)
    assert ids(chosen) == list(range(40))
    assert len(records_in(server, f"{topic}.quarantine")) == 1
    with server.sync_client() as client:
        assert client.committed(topic) == {(topic, 0): 30, (topic, 1): 11}


@formats
def test_numbers_used_again_for_other_rows_stop_the_job(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path, kind: str
) -> None:
    put(server, topic, orders(0, 20))
    chosen = options(server, topic, tmp_path, kind)
    job.run(spark, chosen)
    for folder in ("offsets", "commits"):
        (tmp_path / "c" / folder / "0").unlink()
    put(server, topic, orders(20, 5))
    with pytest.raises(PySparkException, match=r"has published batch 0 of application .* before"):
        job.run(spark, chosen)
    assert ids(chosen) == list(range(20))


def test_what_is_wrong_is_said_before_anything_runs(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    def refused(said: str, **more: Any) -> TableResult | None:
        with pytest.raises(InvalidOption, match=said):
            return job.run(spark, options(server, topic, tmp_path, **more))
        return None

    refused("no table format 'orc'", kind="orc")
    refused("nothing in .* tells what the columns are")
    refused("cannot be understood", schema="id NUMBERS")
    refused("must be available-now, continuous", schema="id BIGINT", trigger="sometimes")
    refused("give it, as a file", values="avro")
    refused("cannot be read", values="avro", schema=str(tmp_path / "missing.avsc"))
    with pytest.raises(InvalidOption, match="there is no parquet table"):
        job.compact(str(tmp_path / "nothing"))


def test_real_sink_is_what_the_job_uses() -> None:
    assert TableDataSource.name() == FaultyTableSource.name() == "penstock_table"
