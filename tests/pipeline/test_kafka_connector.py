"""Spark's own Kafka connector, unmodified: what it reads and writes, in batches and as a stream."""

import json
from pathlib import Path

import confluent_kafka
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from penstock.testing.server import Server

QUERY_S = 60
COUNT = 3_000


@pytest.fixture
def orders(server: Server, topic: str) -> str:
    """A topic of three partitions with keys, values and headers."""
    with server.sync_client() as client:
        client.create_topic(topic, partitions=3)
    producer = confluent_kafka.Producer({"bootstrap.servers": server.kafka})
    for number in range(COUNT):
        value, key = f"order {number}", str(number % 7)
        producer.produce(topic, value, key, number % 3, headers={"source": "test"}, timestamp=1_000 + number)
    assert producer.flush(30) == 0
    return topic


def read(spark: SparkSession, server: Server, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", server.kafka).option("subscribe", topic)
    return reader.options(**options).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value.decode().split()[1]) for row in frame.select("value").collect())


def run_available(writer: "DataStreamWriter", checkpoint: Path) -> None:
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_S), "the query did not end"


def test_batch_read_has_every_record_with_its_fields(spark: SparkSession, server: Server, orders: str) -> None:
    frame = read(spark, server, orders, includeHeaders="true")
    assert numbers(frame) == list(range(COUNT))
    first = frame.orderBy("timestamp").first()
    assert first is not None
    assert (first.key, first.value, first.topic) == (b"0", b"order 0", orders)
    assert [(header.key, bytes(header.value)) for header in first.headers] == [("source", b"test")]
    assert first.timestamp.timestamp() == 1.0


def test_batch_read_of_offsets_and_times(spark: SparkSession, server: Server, orders: str) -> None:
    offsets = json.dumps({orders: {"0": 10, "1": 10, "2": 10}})
    ends = json.dumps({orders: {"0": 15, "1": 15, "2": 15}})
    assert read(spark, server, orders, startingOffsets=offsets, endingOffsets=ends).count() == 15
    late = read(spark, server, orders, startingTimestamp=str(1_000 + COUNT - 100))
    assert set(numbers(late)) >= set(range(COUNT - 100, COUNT))
    assert late.count() < COUNT


def test_batch_write_is_readable_by_all(spark: SparkSession, server: Server, orders: str) -> None:
    copy = f"{orders}-copy"
    writer = read(spark, server, orders).selectExpr("key", "value").write.format("kafka")
    writer.option("kafka.bootstrap.servers", server.kafka).option("topic", copy).save()
    assert numbers(read(spark, server, copy)) == list(range(COUNT))


def test_stream_goes_on_from_its_checkpoint(spark: SparkSession, server: Server, orders: str, tmp_path: Path) -> None:
    copy = f"{orders}-copy"

    def copying() -> "DataStreamWriter":
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", server.kafka)
        frame = reader.option("subscribe", orders).option("startingOffsets", "earliest").load()
        writer = frame.selectExpr("key", "value").writeStream.format("kafka")
        return writer.option("kafka.bootstrap.servers", server.kafka).option("topic", copy)

    run_available(copying(), tmp_path / "checkpoint")
    assert numbers(read(spark, server, copy)) == list(range(COUNT))
    with server.sync_client() as client:
        client.publish_many(orders, [f"order {number}" for number in range(COUNT, COUNT + 500)])
    run_available(copying(), tmp_path / "checkpoint")
    assert numbers(read(spark, server, copy)) == list(range(COUNT + 500))


def test_committed_reads_leave_out_what_was_aborted(spark: SparkSession, server: Server, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": server.kafka, "transactional.id": topic})
    producer.init_transactions(30)
    for number, committed in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce(topic, f"order {number}")
        producer.flush(30)
        if committed:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    assert numbers(read(spark, server, topic, **{"kafka.isolation.level": "read_committed"})) == [0, 2]
    assert numbers(read(spark, server, topic)) == [0, 1, 2]
