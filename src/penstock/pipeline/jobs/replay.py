"""The replay job: a table, or a range of a topic, goes back into a topic, once for each name of a run.

The run's plan and its progress are noted with the broker: progress in the mark of the very step that shows the records,
so what was replayed and what is noted cannot disagree. Whoever runs the same name again goes on from there.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors import OffsetOutOfRange
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.jobs.desk import Bounds, Desk, TopicFacts
from penstock.pipeline.jobs.job import OnProgress, Progress, silent
from penstock.pipeline.jobs.replay_plan import WHOLE, Lane, Plan, ranges
from penstock.pipeline.jobs.step_notes import forget, marks_of, read_note, write_note
from penstock.pipeline.jobs.step_writing import Goal, write_step
from penstock.wire.native import messages as wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEP_ROWS: Final = 2_000_000  # at most, of one step
STEP_S: Final = 1.0  # of a run with a rate: so much of it becomes visible at once
RUN_CHARS: Final = 200


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Either `topic` with a range or `table` is given. The bounds of a topic may be given by offset or by time; what
    is not given is its whole length, as it is when the run begins."""

    server: str
    into: str  # the topic that is written; made with as many partitions as the source has if it is not there
    run: str  # the same name again goes on where the last one ended, and repeats nothing
    topic: str | None = None
    starting_offsets: Mapping[int, int] | None = None  # partition -> first
    ending_offsets: Mapping[int, int] | None = None  # partition -> behind the last
    starting_time_ms: int | None = None
    ending_time_ms: int | None = None
    table: str | None = None
    format: str = "parquet"  # parquet, delta or iceberg
    catalog: str | None = None  # Iceberg: the SQL catalog's URI; None: sqlite in the warehouse
    key: str | None = None  # only records of this key
    where: str | None = None  # an SQL predicate over the source's columns: key, value, topic, partition, offset, ...
    rows_per_s: float | None = None  # over the whole job
    dry_run: bool = False  # count only

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.table is None):
            raise InvalidOption("exactly one of topic and table says what to replay")
        if not self.run or len(self.run) > RUN_CHARS:
            raise InvalidOption(f"a run has a name of 1 to {RUN_CHARS} characters")
        if self.rows_per_s is not None and not self.rows_per_s > 0:
            raise InvalidOption(f"rows_per_s is {self.rows_per_s}; it must be above 0")
        for side in ("starting", "ending"):
            by_offset, by_time = getattr(self, f"{side}_offsets"), getattr(self, f"{side}_time_ms")
            if by_offset is not None and by_time is not None:
                raise InvalidOption(f"{side}_offsets and {side}_time_ms are both given; one is enough")
            if self.table is not None and (by_offset is not None or by_time is not None):
                raise InvalidOption(
                    f"{side}_offsets and {side}_time_ms are for topics; of a table choose rows by where"
                )


@dataclass(frozen=True)
class ReplayResult:
    run: str
    into: str
    rows: int  # written now (dry run: that would be)
    skipped: bool  # this run was complete before
    continued: bool  # an earlier attempt of this run had begun
    steps: int  # how many times something became visible
    seconds: float
    dry_run: bool = False


def run(spark: "SparkSession", options: ReplayOptions, *, on_progress: OnProgress = silent) -> ReplayResult:
    """Raises InvalidOption, UnknownTopic, OffsetOutOfRange; what a name was begun with cannot be changed later."""
    began_s = time.monotonic()
    with Desk(options.server) as desk:
        source = _TopicSource(spark, options) if options.topic is not None else _TableSource(spark, options)
        if options.dry_run:
            rows = source.frame(source.plan(desk).lanes).count()
            return ReplayResult(options.run, options.into, rows, False, False, 0, time.monotonic() - began_s, True)
        done = [(epoch, json.loads(mark)) for epoch, mark in marks_of(desk, _step(options))]
        if done and done[-1][1]["of"] != _digest(options):
            raise InvalidOption(
                f"a run {options.run!r} was begun with other options, and wrote {done[-1][1]['rows']:,} records or "
                "more; give this one another name"
            )
        note = f"{_step(options)}:plan"
        if done and done[-1][1]["to"] == WHOLE:
            forget(desk, note)  # whoever came to the end may not have come to this
            return ReplayResult(options.run, options.into, 0, True, True, 0, time.monotonic() - began_s)
        noted = read_note(desk, note)
        if done and noted is None:
            raise InvalidOption(
                f"the run {options.run!r} wrote {done[-1][1]['rows']:,} records or more and was begun so long ago that "
                "the server has forgotten which offsets it set out to copy (step_expiration_ms), so it cannot go on; "
                "nothing was written now. Give what is left another name and starting offsets, or begin anew elsewhere"
            )
        plan = Plan.of_note(noted) if noted is not None else source.plan(desk)
        if plan.source != _source(options):
            raise InvalidOption(
                f"a run {options.run!r} was begun with other options: {plan.source}; give this one another name"
            )
        if noted is None:
            write_note(desk, note, plan.note())
        target = _target(desk, options, plan)
        try:
            result = _Replay(desk, options, plan, target, source.frame, on_progress).run(done, began_s)
        finally:
            source.close()
        forget(desk, note)  # that it is complete is what is left to know
        return result


