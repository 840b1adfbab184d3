"""What Spark hands over batch by batch, exactly once: for output modes that a Python sink cannot have, and for tables.

    totals.writeStream.outputMode("update").foreachBatch(to_topic(server, "totals", checkpoint=place))
        .option("checkpointLocation", place).start()

Spark's `foreachBatch` repeats a batch after a failure. Here a batch is remembered by its number and by what it was made
of, as the checkpoint tells, together with its rows: in the broker's named step, or in the table's own transaction. A
repeat is skipped, and a number that is used again for other rows stops the query.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.marks import read_ends, read_query_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Tasks = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def to_topic(
    server: str,
    topic: str | None,
    *,
    checkpoint: str,
    application: str | None = None,
    group: str | None = None,
    **options: str,
) -> "TopicBatches":
    """Rows with the sink's columns (key, value, headers, ...) into a topic. The options are the sink's."""
    given = {"server": server, "checkpointLocation": checkpoint, **options}
    given |= {
        name: value
        for name, value in (("topic", topic), ("application", application), ("group", group))
        if value is not None
    }
    return TopicBatches(given)


def to_table(
    target: str,
    *,
    checkpoint: str,
    format: str = "parquet",  # noqa: A002
    application: str | None = None,
    catalog: str | None = None,
) -> "TableBatches":
    """Rows into a Parquet, Delta or Iceberg table. Columns that it lacks are added."""
    return TableBatches(target, checkpoint, format, application, catalog)


def _application(given: str | None, checkpoint: str | None) -> str:
    name = given or read_query_id(checkpoint)
    if name is None:
        raise InvalidOption("nobody can tell which query this is; name an application")
    return name


@dataclass(frozen=True)
class TopicBatches:
    options: Mapping[str, str]

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        from penstock.pipeline.sink import Written, abort_step, commit_step
        from penstock.pipeline.sink_options import check_columns, sink_options

        options = sink_options(self.options, stream=True)
        check_columns(rows.schema, options.topic)
        application = _application(options.application, options.checkpoint)
        ends = read_ends(options.checkpoint, batch)
        try:
            told = rows.mapInArrow(_publish(options, application, batch), "producer BIGINT, records BIGINT").collect()
        except BaseException:
            abort_step(options, application, batch)
            raise
        written = [Written(application, one.producer, one.records) for one in told]
        offsets = [] if options.group is None else [(options.group, *place) for place in ends.topics]
        commit_step(options, application, batch, written, ends.mark, offsets, ends.ids)


def _publish(options: Any, application: str, batch: int) -> Tasks:
    def publish(rows: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        from penstock.pipeline.sink import write_rows

        written = write_rows(options, application, batch, rows)
        yield pa.RecordBatch.from_arrays(
            [pa.array([written.producer_id], pa.int64()), pa.array([written.records], pa.int64())],
            names=["producer", "records"],
        )

    return publish


@dataclass(frozen=True)
class TableBatches:
    target: str
    checkpoint: str
    format: str
    application: str | None
    catalog: str | None

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        from penstock.pipeline.tables import DataFile, Mark, open_table

        application = _application(self.application, self.checkpoint)
        mark = Mark(application, batch, read_ends(self.checkpoint, batch).mark)
        table = open_table(self.format, self.target, catalog=self.catalog)
        if table.is_published(mark):
            return
        schema = table.prepare(to_arrow_schema(rows.schema, timezone="UTC"), ())
        folder = table.folder(application, batch)
        tasks = _write(table.location, folder, schema, table.keeps_partition_columns)
        told = rows.mapInArrow(tasks, "path STRING, rows BIGINT, size BIGINT").collect()
        table.publish([DataFile(one.path, one.rows, one.size) for one in told], mark)


def _write(location: str, folder: str, schema: "pa.Schema", keep: bool) -> Tasks:
    def write(rows: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        from penstock.pipeline.tables.writer import FileWriter

        writer = FileWriter(location, folder, schema, keep_partition_columns=keep)
        try:
            for batch in rows:
                writer.add(_shaped(batch, schema))
            files = writer.close()
        except BaseException:
            writer.abandon()
            raise
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([one.path for one in files], pa.string()),
                pa.array([one.rows for one in files], pa.int64()),
                pa.array([one.size_bytes for one in files], pa.int64()),
            ],
            names=["path", "rows", "size"],
        )

    return write


def _shaped(batch: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """The batch with the table's columns, in their order; those that it has not are null."""
    import pyarrow as pa

    have = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in have else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
