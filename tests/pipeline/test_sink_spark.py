"""The sink as Spark calls it: every row once, whatever fails and is repeated."""

import datetime
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from sink_stories import FaultySource, ask, is_stable, records_in, values_in
from source_topics import create, numbered, publish, streaming

from penstock.testing.server import Server
from penstock.wire.native import messages as wire
from servers import StartServer

WITHIN_S = 60


def copy(
    spark: SparkSession,
    server: Server,
    source: str,
    target: str,
    checkpoint: Path,
    name: str = "penstock",
    **options: Any,
) -> StreamingQuery:
    """One run over what is there, value by value."""
    frame = streaming(spark, server, topics=source, startingOffsets="earliest", maxRecordsPerTrigger=80)
    return start(frame.select("key", "value"), server, target, checkpoint, name, **options)


def start(
    frame: DataFrame, server: Server, target: str, checkpoint: Path, name: str = "penstock", **options: Any
) -> StreamingQuery:
    texts = {key: str(value) for key, value in options.items()}
    writer = frame.writeStream.format(name).option("server", server.line).option("topic", target).options(**texts)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(WITHIN_S), "the query has not ended in time"


def fails(query: StreamingQuery) -> str:
    with pytest.raises(PySparkException) as failure:
        query.awaitTermination(WITHIN_S)
    return str(failure.value)


@pytest.fixture
def target(topic: str, server: Server) -> str:
    create(server, f"{topic}-out", 3)
    return f"{topic}-out"


@pytest.fixture
def source(topic: str, server: Server) -> str:
    create(server, topic, 2)
    publish(server, topic, numbered(60), 0)
    publish(server, topic, numbered(60, 60), 1)
    return topic


VALUES = sorted(f"v{n}" for n in range(120))


# -- what rows become ---------------------------------------------------------------------------------------------


def test_rows_become_records(spark: SparkSession, server: Server, topic: str) -> None:
    create(server, topic, 4)
    moment = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    rows = [
        ("k", b"\x00\xff", 3, moment, [("trace", b"1"), ("none", None)]),
        (None, None, None, None, None),
        ("ключ", b"", 0, moment, []),
    ]
    schema = (
        "key string, value binary, partition int, timestamp timestamp, headers array<struct<key string, value binary>>"
    )
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    frame.write.format("penstock").option("server", server.line).option("topic", topic).mode("append").save()
    found = {record.key: record for record in records_in(server, topic)}
    moment_ms = int(moment.timestamp() * 1000)
    assert (found[b"k"].value, found[b"k"].timestamp_ms) == (b"\x00\xff", moment_ms)
    assert found[b"k"].headers == (("trace", b"1"), ("none", None))
    assert found[None].value is None
    assert found[None].timestamp_ms > moment_ms
    assert found["ключ".encode()].value == b""
    with server.sync_client() as client:
        assert client.offsets(topic, 3).end > 0, "the partition that the row names"


def test_rows_choose_their_topic(spark: SparkSession, server: Server, topic: str) -> None:
    frame = spark.range(100).select(
        f.concat(f.lit(f"{topic}-"), (f.col("id") % 3).cast("string")).alias("topic"),
        f.col("id").cast("string").alias("value"),
    )
    frame.write.format("penstock").option("server", server.line).mode("append").save()
    for n in range(3):
        assert values_in(server, f"{topic}-{n}") == sorted(str(value) for value in range(100) if value % 3 == n)


def test_batch_write_with_a_name_is_done_once(spark: SparkSession, server: Server, topic: str) -> None:
    frame = spark.range(50).select(f.col("id").cast("string").alias("value"))

    def write(epoch: int) -> None:
        options = {"server": server.line, "topic": topic, "application": topic, "epoch": str(epoch)}
        frame.write.format("penstock").options(**options).mode("append").save()

    write(0)
    write(0)
    assert len(records_in(server, topic)) == 50
    write(1)
    assert len(records_in(server, topic)) == 100


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda frame: frame.withColumn("price", f.lit(1.5)), "a topic has no column 'price'"),
        (lambda frame: frame.withColumn("value", f.lit(1)), "column 'value' is int; it must be string or binary"),
    ],
    ids=["unknown-column", "wrong-type"],
)
def test_rows_that_are_no_records_are_refused(
    spark: SparkSession, server: Server, topic: str, change: Callable[[DataFrame], DataFrame], said: str
) -> None:
    frame = change(spark.range(1).select(f.col("id").cast("string").alias("value")))
    with pytest.raises(PySparkException, match=said):
        frame.write.format("penstock").option("server", server.line).option("topic", topic).mode("append").save()


