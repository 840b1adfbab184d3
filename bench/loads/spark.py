"""Spark reading and writing: our source and sink beside Spark's own Kafka connector, one session, the same records.

    connector-kafka      Spark's connector, Apache Kafka
    connector-penstock   Spark's connector, Penstock
    penstock             our source and sink, through the broker
    penstock-direct      our source, the executors read the files of the log themselves (batch only)

Rows go to Spark's `noop` sink, which takes every row and keeps none; how many they were is counted on the way.
"""

import importlib.metadata
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.kafka import ROOT, Kafka
from bench.peers.penstock import Penstock

READERS = ("connector-kafka", "connector-penstock", "penstock", "penstock-direct")
WRITERS = ("connector-kafka", "connector-penstock", "penstock")
CORES = 2
JARS = ROOT / ".make" / "jars-spark-kafka"
KEY_BYTES = 8


def describe() -> str:
    connector = ", ".join(jar.stem for jar in sorted(JARS.glob("*.jar")))
    return f"pyspark {importlib.metadata.version('pyspark')}, local[{CORES}]; connector: {connector}"


class SparkBench:
    def __init__(self, kafka: Kafka, penstock: Penstock) -> None:
        self._kafka = kafka
        self._penstock = penstock
        self._spark = _session()
        self._checkpoints = Path(tempfile.mkdtemp(prefix="penstock-bench-spark-"))

    def close(self) -> None:
        self._spark.stop()
        shutil.rmtree(self._checkpoints, ignore_errors=True)

    # -- reading ------------------------------------------------------------------------------------------------

    def fill(self, topic: str, *, size_bytes: int, partitions: int, count: int) -> None:
        """The same records into both servers."""
        for address in (self._kafka.kafka, self._penstock.kafka):
            _fill(address, topic, size_bytes=size_bytes, partitions=partitions, count=count)

    def read_batch(self, reader: str, topic: str, count: int) -> dict[str, float]:
        frame = self._frame(self._spark.read, reader, topic).load().select("key", "value")
        return self._timed(count, lambda: frame.write.format("noop").mode("overwrite").save())

    def read_stream(self, reader: str, topic: str, count: int) -> dict[str, float]:
        source = self._frame(self._spark.readStream, reader, topic).option("startingOffsets", "earliest")
        frame = source.load().select("key", "value")
        checkpoint = self._checkpoints / uuid.uuid4().hex

        def run() -> int:
            query = (
                frame.writeStream.format("noop")
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            return sum(progress["numInputRows"] for progress in query.recentProgress)

        started = time.monotonic()
        rows = run()
        took_s = time.monotonic() - started
        assert rows == count, f"{reader} read {rows} rows of {count}"
        return {"rows_s": rows / took_s}

    def _frame(self, reads: Any, reader: str, topic: str) -> Any:
        if reader.startswith("connector"):
            return (
                reads.format("kafka")
                .option("kafka.bootstrap.servers", self._bootstrap(reader))
                .option("subscribe", topic)
            )
        frame = reads.format("penstock").option("server", self._penstock.address).option("topics", topic)
        frame = frame.option("columns", "key,value")
        return frame.option("read", "direct" if reader == "penstock-direct" else "broker")

    # -- writing ------------------------------------------------------------------------------------------------

    def write_batch(self, writer: str, *, size_bytes: int, partitions: int, count: int) -> dict[str, float]:
        """Each time into a topic of its own, made beforehand."""
        topic = f"bench-sink-{uuid.uuid4().hex[:8]}"
        _create(self._bootstrap(writer), topic, partitions)
        frame = self._spark.range(0, count, 1, CORES).selectExpr(
            f"cast(lpad(cast(id as string), {KEY_BYTES}, '0') as binary) key",
            f"cast(rpad(cast(id as string), {size_bytes}, 'x') as binary) value",
        )
        if writer.startswith("connector"):
            written = frame.write.format("kafka").option("kafka.bootstrap.servers", self._bootstrap(writer))
            written = written.option("topic", topic)
        else:
            written = frame.write.format("penstock").option("server", self._penstock.address).option("topic", topic)
            written = written.mode("append")
        started = time.monotonic()
        written.save()
        took_s = time.monotonic() - started
        found = self._spark.read.format("kafka").option("kafka.bootstrap.servers", self._bootstrap(writer))
        found = found.option("subscribe", topic).option("kafka.isolation.level", "read_committed").load().count()
        assert found == count, f"{writer} wrote {found} rows of {count}"
        return {"rows_s": count / took_s}

    def _bootstrap(self, name: str) -> str:
        return self._kafka.kafka if name == "connector-kafka" else self._penstock.kafka

    def _timed(self, count: int, run: Callable[[], object]) -> dict[str, float]:
        started = time.monotonic()
        run()
        return {"rows_s": count / (time.monotonic() - started)}


def _session() -> Any:
    from penstock.pipeline.session import spark_session

    jars = ",".join(str(jar) for jar in sorted(JARS.glob("*.jar")))
    return spark_session("penstock bench", f"local[{CORES}]", **{"spark.jars": jars, "spark.driver.memory": "2g"})


def _create(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(30)


def _fill(bootstrap: str, topic: str, *, size_bytes: int, partitions: int, count: int) -> None:
    _create(bootstrap, topic, partitions)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 200_000,
        }
    )
    value = b"x" * (size_bytes - KEY_BYTES)
    for number in range(count):
        key = b"%08d" % number
        while True:
            try:
                producer.produce(topic, key + value, key, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(120)
    assert left == 0, f"{left} records of {topic} were not taken within two minutes"
