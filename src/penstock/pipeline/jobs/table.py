"""The table job: topics to a Parquet, Delta or Iceberg table, each record exactly once.

The query reads the topics raw; its tasks decode the values, write data files and publish what cannot be decoded to the
quarantine topic; the driver then shows the files by one transaction of the table, and the bad records and the group's
offsets by one step of the broker. Both carry the same mark, so whichever of them a crash has left undone is made good
when Spark repeats the batch, and whichever was done is left alone.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.pipeline.errors import InvalidOption, SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


SAMPLE_TIMEOUT_S: Final = 60.0
MAX_GROWTHS: Final = 100  # starts of one run because of new fields

_INTERVAL = re.compile(r"\d+ (second|minute|hour|day|millisecond)s?")


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
    max_records_per_trigger: int | None = 1_000_000  # of one batch: what is repeated if it fails
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
    from pyspark.errors import StreamingQueryException

    from penstock.pipeline import register, register_source
    from penstock.pipeline.table_sink import GREW, TableDataSource, read_counts

    _check(options)
    register(spark)
    register_source(spark, TableDataSource)
    before = read_counts(options.checkpoint)
    for _ in range(MAX_GROWTHS):
        query = _start(spark, options)
        if started is not None:
            started(query)
        try:
            query.awaitTermination()
        except StreamingQueryException as failure:
            if GREW not in str(failure):
                raise
            continue
        counts = read_counts(options.checkpoint)
        progress = query.lastProgress
        return TableResult(
            rows=counts.rows - before.rows,
            quarantined=counts.quarantined - before.quarantined,
            batches=counts.batches - before.batches,
            schema=_ddl(_table(options).schema()),
            query_id=str(query.id),
            last_progress=None if progress is None else json.loads(progress.json),
        )
    raise SchemaMismatch(f"the schema has grown {MAX_GROWTHS} times in one run; do the values have fields of any name?")


def compact(
    target: str,
    *,
    format: str = "parquet",  # noqa: A002
    catalog: str | None = None,
    below_bytes: int = TableOptions.compact_below_bytes,
    target_file_bytes: int = TableOptions.target_file_bytes,
) -> int:
    """Put a table's small files together now; how many went."""
    from penstock.pipeline.tables import open_table

    table = open_table(format, target, catalog=catalog)
    if table.schema() is None:
        raise InvalidOption(f"there is no {format} table at {target}")
    return table.compact(below_bytes, target_file_bytes).removed


# -- setting it up ------------------------------------------------------------------------------------------


def _check(options: TableOptions) -> None:
    from penstock.pipeline.tables import FORMATS

    if not options.topics or isinstance(options.topics, str):
        raise InvalidOption("topics is a list of one topic or more")
    if options.format not in FORMATS:
        raise InvalidOption(f"no table format {options.format!r}; there are {', '.join(FORMATS)}")
    if options.values not in ("json", "avro", "raw"):
        raise InvalidOption(f"values are json, avro or raw, not {options.values!r}")
    if options.values == "avro" and options.schema is None:
        raise InvalidOption("Avro values do not tell their schema: give it, as a file that ends in .avsc")
    if options.values == "raw" and options.schema is not None:
        raise InvalidOption("raw values are kept as they are; a schema is for json or avro")
    if not options.checkpoint:
        raise InvalidOption("a table needs a checkpoint: a directory that remembers how far it has come")
    trigger = options.trigger
    if trigger not in ("available-now", "continuous") and not _INTERVAL.fullmatch(trigger):
        raise InvalidOption(f"trigger is {trigger!r}; it must be available-now, continuous, or such as '10 seconds'")


