"""`penstock pipeline table|sql`, the built-in pipelines that are streams.

Each is a function of `penstock.pipeline.jobs` that programs may call, too; here are only its options, and how its
result is shown.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import options
from penstock.cli.pipeline_options import (
    DEFAULT_MASTER,
    Catalog,
    Checkpoint,
    Conf,
    Environment,
    Format,
    Master,
    Name,
    Once,
    Place,
    Quick,
    TableFormat,
    Trigger,
    Verbose,
    home_of,
    perform,
    spark_interval,
)
from penstock.cli.terminal import guarded, note


class Values(StrEnum):
    json = "json"
    avro = "avro"
    raw = "raw"


class Mode(StrEnum):
    append = "append"
    update = "update"
    complete = "complete"


Start = Annotated[
    str, typer.Option("--from", metavar="earliest|latest|JSON", help="Where a new pipeline begins to read.")
]
PerBatch = Annotated[
    int | None, typer.Option("--max-records", min=1, metavar="N", help="Read at most so many records in one batch.")
]
Application = Annotated[
    str | None,
    typer.Option("--application", help="The name by which the target remembers batches.", show_default="the name"),
]


def _trigger(once: bool, interval: str | None) -> str:
    """As the jobs take it."""
    if interval is not None:
        return spark_interval(interval)
    return "available-now" if once else "continuous"


# -- table --------------------------------------------------------------------------------------------------


@guarded
def table(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of topics.")],
    target: Annotated[
        str, typer.Option("--to", metavar="DIR", help="The table's directory; of Iceberg WAREHOUSE/NAMESPACE/TABLE.")
    ],
    table_format: TableFormat = Format.parquet,
    values: Annotated[
        Values, typer.Option("--values", help="What the values are. Raw: kept as they are.")
    ] = Values.json,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="DDL|FILE",
            help="Fields of the values: 'a INT, b STRING', or a .json or .avsc file.",
            show_default="inferred",
        ),
    ] = None,
    evolve: Annotated[bool, typer.Option("--evolve/--no-evolve", help="New fields become columns.")] = True,
    metadata: Annotated[
        bool, typer.Option("--metadata/--no-metadata", help="Columns _topic, _partition, _offset, _timestamp, _key.")
    ] = True,
    partition_by: Annotated[
        str | None, typer.Option("--partition-by", metavar="COLUMN", help="A column, or 'date' for the record's day.")
    ] = None,
    quarantine: Annotated[
        str | None,
        typer.Option("--quarantine", metavar="TOPIC", help="For bad records.", show_default="TOPIC.quarantine"),
    ] = None,
    start: Start = "earliest",
    per_batch: PerBatch = None,
    compact_every: Annotated[
        int,
        typer.Option("--compact-every", min=0, metavar="N", help="Put small files together every N batches; 0 never."),
    ] = 50,
    catalog: Catalog = None,
    application: Application = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Where progress is committed.", show_default="the application")
    ] = None,
    once: Once = True,
    trigger: Trigger = None,
    name: Name = None,
    checkpoint: Checkpoint = None,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    environment: Environment = None,
    quick: Quick = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    verbose: Verbose = False,
) -> None:
    """Topics to a Parquet, Delta or Iceberg table, each record once.

    Bad records go to a quarantine topic, with the reason. The same command again goes on where it ended.
    """
    place = Place(name or f"table-{_leaf(target)}", server, master, conf, environment, quick, verbose, as_json)
    home = home_of(place.name, checkpoint)

    def work(run: Any, spark: Any) -> Any:
        from penstock.pipeline.jobs import table as job

        given = job.TableOptions(
            server=server,
            topics=topics,
            target=str(Path(target).absolute()),
            checkpoint=str(home / "checkpoint"),
            format=table_format.value,
            values=values.value,
            schema=schema,
            evolve=evolve,
            metadata=metadata,
            partition_by=partition_by,
            quarantine=quarantine,
            application=application or place.name,
            group=group,
            trigger=_trigger(once, trigger),
            starting_offsets=start,
            max_records_per_trigger=per_batch,
            compact_every=compact_every,
            catalog=catalog,
        )
        return job.run(spark, given, started=run.watch)

    result = perform(place, work, about={"kind": "table", "target": target, "topics": ", ".join(topics)})
    if result is not None and not as_json:
        note(f"{result.rows:,} rows in {target}, {result.quarantined:,} in quarantine, {result.batches:,} batches")


def _leaf(target: str) -> str:
    from penstock.pipeline.files import name_of

    return name_of(Path(target).name)


# -- sql ----------------------------------------------------------------------------------------------------


@guarded
def sql(
    statement: Annotated[
        str,
        typer.Argument(metavar="STATEMENT", help="A SELECT over topics by their names; @FILE reads it from a file."),
    ],
    into_topic: Annotated[
        str | None, typer.Option("--into", metavar="TOPIC", help="The topic that gets the rows.")
    ] = None,
    into_table: Annotated[
        str | None, typer.Option("--into-table", metavar="DIR", help="The table that gets the rows.")
    ] = None,
    table_format: TableFormat = Format.parquet,
    catalog: Catalog = None,
    views: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="VIEW=TOPIC",
            help="A topic under another name. Repeatable.",
            show_default="names in the statement that are topics",
        ),
    ] = None,
    schemas: Annotated[
        list[str] | None,
        typer.Option(
            "--schema", metavar="VIEW=DDL", help="Fields of a topic's values. Repeatable.", show_default="inferred"
        ),
    ] = None,
    watermarks: Annotated[
        list[str] | None,
        typer.Option(
            "--watermark",
            metavar="VIEW=COLUMN INTERVAL",
            help="How late rows may be: 'orders=at 1 minute'. Repeatable.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="COLUMN", help="The column that becomes the key.")] = None,
    mode: Annotated[
        Mode,
        typer.Option("--mode", help="Rows when they are final, rows whenever they change, or all of them each time."),
    ] = Mode.append,
    start: Start = "earliest",
    per_batch: PerBatch = None,
    application: Application = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Where progress is committed.", show_default="the name")
    ] = None,
    once: Once = True,
    trigger: Trigger = None,
    name: Name = None,
    checkpoint: Checkpoint = None,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    environment: Environment = None,
    quick: Quick = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    verbose: Verbose = False,
) -> None:
    """A SQL statement over topics, into a topic or a table, exactly once.

    A topic is a view of its JSON values' fields and of _key, _timestamp, _topic, _partition, _offset, _headers.
    """
    if (into_topic is None) == (into_table is None):
        raise typer.BadParameter("say where the rows go, with either --into or --into-table")
    text = _statement(statement)
    place = Place(
        name or f"sql-{into_topic or _leaf(into_table or '')}",
        server,
        master,
        conf,
        environment,
        quick,
        verbose,
        as_json,
    )
    home = home_of(place.name, checkpoint)
    named, fields = options.pairs(views, "--topic"), options.pairs(schemas, "--schema")
    late = options.pairs(watermarks, "--watermark")

    def work(run: Any, spark: Any) -> Any:
        from penstock.pipeline.jobs import sql as job

        given = job.SqlOptions(
            server=server,
            statement=text,
            topics=named,
            schemas=fields,
            watermarks=late,
            into_topic=into_topic,
            into_table=str(Path(into_table).absolute()) if into_table is not None else None,
            format=table_format.value,
            catalog=catalog,
            key=key,
            mode=mode.value,
            checkpoint=str(home / "checkpoint"),
            application=application or place.name,
            group=group or place.name,
            trigger=_trigger(once, trigger),
            starting_offsets=start,
            max_records_per_trigger=per_batch,
        )
        return job.run(spark, given, started=run.watch)

    result = perform(place, work, about={"kind": "sql", "target": into_topic or into_table})
    if result is not None and not as_json:
        note(f"{result.rows:,} rows read in {result.batches:,} batches, into {into_topic or into_table}")


def _statement(given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{given[1:]}: {error.strerror}", param_hint="STATEMENT") from None
