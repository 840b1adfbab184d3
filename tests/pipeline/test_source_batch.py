"""Batch reads: every column, every way to say what and from where to where, all against a real server and Spark."""

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn
from pyspark.testing import assertSchemaEqual
from source_topics import MOMENT_MS, create, fill, numbered, offsets, publish, reading, values

from penstock.model.record import Record
from penstock.testing.server import Server


def test_every_column_holds_what_was_published(spark: SparkSession, server: Server, topic: str) -> None:
    create(server, topic)
    publish(
        server,
        topic,
        [
            Record(0, MOMENT_MS, b"key", b"value", (("trace", b"1"), ("empty", None), ("trace", b"2"))),
            Record(1, MOMENT_MS + 1, None, None),
            Record(2, MOMENT_MS + 2, b"", b"", (("ü", b"\xff"),)),
        ],
    )
    frame = reading(spark, server, topics=topic)
    rows = frame.orderBy("offset").collect()
    assert [(row.key, row.value, row.topic, row.partition, row.offset) for row in rows[:3]] == [
        (b"key", b"value", topic, 0, 0),
        (None, None, topic, 0, 1),
        (b"", b"", topic, 0, 2),
    ]
    assert [[(one.key, one.value) for one in row.headers] for row in rows[:3]] == [
        [("trace", b"1"), ("empty", None), ("trace", b"2")],
        [],
        [("ü", b"\xff")],
    ]
    times = frame.selectExpr("unix_millis(timestamp) ms", "timestampType").orderBy("offset").collect()
    assert [(row.ms - MOMENT_MS, row.timestampType) for row in times] == [(0, 0), (1, 0), (2, 0)]
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]


def test_the_logs_own_time_is_told_apart(spark: SparkSession, server: Server, topic: str) -> None:
    create(server, topic, message_timestamp_type="LogAppendTime")
    publish(server, topic, [Record(0, 7, None, b"a")])
    row = reading(spark, server, topics=topic).selectExpr("unix_millis(timestamp) ms", "timestampType").first()
    assert row is not None
    assert row.ms > MOMENT_MS
    assert row.timestampType == 1


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batches_are_read_beside_others(spark: SparkSession, server: Server, topic: str, codec: int) -> None:
    create(server, topic)
    publish(server, topic, numbered(50))
    publish(server, topic, numbered(50, 50), compression=codec)
    publish(server, topic, numbered(50, 100))
    assert values(reading(spark, server, topics=topic)) == sorted(f"v{n}" for n in range(150))


def test_several_topics_by_name_by_pattern_and_by_partition(spark: SparkSession, server: Server, topic: str) -> None:
    first, second = f"{topic}.a", f"{topic}.b"
    fill(server, first, 2, count=3)
    fill(server, second, 1, count=2)
    both = reading(spark, server, topics=f"{first}, {second}")
    assert {row.topic: row["count"] for row in both.groupBy("topic").count().collect()} == {first: 6, second: 2}
    assert reading(spark, server, topicPattern=f"{topic}\\.[ab]").count() == 8
    assert reading(spark, server, topicPattern=f"{topic}\\.").count() == 0, "the whole name must match"
    assigned = reading(spark, server, assign=json.dumps({first: [1], second: [0]}))
    assert offsets(assigned.where(fn.col("topic") == first).collect()) == [(1, 0), (1, 1), (1, 2)]
    assert assigned.count() == 5


def test_load_takes_the_topics(spark: SparkSession, server: Server, topic: str) -> None:
    fill(server, topic, count=2)
    assert spark.read.format("penstock").option("server", server.line).load(topic).count() == 2


def test_offsets_say_where_to_begin_and_end(spark: SparkSession, server: Server, topic: str) -> None:
    fill(server, topic, 2, count=10)

    def read(start: object, end: object) -> list[tuple[int, int]]:
        start = start if isinstance(start, str) else json.dumps({topic: start})
        end = end if isinstance(end, str) else json.dumps({topic: end})
        frame = reading(spark, server, topics=topic, startingOffsets=start, endingOffsets=end)
        return offsets(frame.select("partition", "offset").collect())

    assert read({"0": 8, "1": 9}, "latest") == [(0, 8), (0, 9), (1, 9)]
    assert read({"0": 9, "1": 4}, {"0": -1, "1": 5}) == [(0, 9), (1, 4)]
    assert read({"0": -2, "1": -1}, {"0": 2}) == [(0, 0), (0, 1)]
    assert read("latest", "latest") == []
    assert len(read("earliest", "latest")) == 20


