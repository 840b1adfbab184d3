"""Compaction of real topics: what is left, who reads on where, and what happens when it is killed or outrun."""

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.client.sync import SyncClient
from penstock.model.errors import InvalidRequest, TopicExists
from penstock.model.partitioner import partition_for_key
from penstock.pipeline.jobs import compact, compact_tail, step_writing
from penstock.pipeline.jobs.compact import CompactOptions, TopicBusy
from penstock.pipeline.jobs.desk import Desk
from penstock.pipeline.jobs.job import Progress
from penstock.pipeline.jobs.step_writing import Goal
from penstock.testing.server import Server

pytestmark = pytest.mark.timeout(300)  # a first job of Spark takes long on a busy machine

RECORDS = 240
KEYS = 12
PARTITIONS = 3
KEPT = {"retention.ms": "-1"}  # the records are older than a topic keeps them otherwise


class Killed(BaseException):
    """So that nothing is cleared away: as if the process were gone."""


@pytest.fixture
def client(server: Server) -> Iterator[SyncClient]:
    with SyncClient(server.line) as client:
        yield client


def fill(client: SyncClient, topic: str, first: int = 0, count: int = RECORDS) -> None:
    for number in range(first, first + count):
        client.publish_nowait(topic, f"{number}", key=f"key-{number % KEYS}", timestamp_ms=1_760_000_000_000 + number)
    client.flush()


def records(client: SyncClient, topic: str) -> dict[int, list[tuple[str, int, int]]]:
    """By partition, in order: key, value and offset of every record."""
    found: dict[int, list[tuple[str, int, int]]] = {}
    described = client.describe_topic(topic)
    expected = sum(part.end - part.start for part in described.partitions)
    with client.subscribe(topic) as log:
        while any(log.read_to(part.partition) < part.end for part in described.partitions):
            for message in log.take(expected, timeout_s=1.0):
                key = (message.key or b"").decode()
                value = int(message.value or b"-1")
                found.setdefault(message.partition, []).append((key, value, message.offset))
    return found


def unread(client: SyncClient, topic: str, group: str) -> set[int]:
    committed = client.committed(group, topic)
    return {
        value
        for partition, rows in records(client, topic).items()
        for _, value, offset in rows
        if offset >= committed.get((topic, partition), 0)
    }


def test_newest_of_each_key_is_left_and_groups_go_on_exactly_where_they_were(
    spark: SparkSession, server: Server, client: SyncClient, topic: str, group: str
):
    client.create_topic(topic, PARTITIONS, KEPT)
    fill(client, topic)
    client.publish(topic, "", key="gone")
    before = records(client, topic)
    places = {(topic, at): rows[-2][2] for at, rows in before.items()}  # all but the last two are read
    client.commit(group, places)
    client.commit(f"{group}-done", {(topic, 0): client.offsets(topic, 0).end})
    newest = {f"key-{number % KEYS}": number for number in range(RECORDS)}
    result = compact.run(spark, CompactOptions(server=server.line, topic=topic, keep_as=f"{topic}.old"))
    assert (result.records_before, result.records_after) == (RECORDS + 1, KEYS + 1)
    found = records(client, topic)
    left = {key: value for rows in found.values() for key, value, _ in rows if key != "gone"}
    assert left == newest
    assert all(partition_for_key(key.encode(), PARTITIONS) == at for at, rows in found.items() for key, _, _ in rows)
    for rows in found.values():
        values = [value for key, value, _ in rows if key != "gone"]
        assert values == sorted(values)
    # What survived of what the group had not read, and nothing else.
    left_unread = {value for rows in before.values() for key, value, _ in rows[-2:] if newest.get(key, -1) == value}
    assert unread(client, topic, group) == left_unread
    assert client.committed(f"{group}-done", topic)[topic, 0] == client.offsets(topic, 0).end
    assert sum(part.end for part in client.describe_topic(f"{topic}.old").partitions) >= RECORDS
    assert client.topic(topic).settings["retention.ms"] == "-1"
    with pytest.raises(TopicExists, match="choose another name"):
        compact.run(spark, CompactOptions(server=server.line, topic=topic, keep_as=f"{topic}.old"))


