"""Writing a frame into a topic as one named step: all of it becomes visible at once, or nothing does.

Each task opens a writer of its own and publishes under its producer id; what it tells the driver at its end (the
writer, and where its records went) comes from the attempt that counts. The commit names those and no others, so what
failed and repeated attempts have written is aborted by the same stroke.

Order: the rows of a task keep theirs. Who wants a partition in order sees to it that one task has all its rows.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from penstock.model.errors import PenstockError
from penstock.pipeline.jobs.desk import Desk, TopicFacts
from penstock.pipeline.link import Link
from penstock.pipeline.publishing import BATCH_BYTES, COMPRESSIONS, StepPublisher
from penstock.wire.native import messages as wire

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

CLIENT: Final = "penstock-pipeline-task"
TIMEOUT_S: Final = 60.0  # that a server may be away
PACE_ROWS: Final = 1_000  # between two looks at the clock
_REPORT: Final = "writer bigint, partition int, rank bigint, base bigint, rows bigint"


class Run(NamedTuple):
    """Records of one partition that stand one after another: `rank` counts the partition's records of this step."""

    partition: int
    rank: int
    base_offset: int
    rows: int


class Written(NamedTuple):
    rows: int
    done_before: bool  # the step was committed before; nothing was stored now
    runs: list[Run]


class Goal(NamedTuple):
    """Where to and under which name; goes to the tasks."""

    server: str
    topic: str
    step: str
    epoch: int
    max_batch_bytes: int
    compression: int
    rows_per_s: float | None = None  # of one task

    @classmethod
    def of(cls, server: str, topic: TopicFacts, step: str, epoch: int, rows_per_s: float | None = None) -> "Goal":
        limit = int(topic.settings.get("max.message.bytes", BATCH_BYTES))
        compression = 0 if topic.settings.get("compression.type") == "uncompressed" else COMPRESSIONS["lz4"]
        limit = min(BATCH_BYTES, limit)
        return cls(server, topic.name, step, epoch, limit, compression, rows_per_s)


def write_step(
    desk: Desk,
    frame: "DataFrame",
    goal: Goal,
    mark: str,
    offsets: Sequence[tuple[str, str, int, int]] = (),
) -> Written:
    """The frame has the columns key, value, headers, timestamp and to (a partition, or null: by the key)."""
    try:
        reports = frame.mapInArrow(_task(goal), _REPORT).collect()
    except BaseException:
        # A time-out does it otherwise; what failed is what the caller is to hear of.
        with contextlib.suppress(PenstockError):
            desk.ask(wire.AbortStep(goal.step, goal.epoch))
        raise
    writers = sorted({report.writer for report in reports})
    commit = wire.CommitStep(goal.step, goal.epoch, writers, mark, list(offsets))
    count = desk.ask(commit).count
    runs = sorted(Run(each.partition, each.rank, each.base, each.rows) for each in reports if each.rows)
    return Written(sum(run.rows for run in runs), count == 0, runs)


def _task(goal: Goal) -> "Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    def write(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        with StepWriter(goal, *_attempt()) as writer:
            for batch in batches:
                writer.add(batch)
            runs, producer_id = writer.finish(), writer.producer_id
        if producer_id is not None:
            columns = zip(*((producer_id, *run) for run in runs), strict=True)
            names = ("writer", "partition", "rank", "base", "rows")
            kinds = (pa.int64(), pa.int32(), pa.int64(), pa.int64(), pa.int64())
            arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))

    return write


class StepWriter:
    """One writer of a step, that remembers where its records went."""

    def __init__(self, goal: Goal, label: str, turn: int = 0) -> None:
        self._goal = goal
        self._link = Link(goal.server, timeout_s=TIMEOUT_S, client=CLIENT)
        self._publisher = StepPublisher(
            self._link,
            goal.step,
            goal.epoch,
            label,
            compression=goal.compression,
            batch_bytes=goal.max_batch_bytes,
            timeout_s=TIMEOUT_S,
            turn=turn,
        )
        self._publisher.stored = self._stored
        self._runs: dict[int, list[Run]] = {}
        self._began_s = 0.0
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    @property
    def producer_id(self) -> int | None:
        """None: it wrote nothing."""
        return self._publisher.producer_id

    def add(self, batch: "pa.RecordBatch") -> None:
        if not batch.num_rows or self._publisher.is_done():
            return
        if self._goal.rows_per_s is None:
            self._add(batch)
            return
        self._began_s = self._began_s or time.monotonic()
        for first in range(0, batch.num_rows, PACE_ROWS):
            self._add(batch.slice(first, PACE_ROWS))
            ahead_s = self._rows / self._goal.rows_per_s - (time.monotonic() - self._began_s)
            time.sleep(max(0.0, ahead_s))

    def _add(self, batch: "pa.RecordBatch") -> None:
        import pyarrow as pa

        self._publisher.add(
            self._goal.topic,
            batch.num_rows,
            key=batch.column("key"),
            value=batch.column("value"),
            headers=batch.column("headers"),
            timestamps_ms=batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False),
            partitions=batch.column("to"),
        )
        self._rows += batch.num_rows

    def finish(self) -> list[Run]:
        self._publisher.finish()
        return [run for runs in self._runs.values() for run in runs]

    def _stored(self, batches: list[wire.Batch], results: list[wire.Stored]) -> None:
        for batch, stored in zip(batches, results, strict=True):
            rows = int.from_bytes(batch.batch[57:61], "big")  # as its header tells
            runs = self._runs.setdefault(batch.partition, [])
            last = runs[-1] if runs else Run(batch.partition, 0, -1, 0)
            if last.rows and last.base_offset >= 0 and last.base_offset + last.rows == stored.base_offset:
                runs[-1] = last._replace(rows=last.rows + rows)
            else:
                runs.append(Run(batch.partition, last.rank + last.rows, stored.base_offset, rows))


def _attempt() -> tuple[str, int]:
    """This attempt, in words, and the number of its task."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return f"task {context.partitionId()} attempt {context.attemptNumber()}", context.partitionId()
