"""Audits of real topics, tables and mirrors: the proof holds where it should, and tells what is wrong where not."""

import json
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from rich.console import Console

from penstock.client.sync import SyncClient
from penstock.model.errors import UnknownTopic
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.jobs import audit, replay, table
from penstock.pipeline.jobs.audit import AuditOptions
from penstock.pipeline.jobs.desk import Desk
from penstock.pipeline.jobs.replay import ReplayOptions
from penstock.pipeline.jobs.step_writing import Goal, StepWriter
from penstock.pipeline.jobs.table import TableOptions
from penstock.pipeline.jobs.table_reading import HEADERS
from penstock.testing.server import Server
from penstock.wire.native import messages as wire

pytestmark = pytest.mark.timeout(300)  # a first job of Spark takes long on a busy machine

PARTITIONS = 3
RECORDS = 300


@pytest.fixture
def client(server: Server) -> Iterator[SyncClient]:
    with SyncClient(server.line) as client:
        yield client


def fill(client: SyncClient, topic: str, numbers: range | list[int], partitions: int = PARTITIONS) -> None:
    if not any(known.name == topic for known in client.topics()):
        client.create_topic(topic, partitions, {"retention.ms": "-1"})
    for number in numbers:
        client.publish_nowait(
            topic,
            f"order {number}",
            key=f"customer-{number % 7}",
            headers={"n": str(number)},
            timestamp_ms=1_760_000_000_000 + number,
        )
    client.flush()


def test_table_that_misses_a_row_and_has_one_twice_is_found_out(
    spark: SparkSession, server: Server, client: SyncClient, topic: str, tmp_path
):
    fill(client, topic, range(RECORDS))
    records = spark.read.format("penstock").option("server", server.line).option("topics", topic).load()
    whole, broken = str(tmp_path / "whole"), str(tmp_path / "broken")
    records.write.parquet(whole)
    proof = audit.run(spark, AuditOptions(server=server.line, topic=topic, table=whole, file_order=True))
    assert proof.holds and proof.compared == ["key", "value", "timestamp", "headers"]
    assert sum(each.source.records for each in proof.partitions) == RECORDS
    assert all(each.source.digest == each.target.digest for each in proof.partitions)

    place = (f.col("partition") == 0) & (f.col("offset") == 5)
    again = (f.col("partition") == 1) & (f.col("offset") == 7)
    rows = spark.read.parquet(whole)
    rows.where(~place).union(rows.where(again)).write.parquet(broken)
    proof = audit.run(spark, AuditOptions(server=server.line, topic=topic, table=broken))
    assert not proof.holds
    assert proof.found()[:2] == [("lost", 1), ("doubled", 1)]
    assert {(each.kind, each.partition, each.offset) for each in proof.differences} == {
        ("lost", 0, 5),
        ("doubled", 1, 7),
    }
    console = Console(width=200)
    with console.capture() as captured:
        console.print(proof.table())
    assert "does not hold: 1 lost, 1 doubled" in captured.get()

    # A table that was written before the rest came is behind, which may be allowed.
    fill(client, topic, range(RECORDS, RECORDS + 10))
    proof = audit.run(spark, AuditOptions(server=server.line, topic=topic, table=whole, complete=False))
    assert proof.holds and proof.behind == 10


