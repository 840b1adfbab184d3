"""A name that passes to another topic: whoever reads on by old offsets is told, and never reads the wrong records."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from source_topics import create, fill, numbered, publish, reading, streaming, values

from penstock.client.blocking import BlockingConnection
from penstock.pipeline.errors import InvalidOption, TopicReplaced
from penstock.pipeline.identity import check_range, described, replaced, topic_ids
from penstock.pipeline.link import Link
from penstock.pipeline.marks import parse_ends
from penstock.pipeline.offsets import from_json, ids_from_json, is_ours, to_json
from penstock.pipeline.options import source_options
from penstock.pipeline.planning import Range, split
from penstock.pipeline.progress import lag_of
from penstock.pipeline.reading import fetch_range
from penstock.pipeline.sink import commit_step
from penstock.pipeline.sink_options import sink_options
from penstock.testing.server import Server
from penstock.wire.native import messages as wire

WITHIN_S = 90
LOST = r"is not the one that was read up to here.*new checkpoint.*startingOffsets=committed.*failOnDataLoss"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "checkpoint")


def ask(server: Server, message: wire.Message) -> Any:
    with BlockingConnection(server.line) as connection:
        return connection.request(message)


def id_of(server: Server, topic: str) -> str:
    return str(ask(server, wire.DescribeTopics([topic], settings=False)).topics[0].topic_id)


def recreate(server: Server, topic: str, count: int = 20, partitions: int = 1) -> None:
    """As a topic with other records at the same offsets, and more of them."""
    ask(server, wire.DeleteTopic(topic))
    create(server, topic, partitions)
    for partition in range(partitions):
        publish(server, topic, numbered(count, 500 + 1000 * partition), partition)


def swap(server: Server, topic: str, offsets: list[tuple[str, int, int]], count: int = 20) -> None:
    """As a compaction does it: the group's offsets change with the topic."""
    other = f"{topic}.work"
    create(server, other)
    publish(server, other, numbered(count, 500))
    ends = [part.end for part in ask(server, wire.DescribeTopics([topic])).topics[0].partitions]
    ask(server, wire.SwapTopics(topic, other, ends, offsets, id_of(server, topic)))


def committed(server: Server, group: str) -> dict[tuple[str, int], int]:
    return {(topic, part): at for topic, part, at in ask(server, wire.Committed(group)).offsets}


