"""The sink: rows become records of a topic exactly once, whatever is repeated.

Tasks write under the step (application, batch): each attempt is a writer of its own, and nobody sees what it wrote. The
driver's commit names the attempts that count, says by a mark what the batch was made of, and the broker shows their
records at once, with the offsets of the query's group if it has one; what other attempts wrote is aborted.

    killed before the commit      Spark runs the batch again; the commit names the new attempts only
    killed after it               Spark runs it again; the broker says "done", and nothing is written
    the same number, other rows   the marks differ: it stops, and says what to do
"""

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.model.errors import PenstockError, StepAborted, StepForgotten, StepMismatch
from penstock.pipeline.columns import HEADER_LIST
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.identity import replaced, topic_ids
from penstock.pipeline.link import Link
from penstock.pipeline.marks import read_ends, read_query_id
from penstock.pipeline.publishing import StepPublisher, ask_patiently
from penstock.pipeline.sink_options import SinkOptions, check_columns, sink_options
from penstock.wire.native import messages as wire

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

BATCH_PROPERTY = "streaming.sql.batchId"
QUERY_PROPERTY = "sql.streaming.queryId"


@dataclass
class Written(WriterCommitMessage):
    """What one attempt has to tell the driver."""

    application: str
    producer_id: int | None  # None: it wrote nothing, for want of rows or because the batch was done before
    records: int = 0
    bytes: int = 0


