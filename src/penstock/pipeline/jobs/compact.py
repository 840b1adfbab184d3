"""The compact job: a topic is compacted and re-partitioned by Spark into another, which then takes its name."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.pipeline.jobs.job import OnProgress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class CompactOptions:
    server: str
    topic: str
    partitions: int | None = None  # None: as many as it has
    newest_only: bool = True  # per key; False: only re-partition. Records without a key all stay
    tombstone_retention_ms: int | None = None  # None: the topic's delete.retention.ms
    keep_as: str | None = None  # the name that the old topic gets; None: it is deleted
    tries: int = 10  # how often to catch up with writers before giving up


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
    raise NotImplementedError