def run(frame: DataFrame, checkpoint: str) -> list[str]:
    """What is available, to its end; the values that came."""
    seen: list[str] = []

    def keep(rows: DataFrame, batch_id: int) -> None:
        seen.extend(values(rows))

    query = (
        frame.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    try:
        assert query.awaitTermination(WITHIN_S), "the query has not come to its end"
    finally:
        query.stop()
    return sorted(seen)


def numbers(count: int, first: int = 0) -> list[str]:
    return sorted(f"v{n}" for n in range(first, first + count))


def newest_offsets(checkpoint: str) -> Path:
    home = Path(checkpoint) / "offsets"
    return home / max((name for name in os.listdir(home) if name.isdigit()), key=int)


# -- streams ------------------------------------------------------------------------------------------------


def test_a_topic_made_again_is_told_and_read_from_its_first_record_where_loss_is_no_failure(
    spark: SparkSession, server: Server, topic: str, checkpoint: str
) -> None:
    fill(server, topic, count=10)
    strict = streaming(spark, server, topics=topic, startingOffsets="earliest")
    assert run(strict, checkpoint) == numbers(10)
    before = id_of(server, topic)
    recreate(server, topic)
    with pytest.raises(StreamingQueryException, match=LOST) as told:
        run(strict, checkpoint)
    assert before in str(told.value)
    assert id_of(server, topic) in str(told.value)
    lenient = streaming(spark, server, topics=topic, failOnDataLoss="false", maxRecordsPerTrigger=15)
    assert run(lenient, checkpoint) == numbers(20, 500)
    publish(server, topic, numbered(2, 900))
    assert run(strict, checkpoint) == ["v900", "v901"], "the checkpoint is the new topic's now"


def test_a_group_goes_on_where_the_compaction_has_put_it(
    spark: SparkSession, server: Server, topic: str, group: str, checkpoint: str
) -> None:
    fill(server, topic, 2, count=10)
    strict = streaming(spark, server, topics=topic, startingOffsets="earliest", group=group)
    assert len(run(strict, checkpoint)) == 20
    assert committed(server, group) == {(topic, 0): 10, (topic, 1): 10}
    swap(server, topic, [(group, 0, 4)])
    with pytest.raises(StreamingQueryException, match=LOST):
        run(strict, checkpoint)
    assert committed(server, group) == {(topic, 0): 4}, "its place in the new topic is not written over"
    anew = streaming(spark, server, topics=topic, startingOffsets="committed", group=group)
    assert run(anew, f"{checkpoint}.new") == numbers(16, 504), "what the error advises"
    ask(server, wire.Commit(group, [(topic, 0, 4)]))
    lenient = streaming(spark, server, topics=topic, group=group, failOnDataLoss="false")
    assert run(lenient, checkpoint) == numbers(16, 504)
    assert committed(server, group) == {(topic, 0): 20}


def test_without_a_group_a_swapped_topic_is_read_from_the_earliest(
    spark: SparkSession, server: Server, topic: str, checkpoint: str
) -> None:
    fill(server, topic, count=10)
    strict = streaming(spark, server, topics=topic, startingOffsets="earliest")
    run(strict, checkpoint)
    swap(server, topic, [])
    with pytest.raises(StreamingQueryException, match=LOST):
        run(strict, checkpoint)
    assert run(streaming(spark, server, topics=topic, failOnDataLoss="false"), checkpoint) == numbers(20, 500)


def test_a_running_query_notices(spark: SparkSession, server: Server, topic: str, checkpoint: str) -> None:
    fill(server, topic, count=10)
    frame = streaming(spark, server, topics=topic, startingOffsets="earliest", columns="value")
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    try:
        query.processAllAvailable()
        swap(server, topic, [])
        with pytest.raises(StreamingQueryException, match=LOST):
            query.awaitTermination(WITHIN_S)
    finally:
        query.stop()


def test_a_topic_that_grows_is_the_same(spark: SparkSession, server: Server, topic: str, checkpoint: str) -> None:
    fill(server, topic, count=3)
    frame = streaming(spark, server, topics=topic, startingOffsets="earliest")
    assert run(frame, checkpoint) == numbers(3)
    ask(server, wire.AlterTopic(topic, partitions=2))
    publish(server, topic, numbered(2, 50), 1)
    assert run(frame, checkpoint) == ["v50", "v51"]


def test_a_checkpoint_without_ids_goes_on_and_gets_them(
    spark: SparkSession, server: Server, topic: str, checkpoint: str
) -> None:
    fill(server, topic, count=3)
    frame = streaming(spark, server, topics=topic, startingOffsets="earliest")
    assert run(frame, checkpoint) == numbers(3)
    path = newest_offsets(checkpoint)
    *notes, offsets = path.read_text().split("\n")
    assert json.loads(offsets) == {topic: {"0": 3, "id": id_of(server, topic)}}
    path.write_text("\n".join([*notes, json.dumps({topic: {"0": 3}})]))
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    publish(server, topic, numbered(2, 3))
    assert run(frame, checkpoint) == ["v3", "v4"]
    assert ids_from_json(json.loads(newest_offsets(checkpoint).read_text().split("\n")[-1])) == {
        topic: id_of(server, topic)
    }
    recreate(server, topic)
    with pytest.raises(StreamingQueryException, match=LOST):
        run(frame, checkpoint)


def test_a_batch_that_was_planned_before_the_swap_is_not_read_after_it(
    spark: SparkSession, server: Server, topic: str, checkpoint: str
) -> None:
    fill(server, topic, count=10)

    def fail(rows: DataFrame, batch_id: int) -> None:
        raise RuntimeError("no room")

    strict = streaming(spark, server, topics=topic, startingOffsets="earliest")
    assert run(strict, checkpoint) == numbers(10)
    publish(server, topic, numbered(5, 10))
    writer = strict.writeStream.foreachBatch(fail).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="no room"):
        query.awaitTermination(WITHIN_S)
    query.stop()
    recreate(server, topic)
    with pytest.raises(StreamingQueryException, match=LOST):
        run(strict, checkpoint)
    assert run(streaming(spark, server, topics=topic, failOnDataLoss="false"), checkpoint) == numbers(20, 500)


def test_a_first_batch_that_is_repeated_does_not_read_what_was_there_before_the_stream(
    spark: SparkSession, server: Server, topic: str, checkpoint: str
) -> None:
    fill(server, topic, count=10)

    def fail(rows: DataFrame, batch_id: int) -> None:
        raise RuntimeError("no room")

    frame = streaming(spark, server, topics=topic, startingOffsets="latest")
    writer = frame.writeStream.foreachBatch(fail).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="no room"):
        query.awaitTermination(WITHIN_S)
    query.stop()
    publish(server, topic, numbered(3, 10))
    assert run(frame, checkpoint) == ["v10", "v11", "v12"]


# -- batches and tasks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", ["broker", "auto"])
def test_a_frame_that_was_planned_before_the_swap_is_not_read_after_it(
    spark: SparkSession, server: Server, topic: str, read: str
) -> None:
    fill(server, topic, count=10)
    frame = reading(spark, server, topics=topic, read=read)
    assert frame.count() == 10
    swap(server, topic, [])
    with pytest.raises(Exception, match=r"was replaced by another while .* was read"):
        frame.collect()
    assert len(values(reading(spark, server, topics=topic, read=read))) == 20


