"""What an audit finds, on frames alone: records lost, doubled, changed, foreign and out of order, and nothing else."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.pipeline.jobs import audit_places, audit_sequences
from penstock.pipeline.jobs.audit_places import Bounds
from penstock.pipeline.jobs.digests import COLUMNS, with_digest

pytestmark = pytest.mark.timeout(300)  # a first job of Spark takes long on a busy machine

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = """partition int, offset bigint, key binary, value binary, timestamp timestamp,
            headers array<struct<key: string, value: binary>>"""

Row = tuple[Any, ...]


def record(partition: int, offset: int, value: bytes | None = None, key: bytes | None = b"k") -> Row:
    text = b"%d-%d" % (partition, offset) if value is None else value
    return (partition, offset, key, text, BEGIN + timedelta(milliseconds=offset), [("h", None)])


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    made = spark.createDataFrame(rows, SCHEMA)
    keyed = f.when(f.col("key").isNotNull(), f.xxhash64("key"))
    return with_digest(made, COLUMNS).withColumn("keyed", keyed)


ROWS = [record(partition, offset) for partition in (0, 1) for offset in range(20) if offset % 5]
BOUNDS = {0: Bounds(0, 20), 1: Bounds(0, 20)}


def by_place(spark: SparkSession, table: list[Row], **options: Any) -> audit_places.Found:
    source, target = frame(spark, ROWS), frame(spark, table)
    newest = {partition: side.last_offset for partition, side in audit_places.sums(target).items()}
    given: dict[str, Any] = {"complete": True, "compacted": False, "quarantined": None, "samples": 3} | options
    return audit_places.differences(source, target, BOUNDS, newest, **given)


def test_sums_of_the_same_records_are_equal_in_any_order_and_differ_by_any_column(spark: SparkSession):
    whole = audit_places.sums(frame(spark, ROWS))
    assert whole == audit_places.sums(frame(spark, ROWS[::-1]))
    assert whole[0].records == 16 and (whole[0].first_offset, whole[0].last_offset) == (1, 19)
    others = [
        (0, 1, b"j", b"0-1", ROWS[0][4], [("h", None)]),
        (0, 1, None, b"0-1", ROWS[0][4], [("h", None)]),
        (0, 1, b"k", b"", ROWS[0][4], [("h", None)]),
        (0, 1, b"k", b"0-1", BEGIN, [("h", None)]),
        (0, 1, b"k", b"0-1", ROWS[0][4], [("h", b"")]),
        (0, 1, b"k", b"0-1", ROWS[0][4], None),
    ]
    hashed = frame(spark, [ROWS[0], *others]).select("h1", "h2").distinct().count()
    assert hashed == len(others) + 1
    moved = audit_places.sums(frame(spark, [ROWS[0], (1, 3, *ROWS[0][2:])]))
    assert moved[0].digest != moved[1].digest  # the place is part of it


def test_table_that_lost_doubled_changed_and_invented_rows_is_told_each(spark: SparkSession):
    table = [row for row in ROWS if row[:2] != (0, 7)] + [record(1, 3)] * 2
    table = [record(1, 9, b"forged") if row[:2] == (1, 9) else row for row in table]
    table += [record(0, 10), record(0, 99), record(1, 25)]  # an aborted one, and two from nowhere
    found = by_place(spark, table)
    assert found.counts == {"lost": 1, "doubled": 2, "changed": 1, "foreign": 3}
    places = {(sample.kind, sample.partition, sample.offset) for sample in found.samples}
    assert {("lost", 0, 7), ("doubled", 1, 3), ("changed", 1, 9), ("foreign", 0, 10)} <= places


def test_what_a_table_has_yet_to_read_is_not_lost_where_that_is_allowed(spark: SparkSession):
    table = [row for row in ROWS if row[1] <= 12 and row[:2] != (1, 4)]
    assert by_place(spark, table).counts == {"lost": 13}
    assert by_place(spark, table, complete=False).counts == {"lost": 1, "behind": 12}


def test_quarantined_records_are_not_lost(spark: SparkSession):
    table = [row for row in ROWS if row[:2] not in {(0, 7), (0, 8)}]
    aside = spark.createDataFrame([(0, 7), (0, 7), (1, 1)], "partition int, offset bigint")
    assert by_place(spark, table, quarantined=aside).counts == {"lost": 1, "quarantined": 1}


def test_rows_that_the_topic_has_dropped_or_compacted_prove_nothing(spark: SparkSession):
    source, target = frame(spark, [row for row in ROWS if row[1] >= 10]), frame(spark, ROWS)
    given: dict[str, Any] = {"complete": True, "quarantined": None, "samples": 3}
    bounds = {0: Bounds(10, 20), 1: Bounds(10, 20)}
    found = audit_places.differences(source, target, bounds, {}, compacted=False, **given)
    assert found.counts == {"beyond retention": 16}
    found = audit_places.differences(source, target, BOUNDS, {}, compacted=True, **given)
    assert found.counts == {"beyond retention": 16}


def test_rows_of_a_file_that_go_back_are_out_of_order(spark: SparkSession):
    rows = [("a", row, 0, offset) for row, offset in enumerate([1, 2, 5, 4, 6])]
    rows += [("b", row, 0, offset) for row, offset in enumerate([0, 3])]
    found = audit_places.disorder(
        spark.createDataFrame(rows, "file string, row bigint, partition int, offset bigint"), 3
    )
    assert found.counts == {"out of order": 1}
    assert found.samples[0].offset == 4


# -- mirrors ------------------------------------------------------------------------------------------------

SAME = audit_sequences.Kind(same_partitions=True)
OTHER = audit_sequences.Kind(same_partitions=False)
KEYED = [record(n % 2, n // 2, b"%d" % n, key=b"key-%d" % (n % 4)) for n in range(40)]


def placed(rows: list[Row], partitions: int = 0) -> list[Row]:
    """As a mirror has them: places of its own, with gaps; by the key where it has so many partitions."""
    ends = dict.fromkeys(range(max(2, partitions)), 5)
    found = []
    for partition, _, key, *rest in rows:
        index = (key[-1] if key else 0) % partitions if partitions else partition
        found.append((index, ends[index], key, *rest))
        ends[index] += 1 + (ends[index] % 7 == 0)
    return found


def both(spark: SparkSession, rows: list[Row], mirror: list[Row], kind: audit_sequences.Kind, **options: Any) -> Any:
    source, target = frame(spark, rows), frame(spark, mirror)
    given: dict[str, Any] = {"complete": True, "trimmed": (), "samples": 3} | options
    mine, other = audit_sequences.sums(source, kind), audit_sequences.sums(target, kind)
    equal = {at: (side.records, side.digest, side.order_digest) for at, side in mine.items()} == {
        at: (side.records, side.digest, side.order_digest) for at, side in other.items()
    }
    found = audit_sequences.differences(source, target, kind, **given)
    assert equal == (not found.counts)
    return found


def test_mirror_with_the_same_partitions_holds_by_its_sums_alone(spark: SparkSession):
    assert both(spark, KEYED, placed(KEYED), SAME).counts == {}


def test_mirror_with_other_partitions_keeps_the_order_of_each_key(spark: SparkSession):
    assert both(spark, KEYED, placed(KEYED, 3), OTHER).counts == {}
    swapped = [*KEYED[:8], KEYED[12], *KEYED[9:12], KEYED[8], *KEYED[13:]]  # two of one key
    found = both(spark, KEYED, placed(swapped, 3), OTHER)
    assert found.counts == {"out of order": 1}


def test_mirror_that_lost_doubled_and_invented_records_is_told_each(spark: SparkSession):
    mirror = placed([*KEYED[:10], *KEYED[11:30], KEYED[20], *KEYED[30:], record(1, 0, b"invented")])
    found = both(spark, KEYED, mirror, SAME)
    assert found.counts == {"lost": 1, "doubled": 1, "foreign": 1}
    assert {(sample.kind, sample.partition) for sample in found.samples} == {
        ("lost", 0),
        ("doubled", 0),
        ("foreign", 1),
    }
    assert [sample.offset for sample in found.samples if sample.kind == "lost"] == [5]


def test_mirror_that_swapped_two_records_is_out_of_order(spark: SparkSession):
    found = both(spark, KEYED, placed([*KEYED[:10], KEYED[12], KEYED[11], KEYED[10], *KEYED[13:]]), SAME)
    assert found.counts == {"out of order": 1}
    assert (found.samples[0].partition, found.samples[0].offset) == (0, 6)


def test_mirror_that_lags_or_remembers_more_is_no_liar(spark: SparkSession):
    assert both(spark, KEYED, placed(KEYED[:30]), SAME, complete=False).counts == {"behind": 10}
    assert both(spark, KEYED[10:], placed(KEYED), SAME, trimmed=(0, 1)).counts == {"beyond retention": 10}


def test_equal_records_are_matched_one_by_one(spark: SparkSession):
    same = [(0, offset, b"k", b"v", BEGIN, None) for offset in range(5)]
    assert both(spark, same, placed(same), SAME).counts == {}
    assert both(spark, same, placed(same[:4]), SAME).counts == {"lost": 1}
    assert both(spark, same, placed([*same, same[0]]), SAME).counts == {"doubled": 1}


def test_newest_of_each_key_is_what_compacted_topics_share(spark: SparkSession):
    rows = [(0, 0, b"a", b"1", BEGIN, None), (0, 1, b"b", b"1", BEGIN, None), (0, 2, b"a", b"2", BEGIN, None)]
    rows += [(0, 3, b"b", None, BEGIN, None), (0, 4, b"c", b"1", BEGIN, None)]
    kept = audit_sequences.newest_only(frame(spark, rows)).select("offset").collect()
    assert sorted(row.offset for row in kept) == [2, 4]
    kind = audit_sequences.Kind(same_partitions=True, compacted=True)
    source = audit_sequences.newest_only(frame(spark, rows))
    mirror = audit_sequences.newest_only(frame(spark, placed(rows[2:])))
    assert audit_sequences.sums(source, kind)[0].digest == audit_sequences.sums(mirror, kind)[0].digest


@pytest.mark.parametrize("kind", [SAME, OTHER])
def test_empty_sides_are_equal(spark: SparkSession, kind: audit_sequences.Kind):
    assert both(spark, [], [], kind).counts == {}
