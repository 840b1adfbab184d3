"""The audit job: is everything that a topic holds in its table or its mirror, once and in order? And the proof.

Both sides are fixed before anything is read: the target first and the topic's ends after it, so that whatever the
target holds is within them. Only committed records are read; offsets that hold none (markers, aborted transactions,
what compaction took) are no loss, and are counted in the proof.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.jobs import audit_places, audit_sequences
from penstock.pipeline.jobs.audit_findings import Found
from penstock.pipeline.jobs.audit_places import Bounds, partition_proofs
from penstock.pipeline.jobs.audit_proof import NOTHING, PartitionProof, Proof
from penstock.pipeline.jobs.desk import Desk, TopicFacts
from penstock.pipeline.jobs.digests import COLUMNS, with_digest
from penstock.pipeline.jobs.job import OnProgress, Progress, silent
from penstock.pipeline.jobs.letters import letters
from penstock.pipeline.jobs.reading import Range, read, whole
from penstock.pipeline.jobs.table_reading import HEADERS, read_table, record_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_CHANGES: Final = Found({}, [])


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Either `table` or `mirror` is given."""

    server: str
    topic: str
    table: str | None = None
    format: str = "parquet"  # parquet, delta or iceberg
    catalog: str | None = None
    mirror: str | None = None  # a topic
    mirror_server: str | None = None  # None: the same
    compare: Sequence[str] = ()  # columns of key, value, timestamp, headers; none: all that both sides have
    complete: bool = True  # what is behind the other side's newest counts as lost; False: as not there yet
    file_order: bool = False  # a table's rows must stand in order in their files, too
    samples: int = 10  # differences shown of each kind
    quarantine: str | None = None  # a table's: what is there is not lost; None: <topic>.quarantine if there is one

    def __post_init__(self) -> None:
        if (self.table is None) == (self.mirror is None):
            raise InvalidOption("exactly one of table and mirror says what to compare the topic with")
        if self.mirror == self.topic and self.mirror_server in (None, self.server):
            raise InvalidOption(f"{self.topic!r} is not a mirror of itself")
        for name in self.compare:
            if name not in COLUMNS:
                raise InvalidOption(f"compare names {name!r}; what can be compared is {', '.join(COLUMNS)}")


def run(spark: "SparkSession", options: AuditOptions, *, on_progress: OnProgress = silent) -> Proof:
    """`Proof` shows itself (`.table()`, `.as_dict()`); `.holds` is the verdict, for the exit status."""
    began_s = time.monotonic()
    if options.table is not None:
        return _with_table(spark, options, on_progress, began_s)
    return _with_mirror(spark, options, on_progress, began_s)


# -- a table ------------------------------------------------------------------------------------------------


def _with_table(spark: "SparkSession", options: AuditOptions, on_progress: OnProgress, began_s: float) -> Proof:
    from pyspark.sql import functions as f

    assert options.table is not None
    table = read_table(spark, options.table, options.format, options.catalog)
    with Desk(options.server) as desk:
        topic = desk.topic(options.topic)
        ranges = whole(desk, topic)
        aside = _quarantined(spark, desk, options)
    names = record_columns(table)
    if "partition" not in names or "offset" not in names:
        return _by_content(spark, options, table, topic, ranges, on_progress, began_s)
    if "topic" in names:
        table = table.where(f.col(names["topic"]) == options.topic)
    compared = _compared(options, table)
    places = {"partition": f.col(names["partition"]).cast("int"), "offset": f.col(names["offset"]).cast("bigint")}
    target = _digested(
        table.select(
            *(column.alias(name) for name, column in places.items()), *(f.col(names[c]).alias(c) for c in compared)
        ),
        compared,
    )
    source = _digested(read(spark, options.server, {topic.name: ranges}, _columns(compared)), compared)
    bounds = {at: Bounds(*each) for at, each in enumerate(ranges)}
    on_progress(Progress("reading the topic", 0, sum(end - start for start, end in ranges)))
    mine = audit_places.sums(source)
    on_progress(Progress("reading the table", sum(side.records for side in mine.values())))
    other = audit_places.sums(target)
    proofs = partition_proofs(mine, other, bounds, NOTHING)
    found = NO_CHANGES
    if not all(proof.holds for proof in proofs):
        on_progress(Progress("looking for differences", 0))
        found = audit_places.differences(
            source,
            target,
            bounds,
            {at: side.last_offset for at, side in other.items()},
            complete=options.complete,
            compacted=topic.is_compacted,
            quarantined=aside,
            samples=options.samples,
        )
    if options.file_order:
        file = {"file": f.col("_metadata.file_path"), "row": f.col("_metadata.row_index")}
        rows = table.select(*(column.alias(name) for name, column in {**places, **file}.items()))
        late = audit_places.disorder(rows, options.samples)
        found = Found({**found.counts, **late.counts}, [*found.samples, *late.samples])
    return _proof(options, "by partition and offset", compared, proofs, found, began_s)


def _by_content(
    spark: "SparkSession",
    options: AuditOptions,
    table: "DataFrame",
    topic: TopicFacts,
    ranges: Sequence[Range],
    on_progress: OnProgress,
    began_s: float,
) -> Proof:
    """A table without places: only whether it has the same records, as a multiset."""
    from pyspark.sql import functions as f

    compared = _compared(options, table)
    if "value" not in compared and "key" not in compared:
        raise InvalidOption(
            f"the table {options.table} keeps neither partition and offset nor key or value of its records, so there "
            "is nothing to compare; let the table job keep its metadata columns"
        )
    names = record_columns(table)
    rows = table.select(*(f.col(names[name]).alias(name) for name in compared))
    rows = rows.withColumns({"partition": f.lit(0), "offset": f.monotonically_increasing_id()})
    source = _digested(read(spark, options.server, {topic.name: list(ranges)}, _columns(compared)), compared)
    kind = audit_sequences.Kind(same_partitions=False, has_order=False)
    found, proofs = _compare(source, _digested(rows, compared), kind, options, ranges, on_progress)
    return _proof(options, "by content, as a multiset (the table keeps no offsets)", compared, proofs, found, began_s)


