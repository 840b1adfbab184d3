"""The compact job: a topic is compacted and re-partitioned by Spark into another, which then takes its name.

    work topic made -> what is kept, written as one step -> what came meanwhile, step by step -> names swapped

Nobody sees anything of it before the swap, and the swap happens only if the topic ends where the last step did. Killed
before it, the work topic is left over, which the next run removes; killed after it, the next run finishes. Groups go on
at the first record that they have not read: exactly where partitions stay, and where they do not at the latest place
that skips nothing, so that some records are read again.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.client.errors import Disconnected
from penstock.model.errors import Conflict, GroupSubscribed, InvalidPartitions, InvalidRequest, PenstockError, TimedOut
from penstock.pipeline.errors import InvalidOption, PipelineError
from penstock.pipeline.jobs import compact_frames as frames
from penstock.pipeline.jobs import compact_tail as tail
from penstock.pipeline.jobs.compact_frames import Position
from penstock.pipeline.jobs.compact_state import (
    BEGUN,
    DONE,
    WRITING,
    State,
    data_step,
    recover,
    remove_topic,
    write_state,
)
from penstock.pipeline.jobs.desk import Desk, TopicFacts
from penstock.pipeline.jobs.job import OnProgress, Progress, silent
from penstock.pipeline.jobs.reading import Range, read
from penstock.pipeline.jobs.step_notes import forget
from penstock.pipeline.jobs.step_writing import Goal, Run, write_step
from penstock.wire.native import messages as wire

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

STAMPS: Final = "message.timestamp.type"
UNDECIDED_S: Final = 60.0  # how long to wait for open transactions to end
LOOK_S: Final = 0.1
MAX_TASKS: Final = 200


class TopicBusy(PipelineError):
    """A topic is written to without a pause in which another could take its place."""


@dataclass(frozen=True, kw_only=True)
class CompactOptions:
    server: str
    topic: str
    partitions: int | None = None  # None: as many as it has
    newest_only: bool = True  # per key; False: only re-partition. Records without a key all stay
    tombstone_retention_ms: int | None = None  # None: the topic's delete.retention.ms
    keep_as: str | None = None  # the name that the old topic gets; None: it is deleted
    tries: int = 10  # how often to catch up with writers before giving up

    def __post_init__(self) -> None:
        if self.partitions is not None and self.partitions < 1:
            raise InvalidPartitions(f"partitions is {self.partitions}; there is at least one")
        if self.tries < 1:
            raise InvalidOption(f"tries is {self.tries}; it must be at least 1")
        if self.keep_as == self.topic:
            raise InvalidOption("keep_as is the topic's own name; the old topic needs another")

    @property
    def work(self) -> str:
        """The work topic has the name that the old one gets, for the two change places."""
        return self.keep_as or f"{self.topic}.compacting"


@dataclass(frozen=True)
class CompactResult:
    topic: str
    records_before: int
    records_after: int
    partitions_before: int
    partitions_after: int
    bytes_before: int  # keys and values
    bytes_after: int
    caught_up: int  # records that came while it worked
    conflicts: int  # how often a writer was quicker than the swap
    groups: list[tuple[str, int, int, int]]  # group, partition, offset before (-1: none), offset after
    kept_as: str | None
    seconds: float
    resumed: bool = False  # an earlier attempt had swapped already; only its end was made up for


def run(spark: "SparkSession", options: CompactOptions, *, on_progress: OnProgress = silent) -> CompactResult:
    """Raises InvalidRequest for topics that cannot be swapped, GroupSubscribed while members of a group read it, and
    TopicBusy."""
    began_s = time.monotonic()
    with Desk(options.server) as desk:
        topic = desk.topic(options.topic)
        if recover(desk, topic, options.work):
            return _resumed(desk, options, began_s)
        _check(desk, topic)
        return _Compaction(spark, desk, options, topic, on_progress).run(began_s)


def _check(desk: Desk, topic: TopicFacts) -> None:
    """What the swap would refuse in the end is refused before the work."""
    readers = [view for view in desk.views() if any(name == topic.name for name, _ in view.sources)]
    if readers:
        address = f"{readers[0].topic}/{readers[0].name}"
        raise InvalidRequest(f"topic {topic.name!r} is read by the queue view {address!r}: delete that first")
    for router in desk.ask(wire.ListRouters()).routers:
        if topic.name == router.name or any(binding.to == topic.name for binding in router.bindings):
            raise InvalidRequest(f"topic {topic.name!r} belongs to the router {router.name!r}: unbind it first")
    for group in desk.commits(topic.name):
        if desk.ask(wire.DescribeGroup(group)).members:
            raise GroupSubscribed(f"group {group!r} reads topic {topic.name!r}: stop its members first")


def _resumed(desk: Desk, options: CompactOptions, began_s: float) -> CompactResult:
    topic = desk.topic(options.topic)
    kept = options.keep_as if options.keep_as and desk.find(options.keep_as) else None
    count = topic.partitions
    seconds = time.monotonic() - began_s
    return CompactResult(topic.name, 0, 0, count, count, 0, 0, 0, 0, [], kept, seconds, resumed=True)


class _SparkPass:
    """Records that Spark has written: the frame they were written from, and where they went."""

    def __init__(self, frame: "DataFrame", runs: list[Run], ranges: Sequence[Range]) -> None:
        self._frame, self._runs = frame, runs
        self._ends = [end for _, end in ranges]
        self._known: dict[tuple[Position, ...], dict[tuple[str, int], int]] = {}

    def first_unread(self, positions: Sequence[Position]) -> dict[tuple[str, int], int]:
        """What lies behind this pass's own end makes no difference to it, so mostly the answer is known."""
        clipped = tuple(
            sorted(each._replace(offset=min(each.offset, self._ends[each.partition])) for each in positions)
        )
        if clipped not in self._known:
            ranks = frames.first_unread(self._frame, clipped)
            found = {}
            for (group, partition), rank in ranks.items():
                offset = frames.offset_of_rank(self._runs, partition, rank)
                if offset is None:
                    raise PipelineError("the server does not tell where a batch went; run the compaction again")
                found[group, partition] = offset
            self._known = {clipped: found}
        return self._known[clipped]

    def measured(self) -> tuple[int, int]:
        row = self._frame.agg(*_measures()).collect()[0]
        return row.records, row.bytes


