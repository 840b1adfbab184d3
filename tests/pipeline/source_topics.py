"""Topics with records in them, for the tests of the source, and the words to read them with."""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, Row, SparkSession

from penstock.client.blocking import BlockingConnection
from penstock.model.batch import encode_batch
from penstock.model.record import Record
from penstock.testing.server import Server
from penstock.wire.native import messages as wire

MOMENT_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def create(server: Server, topic: str, partitions: int = 1, **settings: str) -> None:
    """Settings with `_` for each dot. Nothing grows old here: the records' times are fixed, and long gone."""
    given = {"retention.ms": "-1", **{name.replace("_", "."): value for name, value in settings.items()}}
    with BlockingConnection(server.line) as connection:
        connection.request(wire.CreateTopic(topic, partitions, given))


def publish(server: Server, topic: str, records: Sequence[Record], partition: int = 0, **batch: Any) -> int:
    """As one batch, whatever offsets the records have; the offset of the first."""
    moved = [Record(place, one.timestamp_ms, one.key, one.value, one.headers) for place, one in enumerate(records)]
    with BlockingConnection(server.line) as connection:
        message = wire.Publish(-1, [wire.Batch(topic, partition, bytes(encode_batch(moved, **batch)))])
        stored = connection.request(message).results[0]
    assert stored.error is None, stored.message
    return int(stored.base_offset)


def numbered(count: int, first: int = 0) -> list[Record]:
    return [Record(n, MOMENT_MS + n, b"k%d" % n, b"v%d" % n) for n in range(first, first + count)]


def fill(server: Server, topic: str, partitions: int = 1, count: int = 10) -> None:
    """Partition p holds v(1000 p) and so on."""
    create(server, topic, partitions)
    for partition in range(partitions):
        publish(server, topic, numbered(count, 1000 * partition), partition)


def reading(spark: SparkSession, server: Server, **options: Any) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("penstock").option("server", server.line).options(**texts).load()


def streaming(spark: SparkSession, server: Server, **options: Any) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return spark.readStream.format("penstock").option("server", server.line).options(**texts).load()


def values(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def offsets(rows: Sequence[Row]) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in rows)


def delete_before(server: Server, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result(30)
