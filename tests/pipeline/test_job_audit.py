"""Audits of real topics, tables and mirrors: the proof holds where it should, and tells what is wrong where not."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from rich.console import Console

from penstock.client.sync import SyncClient
from penstock.model.errors import UnknownTopic
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.jobs import audit
from penstock.pipeline.jobs.audit import AuditOptions
from penstock.testing.server import Server

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
    with pytest.raises(UnknownTopic, match="penstock topic list"):
        audit.run(spark, AuditOptions(server=server.line, topic=topic, mirror="nowhere"))
    fill(client, topic, range(1))
    with pytest.raises(InvalidOption, match="cannot be read as a table"):
        audit.run(spark, AuditOptions(server=server.line, topic=topic, table=str(tmp_path / "nothing")))
    with pytest.raises(InvalidOption, match="exactly one"):
        AuditOptions(server=server.line, topic=topic)
