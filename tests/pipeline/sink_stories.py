"""What the sink's tests share: what a topic holds, read as everybody may, and sinks that fail where a test wants it."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.client.blocking import BlockingConnection
from penstock.model.batch import decode_batch, walk
from penstock.model.record import Record
from penstock.pipeline import table_sink
from penstock.pipeline.link import Link
from penstock.pipeline.publishing import StepPublisher
from penstock.pipeline.sink import StreamSink
from penstock.pipeline.sink_options import sink_options
from penstock.pipeline.source import PenstockDataSource
from penstock.testing.server import Server
from penstock.wire.native import messages as wire

# Workers of Spark have no path to the tests, so what they run of this file goes to them by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def records_in(server: Server, topic: str) -> list[Record]:
    """What is committed, partition by partition."""
    found: list[Record] = []
    with BlockingConnection(server.line) as connection:
        partitions = connection.request(wire.FindTopic(topic, create=False)).topics[0].partitions
        for partition in range(partitions):
            end = connection.request(wire.ListOffsets(topic, partition)).end
            offset = 0
            while offset < end:
                fetched = connection.request(wire.Fetch(topic, partition, offset, 1 << 20, 0))
                for header in walk(fetched.batches):
                    found += [one for one in decode_batch(fetched.batches, header.position) if one.offset >= offset]
                if fetched.next_offset <= offset:
                    break
                offset = fetched.next_offset
    return found


def values_in(server: Server, topic: str) -> list[str]:
    return sorted((record.value or b"").decode() for record in records_in(server, topic))


def is_stable(server: Server, topic: str, partition: int = 0) -> bool:
    """Whether nothing is open there."""
    with BlockingConnection(server.line) as connection:
        bounds = connection.request(wire.ListOffsets(topic, partition))
    return bool(bounds.stable == bounds.end)


def ask(server: Server, message: wire.Message) -> Any:
    with BlockingConnection(server.line) as connection:
        return connection.request(message)


def writer(link: Link, step: str, epoch: int, label: str = "0-0", **options: Any) -> StepPublisher:
    return StepPublisher(link, step, epoch, label, timeout_s=30, **options)


def put(publisher: StepPublisher, topic: str, values: Sequence[str]) -> None:
    publisher.add(topic, len(values), value=pa.array([value.encode() for value in values], pa.binary()))


# -- sinks that fail ----------------------------------------------------------------------------------------------


class Fault(RuntimeError):
    """What a test asked for."""


def _act(options: dict[str, str], point: str) -> None:
    """At the point that the test has chosen, while its flag is there: fail, or end the driver as kill -9 does."""
    if options.get("fault") != point or not Path(options["flag"]).exists():
        return
    if "kill" in options:
        os.killpg(int(options["kill"]), 9)
        os._exit(1)
    raise Fault(f"failed at {point!r}")


OWN = ("fault", "flag", "kill")


class FaultySource(PenstockDataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock_faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        given = dict(self.options)
        fault = {name: given.pop(name) for name in OWN if name in given}
        return FaultySink(fault, given)


class FaultySink(StreamSink):
    def __init__(self, fault: dict[str, str], given: dict[str, str]) -> None:
        super().__init__(sink_options(given, stream=True))
        self.fault = fault

    def write(self, iterator: Any) -> WriterCommitMessage:
        written = super().write(iterator)
        _act(self.fault, "task")
        return written

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        _act(self.fault, "before")
        super().commit(messages, batchId)
        _act(self.fault, "after")

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        if self.fault.get("fault") == "no abort":
            return
        super().abort(messages, batchId)


class FaultyTableSource(table_sink.TableDataSource):
    """Under the name of the real one, so that the job itself is run."""

    fault: dict[str, str] = {}  # noqa: RUF012

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        real = super().streamWriter(schema, overwrite)
        assert isinstance(real, table_sink.TableSink)
        return FaultyTableSink(self.fault, real)


class FaultyTableSink(table_sink.TableSink):
    def __init__(self, fault: dict[str, str], real: table_sink.TableSink) -> None:
        super().__init__(real._job, real._options)
        self.fault = fault

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        _act(self.fault, "before")
        commit_step = table_sink.commit_step

        def between(*arguments: Any) -> bool:
            _act(self.fault, "between")
            return commit_step(*arguments)

        table_sink.commit_step = between  # type: ignore[assignment]
        try:
            super().commit(messages, batchId)
        finally:
            table_sink.commit_step = commit_step
        _act(self.fault, "after")