class _TailPass:
    def __init__(self, moved: list[tail.Moved]) -> None:
        self._moved = moved

    def first_unread(self, positions: Sequence[Position]) -> dict[tuple[str, int], int]:
        return tail.first_unread(self._moved, positions)

    def measured(self) -> tuple[int, int]:
        return len(self._moved), 0


def _measures() -> "tuple[Column, Column]":
    """Records, and the bytes of their keys and values."""
    from pyspark.sql import functions as f

    size = f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))
    return f.count(f.lit(1)).alias("records"), f.coalesce(f.sum(size), f.lit(0)).alias("bytes")


class _Counted:
    """Counts records while they are read for another purpose."""

    def __init__(self, records: "DataFrame") -> None:
        from pyspark.sql import Observation

        self._seen = Observation()
        self.frame = records.observe(self._seen, *_measures())

    def result(self) -> tuple[int, int]:
        return self._seen.get["records"], self._seen.get["bytes"]


class _Compaction:
    def __init__(
        self, spark: "SparkSession", desk: Desk, options: CompactOptions, topic: TopicFacts, on_progress: OnProgress
    ) -> None:
        self._spark, self._desk, self._options, self._topic = spark, desk, options, topic
        self._on_progress = on_progress
        self._passes: list[_SparkPass | _TailPass] = []
        self._ends = [bound.start for bound in desk.bounds(topic)]  # how far the old topic was carried over
        self._epoch = 0
        self._before = self._after = (0, 0)  # records, bytes
        self._caught_up = 0

    def run(self, began_s: float) -> CompactResult:
        try:
            self._work = self._make()
            self._step = data_step(self._topic.name, self._work.topic_id)
            self._compact()
            before, after, conflicts = self._swap()
        except BaseException:
            self._give_up()
            raise
        finally:
            self._passes.clear()  # and with them what Spark keeps on disk for them
        self._finish()
        known = {(each.group, each.partition): each.offset for each in before}
        groups = [
            (each.group, each.partition, known.get((each.group, each.partition), -1), each.offset) for each in after
        ]
        return CompactResult(
            topic=self._topic.name,
            records_before=self._before[0] + self._caught_up,
            records_after=self._after[0] + self._caught_up,
            partitions_before=self._topic.partitions,
            partitions_after=self._work.partitions,
            bytes_before=self._before[1],
            bytes_after=self._after[1],
            caught_up=self._caught_up,
            conflicts=conflicts,
            groups=groups,
            kept_as=self._options.keep_as,
            seconds=time.monotonic() - began_s,
        )

    # -- the work topic -----------------------------------------------------------------------------------------

    def _make(self) -> TopicFacts:
        """As the old one is, but that records keep their times until it takes its place."""
        options, topic = self._options, self._topic
        state = State(BEGUN, options.work, options.keep_as is not None, topic.topic_id)
        write_state(self._desk, topic.name, state)
        settings = {name: value for name, value in topic.chosen.items() if name != STAMPS}
        settings[STAMPS] = "CreateTime"
        self._desk.ask(wire.CreateTopic(options.work, options.partitions or topic.partitions, settings))
        work = self._desk.topic(options.work)
        state = State(WRITING, options.work, options.keep_as is not None, topic.topic_id, work.topic_id)
        write_state(self._desk, topic.name, state)
        return work

    def _give_up(self) -> None:
        """Nothing of it is to be seen; what cannot be removed now, the next run removes."""
        try:
            recover(self._desk, self._desk.topic(self._topic.name), self._options.work)
        except PenstockError:
            return

    def _finish(self) -> None:
        if self._options.keep_as is None:
            remove_topic(self._desk, self._options.work)
        forget(self._desk, self._step)
        write_state(self._desk, self._topic.name, State(DONE))

    # -- records ------------------------------------------------------------------------------------------------

    def _compact(self) -> None:
        ranges = [(bound.start, bound.stable) for bound in self._desk.bounds(self._topic)]
        self._on_progress(Progress("compacting", 0, sum(end - start for start, end in ranges)))
        records = read(self._spark, self._options.server, {self._topic.name: ranges}, _COLUMNS, may_go=True)
        retention_ms = self._options.tombstone_retention_ms
        if retention_ms is None:
            retention_ms = int(self._topic.settings.get("delete.retention.ms", 86_400_000))
        horizon_ms = time.time_ns() // 1_000_000 - retention_ms
        counted = _Counted(records) if any(start < end for start, end in ranges) else None
        records = records if counted is None else counted.frame
        kept = frames.kept(records, newest_only=self._options.newest_only, tombstones_before_ms=horizon_ms)
        self._write(kept, ranges)
        if counted is not None:
            self._before = counted.result()
            self._after = self._passes[0].measured()
        self._on_progress(Progress("compacting", self._before[0], self._before[0]))

    def _write(self, records: "DataFrame", ranges: Sequence[Range]) -> int:
        """One step of Spark's; how many records it wrote. They are kept on disk first: the old topic may be compacted
        or trimmed meanwhile, and what is written must be what positions are reckoned by."""
        from pyspark import StorageLevel

        placed = frames.placed(records, self._topic.partitions, self._work.partitions)
        placed = placed.localCheckpoint(True, StorageLevel.DISK_ONLY)
        rows = frames.in_order(placed, min(MAX_TASKS, self._work.partitions))
        goal = Goal.of(self._options.server, self._work, self._step, self._epoch)
        self._epoch += 1
        columns = rows.select("key", "value", "headers", "timestamp", "to")
        written = write_step(self._desk, columns, goal, "written")
        self._passes.append(_SparkPass(placed, written.runs, ranges))
        self._ends = [end for _, end in ranges]
        return written.rows

    def _catch_up(self) -> list[int]:
        """Carry over what came since; where the old topic ended then."""
        while True:
            ends = self._decided()
            ranges = list(zip(self._ends, ends, strict=True))
            new = sum(end - start for start, end in ranges)
            if not new:
                return ends
            if new <= tail.TAIL_RECORDS:
                moved = tail.carry_over(self._desk, self._topic, self._work, ranges, self._step, self._epoch)
                self._epoch += 1
                self._passes.append(_TailPass(moved))
                self._caught_up += len(moved)
                self._ends = ends
                return ends
            records = read(self._spark, self._options.server, {self._topic.name: ranges}, _COLUMNS, may_go=True)
            self._caught_up += self._write(records, ranges)
            self._on_progress(Progress("catching up", self._caught_up))

    def _decided(self) -> list[int]:
        """The ends of the old topic, when no transaction is open there."""
        deadline = time.monotonic() + UNDECIDED_S
        while True:
            bounds = self._desk.bounds(self._topic)
            if all(bound.stable == bound.end for bound in bounds):
                return [bound.end for bound in bounds]
            if time.monotonic() > deadline:
                raise TopicBusy(
                    f"a transaction in topic {self._topic.name!r} is open for more than {UNDECIDED_S:g} s; "
                    "see 'penstock transaction list', and run this again when it has ended"
                )
            time.sleep(LOOK_S)

    # -- the swap -----------------------------------------------------------------------------------------------

    def _swap(self) -> tuple[list[Position], list[Position], int]:
        """The groups' positions before and after, and how often somebody wrote in between."""
        for attempt in range(self._options.tries):
            self._positions()  # the slow part, so that it is known when the quick ones are over
            ends = self._catch_up()
            before, after = self._positions()
            self._on_progress(Progress("swapping", attempt + 1, self._options.tries))
            if self._try_swap(ends, after):
                return before, after, attempt
        raise TopicBusy(
            f"topic {self._topic.name!r} is written to without a pause: {self._options.tries} times it had grown "
            "before the swap; pause its writers for a moment, or run this again with more tries"
        )

    def _positions(self) -> tuple[list[Position], list[Position]]:
        same = self._topic.partitions == self._work.partitions
        commits = self._desk.commits(self._topic.name)
        before = [
            Position(group, *place) for group, places in sorted(commits.items()) for place in sorted(places.items())
        ]
        before = [each for each in before if 0 <= each.partition < self._topic.partitions]
        reckoned = list(before)
        if not same:
            # Where a group has read nothing of a partition, all of it is unread.
            known = {(each.group, each.partition) for each in before}
            everywhere = range(self._topic.partitions)
            reckoned += [
                Position(group, at, 0) for group in sorted(commits) for at in everywhere if (group, at) not in known
            ]
        firsts = [each.first_unread(reckoned) for each in self._passes]
        ends = {at: bound.end for at, bound in enumerate(self._desk.bounds(self._work))}
        return before, frames.translated(reckoned, firsts, ends, same_partitions=same)

    def _try_swap(self, ends: Sequence[int], after: Sequence[Position]) -> bool:
        offsets = [(each.group, each.partition, each.offset) for each in after]
        request = wire.SwapTopics(self._topic.name, self._work.name, list(ends), offsets, self._topic.topic_id)
        stamps = self._topic.chosen.get(STAMPS)
        if stamps != "CreateTime":
            self._desk.ask(wire.AlterTopic(self._work.name, {STAMPS: stamps}))
        try:
            self._desk.ask_once(request)
        except Conflict:
            self._desk.ask(wire.AlterTopic(self._work.name, {STAMPS: "CreateTime"}))
            return False
        except (Disconnected, TimedOut):
            # The answer is lost. If it happened, the topic has another id.
            if self._desk.topic(self._topic.name).topic_id == self._topic.topic_id:
                return False
        return True


_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", "headers")
