"""The sql job: a statement over topics, as a stream, into a topic or a table, exactly once.

Each topic is a view (see `views`). Into a topic, a row becomes a JSON value, with a column of it as the key, through
the sink and its named steps. Into a table, a batch's files are shown by one transaction of the table that remembers the
batch. Either way what a batch was made of is remembered with it, so a repeat is skipped.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.pipeline.batches import to_table, to_topic
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.jobs.desk import Desk
from penstock.pipeline.progress import Meter
from penstock.pipeline.views import TopicView, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MODES: Final = ("append", "update", "complete")
_TABLE = re.compile(r"\b(?:from|join)\s+(?:stream\s*\(?\s*)?(`[^`]+`|[\w.-]+)", re.IGNORECASE)
_LIST = re.compile(r"\bfrom\s+([\w`.\s,-]+?)(?:\bwhere\b|\bgroup\b|\bjoin\b|\border\b|$|\))", re.IGNORECASE)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class SqlOptions:
    """Either `into_topic` or `into_table` is given."""

    server: str
    statement: str
    checkpoint: str
    into_topic: str | None = None
    into_table: str | None = None
    format: str = "parquet"  # of the table: parquet, delta or iceberg
    catalog: str | None = None  # Iceberg: the SQL catalog's URI; None: sqlite in the warehouse
    topics: Mapping[str, str] = field(default_factory=dict)  # view -> topic; names that are topics need not be given
    schemas: Mapping[str, str] = field(default_factory=dict)  # view -> DDL of the values' fields; else inferred
    watermarks: Mapping[str, str] = field(default_factory=dict)  # view -> "column interval"
    key: str | None = None  # into a topic: the column that becomes the key
    mode: str = "append"  # append: rows when they are final; update: when they change; complete: all, each time
    application: str | None = None  # the name the target remembers batches by; None: the query's id
    group: str | None = None  # where progress is committed
    trigger: str = "available-now"  # or `continuous`, or an interval such as `10 seconds`
    starting_offsets: str = "earliest"
    max_records_per_trigger: int | None = None
    name: str | None = None  # of the query


@dataclass(frozen=True)
class SqlResult:
    rows: int  # read, of this run
    batches: int
    query_id: str
    columns: list[str]


def run(
    spark: "SparkSession",
    options: SqlOptions,
    *,
    started: "Callable[[StreamingQuery], None] | None" = None,
) -> SqlResult:
    """Run until the topics are read (available-now) or somebody stops the query, which `started` is handed."""
    if (options.into_topic is None) == (options.into_table is None):
        raise InvalidOption("a statement's rows go either into a topic or into a table")
    if options.mode not in MODES:
        raise InvalidOption(f"the mode is {options.mode!r}; it must be {', '.join(MODES)}")
    views = views_of(options)
    headers = "_headers" in options.statement
    for view in views:
        frame = stream(
            spark,
            options.server,
            view,
            starting_offsets=options.starting_offsets,
            headers=headers,
            group=options.group if options.into_table is not None else None,
            max_records=options.max_records_per_trigger,
        )
        frame.createOrReplaceTempView(f"`{view.view}`")
    try:
        rows = spark.sql(options.statement)
    finally:
        for view in views:
            spark.catalog.dropTempView(view.view)
    if not rows.isStreaming:
        raise InvalidOption("the statement reads no topic")
    query = _writer(rows, options).start()
    if started is not None:
        started(query)
    query.awaitTermination()
    reading = Meter(query).read()
    return SqlResult(reading.rows, reading.batches, str(query.id), rows.columns)


def views_of(options: SqlOptions) -> list[TopicView]:
    """The topics that the statement names, and those that are given."""
    with Desk(options.server) as desk:
        there = set(desk.names())
    named = {name: name for name in names_in(options.statement) if name in there}
    named |= options.topics
    for what, given in (("schema", options.schemas), ("watermark", options.watermarks)):
        for view in given:
            if view not in named:
                raise InvalidOption(f"a {what} is given for {view!r}, which is no topic that the statement reads")
    if not named:
        found = ", ".join(names_in(options.statement)) or "nothing"
        raise InvalidOption(f"the statement reads {found}, and none of it is a topic; 'penstock topic list' shows them")
    return [
        TopicView(view, topic, options.schemas.get(view), _watermark(options.watermarks.get(view)))
        for view, topic in named.items()
    ]


def names_in(statement: str) -> list[str]:
    """What stands after FROM and JOIN. More than the tables (a name of WITH, say), never fewer."""
    text = _COMMENT.sub(" ", statement)
    names = [found.strip("`") for found in _TABLE.findall(text)]
    for several in _LIST.findall(text):
        names += [part.split()[0].strip("`") for part in several.split(",") if part.split()]
    return list(dict.fromkeys(names))


def _watermark(given: str | None) -> tuple[str, str] | None:
    if given is None:
        return None
    column, _, delay = given.strip().partition(" ")
    if not delay.strip():
        raise InvalidOption(
            f"the watermark {given!r} is not of the form 'column interval', such as '_timestamp 1 minute'"
        )
    return column, delay.strip()


def _writer(rows: "DataFrame", options: SqlOptions) -> Any:
    writer = _to_topic(rows, options) if options.into_topic is not None else _to_table(rows, options)
    if options.name is not None:
        writer = writer.queryName(options.name)
    return (
        writer.outputMode(options.mode)
        .option("checkpointLocation", options.checkpoint)
        .trigger(**trigger_of(options.trigger))
    )


def trigger_of(text: str) -> dict[str, Any]:
    if text == "available-now":
        return {"availableNow": True}
    return {"processingTime": "0 seconds" if text == "continuous" else text}


def _to_topic(rows: "DataFrame", options: SqlOptions) -> Any:
    from pyspark.sql import functions as f

    columns = list(rows.columns)
    if options.key is not None and options.key not in columns:
        raise InvalidOption(f"there is no column {options.key!r} for the key; there are {', '.join(columns)}")
    value = f.to_json(f.struct(*[f.col(f"`{name}`") for name in columns]), {"ignoreNullFields": "false"})
    shown = [value.alias("value")]
    if options.key is not None:
        shown.insert(0, f.col(f"`{options.key}`").cast("string").alias("key"))
    records = rows.select(*shown)
    if options.mode == "update":  # which a sink in Python cannot have
        batches = to_topic(
            options.server,
            options.into_topic,
            checkpoint=options.checkpoint,
            application=options.application,
            group=options.group,
        )
        return records.writeStream.foreachBatch(batches)
    writer = records.writeStream.format("penstock").option("server", options.server)
    for name, given in (("topic", options.into_topic), ("application", options.application), ("group", options.group)):
        if given is not None:
            writer = writer.option(name, given)
    return writer


def _to_table(rows: "DataFrame", options: SqlOptions) -> Any:
    assert options.into_table is not None
    if options.mode == "complete":
        raise InvalidOption(
            "a table is added to, so the mode 'complete' would add every row again: use append or update"
        )
    batches = to_table(
        options.into_table,
        checkpoint=options.checkpoint,
        format=options.format,
        application=options.application,
        catalog=options.catalog,
    )
    return rows.writeStream.foreachBatch(batches)
