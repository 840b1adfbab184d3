"""What goes wrong is told once, in a sentence with what to do; what can be waited for is waited for."""

import json
import re
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from source_topics import create, delete_before, fill, numbered, publish, reading, streaming, values

from penstock.client.blocking import BlockingConnection
from penstock.client.errors import Unreachable
from penstock.model.batch import encode_batch
from penstock.model.errors import CorruptBatch
from penstock.model.record import Record
from penstock.pipeline.errors import DataLost
from penstock.pipeline.options import source_options
from penstock.pipeline.planning import Range
from penstock.pipeline.reading import fetch_range
from penstock.testing.server import Server
from penstock.wire.native import messages as wire
from servers import StartServer


def refused(act: Callable[[], Any], said: str) -> None:
    with pytest.raises(PySparkException) as told:
        act()
    assert re.search(said, str(told.value), re.DOTALL), str(told.value)[:3000]


def test_nobody_at_the_address(spark: SparkSession) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    frame = spark.read.format("penstock").option("server", f"127.0.0.1:{port}").option("timeout", "1").load("orders")
    refused(frame.collect, f"cannot reach 127.0.0.1:{port}: connection refused; is the server running")


def test_another_doors_address(spark: SparkSession, server: Server) -> None:
    frame = spark.read.format("penstock").option("server", server.kafka).load("orders")
    refused(frame.collect, "probably the address of another door")


def test_a_topic_that_is_not_there(spark: SparkSession, server: Server) -> None:
    refused(reading(spark, server, topics="nowhere").collect, "there is no topic 'nowhere'.*penstock topic create")
    with BlockingConnection(server.line) as connection:
        listed = connection.request(wire.ListTopics()).topics
    assert "nowhere" not in [one.name for one in listed], "reading makes no topics"


def test_offsets_out_of_range(spark: SparkSession, server: Server, topic: str) -> None:
    fill(server, topic, count=5)
    far = json.dumps({topic: {"0": 99}})
    refused(
        reading(spark, server, topics=topic, startingOffsets=far).collect,
        r"offset 99 of .*\[0\] is out of range, there is 0\.\.5.*failOnDataLoss",
    )
    assert reading(spark, server, topics=topic, startingOffsets=far, failOnDataLoss="false").collect() == []
    backwards = {"startingOffsets": json.dumps({topic: {"0": 4}}), "endingOffsets": json.dumps({topic: {"0": 2}})}
    refused(reading(spark, server, topics=topic, **backwards).collect, "at 4, behind 2, where endingOffsets ends it")


def test_partitions_that_are_not_there(spark: SparkSession, server: Server, topic: str) -> None:
    fill(server, topic, 2, count=1)
    refused(
        reading(spark, server, topics=topic, startingOffsets=json.dumps({topic: {"7": 0}})).collect,
        r"startingOffsets names partition 7 of .* those of .* are 0\.\.1",
    )
    refused(
        reading(spark, server, assign=json.dumps({topic: [5]})).collect, "assign names partition 5 of .* which has 2"
    )


def test_options_that_are_not_known(spark: SparkSession, server: Server) -> None:
    refused(lambda: reading(spark, server, subscribe="orders"), "option 'subscribe' is not known; did you mean topics?")
    refused(lambda: streaming(spark, server, topics="x", startingOffset="earliest"), "did you mean startingOffsets?")


def test_columns_that_are_not_there(spark: SparkSession, server: Server, topic: str) -> None:
    create(server, topic)
    reader = spark.read.format("penstock").option("server", server.line).option("topics", topic)
    refused(reader.schema("id INT").load().collect, "there is no column 'id', only key, .*need the option schema")
    refused(reader.schema("offset INT").load().collect, "column offset is bigint, not int")


def test_a_group_that_consumers_use(spark: SparkSession, server: Server, topic: str, group: str) -> None:
    from confluent_kafka import Consumer

    fill(server, topic, count=3)
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        assert consumer.poll(30) is not None
        frame = streaming(spark, server, topics=topic, startingOffsets="earliest", group=group)
        query = frame.writeStream.format("noop").trigger(availableNow=True).start()
        refused(lambda: query.awaitTermination(60), f"cannot be committed to group {group!r}.*no consumer uses")
    finally:
        consumer.close()


