"""Comparing by content: the sides give their records places of their own, as a topic and its mirror do.

The same records in the same order have the same sum of hash(rank, record) in each partition, so where everything is
well one pass over each side proves it. Only where it is not are the records matched one by one: the n-th of those with
one content on one side with the n-th on the other.

Where the sides have different numbers of partitions, there is one order to keep: that of the records of one key.
Where a topic is compacted, only the newest record of each key can be expected to be on both sides.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.pipeline.jobs.audit_findings import Findings, Found, by_partition
from penstock.pipeline.jobs.audit_proof import Side
from penstock.pipeline.jobs.digests import hash_sum, hex_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ALL: Final = -1  # instead of a partition
_NEVER: Final = (1 << 63) - 1


class Kind(NamedTuple):
    """What is to be the same on both sides."""

    same_partitions: bool
    compacted: bool = False
    has_order: bool = True


def newest_only(frame: "DataFrame") -> "DataFrame":
    """What a compacted topic comes down to in the end: of each key the newest record, unless that is a tombstone."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_key = Window.partitionBy("key", f.when(f.col("key").isNull(), f.col("offset")), "partition")
    newest = frame.withColumn("rank", f.row_number().over(of_key.orderBy(f.col("offset").desc())))
    return newest.where((f.col("rank") == 1) & f.col("value").isNotNull()).drop("rank")


def sums(frame: "DataFrame", kind: Kind) -> dict[int, Side]:
    """Of (partition, offset, keyed, h1, h2), where `keyed` is a hash of the key or null: per partition, or of all."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if kind.compacted or not kind.has_order:
        ranked = frame.withColumn("rank", f.lit(0))
    elif kind.same_partitions:
        ranked = frame.withColumn("rank", f.row_number().over(Window.partitionBy("partition").orderBy("offset")))
    else:
        of_key = f.row_number().over(Window.partitionBy("partition", "keyed").orderBy("offset"))
        ranked = frame.withColumn("rank", f.when(f.col("keyed").isNotNull(), of_key).otherwise(0))
    place = f.col("partition") if kind.same_partitions else f.lit(ALL)
    rows = (
        ranked.groupBy(place.alias("lane"))
        .agg(
            f.count("*").alias("records"),
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
            hash_sum(f.col("h1")).alias("s1"),
            hash_sum(f.col("h2")).alias("s2"),
            hash_sum(f.col("rank"), f.col("h1"), f.col("h2")).alias("o"),
        )
        .collect()
    )
    return {
        row.lane: Side(row.records, row["first"], row["last"], hex_of(row.s1, row.s2), hex_of(row.o)) for row in rows
    }


def differences(
    source: "DataFrame",
    mirror: "DataFrame",
    kind: Kind,
    *,
    complete: bool,
    trimmed: Collection[int],
    samples: int,
) -> Found:
    """Match record by record. `trimmed`: partitions of which the source has lost the beginning to its retention."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    lane = f.col("partition") if kind.same_partitions else f.lit(ALL)
    nth = f.row_number().over(Window.partitionBy("lane", "h1", "h2").orderBy("partition", "offset"))
    mine = source.withColumn("lane", lane).withColumn("nth", nth)
    mine = mine.select("lane", "h1", "h2", "nth", f.col("partition").alias("from"), "offset", "keyed")
    there = mirror.withColumn("lane", lane).withColumn("nth", nth)
    there = there.select("lane", "h1", "h2", "nth", f.col("partition").alias("in"), f.col("offset").alias("at"))
    joined = mine.join(there, ["lane", "h1", "h2", "nth"], "full_outer").persist()
    try:
        found = Findings(samples)
        here, mirrored = f.col("offset").isNotNull(), f.col("at").isNotNull()
        matched = joined.where(here & mirrored)
        lost, foreign = joined.where(here & ~mirrored), joined.where(~here & mirrored)
        if not complete:
            tail = _ends(matched, "from", "offset", "max")
            found.count("behind", lost.where(f.col("offset") > by_partition(tail, -1, "from")))
            lost = lost.where(f.col("offset") <= by_partition(tail, -1, "from"))
        found.tell("lost", lost, "from", "offset", "not in the mirror")
        if kind.compacted:
            # It was there when it was mirrored, or is superseded over there later than here.
            found.count("beyond retention", foreign)
        else:
            if trimmed and kind.same_partitions:
                # What the mirror holds before the first record that both have is what the source's retention took.
                first = _ends(matched, "in", "at", "min")
                head = {partition: first.get(partition, _NEVER) for partition in trimmed}
                found.count("beyond retention", foreign.where(f.col("at") < by_partition(head, -1, "in")))
                foreign = foreign.where(f.col("at") >= by_partition(head, -1, "in"))
            contents = mine.select("lane", "h1", "h2").distinct()
            doubled = foreign.join(contents, ["lane", "h1", "h2"], "left_semi")
            found.tell("doubled", doubled, "in", "at", "the mirror has the same record before")
            foreign = foreign.join(contents, ["lane", "h1", "h2"], "left_anti")
            found.tell("foreign", foreign, "in", "at", "the topic has no such record")
            if kind.has_order:
                late = _late(matched, kind)
                found.tell("out of order", late, "from", "offset", "stands in the mirror before its predecessor")
        return found.result()
    finally:
        joined.unpersist()


def _late(matched: "DataFrame", kind: Kind) -> "DataFrame":
    """Those that stand in the mirror before the one that they should follow, or in another partition than it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if not kind.same_partitions:
        matched = matched.where(f.col("keyed").isNotNull())
    order = Window.partitionBy("from", *([] if kind.same_partitions else ["keyed"])).orderBy("offset")
    before = matched.withColumns({"before": f.lag("at").over(order), "before_in": f.lag("in").over(order)})
    return before.where((f.col("at") < f.col("before")) | (f.col("in") != f.col("before_in")))


def _ends(matched: "DataFrame", partition: str, place: str, which: str) -> dict[int, int]:
    from pyspark.sql import functions as f

    rows = matched.groupBy(partition).agg(f.expr(f"{which}(`{place}`)").alias("end")).collect()
    return {row[0]: row.end for row in rows}
