"""Replays of topics and tables: everything comes again as it was, once for each name of a run."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.client.sync import SyncClient
from penstock.model.errors import OffsetOutOfRange
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.jobs import audit, replay, step_writing
from penstock.pipeline.jobs.audit import AuditOptions
from penstock.pipeline.jobs.desk import Desk
from penstock.pipeline.jobs.job import Progress
from penstock.pipeline.jobs.replay import ReplayOptions
from penstock.pipeline.jobs.replay_plan import WHOLE, Lane, Plan
from penstock.pipeline.jobs.step_writing import Goal
from penstock.testing.server import Server

pytestmark = pytest.mark.timeout(300)  # a first job of Spark takes long on a busy machine

BEGIN_MS = 1_760_000_000_000


@pytest.fixture
def client(server: Server) -> Iterator[SyncClient]:
    with SyncClient(server.line) as client:
        yield client


def fill(client: SyncClient, topic: str, count: int, partitions: int = 3) -> None:
    client.create_topic(topic, partitions, {"retention.ms": "-1"})
    for number in range(count):
        key = None if number % 10 == 0 else f"key-{number % 7}"
        headers = {"n": str(number)}
        client.publish_nowait(topic, f"value {number}", key=key, headers=headers, timestamp_ms=BEGIN_MS + number)
    client.flush()


def holds(spark: SparkSession, server: Server, topic: str, mirror: str) -> bool:
    return audit.run(spark, AuditOptions(server=server.line, topic=topic, mirror=mirror)).holds


class Killed(Exception):
    pass


def test_topic_comes_again_as_it_was_and_once_for_a_name(
    spark: SparkSession, server: Server, client: SyncClient, topic: str
):
    fill(client, topic, 200)
    again = f"{topic}.again"
    options = ReplayOptions(server=server.line, into=again, run=topic, topic=topic)
    dry = replay.run(spark, ReplayOptions(**{**vars(options), "dry_run": True}))
    assert dry.rows == 200 and again not in {known.name for known in client.topics()}
    result = replay.run(spark, options)
    assert (result.rows, result.skipped) == (200, False)
    assert holds(spark, server, topic, again)
    client.publish(topic, "later")  # the run's bounds were fixed when it began
    result = replay.run(spark, options)
    assert (result.rows, result.skipped) == (0, True)
    with pytest.raises(InvalidOption, match="begun with other options"):
        replay.run(spark, ReplayOptions(server=server.line, into=again, run=topic, topic=topic, key="key-1"))


def test_run_that_died_goes_on_where_it_was_and_keeps_its_rate(
    spark: SparkSession, server: Server, client: SyncClient, topic: str, monkeypatch: pytest.MonkeyPatch
):
    fill(client, topic, 100)
    again = f"{topic}.again"
    options = ReplayOptions(server=server.line, into=again, run=topic, topic=topic, rows_per_s=40)

    def die(progress: Progress) -> None:
        if progress.stage == "writing":
            raise Killed

    def write_and_die(desk: Desk, frame: DataFrame, goal: Goal, mark: str) -> None:
        frame.mapInArrow(step_writing._task(goal), step_writing._REPORT).collect()
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(replay, "write_step", write_and_die)
        with pytest.raises(Killed):
            replay.run(spark, options)
    with pytest.raises(Killed):
        replay.run(spark, options, on_progress=die)
    began = time.monotonic()
    result = replay.run(spark, options)
    assert result.continued and 0 < result.rows < 100 and result.steps > 1
    assert time.monotonic() - began >= (result.rows - 40) / 40  # the first second's worth is not waited for
    assert holds(spark, server, topic, again)


def test_ranges_and_predicates_choose_records(spark: SparkSession, server: Server, client: SyncClient, topic: str):
    fill(client, topic, 50, partitions=1)

    def count(**chosen: Any) -> int:
        options = ReplayOptions(server=server.line, into="x", run="dry", topic=topic, dry_run=True, **chosen)
        return replay.run(spark, options).rows

    assert count(starting_offsets={0: 10}, ending_offsets={0: 30}) == 20
    assert count(starting_time_ms=BEGIN_MS + 5, ending_time_ms=BEGIN_MS + 15) == 10
    assert count(key="key-3") == sum(1 for number in range(50) if number % 10 and number % 7 == 3)
    assert count(where="cast(value as string) like '%7' and offset < 20") == 2
    with pytest.raises(OffsetOutOfRange, match="it holds 0 to 50"):
        count(ending_offsets={0: 51})
    with pytest.raises(InvalidOption, match="the columns are"):
        count(where="colour = 'red'")


def test_table_comes_back_into_a_topic_in_order(
    spark: SparkSession, server: Server, client: SyncClient, topic: str, tmp_path
):
    fill(client, topic, 120)
    records = spark.read.format("penstock").option("server", server.line).option("topics", topic).load()
    path = str(tmp_path / "table")
    records.repartition(3).write.parquet(path)  # in any order
    back = f"{topic}.back"
    result = replay.run(spark, ReplayOptions(server=server.line, into=back, run=topic, table=path))
    assert result.rows == 120
    assert holds(spark, server, topic, back)
    # Into fewer partitions: by the key, and each key in order.
    client.create_topic(f"{topic}.two", 2)
    options = ReplayOptions(server=server.line, into=f"{topic}.two", run=f"{topic}-2", table=path, rows_per_s=1e6)
    replay.run(spark, options)
    assert holds(spark, server, topic, f"{topic}.two")


def test_table_of_columns_becomes_json(spark: SparkSession, server: Server, client: SyncClient, topic: str, tmp_path):
    path = str(tmp_path / "table")
    spark.sql("select 'k' as _key, id, id * 2 as twice from range(3)").coalesce(1).write.parquet(path)
    client.create_topic(topic, 1)
    options = ReplayOptions(server=server.line, into=topic, run=topic, table=path, where="id > 0", rows_per_s=1000)
    assert replay.run(spark, options).rows == 2
    assert replay.run(spark, options).skipped
    with client.subscribe(topic) as records:
        found = records.take(2, timeout_s=10)
    assert [(message.key, message.value) for message in found] == [
        (b"k", b'{"id":1,"twice":2}'),
        (b"k", b'{"id":2,"twice":4}'),
    ]


def test_steps_of_a_plan_cover_every_offset_once_and_in_order():
    plan = Plan("", (Lane("t", 0, 5, 105), Lane("t", 1, 0, 0), Lane("t", 2, 7, 8), Lane("t", 3, 0, 1_000_003)))
    for rows in (1_000, 99_999, 10_000_000):
        seen = [lane.start for lane in plan.lanes]
        x, steps = 0, 0
        while x < WHOLE:
            y = plan.step(x, rows)
            assert y > x
            for at, lane in enumerate(plan.part(x, y)):
                assert lane.start == seen[at]
                seen[at] = lane.end
            x, steps = y, steps + 1
        assert seen == [lane.end for lane in plan.lanes]
        assert steps >= plan.offsets // rows
    assert Plan.of_note(plan.note()) == plan