# -- a mirror -----------------------------------------------------------------------------------------------


def _with_mirror(spark: "SparkSession", options: AuditOptions, on_progress: OnProgress, began_s: float) -> Proof:
    assert options.mirror is not None
    other_server = options.mirror_server or options.server
    with Desk(other_server) as desk:
        mirror = desk.topic(options.mirror)
        mirrored = whole(desk, mirror)
    with Desk(options.server) as desk:
        topic = desk.topic(options.topic)
        ranges = whole(desk, topic)
    kind = audit_sequences.Kind(
        same_partitions=topic.partitions == mirror.partitions,
        compacted=topic.is_compacted or mirror.is_compacted,
    )
    compared = list(options.compare) or list(COLUMNS)
    source = read(spark, options.server, {topic.name: ranges}, _columns(compared))
    target = read(spark, other_server, {mirror.name: mirrored}, _columns(compared))
    if kind.compacted:
        source, target = audit_sequences.newest_only(source), audit_sequences.newest_only(target)
    found, proofs = _compare(
        _digested(source, compared), _digested(target, compared), kind, options, ranges, on_progress
    )
    way = "by content and order" if kind.same_partitions else "by content, and order of each key"
    if kind.compacted:
        way = "by the newest record of each key (compacted)"
    return _proof(options, way, compared, proofs, found, began_s)


def _compare(
    source: "DataFrame",
    target: "DataFrame",
    kind: audit_sequences.Kind,
    options: AuditOptions,
    ranges: Sequence[Range],
    on_progress: OnProgress,
) -> tuple[Found, list[PartitionProof]]:
    length = sum(end - start for start, end in ranges)
    on_progress(Progress("reading the topic", 0, length))
    mine = audit_sequences.sums(source, kind)
    on_progress(Progress("reading the target", sum(side.records for side in mine.values())))
    other = audit_sequences.sums(target, kind)
    bounds = {at: Bounds(*each) for at, each in enumerate(ranges)}
    if not kind.same_partitions:
        bounds = {audit_sequences.ALL: Bounds(0, length)}
    proofs = partition_proofs(mine, other, bounds, NOTHING)
    if all(proof.holds for proof in proofs):
        return NO_CHANGES, proofs
    on_progress(Progress("looking for differences", 0))
    trimmed = [at for at, (start, _) in enumerate(ranges) if start > 0]
    found = audit_sequences.differences(
        source, target, kind, complete=options.complete, trimmed=trimmed, samples=options.samples
    )
    return found, proofs


# -- both ---------------------------------------------------------------------------------------------------


def _digested(frame: "DataFrame", compared: Sequence[str]) -> "DataFrame":
    """What is compared, and no payload."""
    from pyspark.sql import functions as f

    if "headers" in compared:
        frame = frame.withColumn("headers", f.col("headers").cast(HEADERS))
    keyed = (
        f.when(f.col("key").isNotNull(), f.xxhash64(f.col("key").cast("binary"))) if "key" in frame.columns else None
    )
    frame = with_digest(frame, compared)
    frame = frame.withColumn("keyed", f.lit(None).cast("bigint") if keyed is None else keyed)
    return frame.select("partition", "offset", "keyed", "h1", "h2")


def _columns(compared: Sequence[str]) -> list[str]:
    """Of the topic, so much as is needed: the key orders, and key and value tell what compaction leaves."""
    return list(dict.fromkeys(("key", "value", "partition", "offset", *compared)))


def _compared(options: AuditOptions, table: "DataFrame") -> list[str]:
    """What the table keeps of a record as it was. A value that was taken apart into columns cannot be compared."""
    names = record_columns(table)
    kept: list[str] = [name for name in COLUMNS if name in names]
    missing = [name for name in options.compare if name not in kept]
    if missing:
        raise InvalidOption(f"the table {options.table} has no column for {', '.join(missing)}; it has {table.columns}")
    return list(options.compare) or kept


def _quarantined(spark: "SparkSession", desk: Desk, options: AuditOptions) -> "DataFrame | None":
    """The places of those records that the table job has set aside."""
    from pyspark.sql import functions as f

    topic = desk.find(options.quarantine or f"{options.topic}.quarantine")
    if topic is None:
        if options.quarantine is not None:
            desk.topic(options.quarantine)  # says that there is none
        return None
    found = letters(read(spark, options.server, {topic.name: whole(desk, topic)}))
    found = found.where(f.col("origin_topic") == options.topic)
    return found.select(
        f.col("origin_partition").cast("int").alias("partition"), f.col("origin_offset").alias("offset")
    )


def _proof(
    options: AuditOptions,
    method: str,
    compared: Sequence[str],
    proofs: list[PartitionProof],
    found: Found,
    began_s: float,
) -> Proof:
    counts = found.counts
    target = options.table if options.table is not None else f"topic {options.mirror}"
    return Proof(
        source=f"topic {options.topic}",
        target=str(target),
        method=method,
        compared=list(compared),
        partitions=proofs,
        lost=counts.get("lost", 0),
        doubled=counts.get("doubled", 0),
        foreign=counts.get("foreign", 0),
        changed=counts.get("changed", 0),
        out_of_order=counts.get("out of order", 0),
        behind=counts.get("behind", 0),
        quarantined=counts.get("quarantined", 0),
        beyond_retention=counts.get("beyond retention", 0),
        differences=found.samples,
        seconds=time.monotonic() - began_s,
    )