def test_missing_topic_and_missing_server_are_told(spark: SparkSession, start_server: StartServer) -> None:
    server = start_server(auto_create_topics=False)
    frame = spark.range(1).select(f.col("id").cast("string").alias("value"))

    def write(**options: str) -> None:
        frame.write.format("penstock").options(topic="nowhere", **options).mode("append").save()

    with pytest.raises(PySparkException, match="penstock topic create nowhere"):
        write(server=server.line)
    with pytest.raises(PySparkException, match="is the server running"):
        write(server="127.0.0.1:1")
    with pytest.raises(PySparkException, match="never overwritten"):
        frame.write.format("penstock").options(topic="t", server=server.line).mode("overwrite").save()


# -- streams ------------------------------------------------------------------------------------------------------


def test_stream_goes_on_where_it_was(
    spark: SparkSession, server: Server, source: str, target: str, tmp_path: Path
) -> None:
    group = f"{source}-group"
    finish(copy(spark, server, source, target, tmp_path, group=group))
    assert values_in(server, target) == VALUES
    publish(server, source, numbered(30, 500), 1)
    finish(copy(spark, server, source, target, tmp_path, group=group))
    assert values_in(server, target) == sorted([*VALUES, *(f"v{n}" for n in range(500, 530))])
    with server.sync_client() as client:
        assert client.committed(group) == {(source, 0): 60, (source, 1): 90}
    assert all(is_stable(server, target, partition) for partition in range(3))


@pytest.mark.parametrize("point", ["task", "before", "after"])
def test_batch_that_failed_is_repeated_and_counts_once(
    spark: SparkSession, server: Server, source: str, target: str, tmp_path: Path, point: str
) -> None:
    spark.dataSource.register(FaultySource)
    flag = tmp_path / "flag"
    flag.touch()
    fault = {"fault": point, "flag": flag}
    said = fails(copy(spark, server, source, target, tmp_path / "checkpoint", "penstock_faulty", **fault))
    assert f"failed at '{point}'" in said
    seen = values_in(server, target)
    assert len(seen) == (80 if point == "after" else 0)
    assert all(is_stable(server, target, partition) for partition in range(3)), "the abort has freed readers"
    flag.unlink()
    finish(copy(spark, server, source, target, tmp_path / "checkpoint", "penstock_faulty", **fault))
    assert values_in(server, target) == VALUES