def _start(spark: "SparkSession", options: TableOptions) -> "StreamingQuery":
    import msgspec

    from penstock.pipeline.table_sink import DATE, JOB, METADATA, NAME, RAW, TableJob
    from penstock.pipeline.tables.table import plain_schema

    table = _table(options)
    fields, avro = (RAW, None) if options.values == "raw" else _fields(spark, options)
    columns = list(plain_schema(fields))  # which may be null: a record without a value is a row of nulls
    partition_by = [] if options.partition_by is None else [options.partition_by]
    import pyarrow as pa

    if DATE in partition_by and DATE not in fields.names:
        columns.append(pa.field(DATE, pa.date32()))
    if options.metadata:
        own = [column for column in METADATA if not (options.values == "raw" and column.name == "_key")]
        taken = [column.name for column in own if column.name in fields.names]
        if taken:
            raise SchemaMismatch(f"the values have a field {taken[0]}, which is a name of ours: set metadata=False")
        columns += own
    held = table.prepare(pa.schema(columns), partition_by)
    job = TableJob(
        target=options.target,
        format=options.format,
        catalog=options.catalog,
        values=options.values,
        fields=fields.serialize().to_pybytes(),
        columns=held.serialize().to_pybytes(),
        avro=avro,
        metadata=options.metadata,
        evolve=options.evolve and options.schema is None,
        partition_by=partition_by,
        quarantine=options.quarantine,
        compact_every=options.compact_every,
        compact_below_bytes=options.compact_below_bytes,
        target_file_bytes=options.target_file_bytes,
    )
    reader = spark.readStream.format("penstock").options(
        server=options.server, topics=",".join(options.topics), startingOffsets=options.starting_offsets
    )
    if options.max_records_per_trigger is not None:
        reader = reader.option("maxRecordsPerTrigger", options.max_records_per_trigger)
    if options.max_bytes_per_trigger is not None:
        reader = reader.option("maxBytesPerTrigger", options.max_bytes_per_trigger)
    records = reader.option("columns", "key,value,topic,partition,offset,timestamp,headers").load()
    writer = (
        records.writeStream.format(NAME)
        .option("server", options.server)
        .option("checkpointLocation", options.checkpoint)
        .option(JOB, msgspec.json.encode(job).decode())
    )
    if options.application is not None:
        writer = writer.option("application", options.application)
    if options.group is not None:
        writer = writer.option("group", options.group)
    if options.trigger == "available-now":
        writer = writer.trigger(availableNow=True)
    elif options.trigger != "continuous":
        writer = writer.trigger(processingTime=options.trigger)
    return writer.start()


def _table(options: TableOptions) -> Any:
    from penstock.pipeline.tables import open_table

    return open_table(options.format, options.target, catalog=options.catalog)


# -- what the values are ------------------------------------------------------------------------------------


def _fields(spark: "SparkSession", options: TableOptions) -> "tuple[pa.Schema, str | None]":
    """The columns of the values, and the Avro schema if they are Avro."""
    if options.schema is None:
        return _inferred(options), None
    from pyspark.sql import types
    from pyspark.sql.pandas.types import to_arrow_schema

    from penstock.pipeline.schemas import avro_struct

    text = options.schema
    if text.endswith((".json", ".avsc")):
        try:
            with open(text, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise InvalidOption(f"the schema cannot be read: {error}") from None
    if options.values == "avro":
        return to_arrow_schema(avro_struct(text), timezone="UTC"), text
    try:
        if text.lstrip().startswith("{"):
            kind: Any = types.StructType.fromJson(json.loads(text))
        else:
            kind = types.StructType.fromDDL(text)
    except Exception as error:  # Spark's parser and Python's have nothing in common
        raise InvalidOption(f"schema {options.schema!r} cannot be understood: {str(error)[:300]}") from None
    return to_arrow_schema(kind, timezone="UTC"), None


def _inferred(options: TableOptions) -> "pa.Schema":
    """What the table has, and what a sample of the topics has beside it."""
    import pyarrow as pa

    from penstock.pipeline.inference import fields_of, sample
    from penstock.pipeline.link import Link
    from penstock.pipeline.table_sink import DATE, METADATA

    ours = set(METADATA.names) if options.metadata else set()
    found: dict[str, pa.DataType] = {}
    have = _table(options).schema()
    if have is not None:
        found = {column.name: column.type for column in have if column.name not in ours}
        if options.partition_by == DATE and found.get(DATE) == pa.date32():
            del found[DATE]
    if have is None or options.evolve:
        documents: list[Any] = []
        with Link(options.server, timeout_s=SAMPLE_TIMEOUT_S) as link:
            for topic in options.topics:
                documents += sample(link, topic, options.sample_records)
        for name, kind in fields_of(documents).items():
            if name not in ours:
                found.setdefault(name, kind)
    if not found:
        raise InvalidOption(
            f"nothing in {', '.join(options.topics)} tells what the columns are: there is no JSON object yet; "
            "give a schema, such as 'id BIGINT, name STRING'"
        )
    return pa.schema(list(found.items()))


def _ddl(schema: Any) -> str:
    from pyspark.sql.pandas.types import from_arrow_schema

    return ", ".join(
        f"`{column.name}` {column.dataType.simpleString().upper()}" for column in from_arrow_schema(schema).fields
    )