def test_table_without_places_is_compared_as_a_multiset(
    spark: SparkSession, server: Server, client: SyncClient, topic: str, tmp_path
):
    fill(client, topic, [*range(20), 3, 3])
    path = str(tmp_path / "plain")
    rows = spark.read.format("penstock").option("server", server.line).option("topics", topic).load()
    rows.select("key", "value").orderBy("value").write.parquet(path)
    proof = audit.run(spark, AuditOptions(server=server.line, topic=topic, table=path))
    assert proof.holds and "multiset" in proof.method
    fill(client, topic, [3])
    assert audit.run(spark, AuditOptions(server=server.line, topic=topic, table=path)).lost == 1


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_table_of_the_table_job_holds_and_what_it_set_aside_is_not_lost(
    spark: SparkSession, server: Server, client: SyncClient, topic: str, tmp_path, kind: str
):
    client.create_topic(topic, 2, {"retention.ms": "-1"})
    client.create_topic(f"{topic}.mirror", 2, {"retention.ms": "-1"})
    for number in range(20):
        value = "no json" if number == 7 else json.dumps({"value": number, "key": "a field, not the key"})
        client.publish(topic, value, key=f"k{number}")
    target = str(tmp_path / "warehouse" / "shop" / "orders")
    options = TableOptions(
        server=server.line,
        topics=[topic],
        target=target,
        checkpoint=str(tmp_path / "checkpoint"),
        format=kind,
        partition_by="date",
    )
    assert table.run(spark, options).rows == 19
    proof = audit.run(spark, AuditOptions(server=server.line, topic=topic, table=target, format=kind))
    assert proof.holds and proof.quarantined == 1
    assert proof.compared == ["key", "timestamp"]
    mirror = ReplayOptions(
        server=server.line, into=f"{topic}.mirror", run=topic, table=target, format=kind, where="value < 5"
    )
    assert replay.run(spark, mirror).rows == 5
    proof = audit.run(
        spark,
        AuditOptions(server=server.line, topic=topic, mirror=f"{topic}.mirror", compare=["key", "timestamp"]),
    )
    assert proof.found() == [("lost", 15), ("doubled", 0), ("foreign", 0), ("changed", 0), ("out of order", 0)]


def test_aborted_records_are_no_loss(spark: SparkSession, server: Server, client: SyncClient, topic: str, tmp_path):
    fill(client, topic, range(10), partitions=1)
    row = spark.sql(
        "select null as key, cast('never' as binary) as value, null as headers, now() as timestamp, 0 as to"
    )
    batch = row.selectExpr(
        "cast(key as binary)", "value", f"cast(headers as {HEADERS}) as headers", "timestamp", "to"
    ).toArrow()
    with Desk(server.line) as desk, StepWriter(Goal.of(server.line, desk.topic(topic), topic, 0), "test") as writer:
        for each in batch.to_batches():
            writer.add(each)
        writer.finish()
        desk.ask(wire.AbortStep(topic, 0))
    fill(client, topic, range(10, 20))
    path = str(tmp_path / "table")
    records = spark.read.format("penstock").option("server", server.line).option("topics", topic).load()
    records.write.parquet(path)
    proof = audit.run(spark, AuditOptions(server=server.line, topic=topic, table=path))
    assert proof.holds
    assert (proof.partitions[0].source.records, proof.partitions[0].unused) == (20, 2)  # the record, and its marker


def test_mirror_holds_until_it_loses_a_record(spark: SparkSession, server: Server, client: SyncClient, topic: str):
    fill(client, topic, range(60))
    same, other = f"{topic}.same", f"{topic}.other"
    fill(client, same, range(60))
    fill(client, other, [*range(30), *range(31, 60)], partitions=2)
    options = AuditOptions(server=server.line, topic=topic, mirror=same)
    proof = audit.run(spark, options)
    assert proof.holds and [each.partition for each in proof.partitions] == [0, 1, 2]
    proof = audit.run(spark, AuditOptions(server=server.line, topic=topic, mirror=other))
    assert proof.found()[0] == ("lost", 1) and proof.out_of_order == 0
    assert proof.as_dict()["differences"][0]["kind"] == "lost"


def test_bad_input_is_told_in_words(spark: SparkSession, server: Server, client: SyncClient, topic: str, tmp_path):
    with pytest.raises(UnknownTopic, match="there is no topic 'nowhere'"):
        audit.run(spark, AuditOptions(server=server.line, topic=topic, mirror="nowhere"))
    fill(client, topic, range(1))
    with pytest.raises(InvalidOption, match="cannot be read as a table"):
        audit.run(spark, AuditOptions(server=server.line, topic=topic, table=str(tmp_path / "nothing")))
    with pytest.raises(InvalidOption, match="exactly one"):
        AuditOptions(server=server.line, topic=topic)
