"""The table job's sink: records of topics in, rows of a table out, and what is no row into the quarantine.

A task decodes values, writes files for the rows and publishes the bad records under the step (application, batch). The
driver's commit does, in this order, each once however often it is repeated:

    the offsets file of the batch is synced           so that its number can never mean other rows
    the table shows the files and keeps the mark      one transaction of the table
    the step shows the bad records and the group's offsets, and keeps the same mark      one step of the broker

Killed between the last two, the batch is repeated: the table says that it is done, the files of the repeat are dropped,
and the step is committed. New fields are noticed by the tasks; then nothing of the batch is shown, the table gets the
columns, and the query ends with `SchemaGrew`, to be started again with them.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.model.errors import Conflict
from penstock.model.message import DEAD_LAST_FAILURE_MS, DEAD_OFFSET, DEAD_PARTITION, DEAD_REASON, DEAD_TOPIC
from penstock.pipeline.columns import HEADER_LIST, TIME
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.inference import settled
from penstock.pipeline.link import Link
from penstock.pipeline.marks import read_ends
from penstock.pipeline.publishing import StepPublisher
from penstock.pipeline.sink import Written, abort_step, application_of, attempt_label, commit_step, running_batch
from penstock.pipeline.sink_options import SinkOptions, sink_options
from penstock.pipeline.table_values import Values, added
from penstock.pipeline.tables import DataFile, Mark, Table, open_table
from penstock.pipeline.tables.durable import local_path
from penstock.pipeline.tables.writer import FileWriter

log = logging.getLogger(__name__)

NAME: Final = "penstock_table"
JOB: Final = "job"  # the one option beside the sink's: what to do, as JSON
GREW: Final = "the topic's values have new fields"  # in the error that ends a query to be started again
DATE: Final = "date"
METADATA: Final = pa.schema(
    [
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", TIME),
        ("_key", pa.binary()),
    ]
)
RAW: Final = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", HEADER_LIST)])
# A quarantine keeps what it gets, with headers that make it larger than it was.
QUARANTINE_SETTINGS: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": str(128 << 20)}


class SchemaGrew(PipelineError):
    """The table has more columns now than the query was started with."""


class TableJob(msgspec.Struct, frozen=True):
    """What the tasks and the driver's commit need to know."""

    target: str
    format: str
    catalog: str | None
    values: str  # json, avro or raw
    fields: bytes  # of the values: an Arrow schema
    columns: bytes  # of the table: likewise
    avro: str | None
    metadata: bool
    evolve: bool
    partition_by: list[str]
    quarantine: str | None
    compact_every: int
    compact_below_bytes: int
    target_file_bytes: int

    def table(self) -> Table:
        return open_table(self.format, self.target, catalog=self.catalog)


@dataclass
class TableWritten(Written):
    rows: int = 0
    files: list[DataFile] = field(default_factory=list)
    new: dict[str, pa.DataType] = field(default_factory=dict)


class TableDataSource(DataSource):
    """Written to by the table job alone."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        given = dict(self.options)
        job = msgspec.json.decode(given.pop(JOB), type=TableJob)
        return TableSink(job, sink_options(given, stream=True))


class TableSink(DataSourceStreamArrowWriter):
    def __init__(self, job: TableJob, options: SinkOptions) -> None:
        self._job = job
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        application, batch = running_batch(self._options.application)
        task = _Task(self._job, self._options, application, batch)
        try:
            for rows in iterator:
                task.take(rows)
            return task.finish()
        except BaseException:
            task.abandon()
            raise
        finally:
            task.close()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = [message for message in messages if isinstance(message, TableWritten)]
        ends = read_ends(self._options.checkpoint, batchId)
        application = application_of(messages, self._options)
        table = self._job.table()
        files = [file for message in written for file in message.files]
        new: dict[str, pa.DataType] = {}
        for message in written:
            added(new, message.new)
        if new:
            _drop(table, files)
            grow(self._job, table, new)
        shown = table.publish(files, Mark(application, batchId, ends.mark))
        if not shown:
            _drop(table, files)
        group = self._options.group or application
        offsets = [(group, *place) for place in ends.topics]
        commit_step(self._options, application, batchId, messages, ends.mark, offsets, ends.ids)
        if shown:
            _count(self._options.checkpoint, written)
        every = self._job.compact_every
        if every and batchId % every == every - 1:
            try:
                table.compact(self._job.compact_below_bytes, self._job.target_file_bytes)
            except Conflict as error:
                log.warning("small files are put together another time: %s", error)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Files are left to the next batch: if the table was quicker, they are its rows."""
        abort_step(self._options, application_of(messages, self._options), batchId)


def grow(job: TableJob, table: Table, new: Mapping[str, pa.DataType]) -> None:
    """Give the table these columns, and end the query, which does not know them."""
    kinds = {name: kind for name, of in new.items() if (kind := settled(of)) is not None}
    table.prepare(pa.schema(list(kinds.items())), job.partition_by)
    raise SchemaGrew(f"{GREW}: {', '.join(f'{name} {kind}' for name, kind in kinds.items())}")


def _drop(table: Table, files: Sequence[DataFile]) -> None:
    """Files that nobody will ever name."""
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(table.location, file.path))


# -- in a task ----------------------------------------------------------------------------------------------


