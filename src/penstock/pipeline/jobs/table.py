"""The table job: topics to a Parquet, Delta or Iceberg table, each record exactly once.

The query reads the topics raw; its tasks decode the values, write data files and publish what cannot be decoded to the
quarantine topic; the driver then shows the files by one transaction of the table, and the bad records and the group's
offsets by one step of the broker. Both carry the same mark, so whichever of them a crash has left undone is made good
when Spark repeats the batch, and whichever was done is left alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    server: str
    topics: Sequence[str]
    target: str  # a directory; for Iceberg <warehouse>/<namespace>/<table>
    checkpoint: str
    format: str = "parquet"  # parquet, delta or iceberg
    values: str = "json"  # what the values are: json, avro, or raw (kept as they are, with key and headers)
    schema: str | None = None  # a DDL string, a .json or .avsc file; None: inferred from a sample of the topics
    sample_records: int = 10_000  # of each topic, for the inference
    evolve: bool = True  # fields that appear later become columns; False: they are left out
    metadata: bool = True  # columns _topic, _partition, _offset, _timestamp and _key beside the value's own
    partition_by: str | None = None  # a column; `date` is the day of the record's timestamp if the value has no such
    quarantine: str | None = None  # a topic for what cannot be decoded; None: <topic>.quarantine
    application: str | None = None  # the name the table remembers batches by; None: the query's id
    group: str | None = None  # where progress is committed; None: the application
    trigger: str = "available-now"  # or `continuous`, or an interval such as `10 seconds`
    starting_offsets: str = "earliest"
    max_records_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    compact_every: int = 50  # batches; 0 never
    compact_below_bytes: int = 32 << 20  # files smaller than this are put together
    target_file_bytes: int = 256 << 20
    catalog: str | None = None  # Iceberg: the SQL catalog's URI; None: sqlite in the warehouse


@dataclass(frozen=True)
class TableResult:
    rows: int  # in the table, of this run
    quarantined: int
    batches: int
    schema: str  # DDL, as the table has it now
    query_id: str | None
    last_progress: dict[str, Any] | None = None


def run(
    spark: "SparkSession",
    options: TableOptions,
    *,
    started: "Callable[[StreamingQuery], None] | None" = None,
) -> TableResult:
    """Run until the topics are read (available-now) or somebody stops the query, which `started` is handed. It is
    called again when the query is started anew because the schema has grown."""
    raise NotImplementedError


def compact(target: str, *, format: str = "parquet", options: TableOptions | None = None) -> int:  # noqa: A002
    """Put a table's small files together now; how many went."""
    raise NotImplementedError