def test_repartitioned_topic_skips_nothing_and_the_old_one_goes(
    spark: SparkSession, server: Server, client: SyncClient, topic: str, group: str
):
    client.create_topic(topic, PARTITIONS, KEPT)
    fill(client, topic)
    client.commit(group, {(topic, part): client.offsets(topic, part).end // 2 for part in range(PARTITIONS)})
    before = unread(client, topic, group)
    options = CompactOptions(server=server.line, topic=topic, partitions=5, newest_only=False)
    result = compact.run(spark, options)
    assert (result.partitions_before, result.partitions_after) == (PARTITIONS, 5)
    found = records(client, topic)
    assert sorted(value for rows in found.values() for _, value, _ in rows) == list(range(RECORDS))
    for at, rows in found.items():
        assert all(partition_for_key(key.encode(), 5) == at for key, _, _ in rows)
        values = [value for _, value, _ in rows]
        assert values == sorted(values)  # published one after another, so by time
    assert unread(client, topic, group) >= before
    assert f"{topic}.compacting" not in {known.name for known in client.topics()}


def test_what_came_meanwhile_is_carried_over_and_a_quicker_writer_waited_for(
    spark: SparkSession, server: Server, client: SyncClient, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
):
    client.create_topic(topic, PARTITIONS, KEPT)
    fill(client, topic)
    ends = {(topic, part): client.offsets(topic, part).end for part in range(PARTITIONS)}
    client.commit(group, ends)
    came = iter(range(RECORDS, RECORDS + 1000, 20))

    def write_meanwhile(progress: Progress) -> None:
        if (progress.stage == "compacting" and progress.done) or (progress.stage == "swapping" and progress.done < 3):
            fill(client, topic, next(came), 20)

    options = CompactOptions(server=server.line, topic=topic)
    result = compact.run(spark, options, on_progress=write_meanwhile)
    assert (result.caught_up, result.conflicts) == (60, 2)
    # The group had read all but what came.
    assert unread(client, topic, group) == set(range(RECORDS, RECORDS + 60))
    found = records(client, topic)
    assert {value for rows in found.values() for _, value, _ in rows} == set(range(RECORDS - KEYS, RECORDS + 60))

    # A tail that is too long for the driver is Spark's; and one that never ends is told.
    monkeypatch.setattr(compact_tail, "TAIL_RECORDS", 5)
    first = next(came)

    def keep_writing(progress: Progress) -> None:
        if progress.stage == "swapping":
            fill(client, topic, first, 10)

    options = CompactOptions(server=server.line, topic=topic, newest_only=False, partitions=2, tries=2)
    with pytest.raises(TopicBusy, match="2 times it had grown"):
        compact.run(spark, options, on_progress=keep_writing)
    assert f"{topic}.compacting" not in {known.name for known in client.topics()}
    assert len(client.describe_topic(topic).partitions) == PARTITIONS


@pytest.mark.parametrize("stage", ["begun", "writing", "written", "swapped"])
def test_killed_compaction_is_cleared_away_or_finished_by_the_next(
    spark: SparkSession,
    server: Server,
    client: SyncClient,
    topic: str,
    stage: str,
    monkeypatch: pytest.MonkeyPatch,
):
    client.create_topic(topic, 1, KEPT)
    fill(client, topic, 0, 30)
    where = {"begun": "_compact", "written": "_swap", "swapped": "_finish"}.get(stage)

    def die(self: object) -> None:
        raise Killed

    def write_and_die(desk: Desk, frame: DataFrame, goal: Goal, *_: object) -> None:
        frame.mapInArrow(step_writing._task(goal), step_writing._REPORT).collect()
        raise Killed

    with monkeypatch.context() as patched:
        if where is None:
            patched.setattr(compact, "write_step", write_and_die)
        else:
            patched.setattr(compact._Compaction, where, die)
        patched.setattr(compact._Compaction, "_give_up", lambda self: None)
        with pytest.raises(Killed):
            compact.run(spark, CompactOptions(server=server.line, topic=topic))
    assert f"{topic}.compacting" in {known.name for known in client.topics()}
    result = compact.run(spark, CompactOptions(server=server.line, topic=topic))
    assert result.resumed == (stage == "swapped")
    assert f"{topic}.compacting" not in {known.name for known in client.topics()}
    assert [value for _, value, _ in records(client, topic)[0]] == list(range(30 - KEYS, 30))


def test_what_cannot_be_swapped_is_refused_before_the_work(
    spark: SparkSession, server: Server, client: SyncClient, topic: str
):
    client.create_topic(topic, 1)
    client.create_queue(topic, "mail")
    with pytest.raises(InvalidRequest, match="queue view"):
        compact.run(spark, CompactOptions(server=server.line, topic=topic))
    client.delete_queue(topic, "mail")
    client.create_router(f"{topic}-router", "fanout")
    client.bind(f"{topic}-router", topic)
    with pytest.raises(InvalidRequest, match="router"):
        compact.run(spark, CompactOptions(server=server.line, topic=topic))
    client.delete_router(f"{topic}-router")
    client.create_topic(f"{topic}.compacting", 1)
    with pytest.raises(TopicExists, match="delete it"):
        compact.run(spark, CompactOptions(server=server.line, topic=topic))