def test_a_task_notices_a_swap_between_its_fetches(server: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(server, topic)
    for first in range(0, 40, 10):
        publish(server, topic, numbered(10, first))
    monkeypatch.setattr("penstock.pipeline.reading.FETCH_BYTES", 1)  # one batch at a time
    options = source_options({"server": server.line, "topics": topic, "failOnDataLoss": "false"}, stream=False)
    pieces = fetch_range(options, Range(topic, 0, 0, 40, id_of(server, topic)))
    next(pieces)
    swap(server, topic, [], count=50)
    with pytest.raises(TopicReplaced, match=r"counts for nothing; start the query again"):
        list(pieces)


def test_offsets_of_another_topic_are_refused_where_they_are_given(
    spark: SparkSession, server: Server, topic: str
) -> None:
    fill(server, topic, count=10)
    said = json.dumps({topic: {"0": 7, "id": id_of(server, topic)}})
    assert values(reading(spark, server, topics=topic, startingOffsets=said)) == ["v7", "v8", "v9"]
    recreate(server, topic)
    with pytest.raises(Exception, match=LOST):
        reading(spark, server, topics=topic, startingOffsets=said).collect()
    assert len(values(reading(spark, server, topics=topic, startingOffsets=said, failOnDataLoss="false"))) == 20


def test_a_topic_that_is_gone_after_the_last_fetch_was_read(server: Server, topic: str) -> None:
    fill(server, topic, count=1)
    with Link(server.line, timeout_s=10) as link:
        part = Range(topic, 0, 0, 1, id_of(server, topic))
        check_range(link, part)
        ask(server, wire.DeleteTopic(topic))
        check_range(link, part)
        create(server, topic)
        with pytest.raises(TopicReplaced):
            check_range(link, part)


def test_a_step_leaves_the_group_alone_in_a_topic_that_was_replaced_since_it_was_read(
    server: Server, topic: str, group: str
) -> None:
    fill(server, topic, count=10)
    before = id_of(server, topic)
    options = sink_options({"server": server.line, "topic": f"{topic}.out", "application": topic}, stream=True)
    assert commit_step(options, topic, 0, [], "a", [(group, topic, 0, 6)], {topic: before})
    assert committed(server, group) == {(topic, 0): 6}
    swap(server, topic, [(group, 0, 2)])
    assert commit_step(options, topic, 1, [], "b", [(group, topic, 0, 10)], {topic: before})
    assert committed(server, group) == {(topic, 0): 2}
    assert commit_step(options, topic, 2, [], "c", [(group, topic, 0, 3)], {topic: id_of(server, topic)})
    assert committed(server, group) == {(topic, 0): 3}


# -- words --------------------------------------------------------------------------------------------------


def test_ids_are_asked_for_all_topics_at_once(server: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        create(server, f"{topic}.{number}")
    names = [f"{topic}.{number}" for number in range(4)]
    asked: list[int] = []
    with Link(server.line, timeout_s=10) as link:
        ask_all = link.ask_all
        monkeypatch.setattr(link, "ask_all", lambda messages: asked.append(len(messages)) or ask_all(messages))
        assert sorted(described(link, names)) == names[:3]
        assert len(set(topic_ids(link, names).values())) == 3
    assert asked == [1, 1]


def test_offsets_are_written_in_one_order_and_read_with_and_without_ids() -> None:
    ends = {("b", 1): 4, ("a", 10): 1, ("a", 2): 7, ("b", 0): 5}
    written = to_json(ends, {"b": "B", "a": "A", "other": "O"})
    assert json.dumps(written) == '{"a": {"2": 7, "10": 1, "id": "A"}, "b": {"0": 5, "1": 4, "id": "B"}}'
    assert from_json(written) == ends == from_json(to_json(ends, {}))
    assert ids_from_json(written) == {"a": "A", "b": "B"}
    assert ids_from_json({"a": {"0": 3}}) == {}
    assert is_ours(written)
    assert is_ours({"a": {"0": 3}})
    assert not is_ours({"a": {"id": 3}})
    assert not is_ours({"a": {"0": "three"}})
    assert replaced({"a": "A", "b": "B", "c": "C"}, {"a": "A", "b": "X"}) == ["b"]


def test_whoever_else_reads_a_checkpoint_understands_ids() -> None:
    ends = parse_ends('v1\n{}\n{"orders":{"0":3,"id":"A"}}\n{"logOffset":1}', 4)
    assert ends.topics == [("orders", 0, 3)]
    assert ends.ids == {"orders": "A"}
    source = {"endOffset": {"orders": {"0": 3, "id": "A"}}, "latestOffset": {"orders": {"0": 8, "1": 2, "id": "A"}}}
    assert lag_of({"sources": [source]}) == 7


def test_pieces_of_a_range_have_its_id() -> None:
    assert {piece.topic_id for piece in split([Range("a", 0, 0, 10, "A")], 3, None)} == {"A"}


def test_times_have_no_ids() -> None:
    given = {"server": "127.0.0.1:1", "topics": "a", "startingOffsetsByTimestamp": '{"a": {"0": 1, "id": "A"}}'}
    with pytest.raises(InvalidOption, match="for partition 'id'"):
        source_options(given)