def batch_writer(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> "BatchSink":
    if overwrite:
        raise InvalidOption('a topic is added to and never overwritten: use mode("append")')
    said = sink_options(options, stream=False)
    check_columns(schema, said.topic)
    return BatchSink(said)


def stream_writer(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> "StreamSink":
    """In the output mode `complete` every batch's whole result is added: a key's newest record is in force."""
    said = sink_options(options, stream=True)
    check_columns(schema, said.topic)
    return StreamSink(said)


class BatchSink(DataSourceArrowWriter):
    """Without a name of its own each write is another; with `application` and `epoch` it is done once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._application = options.application or f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self._options, self._application, self._options.epoch, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit_step(self._options, self._application, self._options.epoch, messages, "")
        if self._options.application is None:
            forget_step(self._options, self._application)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort_step(self._options, self._application, self._options.epoch)


class StreamSink(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        application, batch = running_batch(self._options.application)
        return write_rows(self._options, application, batch, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        ends = read_ends(self._options.checkpoint, batchId)
        group = self._options.group
        offsets = [] if group is None else [(group, *place) for place in ends.topics]
        application = application_of(messages, self._options)
        commit_step(self._options, application, batchId, messages, ends.mark, offsets, ends.ids)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort_step(self._options, application_of(messages, self._options), batchId)


# -- in a task ----------------------------------------------------------------------------------------------


def running_batch(application: str | None) -> tuple[str, int]:
    """What this task is a part of: the application's name and the number of the batch."""
    context = TaskContext.get()
    assert context is not None, "only tasks write"
    batch = context.getLocalProperty(BATCH_PROPERTY)
    name = application or context.getLocalProperty(QUERY_PROPERTY)
    if batch is None or name is None:
        raise InvalidOption("this is not a task of a streaming query; a batch write is df.write.format('penstock')")
    return name, int(batch)


def attempt_label() -> tuple[str, int]:
    """This attempt, in words, and the number of its partition."""
    context = TaskContext.get()
    if context is None:
        return "driver", 0
    return f"{context.partitionId()}-{context.attemptNumber()}", context.partitionId()


def write_rows(options: SinkOptions, application: str, epoch: int, rows: Iterator[pa.RecordBatch]) -> Written:
    label, turn = attempt_label()
    with Link(options.server, timeout_s=options.timeout_s, client=f"penstock-sink {application} {label}") as link:
        publisher = StepPublisher(
            link,
            application,
            epoch,
            label,
            compression=options.compression,
            batch_bytes=options.batch_bytes,
            timeout_s=options.timeout_s,
            step_timeout_ms=options.step_timeout_ms,
            turn=turn,
        )
        done = False
        for batch in rows:
            # The rows of a batch that is done are taken and dropped: Spark wants to hand them over.
            if done or not batch.num_rows or (done := publisher.is_done()):
                continue
            publish_rows(publisher, options.topic, batch)
        publisher.finish()
        return Written(application, publisher.producer_id, publisher.records, publisher.bytes)


def publish_rows(publisher: StepPublisher, topic: str | None, batch: pa.RecordBatch) -> None:
    """Rows as `check_columns` has found them right; a row's own topic counts before the sink's."""
    if "topic" not in batch.schema.names:
        assert topic is not None
        _publish_topic(publisher, topic, batch)
        return
    topics = batch.column("topic")
    if topics.null_count:
        if topic is None:
            raise InvalidOption("a row has no topic: its column topic is null, and the option topic is not given")
        topics = topics.fill_null(topic)
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    for number, name in enumerate(names):
        chosen = batch if len(names) == 1 else batch.filter(pc.equal(encoded.indices, number))
        _publish_topic(publisher, name, chosen)


def _publish_topic(publisher: StepPublisher, topic: str, batch: pa.RecordBatch) -> None:
    columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    timestamps = columns.get("timestamp")
    if timestamps is not None and pa.types.is_timestamp(timestamps.type):
        timestamps = timestamps.cast(pa.timestamp("ms", timestamps.type.tz), safe=False)
    partitions = columns.get("partition")
    headers = columns.get("headers")
    if headers is not None and headers.type != HEADER_LIST:
        headers = headers.cast(HEADER_LIST)
    publisher.add(
        topic,
        batch.num_rows,
        key=columns.get("key"),
        value=columns["value"],
        headers=headers,
        timestamps_ms=timestamps,
        partitions=None if partitions is None else partitions.cast(pa.int32()),
    )


# -- in the driver ------------------------------------------------------------------------------------------


def application_of(messages: Sequence[WriterCommitMessage | None], options: SinkOptions) -> str:
    """The name that the tasks have used; a batch without tasks is told by the checkpoint."""
    for message in messages:
        if isinstance(message, Written):
            return message.application
    name = options.application or read_query_id(options.checkpoint)
    if name is None:
        raise InvalidOption("nobody can tell which query this is; give the option application")
    return name


def commit_step(
    options: SinkOptions,
    application: str,
    epoch: int,
    messages: Sequence[WriterCommitMessage | None],
    mark: str,
    offsets: Sequence[tuple[str, str, int, int]] = (),
    ids: Mapping[str, str] | None = None,
) -> bool:
    """False: it was done before.

    `ids`: of the topics that the offsets are of. Those of one that has been replaced since are left out: in the new one
    the group has a place of its own.
    """
    writers = [
        message.producer_id for message in messages if isinstance(message, Written) and message.producer_id is not None
    ]
    name = f"batch {epoch} of application {application!r}"
    with Link(options.server, timeout_s=options.timeout_s, client=f"penstock-sink {application}") as link:
        if offsets and ids:
            others = replaced(ids, topic_ids(link, ids))
            offsets = [place for place in offsets if place[1] not in others]
        request = wire.CommitStep(application, epoch, writers, mark, list(offsets))
        try:
            done: wire.Done = ask_patiently(link, request, options.timeout_s)
        except StepMismatch as error:
            raise StepMismatch(
                f"{name} is in the topic already, and was made of other rows than now ({error}; now {mark}). The "
                "checkpoint has lost entries and uses their numbers again. Nothing was written. Either put the "
                "checkpoint back as it was, or, once you know what the topic holds, go on under a new application "
                "name and a new checkpoint, with startingOffsets that begin after the last row that is there."
            ) from None
        except StepForgotten as error:
            raise StepForgotten(
                f"{name} is older than the batches that the broker remembers of this application, so nobody can tell "
                f"whether it is in the topic ({error}). The checkpoint was set back too far. Nothing was written. Put "
                "it back as it was, or go on under a new application name and a new checkpoint, with startingOffsets "
                "that begin after the last row that is there."
            ) from None
        except StepAborted as error:
            raise StepAborted(
                f"{name} was aborted before it could be committed ({error}); nothing of it was written. Start the "
                "query again, and it repeats the batch. If batches outlast the step's time-out, raise stepTimeout."
            ) from None
    return done.count > 0


def forget_step(options: SinkOptions, application: str) -> None:
    """After the commit of a name that nobody will ever use again."""
    try:
        with Link(options.server, timeout_s=options.timeout_s, client=f"penstock-sink {application}") as link:
            ask_patiently(link, wire.ForgetStep(application), options.timeout_s)
    except PenstockError as error:
        # The rows are there. The broker forgets the name by itself, in its time.
        log.warning("the name %r could not be forgotten now: %s", application, error)


def abort_step(options: SinkOptions, application: str, epoch: int) -> None:
    """Give up what is not committed. Spark also asks for this after a commit that failed on its way back: then there is
    nothing to give up, and the broker knows."""
    try:
        with Link(options.server, timeout_s=options.timeout_s, client=f"penstock-sink {application}") as link:
            known: wire.StepDescription = link.ask(wire.DescribeStep(application))
            if any(committed == epoch for committed, _ in known.committed):
                return
            if any(opened == epoch for opened, _ in known.open):
                link.ask(wire.AbortStep(application, epoch))
    except PenstockError as error:
        # What is left open the broker aborts by itself, after the step's time-out or at the repeat's commit.
        log.warning("batch %d of application %r could not be aborted now: %s", epoch, application, error)
