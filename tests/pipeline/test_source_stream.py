"""Streams: every record once, as much at a time as was asked for, and progress that everybody sees."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from source_topics import create, delete_before, fill, numbered, publish, reading, streaming

from penstock.client.blocking import BlockingConnection
from penstock.model.record import Record
from penstock.pipeline.offsets import from_json
from penstock.pipeline.progress import lag_of
from penstock.testing.server import Server
from penstock.wire.native import messages as wire

WITHIN_S = 90


class Sink:
    """Rows of each micro-batch, by the batch's number."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int, str]]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("partition", "offset", "value").collect()
        self.batches[batch_id] = sorted((row.partition, row.offset, bytes(row.value).decode()) for row in rows)

    @property
    def rows(self) -> list[tuple[int, int, str]]:
        return sorted(row for batch in self.batches.values() for row in batch)

    @property
    def values(self) -> list[str]:
        return sorted(value for _, _, value in self.rows)


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "checkpoint")


def begin(frame: DataFrame, sink: Sink, checkpoint: str, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def run(frame: DataFrame, sink: Sink, checkpoint: str) -> StreamingQuery:
    """What is available, to its end."""
    query = begin(frame, sink, checkpoint)
    try:
        assert query.awaitTermination(WITHIN_S), "the query has not come to its end"
    finally:
        query.stop()
    return query


def committed(server: Server, group: str) -> dict[tuple[str, int], int]:
    with BlockingConnection(server.line) as connection:
        return {(topic, part): at for topic, part, at in connection.request(wire.Committed(group)).offsets}


def numbers(count: int, first: int = 0) -> list[str]:
    return sorted(f"v{n}" for n in range(first, first + count))


def test_what_is_available_is_read_once_over_several_runs(
    spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str
) -> None:
    fill(server, topic, 2, count=5)
    frame = streaming(spark, server, topics=topic, startingOffsets="earliest")
    run(frame, sink, checkpoint)
    assert sink.values == sorted(numbers(5) + numbers(5, 1000))
    run(frame, sink, checkpoint)
    assert len(sink.rows) == 10
    publish(server, topic, numbered(3, 5))
    run(frame, sink, checkpoint)
    assert len(sink.rows) == 13
    assert len(set(sink.rows)) == 13


def test_a_stream_begins_at_the_end_unless_told_otherwise(
    spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str
) -> None:
    fill(server, topic, count=5)
    frame = streaming(spark, server, topics=topic)
    run(frame, sink, checkpoint)
    assert sink.rows == []
    publish(server, topic, numbered(2, 5))
    run(frame, sink, checkpoint)
    assert sink.values == ["v5", "v6"]


@pytest.mark.parametrize("way", ["offsets", "time", "committed"])
def test_where_to_begin_can_be_said(
    spark: SparkSession, server: Server, topic: str, group: str, sink: Sink, checkpoint: str, way: str
) -> None:
    fill(server, topic, count=10)
    if way == "committed":
        with BlockingConnection(server.line) as connection:
            connection.request(wire.Commit(group, [(topic, 0, 7)]))
    said = {
        "offsets": {"startingOffsets": json.dumps({topic: {"0": 7}})},
        "time": {"startingTimestamp": "2026-01-01T00:00:00.007Z"},
        "committed": {"startingOffsets": "committed", "group": group},
    }[way]
    run(streaming(spark, server, topics=topic, **said), sink, checkpoint)
    assert sink.values == ["v7", "v8", "v9"]


def test_no_batch_is_larger_than_allowed(
    spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str
) -> None:
    create(server, topic, 3)
    for partition, count in enumerate((70, 20, 3)):
        publish(server, topic, numbered(count, 1000 * partition), partition)
    frame = streaming(spark, server, topics=topic, startingOffsets="earliest", maxRecordsPerTrigger=25)
    run(frame, sink, checkpoint)
    sizes = [len(sink.batches[number]) for number in sorted(sink.batches)]
    assert sizes == [25, 25, 25, 18]
    assert len(set(sink.rows)) == 93
    assert {partition for partition, _, _ in sink.batches[0]} >= {0, 1}, "no partition waits for another's end"


def test_bytes_bound_a_batch_too(spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str) -> None:
    create(server, topic)
    for first in range(0, 100, 10):
        publish(server, topic, [Record(n, n, None, b"x" * 1000) for n in range(first, first + 10)])
    run(streaming(spark, server, topics=topic, startingOffsets="earliest", maxBytesPerTrigger="25k"), sink, checkpoint)
    sizes = [len(sink.batches[number]) for number in sorted(sink.batches)]
    assert sum(sizes) == 100
    assert max(sizes) <= 30
    assert len(sizes) >= 4


def test_both_bounds_hold(spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str) -> None:
    create(server, topic)
    publish(server, topic, [Record(n, n, None, b"x" * 1000) for n in range(40)])
    options = {"maxBytesPerTrigger": "10k", "maxRecordsPerTrigger": 35}
    run(streaming(spark, server, topics=topic, startingOffsets="earliest", **options), sink, checkpoint)
    assert max(len(batch) for batch in sink.batches.values()) <= 12
    assert len(sink.rows) == 40


def test_what_comes_after_the_beginning_is_not_available_to_it(
    spark: SparkSession, server: Server, topic: str, checkpoint: str
) -> None:
    fill(server, topic, count=10)
    seen: list[str] = []

    def add_more(frame: DataFrame, batch_id: int) -> None:
        seen.extend(bytes(row.value).decode() for row in frame.collect())
        publish(server, topic, numbered(5, 100 * (batch_id + 1)))

    frame = streaming(spark, server, topics=topic, startingOffsets="earliest", maxRecordsPerTrigger=4)
    query = frame.writeStream.foreachBatch(add_more).option("checkpointLocation", checkpoint)
    running = query.trigger(availableNow=True).start()
    try:
        assert running.awaitTermination(WITHIN_S)
    finally:
        running.stop()
    assert sorted(seen) == numbers(10)


def test_partitions_and_topics_that_appear_are_read_from_their_first_record(
    spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str
) -> None:
    fill(server, f"{topic}.1", 1, count=2)
    frame = streaming(spark, server, topicPattern=f"{topic}.*", startingOffsets="latest")
    run(frame, sink, checkpoint)
    with BlockingConnection(server.line) as connection:
        connection.request(wire.AlterTopic(f"{topic}.1", partitions=3))
    publish(server, f"{topic}.1", numbered(2, 50), 2)
    fill(server, f"{topic}.2", 1, count=2)
    run(frame, sink, checkpoint)
    assert sink.rows == [(0, 0, "v0"), (0, 1, "v1"), (2, 0, "v50"), (2, 1, "v51")]


def test_a_running_stream_sees_a_topic_grow(
    spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str
) -> None:
    fill(server, topic, 1, count=2)
    query = begin(
        streaming(spark, server, topics=topic, startingOffsets="earliest"), sink, checkpoint, processingTime="0 seconds"
    )
    try:
        query.processAllAvailable()
        assert len(sink.rows) == 2
        with BlockingConnection(server.line) as connection:
            connection.request(wire.AlterTopic(topic, partitions=2))
        publish(server, topic, numbered(3, 50), 1)
        query.processAllAvailable()
        assert sink.values == ["v0", "v1", "v50", "v51", "v52"]
    finally:
        query.stop()


def test_progress_is_committed_to_the_group_up_to_the_last_batch(
    spark: SparkSession, server: Server, topic: str, group: str, sink: Sink, checkpoint: str
) -> None:
    fill(server, topic, 2, count=10)
    options = {"startingOffsets": "earliest", "group": group, "maxRecordsPerTrigger": 8}
    run(streaming(spark, server, topics=topic, **options), sink, checkpoint)
    assert len(sink.rows) == 20
    assert committed(server, group) == {(topic, 0): 10, (topic, 1): 10}
    publish(server, topic, numbered(4))
    with BlockingConnection(server.line) as connection:
        lag = {one.partition: one.end - one.committed for one in connection.request(wire.DescribeGroup(group)).offsets}
    assert lag == {0: 4, 1: 0}
    described = subprocess.run(
        [sys.executable, "-m", "penstock", "group", "describe", group, "--server", server.line, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert {one["partition"]: one["lag"] for one in json.loads(described.stdout)["offsets"]} == {0: 4, 1: 0}


def test_a_batch_that_fails_is_not_committed(
    spark: SparkSession, server: Server, topic: str, group: str, sink: Sink, checkpoint: str
) -> None:
    fill(server, topic, count=10)

    def refuse(frame: DataFrame, batch_id: int) -> None:
        sink(frame, batch_id)
        if batch_id == 1:
            raise RuntimeError("no room")

    options = {"startingOffsets": "earliest", "group": group, "maxRecordsPerTrigger": 4}
    frame = streaming(spark, server, topics=topic, **options)
    query = frame.writeStream.foreachBatch(refuse).option("checkpointLocation", checkpoint)
    running = query.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="no room"):
        running.awaitTermination(WITHIN_S)
    running.stop()
    assert committed(server, group) == {(topic, 0): 4}
    run(frame, sink, checkpoint)
    assert committed(server, group) == {(topic, 0): 10}
    assert len(sink.rows) == 10


def test_the_query_tells_how_far_behind_it_is(
    spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str
) -> None:
    fill(server, topic, count=10)
    options = {"startingOffsets": "earliest", "maxRecordsPerTrigger": 4}
    query = run(streaming(spark, server, topics=topic, **options), sink, checkpoint)
    source = next(one["sources"][0] for one in query.recentProgress if one["numInputRows"])
    assert from_json(offsets_of(source["endOffset"])) == {(topic, 0): 4}
    assert from_json(offsets_of(source["latestOffset"])) == {(topic, 0): 10}
    assert lag_of({"sources": [source]}) == 6


def offsets_of(told: Any) -> Any:
    return json.loads(told) if isinstance(told, str) else told


def test_a_stream_can_split_its_ranges(
    spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str
) -> None:
    fill(server, topic, 1, count=100)
    run(streaming(spark, server, topics=topic, startingOffsets="earliest", minPartitions=5), sink, checkpoint)
    assert sink.values == numbers(100)


# -- what is lost -------------------------------------------------------------------------------------------


def recreate(server: Server, topic: str, count: int) -> None:
    with BlockingConnection(server.line) as connection:
        connection.request(wire.DeleteTopic(topic))
    create(server, topic)
    publish(server, topic, numbered(count, 500))


def test_a_topic_made_anew_stops_the_query(
    spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str
) -> None:
    fill(server, topic, count=10)
    frame = streaming(spark, server, topics=topic, startingOffsets="earliest")
    run(frame, sink, checkpoint)
    recreate(server, topic, 3)
    with pytest.raises(StreamingQueryException, match=r"is not the one that was read up to here.*failOnDataLoss"):
        run(frame, sink, checkpoint)
    lenient = streaming(spark, server, topics=topic, failOnDataLoss="false")
    run(lenient, sink, checkpoint)
    assert sink.values == sorted([*numbers(10), "v500", "v501", "v502"])


def test_a_topic_that_is_gone_stops_the_query(
    spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str
) -> None:
    fill(server, f"{topic}.1", count=2)
    fill(server, f"{topic}.2", count=3)
    both = {"topics": f"{topic}.1,{topic}.2", "startingOffsets": "earliest"}
    run(streaming(spark, server, **both), sink, checkpoint)
    with BlockingConnection(server.line) as connection:
        connection.request(wire.DeleteTopic(f"{topic}.1"))
    publish(server, f"{topic}.2", numbered(1, 3))
    with pytest.raises(StreamingQueryException, match=r"was read up to offset 2 and is not there any more"):
        run(streaming(spark, server, **both), sink, checkpoint)
    run(streaming(spark, server, **both, failOnDataLoss="false"), sink, checkpoint)
    assert sink.values == ["v0", "v0", "v1", "v1", "v2", "v3"]


def test_a_pattern_may_match_nothing_yet(
    spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str
) -> None:
    frame = streaming(spark, server, topicPattern=f"{topic}.*", maxRecordsPerTrigger=5)
    run(frame, sink, checkpoint)
    fill(server, f"{topic}.1", 2, count=4)
    run(frame, sink, checkpoint)
    assert len(sink.rows) == 8


@pytest.mark.parametrize("limit", [{"maxRecordsPerTrigger": 4}, {"maxBytesPerTrigger": "1k"}])
def test_limits_hold_where_records_are_gone(
    spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str, limit: dict[str, Any]
) -> None:
    fill(server, topic, count=1)
    run(streaming(spark, server, topics=topic, startingOffsets="earliest"), sink, checkpoint)
    publish(server, topic, numbered(9, 1))
    publish(server, topic, numbered(10, 10))
    delete_before(server, topic, 10)
    options = {"topics": topic, "startingOffsets": "earliest", **limit}
    with pytest.raises(StreamingQueryException, match=r"offsets 1\.\.10 of .* are gone"):
        run(streaming(spark, server, **options), sink, checkpoint)
    run(streaming(spark, server, **options, failOnDataLoss="false"), sink, checkpoint)
    assert [offset for _, offset, _ in sink.rows] == [0, *range(10, 20)]


def test_records_that_retention_took_stop_the_query(
    spark: SparkSession, server: Server, topic: str, sink: Sink, checkpoint: str
) -> None:
    fill(server, topic, count=10)
    frame = streaming(spark, server, topics=topic, startingOffsets="earliest")
    run(frame, sink, checkpoint)
    publish(server, topic, numbered(5, 10))
    delete_before(server, topic, 12)
    publish(server, topic, numbered(1, 15))
    with pytest.raises(StreamingQueryException, match=r"offsets 10\.\.12 of .* were not read yet, and are gone"):
        run(frame, sink, checkpoint)
    lenient = streaming(spark, server, topics=topic, startingOffsets="earliest", failOnDataLoss="false")
    run(lenient, sink, checkpoint)
    assert sink.values == sorted([*numbers(10), "v12", "v13", "v14", "v15"])


def test_a_batch_read_finds_nothing_before_what_is_there(spark: SparkSession, server: Server, topic: str) -> None:
    fill(server, topic, count=10)
    delete_before(server, topic, 4)
    assert reading(spark, server, topics=topic).count() == 6
