"""What compaction keeps of a topic and where it goes, as frames; and where a reader of the old topic goes on.

A frame of kept records has the columns of records and `to` (the new partition), `at` (what sorts the records of a
partition). The order of each old partition is kept: `at` never goes down along it, and offsets decide between equals.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.pipeline.jobs.step_writing import Run

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Position(NamedTuple):
    """What a group has read of the old topic: the next offset of one partition."""

    group: str
    partition: int
    offset: int


def kept(records: "DataFrame", *, newest_only: bool, tombstones_before_ms: int) -> "DataFrame":
    """Of each key and partition the newest record, and all records that have no key. Tombstones go once they are old,
    and with them, since they are the newest, everything of their key."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if not newest_only:
        return records
    # Records without a key would all be one key's: their offset makes each its own.
    of_key = Window.partitionBy("partition", "key", f.when(f.col("key").isNull(), f.col("offset")))
    newest = records.withColumn("rank", f.row_number().over(of_key.orderBy(f.col("offset").desc())))
    old = f.col("key").isNotNull() & f.col("value").isNull() & (f.unix_millis("timestamp") < tombstones_before_ms)
    return newest.where((f.col("rank") == 1) & ~old).drop("rank")


def placed(records: "DataFrame", before: int, after: int) -> "DataFrame":
    """With the new partition of each, and its order there.

    Where partitions stay, that is the offset. Else records of several partitions meet: they are merged by time, as far
    as the order of each allows, so that a reader finds what happened together not far apart.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if before == after:
        return records.withColumns({"to": f.col("partition"), "at": f.lit(0).cast("bigint")})
    along = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, 0)
    spread = f.when(f.col("key").isNull(), f.col("partition") % after).otherwise(_by_key(after)(f.col("key")))
    return records.withColumns({"to": spread.cast("int"), "at": f.max(f.unix_millis("timestamp")).over(along)})


def _by_key(count: int) -> "Callable[[Column], Column]":
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    from penstock.model.partitioner import partition_for_key

    def choose(keys: pa.Array) -> pa.Array:
        chosen = [0 if key is None else int(partition_for_key(key, count)) for key in keys.to_pylist()]
        return pa.array(chosen, pa.int32())

    make: Any = arrow_udf
    by_key: Callable[[Column], Column] = make(choose, "int")
    return by_key


def in_order(records: "DataFrame", tasks: int) -> "DataFrame":
    """One task has all records of a new partition, in their order."""
    return records.repartition(tasks, "to").sortWithinPartitions("to", "at", "partition", "offset")


def first_unread(records: "DataFrame", positions: Sequence[Position]) -> dict[tuple[str, int], int]:
    """For each group and new partition the rank of the first record there that the group has not read; nothing where
    it has read all of them. A rank counts the records of a new partition, in order, from 0."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if not positions:
        return {}
    order = Window.partitionBy("to").orderBy("at", "partition", "offset")
    places = records.select("to", "at", "partition", "offset")
    ranked = places.withColumn("rank", f.row_number().over(order) - 1)
    spark = records.sparkSession
    given = spark.createDataFrame([tuple(each) for each in positions], "group string, partition int, next bigint")
    unread = ranked.join(f.broadcast(given), "partition").where(f.col("offset") >= f.col("next"))
    rows = unread.groupBy("group", "to").agg(f.min("rank").alias("rank")).collect()
    return {(row.group, row.to): row["rank"] for row in rows}


def offset_of_rank(runs: Sequence[Run], partition: int, rank: int) -> int | None:
    """Where the record of this rank was written; None if that is not known."""
    for run in runs:
        if run.partition == partition and run.rank <= rank < run.rank + run.rows:
            return None if run.base_offset < 0 else run.base_offset + rank - run.rank
    return None


def translated(
    positions: Sequence[Position],
    firsts: Sequence[Mapping[tuple[str, int], int]],
    ends: Mapping[int, int],
    *,
    same_partitions: bool,
) -> list[Position]:
    """Where each group goes on in the new topic: at the first record that it has not read, of the first pass that has
    one, else at the end.

    firsts   for each pass over the old topic, in order: the new offset of the first unread, by group and partition
    ends     of the new partitions
    """
    found = []
    wanted = {(each.group, each.partition) for each in positions}
    groups = dict.fromkeys(each.group for each in positions)
    for group in groups:
        for partition in sorted(ends):
            if same_partitions and (group, partition) not in wanted:
                continue  # it has read nothing there, and begins as its consumers choose
            place = (group, partition)
            offset = next((first[place] for first in firsts if place in first), ends[partition])
            found.append(Position(group, partition, offset))
    return found
