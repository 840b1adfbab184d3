"""What compaction keeps, where it goes, and where readers go on: on frames alone."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.model.partitioner import partition_for_key
from penstock.model.record import Record
from penstock.pipeline.jobs import compact_frames as frames
from penstock.pipeline.jobs import compact_tail as tail
from penstock.pipeline.jobs.compact_frames import Position
from penstock.pipeline.jobs.step_writing import Run

pytestmark = pytest.mark.timeout(300)  # a first job of Spark takes long on a busy machine

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BEGIN_MS = int(BEGIN.timestamp() * 1000)
SCHEMA = """partition int, offset bigint, key binary, value binary, timestamp timestamp,
            headers array<struct<key: string, value: binary>>"""

Row = tuple[Any, ...]


def record(partition: int, offset: int, key: bytes | None, value: bytes | None = b"v", time_ms: int = 0) -> Row:
    return (partition, offset, key, value, BEGIN + timedelta(milliseconds=time_ms or offset), None)


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(rows, SCHEMA)


def test_newest_of_each_key_stays_and_old_tombstones_go(spark: SparkSession):
    rows = [
        record(0, 0, b"a"), record(0, 1, b"b"), record(0, 2, b"a"), record(0, 3, None), record(0, 4, None),
        record(0, 5, b"b", None, time_ms=5), record(0, 6, b"c"), record(0, 7, b"c", None, time_ms=500),
        record(1, 0, b"a"),
    ]  # fmt: skip
    kept = frames.kept(frame(spark, rows), newest_only=True, tombstones_before_ms=BEGIN_MS + 100)
    places = sorted((row.partition, row.offset) for row in kept.collect())
    assert places == [(0, 2), (0, 3), (0, 4), (0, 7), (1, 0)]
    assert frames.kept(frame(spark, rows), newest_only=False, tombstones_before_ms=0).count() == len(rows)


def test_repartitioned_records_keep_their_order_and_meet_by_time(spark: SparkSession):
    numbers = random.Random(5)
    rows = []
    for partition in range(3):
        time_ms = 1
        for offset in range(0, 60, 2):
            time_ms += numbers.randrange(-3, 9)  # clocks go back at times
            key = None if offset % 10 == 0 else b"key-%d" % numbers.randrange(5)
            rows.append(record(partition, offset, key, time_ms=max(1, time_ms)))
    placed = frames.placed(frame(spark, rows), 3, 2)
    found = frames.in_order(placed, 2).collect()
    by_place: dict[int, list[Any]] = {0: [], 1: []}
    for row in found:
        by_place[row.to].append(row)
        expected = row.partition % 2 if row.key is None else partition_for_key(bytes(row.key), 2)
        assert row.to == expected
    for records in by_place.values():
        for partition in range(3):
            offsets = [row.offset for row in records if row.partition == partition]
            assert offsets == sorted(offsets)
        assert [row["at"] for row in records] == sorted(row["at"] for row in records)
    # The driver sorts what it carries over in the same way.
    mine = [
        (row[0], Record(row[1], int(row[4].timestamp() * 1000), row[2], row[3]))
        for row in rows
        if (row[0] % 2 if row[2] is None else partition_for_key(row[2], 2)) == 1
    ]
    tail._merge(mine)
    assert [(partition, each.offset) for partition, each in mine] == [
        (row.partition, row.offset) for row in by_place[1]
    ]


def test_group_goes_on_at_the_first_record_that_it_has_not_read(spark: SparkSession):
    rows = [record(0, offset, b"k") for offset in (2, 5, 9)] + [record(1, offset, b"k") for offset in (1, 3)]
    placed = frames.placed(frame(spark, rows), 2, 2)
    positions = [Position("early", 0, 0), Position("mid", 0, 3), Position("mid", 1, 3), Position("late", 0, 10)]
    ranks = frames.first_unread(placed, positions)
    assert ranks == {("early", 0): 0, ("mid", 0): 1, ("mid", 1): 1}
    runs = [Run(0, 0, 100, 2), Run(0, 2, 105, 1), Run(1, 0, 0, 2)]
    first = {(group, at): frames.offset_of_rank(runs, at, rank) for (group, at), rank in ranks.items()}
    assert first == {("early", 0): 100, ("mid", 0): 101, ("mid", 1): 1}
    assert frames.offset_of_rank(runs, 0, 2) == 105 and frames.offset_of_rank(runs, 0, 3) is None
    known = {place: offset for place, offset in first.items() if offset is not None}
    after = frames.translated(positions, [known], {0: 107, 1: 3}, same_partitions=True)
    assert sorted(after) == [("early", 0, 100), ("late", 0, 107), ("mid", 0, 101), ("mid", 1, 1)]


def test_repartitioned_group_skips_nothing_unread_and_goes_as_far_as_it_may(spark: SparkSession):
    """Against a reckoning by hand: of all records in the order in which they were written."""
    numbers = random.Random(7)
    rows = [
        record(partition, offset, b"key-%d" % numbers.randrange(9), time_ms=1 + offset * 3 + partition)
        for partition in range(3)
        for offset in range(25)
    ]
    placed = frames.placed(frame(spark, rows), 3, 4)
    written: dict[int, list[tuple[int, int]]] = {}
    for row in frames.in_order(placed, 4).collect():
        written.setdefault(row.to, []).append((row.partition, row.offset))
    positions = [Position("g", at, numbers.randrange(26)) for at in range(3)]
    ranks = frames.first_unread(placed, positions)
    done = {each.partition: each.offset for each in positions}
    for to, places in written.items():
        unread = [rank for rank, (partition, offset) in enumerate(places) if offset >= done[partition]]
        assert ranks.get(("g", to)) == (unread[0] if unread else None)
    moved = [tail.Moved(p, o, to, 10 + at) for to, places in written.items() for at, (p, o) in enumerate(places)]
    assert tail.first_unread(moved, positions) == {place: 10 + rank for place, rank in ranks.items()}
    after = frames.translated(
        positions,
        [{place: 10 + rank for place, rank in ranks.items()}],
        dict.fromkeys(range(4), 99),
        same_partitions=False,
    )
    assert len(after) == 4
