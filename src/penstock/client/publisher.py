"""Publishing: what is published in one tick of the loop, or while a batch is on its way, goes together.

Everything is bounded: `max_buffered_bytes` of messages that are not acknowledged (whoever publishes more waits), five
batches per partition on their way, and `timeout_s` for each message, after which its publisher is told what happened.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from penstock.client.connection import Answer, Connection
from penstock.client.errors import BufferFull, ClientClosed, Disconnected, error_of
from penstock.client.lane import RECORD_OVERHEAD_BYTES, Batch, Claim, Lane, Run, State, Writer, record_bytes
from penstock.client.message import Value, record_of
from penstock.client.outbox import ANY_PARTITION, Outbox
from penstock.client.room import Room
from penstock.client.session import Session, pause_s
from penstock.model.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequence,
    PenstockError,
    RecordTooLarge,
    StorageFailed,
    TimedOut,
    UnknownPartition,
    UnknownTopic,
)
from penstock.model.message import Placed
from penstock.model.record import Record
from penstock.wire.native import messages as wire

FRAME_OVERHEAD_BYTES = 1024  # a frame's own fields and a topic's name, generously
FRAME_BYTES = 2 << 20  # batches of several partitions share a frame up to this
SLICE_MESSAGES = 1_000  # of a long publish_many, between which others get their turn
COMPRESSIONS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ACKS = {"none": 0, "leader": 1, "all": -1}
MAX_IDLE_TOPICS = 10_000  # more than these are forgotten when nothing is on its way to them


class Publisher:
    def __init__(
        self,
        session: Session,
        *,
        timeout_s: float,
        max_buffered_bytes: int,
        linger_ms: float,
        compression: str,
        idempotent: bool,
        writer: Writer | None = None,
    ) -> None:
        """`writer`: everything is written for a named step. What waiting does not help to store fails at once then, for
        another number or producer would not be of the step."""
        self._session = session
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._linger_s = linger_ms / 1000
        self._compression = COMPRESSIONS[compression]
        self._idempotent = idempotent
        self._outboxes: dict[str, Outbox] = {}
        self._busy: dict[Lane, None] = {}  # lanes with anything waiting or open, in the order of their first message
        self._producer_id: int | None = None if idempotent else -1
        if writer is not None:
            self._producer_id = writer.producer_id
        self._asking_id = False
        self._connection: Connection | None = None
        self._flush_soon: asyncio.Handle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._room = Room(max_buffered_bytes)
        self._flushes = 0
        self._closed = False

    # -- in -----------------------------------------------------------------------------------------------------

    async def publish(self, topic: str, record: Record, wanted: int, acks: int) -> Placed:
        size_bytes = record_bytes(record)
        if not self._room.take(size_bytes):
            await self._room.wait(size_bytes)
        return await self._put_one(topic, record, size_bytes, wanted, acks)

    def publish_nowait(self, topic: str, record: Record, wanted: int, acks: int) -> "asyncio.Future[Placed]":
        size_bytes = record_bytes(record)
        if not self._room.take(size_bytes):
            room = self._room
            raise BufferFull(f"{room.taken_bytes} bytes wait to be acknowledged; at most {room.max_bytes} may")
        return self._put_one(topic, record, size_bytes, wanted, acks)

    async def publish_many(self, topic: str, values: Sequence[Value], acks: int) -> list[Placed]:
        if not values:
            return []
        future: asyncio.Future[list[Placed]] = self._loop.create_future()
        claim = Claim(future, len(values))
        for start in range(0, len(values), SLICE_MESSAGES):
            now_ms = time.time_ns() // 1_000_000
            some = values[start : start + SLICE_MESSAGES]
            records: list[Record] = []
            wanted: list[int] = []
            size_bytes = RECORD_OVERHEAD_BYTES * len(some)
            for value in some:
                if type(value) is bytes:
                    records.append(Record(0, now_ms, None, value))
                    size_bytes += len(value)
                    continue
                record, partition = record_of(value, now_ms)
                if partition is not None and not wanted:
                    wanted = [ANY_PARTITION] * len(some)
                if partition is not None:
                    wanted[len(records)] = partition
                records.append(record)
                size_bytes += record_bytes(record) - RECORD_OVERHEAD_BYTES
            await self._room.wait(size_bytes)
            indexes = range(start, start + len(records))
            self._put(
                topic, Run(claim, indexes, records, size_bytes, acks, self._loop.time() + self._timeout_s), wanted
            )
        return await future

    def _put_one(self, topic: str, record: Record, size_bytes: int, wanted: int, acks: int) -> "asyncio.Future[Placed]":
        future: asyncio.Future[Placed] = self._loop.create_future()
        run = Run(Claim(future), range(1), [record], size_bytes, acks, self._loop.time() + self._timeout_s)
        self._put(topic, run, [] if wanted == ANY_PARTITION else [wanted])
        return future

    def _put(self, topic: str, run: Run, wanted: list[int]) -> None:
        if self._closed:
            self._room.give_back(run.size_bytes)
            raise ClientClosed("this client is closed")
        outbox = self._outboxes.get(topic)
        if outbox is None:
            if len(self._outboxes) >= MAX_IDLE_TOPICS:
                self._forget_idle()
            outbox = self._outboxes[topic] = Outbox(topic, self._compression)
        if outbox.partitions == 1 and not wanted:
            lane = outbox.lane(0)
            lane.waiting.append(run)
            lane.waiting_bytes += run.size_bytes
            self._busy[lane] = None
        elif outbox.partitions:
            self._sort(outbox, run, wanted)
        else:
            outbox.unsorted.append((run, wanted))
        if self._flush_soon is None:
            self._schedule_flush()
        if self._expiry is None:
            self._expiry = self._loop.call_later(self._timeout_s, self._expire)

    def _forget_idle(self) -> None:
        """With a topic go the numbers it has used, so whoever comes after needs a producer id without a past."""
        self._outboxes = {
            name: outbox
            for name, outbox in self._outboxes.items()
            if outbox.unsorted or outbox.asking or not all(lane.is_idle for lane in outbox.lanes.values())
        }
        if self._idempotent and self._writer is None:
            self._producer_id = None

    def _sort(self, outbox: Outbox, run: Run, wanted: list[int]) -> None:
        try:
            for lane in outbox.sort(run, wanted, self._flushes):
                self._busy[lane] = None
        except UnknownPartition as error:
            run.fail(error)
            self._room.give_back(run.size_bytes)

    # -- bounds -------------------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        return self._room.taken_bytes

    async def flush(self) -> None:
        """Return when nothing is on its way any more."""
        await self._room.emptied()

    # -- out ----------------------------------------------------------------------------------------------------

    def _schedule_flush(self) -> None:
        if self._linger_s:
            self._flush_soon = self._loop.call_later(self._linger_s, self._flush)
        else:
            self._flush_soon = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_soon = None
        connection = self._connection
        if connection is None:
            self._session.wake()
            return
        self._prepare(connection)
        if self._producer_id is None:
            return
        frame: list[Batch] = []
        frame_bytes = 0
        most_bytes = connection.max_frame_bytes - FRAME_OVERHEAD_BYTES
        for lane in self._busy:
            if lane.producer_id < 0:  # its own from now on
                if self._writer is not None:
                    lane.join(self._writer)
                else:
                    lane.producer_id = self._producer_id
            while connection.can_write and lane.wants_to_send():
                batch = lane.take()
                if len(batch.data) > most_bytes:
                    self._refuse_large(batch, most_bytes)
                    continue
                if frame and (frame[0].acks != batch.acks or frame_bytes + len(batch.data) > FRAME_BYTES):
                    self._send(connection, frame)
                    frame, frame_bytes = [], 0
                frame.append(batch)
                frame_bytes += len(batch.data)
        if frame:
            self._send(connection, frame)
        self._flushes += 1

    def _refuse_large(self, batch: Batch, most_bytes: int) -> None:
        """The server would break the connection over it."""
        batch.lane.drop(batch)
        batch.fail(RecordTooLarge(f"a message of {batch.size_bytes} bytes; this server takes at most {most_bytes}"))
        self._finished(batch)

    def _prepare(self, connection: Connection) -> None:
        """Ask for what must be known before anything goes out."""
        if self._producer_id is None and not self._asking_id:
            self._asking_id = True
            connection.ask(wire.TakeProducerId(), self._identified)
        for outbox in self._outboxes.values():
            if outbox.unsorted and not outbox.asking:
                outbox.asking = True
                connection.ask(wire.FindTopic(outbox.name), partial(self._found, outbox))

    def _send(self, connection: Connection, batches: list[Batch]) -> None:
        acks = batches[0].acks
        request = wire.Publish(
            acks,
            [wire.Batch(batch.lane.topic, batch.lane.partition, batch.data) for batch in batches],  # type: ignore[arg-type]
        )
        if acks == 0:
            connection.tell(request)
            for batch in batches:
                batch.place(-1)
                self._finished(batch)
            return
        for batch in batches:
            batch.state = State.SENT
        connection.ask(request, partial(self._answered, batches))

    # -- answers ------------------------------------------------------------------------------------------------

    def _identified(self, answer: Answer) -> None:
        self._asking_id = False
        if isinstance(answer, Disconnected):
            return
        if isinstance(answer, PenstockError):
            self._give_up(answer)
            return
        self._producer_id = answer.producer_id
        self._flush()

    def _found(self, outbox: Outbox, answer: Answer) -> None:
        outbox.asking = False
        if isinstance(answer, Disconnected):
            return
        unsorted, outbox.unsorted = outbox.unsorted, []
        if isinstance(answer, PenstockError):
            for run, _ in unsorted:
                run.fail(answer)
                self._room.give_back(run.size_bytes)
            for lane in outbox.lanes.values():
                self._fail_lane(lane, answer)
            return
        outbox.partitions = answer.topics[0].partitions
        for lane in [lane for lane in outbox.lanes.values() if lane.partition >= outbox.partitions]:
            # The topic has another log now, with fewer partitions.
            del outbox.lanes[lane.partition]
            self._busy.pop(lane, None)
            unsorted += [(run, [lane.partition] * len(run.records) if run.is_fixed else []) for run in lane.give_back()]
        for run, wanted in unsorted:
            self._sort(outbox, run, wanted)
        self._flush()

    def _answered(self, batches: list[Batch], answer: Answer) -> None:
        if isinstance(answer, Disconnected):
            return  # `suspend` has put them in doubt
        touched: dict[Lane, None] = {}
        for number, batch in enumerate(batches):
            lane = batch.lane
            touched[lane] = None
            if batch not in lane.open:
                continue  # given up meanwhile: its time was over
            if isinstance(answer, PenstockError):
                self._refused(batch, answer)
                continue
            result = answer.results[number]
            if result.error is not None:
                self._refused(batch, error_of(result.error, result.message, result.retriable))
                continue
            lane.stored(batch)
            batch.place(result.base_offset)
            self._finished(batch)
        for lane in touched:
            self._go_on(lane)
        self._flush_or_later()

    def _refused(self, batch: Batch, error: PenstockError) -> None:
        batch.error = error
        batch.state = State.FAILED
        again = (UnknownTopic, UnknownPartition, StorageFailed, TimedOut, OutOfOrderSequence, InvalidProducerEpoch)
        if not (error.retriable or isinstance(error, again)):
            batch.lane.drop(batch)
            batch.fail(error)
            self._finished(batch)

    def _go_on(self, lane: Lane) -> None:
        """After answers: leave a lane that is done, and free one that is stuck."""
        if lane.is_idle:
            self._busy.pop(lane, None)
            return
        if not lane.is_stuck() or lane.resting:
            return
        first = lane.open[0].error
        if lane.is_transactional and first is not None and not _may_pass(first):
            self._fail_lane(lane, first)
        elif isinstance(first, InvalidProducerEpoch) or (lane.is_misnumbered() and not lane.can_begin_epoch()):
            lane.resting = True
            self._renew(lane)
        elif lane.is_misnumbered():
            lane.begin_epoch()
            self._resend(lane)
        else:
            lane.resting = True
            self._loop.call_later(pause_s(lane.attempts), self._retry, lane, first)
            lane.attempts += 1

    def _renew(self, lane: Lane) -> None:
        """Another producer id for this lane: what is open in it was surely not stored under the old one."""

        def identified(answer: Answer) -> None:
            lane.resting = False
            if isinstance(answer, Disconnected):
                return
            if isinstance(answer, PenstockError):
                self._fail_lane(lane, answer)
                return
            lane.begin_epoch(answer.producer_id)
            self._resend(lane)

        if self._connection is not None:
            self._connection.ask(wire.TakeProducerId(), identified)

    def _retry(self, lane: Lane, error: PenstockError | None) -> None:
        if not lane.resting or self._connection is None:
            return  # a new connection was quicker
        if isinstance(error, (UnknownTopic, UnknownPartition)):
            outbox = self._outboxes[lane.topic]
            if not outbox.asking:  # it may have to be made again
                outbox.asking = True
                self._connection.ask(wire.FindTopic(outbox.name), partial(self._found, outbox))
        lane.retry()
        self._resend(lane)

    def _resend(self, lane: Lane) -> None:
        if self._connection is not None:
            for batch in lane.unsent():
                self._send(self._connection, [batch])

    def _finished(self, batch: Batch) -> None:
        if batch.lane.is_idle:
            self._loop.call_soon(self._leave, batch.lane)
        self._room.give_back(batch.size_bytes)

    def _leave(self, lane: Lane) -> None:
        if lane.is_idle:
            self._busy.pop(lane, None)

    def _flush_or_later(self) -> None:
        """Now, unless the flush that gathers this tick is already on its way."""
        if self._flush_soon is None:
            self._flush()

    # -- time ---------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        """Give up whatever has waited too long, and look again when the next one may have."""
        self._expiry = None
        now = self._loop.time()
        earliest = now + self._timeout_s
        found = False
        for outbox in self._outboxes.values():
            while outbox.unsorted and outbox.unsorted[0][0].deadline <= now:
                run, _ = outbox.unsorted.pop(0)
                run.fail(self._late(outbox.name, sent=False))
                self._room.give_back(run.size_bytes)
            if outbox.unsorted:
                found, earliest = True, min(earliest, outbox.unsorted[0][0].deadline)
        for lane in list(self._busy):
            gave_up = False
            while lane.open and lane.open[0].deadline <= now:
                gave_up = True
                batch = lane.open.popleft()
                batch.fail(self._late(lane.topic, sent=True, last=batch.error))
                self._room.give_back(batch.size_bytes)
            while lane.waiting and lane.waiting[0].deadline <= now:
                run = lane.waiting.popleft()
                lane.waiting_bytes -= run.size_bytes
                run.fail(self._late(lane.topic, sent=False))
                self._room.give_back(run.size_bytes)
            if gave_up and not lane.open:
                if self._idempotent and lane.can_begin_epoch():
                    lane.begin_epoch()  # what was given up may be stored or not: its numbers are not used again
                lane.resting = False
            for deadline in [batch.deadline for batch in lane.open][:1] + [run.deadline for run in lane.waiting][:1]:
                found, earliest = True, min(earliest, deadline)
            self._go_on(lane)
        if found:
            self._expiry = self._loop.call_later(max(earliest - now, 0.01), self._expire)
            self._flush_or_later()

    def _late(self, topic: str, *, sent: bool, last: PenstockError | None = None) -> TimedOut:
        fate = "it was sent and may or may not be stored" if sent else "it was never sent"
        reason = "" if last is None else f"; the server said: {last}"
        here = "" if self._connection is not None else "; there is no connection to the server"
        return TimedOut(f"not acknowledged by {topic!r} within {self._timeout_s:g} s: {fate}{reason}{here}")

    def _fail_lane(self, lane: Lane, error: PenstockError) -> None:
        for batch in list(lane.open):
            lane.drop(batch)
            batch.fail(error)
            self._room.give_back(batch.size_bytes)
        while lane.waiting:
            run = lane.waiting.popleft()
            lane.waiting_bytes -= run.size_bytes
            run.fail(error)
            self._room.give_back(run.size_bytes)
        lane.resting = False
        self._busy.pop(lane, None)
        if self._idempotent and lane.can_begin_epoch():
            lane.begin_epoch()

    def _give_up(self, error: PenstockError) -> None:
        for outbox in self._outboxes.values():
            unsorted, outbox.unsorted = outbox.unsorted, []
            for run, _ in unsorted:
                run.fail(error)
                self._room.give_back(run.size_bytes)
            for lane in outbox.lanes.values():
                if not lane.is_idle:
                    self._fail_lane(lane, error)

    # -- the session's member -----------------------------------------------------------------------------------

    @property
    def needs_connection(self) -> bool:
        return self._room.taken_bytes > 0

    def resume(self, connection: Connection) -> None:
        self._connection = connection
        connection.writers.append(self._flush_or_later)
        for lane in list(self._busy):
            self._resend(lane)
        self._flush_or_later()

    def suspend(self) -> None:
        self._connection = None
        for lane in self._busy:
            lane.doubt()

    def fail(self, error: PenstockError) -> None:
        self._give_up(error)

    def close(self) -> None:
        self._closed = True
        if self._connection is not None and self._flush_or_later in self._connection.writers:
            self._connection.writers.remove(self._flush_or_later)
        self._give_up(ClientClosed("this client was closed"))
        for handle in (self._flush_soon, self._expiry):
            if handle is not None:
                handle.cancel()
        self._room.close()


def _may_pass(error: PenstockError) -> bool:
    """Whether the same batch may be taken later."""
    return error.retriable or isinstance(error, (UnknownTopic, UnknownPartition, StorageFailed, TimedOut))