def test_times_say_where_to_begin_and_end(spark: SparkSession, server: Server, topic: str) -> None:
    fill(server, topic, count=10)
    by_number = reading(spark, server, topics=topic, startingTimestamp=MOMENT_MS + 7)
    assert values(by_number) == ["v7", "v8", "v9"]
    by_text = reading(spark, server, topics=topic, endingTimestamp="2026-01-01T00:00:00.003Z")
    assert values(by_text) == ["v0", "v1", "v2"]
    per_partition = reading(
        spark,
        server,
        topics=topic,
        startingOffsetsByTimestamp=json.dumps({topic: {"0": MOMENT_MS + 4}}),
        endingOffsetsByTimestamp=json.dumps({topic: {"0": MOMENT_MS + 6}}),
    )
    assert values(per_partition) == ["v4", "v5"]
    assert reading(spark, server, topics=topic, startingTimestamp=MOMENT_MS + 1_000_000).count() == 0


def test_only_the_columns_that_are_wanted(spark: SparkSession, server: Server, topic: str) -> None:
    fill(server, topic, count=3)
    frame = reading(spark, server, topics=topic, columns="offset, VALUE")
    assert frame.columns == ["offset", "value"]
    assert [(row.offset, bytes(row.value)) for row in frame.collect()] == [(0, b"v0"), (1, b"v1"), (2, b"v2")]
    assert "headers" not in reading(spark, server, topics=topic, includeHeaders="false").columns


def test_a_schema_that_is_given_chooses_and_orders_columns(spark: SparkSession, server: Server, topic: str) -> None:
    fill(server, topic, count=2)
    reader = spark.read.format("penstock").option("server", server.line).option("topics", topic)
    frame = reader.schema("offset LONG, key BINARY").load()
    assertSchemaEqual(frame.schema, spark.createDataFrame([], "offset LONG, key BINARY").schema)
    assert [(row.offset, bytes(row.key)) for row in frame.collect()] == [(0, b"k0"), (1, b"k1")]


def test_large_ranges_are_split_and_nothing_is_read_twice(spark: SparkSession, server: Server, topic: str) -> None:
    fill(server, topic, 2, count=100)
    for options, tasks in (({"minPartitions": 6}, 6), ({"maxRecordsPerPartition": 30}, 8), ({}, 2)):
        frame = reading(spark, server, topics=topic, **options)
        assert frame.rdd.getNumPartitions() == tasks
        assert len(offsets(frame.collect())) == len(set(offsets(frame.collect()))) == 200


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_of_one_query_are_not_those_of_the_next(
    spark: SparkSession, server: Server, topic: str, pushdown: str
) -> None:
    fill(server, topic, 3, count=10)
    before = spark.conf.get("spark.sql.python.filterPushdown.enabled")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        frame = reading(spark, server, topics=topic)
        assert offsets(frame.where("partition = 1 AND offset >= 4 AND offset < 6").collect()) == [(1, 4), (1, 5)]
        assert frame.where("partition = 0 OR offset = 3").count() == 12
        assert frame.where("partition = 0").union(frame.where("partition = 1")).count() == 20
        late = frame.where(fn.col("timestamp") >= fn.lit(datetime.fromtimestamp(MOMENT_MS / 1000 + 0.008, UTC)))
        assert offsets(late.where("partition = 0").collect()) == [(0, 8), (0, 9)]
        assert frame.count() == 30
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", str(before))


def test_an_empty_topic_gives_no_rows(spark: SparkSession, server: Server, topic: str) -> None:
    create(server, topic, 2)
    assert reading(spark, server, topics=topic).collect() == []


def test_the_format_is_known_to_sql(spark: SparkSession, server: Server, topic: str) -> None:
    fill(server, topic, count=3)
    view = topic.replace("-", "_").replace(".", "_")
    spark.sql(f"CREATE TEMPORARY VIEW `{view}` USING penstock OPTIONS (server '{server.line}', topics '{topic}')")
    assert spark.sql(f"SELECT CAST(value AS STRING) v FROM `{view}` WHERE offset = 2").collect() == [("v2",)]
    spark.catalog.dropTempView(view)
