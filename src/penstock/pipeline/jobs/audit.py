"""The audit job: is everything that a topic holds in its table or its mirror, once and in order? And the proof."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.pipeline.jobs.audit_proof import Proof
from penstock.pipeline.jobs.job import OnProgress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    samples: int = 10  # differences shown of each kind
    quarantine: str | None = None  # a table's: what is there is not lost; None: <topic>.quarantine if there is one


def run(spark: "SparkSession", options: AuditOptions, *, on_progress: OnProgress = silent) -> Proof:
    """`Proof` shows itself (`.table()`, `.as_dict()`); `.holds` is the verdict, for the exit status."""
    raise NotImplementedError
