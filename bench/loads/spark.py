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
from bench.peers.process import PeakMemory

READERS = ("connector-kafka", "connector-penstock", "penstock", "penstock-direct")
WRITERS = ("connector-kafka", "connector-penstock", "penstock")
FORMATS = ("parquet", "delta", "iceberg")
CORES = 2
JARS = ROOT / ".make" / "jars-spark-kafka"
KEY_BYTES = 8
BACKFILL_RECORDS_PER_BATCH = 1_000_000


def describe() -> str:
    connector = ", ".join(jar.stem for jar in sorted(JARS.glob("*.jar")))
    return f"pyspark {importlib.metadata.version('pyspark')}, local[{CORES}]; connector: {connector}"


class SparkBench:
    def __init__(self, kafka: Kafka, penstock: Penstock) -> None:
        self._kafka = kafka
        self._penstock = penstock
        self._spark = _session()
        self._checkpoints = Path(tempfile.mkdtemp(prefix="penstock-bench-spark-"))
        self._filled: set[str] = set()

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

    # -- tables -------------------------------------------------------------------------------------------------

    def backfill(self, format_name: str, *, count: int) -> dict[str, float]:
        """A topic of JSON into a table, exactly once, and the most memory that all of Spark's processes took."""
        from penstock.pipeline.jobs import table
        from penstock.pipeline.tables import open_table

        topic = f"bench-backfill-{count}"
        if topic not in self._filled:
            _fill(self._penstock.kafka, topic, size_bytes=100, partitions=8, count=count, value_of=_json_value)
            self._filled.add(topic)
        home = self._checkpoints / uuid.uuid4().hex
        options = table.TableOptions(
            server=self._penstock.address,
            topics=[topic],
            target=str(home / "bench" / "table"),
            checkpoint=str(home / "checkpoint"),
            format=format_name,
            max_records_per_trigger=BACKFILL_RECORDS_PER_BATCH,
        )
        started = time.monotonic()
        with PeakMemory(self._spark.sparkContext._gateway.proc.pid) as memory:
            result = table.run(self._spark, options)
        took_s = time.monotonic() - started
        assert result.rows == count, f"{result.rows} rows of {count}"
        rows = open_table(format_name, options.target).read(["id"]).num_rows
        assert rows == count, f"the table has {rows} rows of {count}"
        shutil.rmtree(home)
        return {"rows_s": count / took_s, "peak_mb": memory.peak_bytes / 1e6, "batches": float(result.batches)}

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


def _plain_value(number: int, size_bytes: int) -> bytes:
    return (b"%08d" % number).ljust(size_bytes, b"x")


def _json_value(number: int, size_bytes: int) -> bytes:
    text = b'{"id":%d,"name":"' % number
    return text + b"x" * (size_bytes - len(text) - 2) + b'"}'


def _fill(
    bootstrap: str,
    topic: str,
    *,
    size_bytes: int,
    partitions: int,
    count: int,
    value_of: Callable[[int, int], bytes] = _plain_value,
) -> None:
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
    for number in range(count):
        key, value = b"%08d" % number, value_of(number, size_bytes)
        while True:
            try:
                producer.produce(topic, value, key, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(120)
    assert left == 0, f"{left} records of {topic} were not taken within two minutes"
