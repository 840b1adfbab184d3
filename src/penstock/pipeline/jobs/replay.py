"""The replay job: a table, or a range of a topic, goes back into a topic, once for each name of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.pipeline.jobs.job import OnProgress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    where: str | None = None  # an SQL predicate over key, value, topic, partition, offset, timestamp, headers, ...
    rows_per_s: float | None = None  # over the whole job
    dry_run: bool = False  # count only


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
    raise NotImplementedError
