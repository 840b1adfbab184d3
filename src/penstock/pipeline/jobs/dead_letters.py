"""The dead-letters job: what died, why, where it came from and when; and back with what is chosen.

Spark counts; what is collected is bounded. Redriving is the broker's own (redriving.py): Spark tells it where to look.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.pipeline.jobs.dead_letter_report import SHOWN_CHARS, Count, Report, Sample, bucket_width
from penstock.pipeline.jobs.desk import Desk
from penstock.pipeline.jobs.job import OnProgress, Progress, silent
from penstock.pipeline.jobs.letters import EVERYTHING, Selection, chosen, letter_topics, letters
from penstock.pipeline.jobs.reading import read, whole
from penstock.pipeline.jobs.redriving import Plan, Redriven, redrive_chosen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DeadLetterOptions", "RedriveOptions", "RedriveResult", "Redriven", "Report", "Selection", "redrive", "run"]

MAX_COUNTS: Final = 1_000  # reasons and origins that are told apart
MAX_SAMPLES: Final = 100
MAX_PLANS: Final = 10_000  # origins and partitions that one redrive serves


@dataclass(frozen=True, kw_only=True)
class DeadLetterOptions:
    server: str
    topics: Sequence[str] = ()  # none: every topic that a queue view buries in, and every *.dead and *.quarantine
    select: Selection = EVERYTHING
    samples: int = 5  # letters shown of each reason and origin, the newest


@dataclass(frozen=True, kw_only=True)
class RedriveOptions:
    server: str
    topics: Sequence[str] = ()
    select: Selection = EVERYTHING
    limit: int | None = None
    dry_run: bool = False  # tell what is chosen; what was redriven before counts too


@dataclass(frozen=True)
class RedriveResult:
    redriven: list[Redriven]
    dry_run: bool = False

    @property
    def count(self) -> int:
        return sum(each.count for each in self.redriven)


def run(spark: "SparkSession", options: DeadLetterOptions, *, on_progress: OnProgress = silent) -> Report:
    """`Report` shows itself: `.table()` for rich, `.as_dict()` for JSON, `.html()` for a page."""
    made_ms = time.time_ns() // 1_000_000
    topics, found = _letters(spark, options.server, options.topics, options.select, on_progress)
    if found is None:
        return Report(made_ms, topics, [])
    from pyspark.sql import functions as f

    size = f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))
    facts = found.select("topic", "reason", "origin_topic", "origin_view", "died_ms", size.alias("size")).persist()
    try:
        counts, left_out = _counts(facts)
        on_progress(Progress("counting", sum(count.count for count in counts) + left_out))
        width_ms, times = _times(facts, counts) if not left_out else _times(facts)
        return Report(made_ms, topics, counts, left_out, width_ms, times, _samples(found, options.samples))
    finally:
        facts.unpersist()


def redrive(spark: "SparkSession", options: RedriveOptions, *, on_progress: OnProgress = silent) -> RedriveResult:
    """The chosen letters back to where they came from, each once however often this is called or dies."""
    _, found = _letters(spark, options.server, options.topics, options.select, on_progress)
    if found is None or options.limit == 0:
        return RedriveResult([], options.dry_run)
    plans = _plans(found)
    if options.dry_run:
        told, left = [], options.limit
        for plan in plans:
            count = plan.chosen if left is None else min(plan.chosen, left)
            left = None if left is None else left - count
            told.append(Redriven(plan.letters, plan.origin, count))
        return RedriveResult([each for each in told if each.count], dry_run=True)
    with Desk(options.server) as desk:
        return RedriveResult(redrive_chosen(desk, plans, options.select, options.limit, on_progress))


def _letters(
    spark: "SparkSession", server: str, given: Sequence[str], select: Selection, on_progress: OnProgress
) -> "tuple[list[str], DataFrame | None]":
    with Desk(server) as desk:
        topics = list(given) or letter_topics(desk)
        ranges = {name: whole(desk, desk.topic(name)) for name in topics}
    total = sum(end - start for each in ranges.values() for start, end in each)
    on_progress(Progress("reading", 0, total))
    if not total:
        return topics, None
    return topics, chosen(letters(read(spark, server, ranges)), select)


def _counts(facts: "DataFrame") -> tuple[list[Count], int]:
    from pyspark.sql import functions as f

    grouped = facts.groupBy("topic", "reason", "origin_topic", "origin_view").agg(
        f.count("*").alias("n"),
        f.min("died_ms").alias("first"),
        f.max("died_ms").alias("last"),
        f.sum("size").alias("bytes"),
    )
    rows = grouped.orderBy(f.desc("n"), "topic", "reason", "origin_topic", "origin_view").limit(MAX_COUNTS).collect()
    counts = [
        Count(row.topic, row.reason, row.origin_topic, row.origin_view, row.n, row["first"], row["last"], row.bytes)
        for row in rows
    ]
    told = sum(count.count for count in counts)
    return counts, (facts.count() - told if len(rows) == MAX_COUNTS else 0)


def _times(facts: "DataFrame", counts: "Sequence[Count] | None" = None) -> tuple[int, list[tuple[int, str, int]]]:
    """Few columns, whatever the letters' times; and few reasons, the most frequent, the others under one name.

    Where all counts are known, they tell when the first and the last died, and the reasons.
    """
    from pyspark.sql import functions as f

    from penstock.pipeline.jobs.dead_letter_page import OTHERS
    from penstock.pipeline.jobs.plots import COLOURS

    if counts is None:
        ends = facts.agg(f.min("died_ms").alias("first"), f.max("died_ms").alias("last")).collect()[0]
        first, last = ends["first"], ends["last"]
        most = facts.groupBy("reason").count().orderBy(f.desc("count"), "reason").limit(COLOURS + 1).collect()
        reasons = [row.reason for row in most]
    else:
        first = min((count.first_ms for count in counts), default=None)
        last = max((count.last_ms for count in counts), default=None)
        reasons = [reason for reason, _ in Report(0, [], list(counts)).by_reason()]
    if first is None or last is None:
        return 0, []
    width = bucket_width(first, last)
    named = reasons if len(reasons) <= COLOURS else reasons[: COLOURS - 1]
    reason = f.when(f.col("reason").isin(named), f.col("reason")).otherwise(OTHERS)
    bucket = (f.floor(f.col("died_ms") / width) * width).cast("bigint")
    rows = facts.groupBy(bucket.alias("bucket"), reason.alias("why")).count().orderBy("bucket", "why").collect()
    return width, [(row.bucket, row.why, row["count"]) for row in rows]


def _samples(found: "DataFrame", each: int) -> list[Sample]:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if each < 1:
        return []
    kind = ("topic", "reason", "origin_topic", "origin_view")
    newest = Window.partitionBy(*kind).orderBy(f.desc("died_ms"), f.desc("partition"), f.desc("offset"))
    shown = found.select(
        *kind,
        "partition",
        "offset",
        "attempts",
        "died_ms",
        f.substring("key", 1, SHOWN_CHARS).alias("key"),
        f.substring("value", 1, SHOWN_CHARS).alias("value"),
    )
    ranked = shown.withColumn("rank", f.row_number().over(newest)).where(f.col("rank") <= each)
    return [
        Sample(
            row.topic,
            row.partition,
            row.offset,
            row.reason,
            row.origin_topic,
            row.origin_view,
            row.attempts,
            row.died_ms,
            _text(row.key),
            _text(row.value),
        )
        for row in ranked.orderBy("rank", *kind).limit(MAX_SAMPLES).collect()
    ]


def _text(data: bytes | None) -> str:
    return "" if data is None else bytes(data).decode(errors="replace")


def _plans(found: "DataFrame") -> list[Plan]:
    from pyspark.sql import functions as f

    rows = (
        found.groupBy("topic", "origin_view", "origin_topic", "partition")
        .agg(f.count("*").alias("n"), f.max("offset").alias("last"))
        .orderBy("topic", "origin_view", "origin_topic", "partition")
        .limit(MAX_PLANS)
        .collect()
    )
    last: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        place = (row.topic, row.origin_view)
        counts[place] += row.n
        last[place][row.partition] = max(row["last"], last[place].get(row.partition, -1))
    return [Plan(topic, view, counts[topic, view], ends) for (topic, view), ends in last.items()]
