"""Reading the log's own files gives what reading through the server gives, whatever the files have been through."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from source_topics import create, delete_before, fill, numbered, publish, reading

from penstock.client.blocking import BlockingConnection
from penstock.model.record import Record
from penstock.pipeline import direct
from penstock.pipeline.errors import DataLost, InvalidOption
from penstock.pipeline.options import source_options
from penstock.pipeline.planning import Range
from penstock.pipeline.reading import Assembler, read_near
from penstock.pipeline.schemas import check_schema, spark_schema
from penstock.testing.server import Server
from penstock.wire.native import messages as wire
from servers import StartServer

SMALL_SEGMENTS = {"segment_bytes": "100000"}


def rows(server: Server, topic: str, read: str, start: int, end: int, **options: str) -> list[dict[str, Any]]:
    """What a task reads, in its order."""
    given = source_options({"server": server.line, "topics": topic, "read": read, **options}, stream=False)
    asked = spark_schema(given)
    assert not isinstance(asked, str)
    assembler = Assembler(given, check_schema(given, asked), to_arrow_schema(asked, timezone="UTC"))
    batches = list(read_near(given, assembler, Range(topic, 0, start, end)))
    return [row for batch in batches for row in batch.to_pylist()]


def end_of(server: Server, topic: str) -> int:
    with BlockingConnection(server.line) as connection:
        return int(connection.request(wire.ListOffsets(topic, 0)).stable)


def files_of(server: Server, topic: str) -> list[wire.LogFile]:
    with BlockingConnection(server.line) as connection:
        bounds = connection.request(wire.ListOffsets(topic, 0))
        return list(connection.request(wire.LocateLog(topic, 0, bounds.start, bounds.end)).files)


def many(server: Server, topic: str, batches: int = 60) -> None:
    create(server, topic, **SMALL_SEGMENTS)
    for number in range(batches):
        records = [
            Record(n, 1_700_000_000_000 + n, b"k%d" % n, os.urandom(200) + b"%d" % n, (("h", b"%d" % n),))
            for n in range(50 * number, 50 * number + 50)
        ]
        publish(server, topic, records, compression=number % 5)


def assert_same(server: Server, topic: str, start: int, end: int, **options: str) -> list[dict[str, Any]]:
    near = rows(server, topic, "direct", start, end, **options)
    assert near == rows(server, topic, "broker", start, end, **options)
    return near


def test_files_give_what_the_server_gives(server: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    many(server, topic)
    assert len(files_of(server, topic)) > 3
    assert [row["offset"] for row in assert_same(server, topic, 0, 3000)] == list(range(3000))
    for start, end in ((0, 1), (1, 2), (49, 51), (777, 2003), (2999, 3000), (1500, 1500)):
        assert [row["offset"] for row in assert_same(server, topic, start, end)] == list(range(start, end))
    for read_bytes in (1, 61, 5_000, 30_000):
        monkeypatch.setattr(direct, "READ_BYTES", read_bytes)
        assert len(assert_same(server, topic, 10, 2990)) == 2980
    monkeypatch.setattr(direct, "OPEN_FILES_MAX", 1)
    assert len(assert_same(server, topic, 10, 2990)) == 2980


def test_a_batch_read_of_spark_is_the_same_either_way(spark: SparkSession, server: Server, topic: str) -> None:
    many(server, topic, batches=20)

    def collected(read: str) -> list[Any]:
        return reading(spark, server, topics=topic, read=read, minPartitions=3).orderBy("offset").collect()

    assert len(collected("direct")) == 1000
    assert collected("direct") == collected("broker") == collected("auto")


def test_transactions_are_respected(start_server: StartServer, topic: str) -> None:
    server = start_server()
    create(server, topic, **SMALL_SEGMENTS)
    producers = [
        Producer({"bootstrap.servers": server.kafka, "transactional.id": f"{topic}-{number}", "linger.ms": 1})
        for number in range(2)
    ]
    for producer in producers:
        producer.init_transactions(30)
    kept: list[bytes] = []
    for number in range(12):
        first, second = producers if number % 2 else reversed(producers)
        for producer in (first, second):
            producer.begin_transaction()
            for n in range(20):
                producer.produce(topic, b"%d-%d" % (number, n) + bytes(500), partition=0)
            producer.flush(30)
        keep = number % 3 != 0
        first.abort_transaction(30)
        if keep:
            second.commit_transaction(30)
            kept += [b"%d-%d" % (number, n) + bytes(500) for n in range(20)]
        else:
            second.abort_transaction(30)
    publish(server, topic, [Record(0, 0, None, b"plain")])
    producers[0].begin_transaction()
    producers[0].produce(topic, b"open", partition=0)
    producers[0].flush(30)
    publish(server, topic, [Record(0, 0, None, b"behind an open one")])

    end = end_of(server, topic)
    found = [row["value"] for row in assert_same(server, topic, 0, end)]
    assert found == [*kept, b"plain"]
    for start in range(0, end, 37):
        assert_same(server, topic, start, min(start + 50, end))
    everything = assert_same(server, topic, 0, end, isolation="read_uncommitted")
    assert len(everything) == 12 * 2 * 20 + 1
    producers[0].abort_transaction(30)


def test_isolation_in_spark(spark: SparkSession, start_server: StartServer, topic: str) -> None:
    server = start_server()
    create(server, topic)
    producer = Producer({"bootstrap.servers": server.kafka, "transactional.id": topic})
    producer.init_transactions(30)
    for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(30)
        end(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(30)

    def found(**options: str) -> list[bytes]:
        return [bytes(row.value) for row in reading(spark, server, topics=topic, **options).orderBy("offset").collect()]

    for read in ("direct", "broker"):
        assert found(read=read) == [b"kept"]
        assert found(read=read, isolation="read_uncommitted") == [b"kept", b"dropped", b"open"]
    producer.abort_transaction(30)


# -- files that are not what they were ------------------------------------------------------------------------


def broken(server: Server, topic: str, break_it: Callable[[list[wire.LogFile]], None]) -> None:
    """Files are broken between being named and being opened."""
    located = direct._located

    def named_then_broken(link: Any, part: Range) -> wire.LogLocation:
        location = located(link, part)
        break_it(location.files)
        return location

    direct._located = named_then_broken  # type: ignore[assignment]
    try:
        with pytest.raises(InvalidOption, match="set the option read to auto or broker"):
            rows(server, topic, "direct", 0, 3000)
        assert [row["offset"] for row in rows(server, topic, "auto", 0, 3000)] == list(range(3000))
    finally:
        direct._located = located


def test_files_that_are_gone_are_asked_of_the_server(server: Server, topic: str) -> None:
    many(server, topic)

    def lose(files: list[wire.LogFile]) -> None:
        for file in files:
            file.path += ".deleted"

    broken(server, topic, lose)


def test_damaged_files_are_asked_of_the_server(server: Server, topic: str, tmp_path: Path) -> None:
    many(server, topic)

    def damage(files: list[wire.LogFile]) -> None:
        held = bytearray(Path(files[1].path).read_bytes())
        held[files[1].position + 200] ^= 1
        copy = tmp_path / "damaged"
        copy.write_bytes(held)
        files[1].path = str(copy)

    broken(server, topic, damage)


def test_files_cut_short_are_asked_of_the_server(server: Server, topic: str, tmp_path: Path) -> None:
    many(server, topic)

    def cut(files: list[wire.LogFile]) -> None:
        copy = tmp_path / "short"
        copy.write_bytes(Path(files[2].path).read_bytes()[: files[2].size_bytes // 2])
        files[2].path = str(copy)

    broken(server, topic, cut)


def test_what_was_opened_is_read_although_it_is_deleted_then(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(server, topic)
    options = source_options({"server": server.line, "topics": topic, "read": "direct"}, stream=False)
    asked = spark_schema(options)
    assert not isinstance(asked, str)
    assembler = Assembler(options, check_schema(options, asked), to_arrow_schema(asked, timezone="UTC"))
    reader = read_near(options, assembler, Range(topic, 0, 0, 3000))
    seen = next(reader).num_rows
    with BlockingConnection(server.line) as connection:
        connection.request(wire.DeleteTopic(topic))
    seen += sum(batch.num_rows for batch in reader)
    assert seen == 3000


def test_what_retention_took_is_told_in_direct_reads_too(server: Server, topic: str) -> None:
    many(server, topic)
    delete_before(server, topic, 1200)
    for read in ("direct", "auto"):
        with pytest.raises(DataLost, match=r"offsets 0\.\.3000 .* there is 1200\.\.3000"):
            rows(server, topic, read, 0, 3000)
        found = rows(server, topic, read, 0, 3000, failOnDataLoss="false")
        assert [row["offset"] for row in found] == list(range(1200, 3000))


def test_a_topic_that_is_not_in_files(server: Server, topic: str) -> None:
    create(server, topic, cleanup_policy="compact")
    publish(server, topic, numbered(5))
    assert len(rows(server, topic, "auto", 0, 5)) == 5
    with pytest.raises(InvalidOption, match=r"read=direct: .* cannot be read from files: the server names none"):
        rows(server, topic, "direct", 0, 5)


def test_record_batches_are_bounded(server: Server, topic: str) -> None:
    fill(server, topic, count=10)
    options = source_options({"server": server.line, "topics": topic, "columns": "offset"}, stream=False)
    asked = spark_schema(options)
    assert not isinstance(asked, str)
    assembler = Assembler(options, check_schema(options, asked), to_arrow_schema(asked, timezone="UTC"))
    batches = list(read_near(options, assembler, Range(topic, 0, 0, 10)))
    assert [batch.num_rows for batch in batches] == [10]
    assert batches[0].schema == pa.schema([("offset", pa.int64())])