class _Replay:
    def __init__(
        self,
        desk: Desk,
        options: ReplayOptions,
        plan: Plan,
        target: TopicFacts,
        frame: "Callable[[tuple[Lane, ...]], DataFrame]",
        on_progress: OnProgress,
    ) -> None:
        self._desk, self._options, self._plan, self._target = desk, options, plan, target
        self._frame, self._on_progress = frame, on_progress
        partitions = {(lane.topic, lane.partition) for lane in plan.lanes}
        topics = {lane.topic for lane in plan.lanes}
        highest = max((lane.partition for lane in plan.lanes), default=-1)
        self._keeps_partitions = bool(partitions) and len(topics) == 1 and highest + 1 == target.partitions

    def run(self, done: list[tuple[int, dict[str, Any]]], began_s: float) -> ReplayResult:
        x, epoch, before = 0, 0, 0
        if done:
            epoch, mark = done[-1]
            x, epoch, before = mark["to"], epoch + 1, mark["rows"]
        continued, steps, rows = bool(done), 0, 0
        writing_s = time.monotonic()
        while x < WHOLE:
            y = self._plan.step(x, self._step_rows()) if self._plan.lanes else WHOLE
            rows += self._write(x, y, epoch, before + rows)
            x, epoch, steps = y, epoch + 1, steps + 1
            self._on_progress(Progress("writing", self._plan.offsets * x // WHOLE, self._plan.offsets or None))
            if self._options.rows_per_s is not None and x < WHOLE:
                ahead_s = rows / self._options.rows_per_s - (time.monotonic() - writing_s)
                time.sleep(max(0.0, ahead_s))
        seconds = time.monotonic() - began_s
        return ReplayResult(self._options.run, self._options.into, rows, False, continued, steps, seconds)

    def _step_rows(self) -> int:
        if self._options.rows_per_s is None:
            return STEP_ROWS
        return min(STEP_ROWS, max(1, int(self._options.rows_per_s * STEP_S)))

    def _write(self, x: int, y: int, epoch: int, before: int) -> int:
        """One step: the rows, and in its mark where the run is then. The rows are counted as they are written, so the
        number in the mark is that of the steps before it."""
        from pyspark.sql import functions as f

        frame = self._frame(self._plan.part(x, y))
        to = f.col("partition").cast("int") if self._keeps_partitions else f.lit(None).cast("int")
        rows = frame.select("key", "value", "headers", "timestamp", to.alias("to"))
        rate = None
        if self._options.rows_per_s is not None and not self._plan.lanes:
            rate, rows = self._options.rows_per_s, rows.coalesce(1)
        goal = Goal.of(self._options.server, self._target, _step(self._options), epoch, rate)
        mark = json.dumps({"of": _digest(self._options), "to": y, "rows": before})
        return write_step(self._desk, rows, goal, mark).rows


# -- what is replayed ---------------------------------------------------------------------------------------


class _TopicSource:
    def __init__(self, spark: "SparkSession", options: ReplayOptions) -> None:
        self._spark, self._options = spark, options

    def plan(self, desk: Desk) -> Plan:
        assert self._options.topic is not None
        topic = desk.topic(self._options.topic)
        options = self._options
        bounds = desk.bounds(topic)
        starts = [bound.start for bound in bounds]
        ends = [bound.stable for bound in bounds]
        if options.starting_time_ms is not None:
            starts = [bound.found for bound in desk.bounds(topic, options.starting_time_ms)]
        if options.ending_time_ms is not None:
            ends = [
                min(bound.found, end)
                for bound, end in zip(desk.bounds(topic, options.ending_time_ms), ends, strict=True)
            ]
        _put(topic, starts, options.starting_offsets, bounds)
        _put(topic, ends, options.ending_offsets, bounds)
        lanes = (
            Lane(topic.name, at, start, max(start, end))
            for at, (start, end) in enumerate(zip(starts, ends, strict=True))
        )
        return Plan(_source(options), tuple(lanes))

    def frame(self, lanes: tuple[Lane, ...]) -> "DataFrame":
        from penstock.pipeline.jobs.reading import read

        return _chosen(read(self._spark, self._options.server, ranges(lanes)), self._options)

    def close(self) -> None:
        """Nothing was kept."""


def _put(topic: TopicFacts, places: list[int], given: Mapping[int, int] | None, bounds: list[Bounds]) -> None:
    for partition, offset in (given or {}).items():
        if not 0 <= partition < len(places):
            raise InvalidOption(f"topic {topic.name!r} has no partition {partition}; it has 0 to {len(places) - 1}")
        bound = bounds[partition]
        if not bound.start <= offset <= bound.stable:
            raise OffsetOutOfRange(
                f"offset {offset} of {topic.name}-{partition}: it holds {bound.start} to {bound.stable} now"
            )
        places[partition] = offset


class _TableSource:
    def __init__(self, spark: "SparkSession", options: ReplayOptions) -> None:
        from penstock.pipeline.jobs.table_reading import as_records, read_table

        assert options.table is not None
        self._options = options
        table = read_table(spark, options.table, options.format, options.catalog)
        self._records = _chosen(as_records(_filtered(table, options)), options, where=False)
        self._is_kept = False

    def plan(self, desk: Desk) -> Plan:
        """By the offsets that the table keeps; without them everything is one step."""
        from pyspark.sql import functions as f

        if "offset" not in self._records.columns:
            return Plan(_source(self._options), ())
        rows = (
            self._records.groupBy("topic", "partition")
            .agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
            .orderBy("topic", "partition")
            .collect()
        )
        lanes = tuple(Lane(row.topic, row.partition, row["first"], row["last"] + 1) for row in rows)
        return Plan(_source(self._options), lanes)

    def frame(self, lanes: tuple[Lane, ...]) -> "DataFrame":
        from pyspark import StorageLevel
        from pyspark.sql import functions as f

        if not lanes:
            return self._records
        if self._options.rows_per_s is not None and not self._is_kept:
            # It will be looked through once for every second of the run.
            self._records = self._records.repartition("topic", "partition").sortWithinPartitions(
                "topic", "partition", "offset"
            )
            self._records = self._records.persist(StorageLevel.DISK_ONLY)
            self._is_kept = True
        within = f.lit(False)
        for lane in lanes:
            if lane.start < lane.end:
                place = (f.col("topic") == lane.topic) & (f.col("partition") == lane.partition)
                within = within | (place & (f.col("offset") >= lane.start) & (f.col("offset") < lane.end))
        chosen = self._records.where(within)
        return chosen.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")

    def close(self) -> None:
        if self._is_kept:
            self._records.unpersist()


def _chosen(records: "DataFrame", options: ReplayOptions, *, where: bool = True) -> "DataFrame":
    from pyspark.sql import functions as f

    if options.key is not None:
        records = records.where(f.col("key") == f.lit(options.key.encode()))
    return _filtered(records, options) if where else records


def _filtered(frame: "DataFrame", options: ReplayOptions) -> "DataFrame":
    from pyspark.errors import AnalysisException, ParseException

    if options.where is None:
        return frame
    try:
        return frame.where(options.where)
    except (ParseException, AnalysisException) as error:
        said = str(error).splitlines()[0]
        raise InvalidOption(f"where is {options.where!r}: {said}; the columns are {', '.join(frame.columns)}") from None


# -- names --------------------------------------------------------------------------------------------------


def _step(options: ReplayOptions) -> str:
    return f"replay:{options.run}"


def _source(options: ReplayOptions) -> str:
    """What tells one run from another that has its name by mistake."""
    told = {
        name: getattr(options, name)
        for name in ("topic", "table", "key", "where", "starting_time_ms", "ending_time_ms", "into")
        if getattr(options, name) is not None
    }
    for name in ("starting_offsets", "ending_offsets"):
        given = getattr(options, name)
        if given is not None:
            told[name] = {str(partition): offset for partition, offset in sorted(given.items())}
    return json.dumps(told)


def _digest(options: ReplayOptions) -> str:
    return hashlib.sha256(_source(options).encode()).hexdigest()[:16]


def _target(desk: Desk, options: ReplayOptions, plan: Plan) -> TopicFacts:
    found = desk.find(options.into)
    if found is None:
        partitions = max((lane.partition for lane in plan.lanes), default=-1) + 1
        desk.ask(wire.CreateTopic(options.into, partitions or None))
        found = desk.topic(options.into)
    return found