def test_attempts_of_a_dead_driver_are_aborted_by_the_repeat(
    spark: SparkSession, server: Server, source: str, target: str, tmp_path: Path
) -> None:
    """A dead driver aborts nothing: what it left open is ended by the commit of the one that comes after it."""
    spark.dataSource.register(FaultySource)
    flag = tmp_path / "flag"
    flag.touch()
    finish(copy(spark, server, source, target, tmp_path / "checkpoint", application=source))
    publish(server, source, numbered(40, 900), 0)
    batch = max(int(path.name) for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")) + 1
    from sink_stories import put, writer

    from penstock.pipeline.link import Link

    with Link(server.line, timeout_s=30) as link:
        left = writer(link, source, batch, "9-0")
        put(left, target, ["left behind"] * 30)
        left.finish()
    assert not all(is_stable(server, target, partition) for partition in range(3))
    finish(copy(spark, server, source, target, tmp_path / "checkpoint", application=source))
    assert values_in(server, target) == sorted([*VALUES, *(f"v{n}" for n in range(900, 940))])
    assert all(is_stable(server, target, partition) for partition in range(3))


def test_batch_of_a_driver_that_stays_dead_is_aborted_in_time_and_may_still_be_repeated(
    spark: SparkSession, server: Server, source: str, target: str, tmp_path: Path
) -> None:
    spark.dataSource.register(FaultySource)
    checkpoint, name = tmp_path / "checkpoint", "penstock_faulty"
    frame = streaming(spark, server, topics=source, startingOffsets="earliest").selectExpr(
        "key", "if(value = cast('v119' as binary), cast(raise_error('dies') as binary), value) as value"
    )
    dead = start(frame, server, target, checkpoint, name, fault="no abort", stepTimeout=1)
    assert "dies" in fails(dead)
    deadline = time.monotonic() + WITHIN_S
    while not all(is_stable(server, target, partition) for partition in range(3)):
        assert time.monotonic() < deadline, "what the dead driver left holds readers back"
        time.sleep(0.1)
    assert values_in(server, target) == []
    finish(copy(spark, server, source, target, checkpoint, name, stepTimeout=1))
    assert values_in(server, target) == VALUES


# -- checkpoints that lose entries --------------------------------------------------------------------------------


def last_batch(checkpoint: Path) -> int:
    return max(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))


def test_lost_commit_entry_is_a_repeat(
    spark: SparkSession, server: Server, source: str, target: str, tmp_path: Path
) -> None:
    finish(copy(spark, server, source, target, tmp_path))
    (tmp_path / "commits" / str(last_batch(tmp_path))).unlink()
    finish(copy(spark, server, source, target, tmp_path))
    assert values_in(server, target) == VALUES


def test_numbers_used_again_for_other_rows_stop_the_query(
    spark: SparkSession, server: Server, source: str, target: str, tmp_path: Path
) -> None:
    """As after a power failure that took the last entries: by its number alone the new batch would be skipped."""
    finish(copy(spark, server, source, target, tmp_path))
    last = last_batch(tmp_path)
    for folder in ("offsets", "commits"):
        (tmp_path / folder / str(last)).unlink()
    publish(server, source, numbered(7, 700), 0)
    said = fails(copy(spark, server, source, target, tmp_path))
    assert f"batch {last} of application" in said
    assert "made of other rows" in said
    assert "startingOffsets" in said
    assert values_in(server, target) == VALUES, "nothing was written, and nothing was passed over in silence"
    assert all(is_stable(server, target, partition) for partition in range(3))


def test_lost_entries_of_the_same_rows_are_a_repeat(
    spark: SparkSession, server: Server, source: str, target: str, tmp_path: Path
) -> None:
    finish(copy(spark, server, source, target, tmp_path))
    last = last_batch(tmp_path)
    for folder in ("offsets", "commits"):
        (tmp_path / folder / str(last)).unlink()
    finish(copy(spark, server, source, target, tmp_path))
    assert values_in(server, target) == VALUES


def test_lost_checkpoint_of_a_named_application_stops_the_query(
    spark: SparkSession, server: Server, source: str, target: str, tmp_path: Path
) -> None:
    finish(copy(spark, server, source, target, tmp_path / "c", application=source))
    shutil.rmtree(tmp_path / "c")
    publish(server, source, numbered(5, 800), 0)
    frame = streaming(spark, server, topics=source, startingOffsets="earliest").select("key", "value")
    said = fails(start(frame, server, target, tmp_path / "c", application=source))
    assert "made of other rows" in said
    assert values_in(server, target) == VALUES
    assert [epoch for epoch, _ in ask(server, wire.DescribeStep(source)).open] == []


def test_checkpoint_must_be_told(spark: SparkSession, server: Server, source: str, target: str, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        frame = streaming(spark, server, topics=source, startingOffsets="earliest").select("value")
        query = frame.writeStream.format("penstock").option("server", server.line).option("topic", target)
        said = fails(query.trigger(availableNow=True).start())
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert '.option("checkpointLocation", "...")' in said
    assert records_in(server, target) == []
