"""Comparing by place: both sides know each record's partition and offset, as a table made of a topic does.

Frames in, counts and samples out; nothing here knows where they come from. What is collected is one row for each
partition, and a bounded number of samples.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.pipeline.jobs.audit_findings import Findings, Found, by_partition
from penstock.pipeline.jobs.audit_proof import PartitionProof, Side
from penstock.pipeline.jobs.digests import hash_sum, hex_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_DETAILS: Final = {
    "lost": "not in the target",
    "doubled": "in the target more than once",
    "foreign": "the topic has no record there",
    "changed": "another content in the target",
}


class Bounds(NamedTuple):
    """Of a partition's log."""

    start: int
    end: int


def sums(frame: "DataFrame") -> dict[int, Side]:
    """For each partition of (partition, offset, h1, h2) what it holds; the place is part of the digest."""
    from pyspark.sql import functions as f

    place = (f.col("partition"), f.col("offset"))
    rows = (
        frame.groupBy("partition")
        .agg(
            f.count("*").alias("records"),
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
            hash_sum(*place, f.col("h1")).alias("s1"),
            hash_sum(*place, f.col("h2")).alias("s2"),
        )
        .collect()
    )
    return {row.partition: Side(row.records, row["first"], row["last"], hex_of(row.s1, row.s2)) for row in rows}


def partition_proofs(
    source: Mapping[int, Side], target: Mapping[int, Side], bounds: Mapping[int, Bounds], nothing: Side
) -> list[PartitionProof]:
    proofs = []
    for partition in sorted({*source, *target, *bounds}):
        mine = source.get(partition, nothing)
        start, end = bounds.get(partition, Bounds(0, 0))
        proofs.append(
            PartitionProof(partition, mine, target.get(partition, nothing), start, end, end - start - mine.records)
        )
    return proofs


def differences(
    source: "DataFrame",
    target: "DataFrame",
    bounds: Mapping[int, Bounds],
    newest: Mapping[int, int],
    *,
    complete: bool,
    compacted: bool,
    quarantined: "DataFrame | None",
    samples: int,
) -> Found:
    """Join both by place and say what is wrong with each that does not fit. `newest` is the target's last offset of
    each partition; `quarantined` has the places of what was set aside."""
    from pyspark.sql import functions as f

    copies = target.groupBy("partition", "offset").agg(
        f.count("*").alias("copies"),
        f.count_distinct("h1", "h2").alias("contents"),
        f.min("h1").alias("t1"),
        f.min("h2").alias("t2"),
    )
    joined = source.withColumn("mine", f.lit(True)).join(copies, ["partition", "offset"], "full_outer")
    if quarantined is not None:
        set_aside = quarantined.select("partition", "offset").distinct().withColumn("aside", f.lit(True))
        joined = joined.join(set_aside, ["partition", "offset"], "left_outer")
    else:
        joined = joined.withColumn("aside", f.lit(None).cast("boolean"))
    here, there = f.col("mine").isNotNull(), f.col("copies").isNotNull()
    aside = f.coalesce(f.col("aside"), f.lit(False))
    later = f.col("offset") > by_partition(newest, -1)
    start, end = (
        by_partition({p: b.start for p, b in bounds.items()}, 0),
        by_partition({p: b.end for p, b in bounds.items()}, 0),
    )
    changed = there & here & ((f.col("contents") > 1) | (f.col("t1") != f.col("h1")) | (f.col("t2") != f.col("h2")))
    gone = (f.col("offset") < start) | (f.lit(compacted) & (f.col("offset") < end))
    kind = (
        f.when(here & ~there & aside, "quarantined")
        .when(here & ~there & f.lit(not complete) & later, "behind")
        .when(here & ~there, "lost")
        .when(~here & gone, "beyond retention")
        .when(~here, "foreign")
        .when(changed, "changed")
    )
    judged = joined.select("partition", "offset", "copies", kind.alias("kind")).where(
        f.col("kind").isNotNull() | (f.col("copies") > 1)
    )
    # A place may be wrong in two ways: doubled beside what else it is.
    both = f.array_compact(f.array(f.col("kind"), f.when(f.col("copies") > 1, f.lit("doubled"))))
    each = judged.select("partition", "offset", "copies", f.explode(both).alias("kind")).persist()
    try:
        many = f.when(f.col("kind") == "doubled", f.col("copies") - 1).otherwise(1)
        counts = {row.kind: row.n for row in each.groupBy("kind").agg(f.sum(many).alias("n")).collect()}
        found = Findings(samples, counts)
        for kind_of, detail in _DETAILS.items():
            if counts.get(kind_of):
                found.show(kind_of, each.where(f.col("kind") == kind_of), "partition", "offset", detail)
        return found.result()
    finally:
        each.unpersist()


def disorder(rows: "DataFrame", samples: int) -> Found:
    """Of (partition, offset, file, row): rows that stand in a file behind one of their partition with a higher
    offset."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = f.lag("offset").over(Window.partitionBy("file", "partition").orderBy("row"))
    late = rows.withColumn("before", before).where(f.col("offset") < f.col("before"))
    found = Findings(samples)
    found.tell("out of order", late, "partition", "offset", "stands in its file behind a later one")
    return found.result()