# -- a server that goes away ---------------------------------------------------------------------------------


def test_a_server_that_is_killed_while_it_is_read_is_waited_for(
    spark: SparkSession, start_server: StartServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    create(server, topic)
    for first in range(0, 400, 100):
        publish(server, topic, numbered(100, first))
    options = source_options({"server": server.line, "topics": topic, "timeout": "60"}, stream=False)
    monkeypatch.setattr("penstock.pipeline.reading.FETCH_BYTES", 1)  # one batch at a time
    pieces = fetch_range(options, Range(topic, 0, 0, 400))
    seen = [next(pieces)[1]]
    server.kill()
    again = threading.Thread(target=server.restart)
    again.start()
    seen += [at for _, at in pieces]
    again.join()
    assert seen == [0, 100, 200, 300]
    assert len(values(reading(spark, server, topics=topic))) == 400


def test_a_server_that_stays_away_is_told(start_server: StartServer, topic: str) -> None:
    server = start_server()
    fill(server, topic, count=10)
    options = source_options({"server": server.line, "topics": topic, "timeout": "1"}, stream=False)
    server.kill()
    with pytest.raises(Unreachable, match="connection refused"):
        list(fetch_range(options, Range(topic, 0, 0, 10)))


def test_a_stream_outlives_a_server_that_is_killed(
    spark: SparkSession, start_server: StartServer, topic: str, tmp_path: Any
) -> None:
    server = start_server()
    fill(server, topic, 2, count=50)
    frame = streaming(spark, server, topics=topic, startingOffsets="earliest", maxRecordsPerTrigger=20, timeout=60)
    seen: list[tuple[int, int]] = []

    def keep(rows: Any, batch_id: int) -> None:
        seen.extend((row.partition, row.offset) for row in rows.collect())

    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        for round_ in range(3):
            query.processAllAvailable()
            server.kill()
            server.restart()
            publish(server, topic, numbered(10, 100 * round_), round_ % 2)
        query.processAllAvailable()
    finally:
        query.stop()
    assert len(seen) == len(set(seen)) == 130


# -- what disappears while it is read ------------------------------------------------------------------------


def gone(server: Server, topic: str, lenient: bool) -> list[int]:
    flag = "false" if lenient else "true"
    options = source_options({"server": server.line, "topics": topic, "failOnDataLoss": flag}, stream=False)
    return [at for _, at in fetch_range(options, Range(topic, 0, 0, 20))]


def test_a_topic_that_is_deleted_meanwhile(server: Server, topic: str) -> None:
    with pytest.raises(DataLost, match=r"was deleted while it was read.*failOnDataLoss"):
        gone(server, topic, lenient=False)
    assert gone(server, topic, lenient=True) == []


def test_records_that_are_deleted_meanwhile(server: Server, topic: str) -> None:
    fill(server, topic, count=10)
    publish(server, topic, numbered(10, 10))
    delete_before(server, topic, 10)
    with pytest.raises(DataLost, match=r"offsets 0\.\.20 of .* were to be read, there is 10\.\.20"):
        gone(server, topic, lenient=False)
    assert gone(server, topic, lenient=True) == [10]


def test_a_log_that_ends_before_the_plan(server: Server, topic: str) -> None:
    fill(server, topic, count=10)
    with pytest.raises(DataLost, match=r"there is 0\.\.10"):
        gone(server, topic, lenient=False)
    assert gone(server, topic, lenient=True) == [0]


def test_a_batch_that_cannot_be_opened_is_named(spark: SparkSession, server: Server, topic: str) -> None:
    create(server, topic)
    batch = encode_batch([Record(0, 0, b"k", b"value")])
    batch[61] = 0x7F  # the record claims more than there is
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    with BlockingConnection(server.line) as connection:
        stored = connection.request(wire.Publish(-1, [wire.Batch(topic, 0, bytes(batch))])).results[0]
    if stored.error is not None:
        pytest.skip(f"this server does not take it in the first place: {stored.message}")
    refused(reading(spark, server, topics=topic).collect, rf"{CorruptBatch.__name__}: {topic}\[0\], after offset 0")