class _Task:
    def __init__(self, job: TableJob, options: SinkOptions, application: str, batch: int) -> None:
        self._job = job
        self._options = options
        self._application = application
        self._columns = _schema(job.columns)
        self._values = None if job.values == "raw" else _values(job)
        table = job.table()
        label, turn = attempt_label()
        self._files = FileWriter(
            table.location,
            table.folder(application, batch),
            self._columns,
            job.partition_by,
            keep_partition_columns=table.keeps_partition_columns,
            prefix=f"{batch:08}-{label}",
            target_bytes=job.target_file_bytes,
            hive=table.spreads,
        )
        self._link = Link(options.server, timeout_s=options.timeout_s, client=f"penstock-table {application} {label}")
        self._quarantine = StepPublisher(
            self._link,
            application,
            batch,
            label,
            timeout_s=options.timeout_s,
            step_timeout_ms=options.step_timeout_ms,
            turn=turn,
            new_topics=QUARANTINE_SETTINGS,
        )
        self._new: dict[str, pa.DataType] = {}

    def take(self, records: pa.RecordBatch) -> None:
        if not records.num_rows:
            return
        columns: dict[str, pa.Array] = {}
        reasons: dict[int, str] = {}
        if self._values is None:
            columns = {name: records.column(name) for name in RAW.names}
        else:
            opened = self._values.open(records.column("value"))
            columns = dict(zip(_schema(self._job.fields).names, opened.columns, strict=True))
            reasons = opened.reasons
            # A field that has the name of a column of ours is not new, and no column either.
            added(self._new, {name: kind for name, kind in opened.new.items() if name not in self._columns.names})
        if self._job.metadata:
            for name in METADATA.names:
                if name in self._columns.names:
                    columns[name] = records.column(name[1:]).cast(METADATA.field(name).type)
        if DATE in self._job.partition_by and DATE not in columns:
            columns[DATE] = records.column("timestamp").cast(pa.date32())
        rows = pa.RecordBatch.from_arrays(
            [
                _fitted(columns[column.name], column.type)
                if column.name in columns
                else pa.nulls(records.num_rows, column.type)
                for column in self._columns
            ],
            schema=self._columns,
        )
        if reasons:
            bad = pa.array([row in reasons for row in range(records.num_rows)], pa.bool_())
            rows = rows.filter(pc.invert(bad))
            self._set_aside(records.filter(bad), [reasons[row] for row in sorted(reasons)])
        self._files.add(rows)

    def _set_aside(self, records: pa.RecordBatch, reasons: Sequence[str]) -> None:
        if self._quarantine.is_done():
            return
        now_ms = b"%d" % (time.time_ns() // 1_000_000)
        headers = []
        for reason, row in zip(reasons, records.to_pylist(), strict=True):
            told = {
                DEAD_REASON: reason.encode(),
                DEAD_TOPIC: row["topic"].encode(),
                DEAD_PARTITION: b"%d" % row["partition"],
                DEAD_OFFSET: b"%d" % row["offset"],
                DEAD_LAST_FAILURE_MS: now_ms,
            }
            own = [header for header in row["headers"] or () if header["key"] not in told]
            headers.append(own + [{"key": name, "value": value} for name, value in told.items()])
        records = records.set_column(
            records.schema.get_field_index("headers"), "headers", pa.array(headers, HEADER_LIST)
        )
        topics = records.column("topic")
        for topic in topics.unique().to_pylist():
            chosen = records.filter(pc.equal(topics, topic))
            self._quarantine.add(
                self._job.quarantine or f"{topic}.quarantine",
                chosen.num_rows,
                key=chosen.column("key"),
                value=chosen.column("value"),
                headers=chosen.column("headers"),
                timestamps_ms=chosen.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False),
            )

    def finish(self) -> TableWritten:
        self._quarantine.finish()
        files = self._files.close()
        aside = self._quarantine
        return TableWritten(
            self._application,
            aside.producer_id,
            aside.records,
            aside.bytes,
            rows=self._files.rows,
            files=files,
            new=self._new,
        )

    def abandon(self) -> None:
        self._files.abandon()

    def close(self) -> None:
        self._link.close()


def _fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """What a schema calls NOT NULL deep inside, a table takes as it comes."""
    return array if array.type == kind else array.cast(kind)


def _values(job: TableJob) -> Values:
    return Values(job.values, _schema(job.fields), job.avro, notice_new=job.evolve)


def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


# -- what became of it --------------------------------------------------------------------------------------


class Counts(msgspec.Struct):
    """How much went through a checkpoint, for people: a crash may take the last batch out of it."""

    batches: int = 0
    rows: int = 0
    quarantined: int = 0


def read_counts(checkpoint: str) -> Counts:
    try:
        with open(_counts_path(checkpoint), "rb") as file:
            return msgspec.json.decode(file.read(), type=Counts)
    except (FileNotFoundError, msgspec.DecodeError):
        return Counts()


def _count(checkpoint: str | None, written: Sequence[TableWritten]) -> None:
    assert checkpoint is not None, "its offsets were read"
    if "://" in checkpoint and not checkpoint.startswith("file:"):
        return
    counts = read_counts(checkpoint)
    counts.batches += 1
    counts.rows += sum(message.rows for message in written)
    counts.quarantined += sum(message.records for message in written)
    path = _counts_path(checkpoint)
    with open(f"{path}.new", "wb") as file:
        file.write(json.dumps(msgspec.to_builtins(counts)).encode())
    os.replace(f"{path}.new", path)


def _counts_path(checkpoint: str) -> str:
    return os.path.join(local_path(checkpoint, "checkpointLocation"), "penstock-table.json")
