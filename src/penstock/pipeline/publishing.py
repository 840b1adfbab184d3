"""What a task does for topics: columns of rows into transactional batches, published under a step's writer.

Batches go out ahead of their answers, `AHEAD_PER_PARTITION` of one partition and `AHEAD_BYTES` in all. Every batch has
its number, so what a broken connection leaves in doubt is sent again, in order, and nothing is stored twice: the
broker remembers as many batches of a producer as are ever on their way. The writer is opened with the first row; a
task without rows opens none.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from penstock.client.errors import Disconnected, Unreachable, error_of
from penstock.client.session import pause_s
from penstock.model.column_writer import ColumnWriter
from penstock.model.errors import (
    ConcurrentTransactions,
    OutOfOrderSequence,
    PenstockError,
    TimedOut,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from penstock.pipeline.columns import bytes_column, header_column, numbers
from penstock.pipeline.link import Link
from penstock.wire.native import messages as wire

AHEAD_PER_PARTITION: Final = 5  # the broker's memory of a producer
AHEAD_BYTES: Final = 16 << 20
FRAME_BYTES: Final = 1 << 20
BATCH_BYTES: Final = 512 << 10
STEP_TIMEOUT_MS: Final = 900_000
MAX_TOPICS: Final = 1_000  # of one task
COMPRESSIONS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

_BROKEN = (Disconnected, TimedOut, Unreachable)


def ask_patiently(link: Link, message: wire.Message, timeout_s: float) -> Any:
    """The reply to what may be asked again, also when the server says "not now": while it ends what was before."""
    deadline = time.monotonic() + timeout_s
    attempt = 0
    while True:
        try:
            return link.ask(message)
        except ConcurrentTransactions:
            attempt += 1
            wait_s = pause_s(attempt)
            if time.monotonic() + wait_s >= deadline:
                raise
            time.sleep(wait_s)


class _Sent:
    """One request that is on its way."""

    __slots__ = ("batches", "number", "size_bytes")

    def __init__(self, batches: list[wire.Batch], number: int) -> None:
        self.batches = batches
        self.number = number
        self.size_bytes = sum(len(batch.batch) for batch in batches)


class StepPublisher:
    """One writer of the step (name, epoch)."""

    def __init__(
        self,
        link: Link,
        step: str,
        epoch: int,
        label: str,
        *,
        compression: int = 0,
        batch_bytes: int = BATCH_BYTES,
        timeout_s: float,
        step_timeout_ms: int = STEP_TIMEOUT_MS,
        turn: int = 0,
        new_topics: dict[str, str] | None = None,
    ) -> None:
        """`new_topics`: topics that are not there are made with these settings, also where the server does not make any
        on first use."""
        self._link = link
        self._open = wire.OpenWriter(step, epoch, label, step_timeout_ms)
        self._compression = compression
        self._batch_bytes = batch_bytes
        self._timeout_s = timeout_s
        self._turn = turn
        self._new_topics = new_topics
        self._writer: wire.Writer | None = None
        self._topics: dict[str, ColumnWriter] = {}
        self._waiting: list[wire.Batch] = []
        self._waiting_bytes = 0
        self._ahead: deque[_Sent] = deque()
        self._ahead_bytes = 0
        self._per_partition: dict[tuple[str, int], int] = {}
        self.bytes = 0
        self.stored: Callable[[list[wire.Batch], list[wire.Stored]], None] | None = None  # is told where batches went

    # -- what there is to tell ------------------------------------------------------------------------------------

    @property
    def producer_id(self) -> int | None:
        """None: nothing was written, so there is nothing to count."""
        return None if self._writer is None or self._writer.done or not self.records else self._writer.producer_id

    @property
    def records(self) -> int:
        return sum(writer.records for writer in self._topics.values())

    def is_done(self) -> bool:
        """Whether the step was committed before, so that nothing needs to be written. Opens the writer."""
        if self._writer is None:
            self._writer = ask_patiently(self._link, self._open, self._timeout_s)
        assert self._writer is not None
        return self._writer.done

    # -- rows -----------------------------------------------------------------------------------------------------

    def add(
        self,
        topic: str,
        rows: int,
        *,
        key: pa.Array | None = None,
        value: pa.Array | None = None,
        headers: pa.Array | None = None,
        timestamps_ms: pa.Array | None = None,
        partitions: pa.Array | None = None,
    ) -> None:
        if not rows:
            return
        full = self._columns(topic).add(
            rows,
            None if key is None else bytes_column(key),
            None if value is None else bytes_column(value),
            None if headers is None else header_column(headers),
            None if timestamps_ms is None else numbers(timestamps_ms),
            None if partitions is None else numbers(partitions),
            time.time_ns() // 1_000_000,
        )
        for partition, batch in full:
            self._put(topic, partition, batch)

    def finish(self) -> None:
        """Everything is stored when this returns."""
        for topic, columns in self._topics.items():
            for partition, batch in columns.flush():
                self._put(topic, partition, batch)
        self._send()
        while self._ahead:
            self._take()

    def _columns(self, topic: str) -> ColumnWriter:
        columns = self._topics.get(topic)
        if columns is None:
            self.is_done()
            assert self._writer is not None
            if len(self._topics) >= MAX_TOPICS:
                raise UnknownTopic(f"one task writes to {MAX_TOPICS} topics already; is the column topic right?")
            found = self._find(topic)
            most_bytes = int(found.settings.get("max.message.bytes", self._batch_bytes))
            columns = self._topics[topic] = ColumnWriter(
                topic,
                found.partitions,
                self._writer.producer_id,
                self._writer.producer_epoch,
                compression=self._compression,
                max_bytes=min(self._batch_bytes, most_bytes),
                turn=self._turn,
            )
        return columns

    def _find(self, topic: str) -> wire.TopicInfo:
        try:
            found: wire.Topics = self._link.ask(wire.FindTopic(topic, create=self._new_topics is None))
        except UnknownTopic:
            if self._new_topics is None:
                raise UnknownTopic(
                    f"there is no topic {topic!r}, and this server does not make topics on first use; make it with: "
                    f"penstock topic create {topic}"
                ) from None
            try:
                found = self._link.ask(wire.CreateTopic(topic, settings=self._new_topics))
            except TopicExists:
                found = self._link.ask(wire.FindTopic(topic))
        return found.topics[0]

    # -- batches --------------------------------------------------------------------------------------------------

    def _put(self, topic: str, partition: int, batch: bytearray) -> None:
        place = (topic, partition)
        while self._per_partition.get(place, 0) >= AHEAD_PER_PARTITION:
            self._send()
            self._take()
        self._per_partition[place] = self._per_partition.get(place, 0) + 1
        self._waiting.append(wire.Batch(topic, partition, batch))  # type: ignore[arg-type]
        self._waiting_bytes += len(batch)
        self.bytes += len(batch)
        if self._waiting_bytes >= FRAME_BYTES:
            self._send()
            while self._ahead_bytes > AHEAD_BYTES:
                self._take()

    def _send(self) -> None:
        if not self._waiting:
            return
        batches, self._waiting, self._waiting_bytes = self._waiting, [], 0
        sent = _Sent(batches, -1)
        self._ahead.append(sent)
        self._ahead_bytes += sent.size_bytes
        try:
            sent.number = self._link.connection().send(wire.Publish(-1, batches))
        except _BROKEN as error:
            self._send_again(error)

    def _take(self) -> None:
        """The answer to what was sent first."""
        sent = self._ahead[0]
        try:
            answer = self._link.connection().receive(sent.number)
        except _BROKEN as error:
            self._send_again(error)
            return
        refused = _refused(sent, answer)
        if refused is not None:
            self._send_again(refused)
            return
        self._settled(sent, answer)

    def _settled(self, sent: _Sent, answer: Any) -> None:
        self._ahead.popleft()
        self._ahead_bytes -= sent.size_bytes
        for batch in sent.batches:
            self._per_partition[batch.topic, batch.partition] -= 1
        if self.stored is not None:
            self.stored(sent.batches, answer.results)

    def _send_again(self, why: PenstockError) -> None:
        """All that is in doubt, one request after the other, until each is stored or the time is over."""
        deadline = time.monotonic() + self._timeout_s
        attempt = 0
        self._link.close()  # whatever was still to come on it is of no use
        while self._ahead:
            attempt += 1
            wait_s = pause_s(attempt)
            if time.monotonic() + wait_s >= deadline:
                raise why
            time.sleep(wait_s)
            try:
                while self._ahead:
                    sent = self._ahead[0]
                    answer = self._link.connection().request(wire.Publish(-1, sent.batches))
                    refused = _refused(sent, answer)
                    if refused is not None:
                        why = refused
                        break
                    self._settled(sent, answer)
            except _BROKEN as error:
                why = error
                self._link.close()


def _refused(sent: _Sent, answer: Any) -> PenstockError | None:
    """Why one of the batches should be sent again; raises when that would be of no use."""
    again: PenstockError | None = None
    for batch, result in zip(sent.batches, answer.results, strict=True):
        if result.error is None:
            continue
        error = error_of(result.error, f"{batch.topic}-{batch.partition}: {result.message}", result.retriable)
        # One that came before it was refused, or it did not arrive: with that one sent again it is in order.
        if not error.retriable and not isinstance(error, (OutOfOrderSequence, UnknownTopic, UnknownPartition)):
            raise error
        again = again or error
    return again
