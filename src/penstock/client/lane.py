"""One partition's messages on their way: gathered into batches, numbered, sent in order, and sent again when in doubt.

    waiting ──take()──▶ unsent ──▶ sent ──▶ stored: its publishers are told where
                          ▲         │
                          └─────────┤ the connection broke: in doubt, the same number again; the server knows a repeat
                          └─failed ◀┘ refused for now, or out of order because one before it was

Order is kept because the numbers (Kafka's producer sequences) rise by one record each, and the server takes nothing out
of order. A batch that is out of order although nothing before it is open was never stored, so it may get a new number:
the lane begins a new epoch. At most MAX_IN_FLIGHT batches are open, which is as many as the server remembers.
"""

import asyncio
import enum
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from penstock.model.batch import encode_batch
from penstock.model.errors import OutOfOrderSequence, PenstockError
from penstock.model.message import Placed
from penstock.model.record import Record

MAX_IN_FLIGHT = 5
BATCH_BYTES = 512 << 10
BATCH_RECORDS = 20_000
RECORD_OVERHEAD_BYTES = 24
MAX_EPOCH = 32_767
SEQUENCE_MASK = 0x7FFF_FFFF
TRANSACTIONAL = 1 << 4  # in a batch's attributes


class Writer(NamedTuple):
    """Under which identity a named step is written."""

    producer_id: int
    epoch: int


class Claim:
    """What a publisher waits for: one place, or the places of many."""

    __slots__ = ("_error", "_left", "_placed", "future")

    def __init__(self, future: "asyncio.Future[list[Placed]] | asyncio.Future[Placed]", count: int = 0) -> None:
        """`count` 0: one message and its place; otherwise a list of places."""
        self.future = future
        self._left = count
        self._placed: list[Placed] | None = [Placed(-1, -1)] * count if count else None
        self._error: PenstockError | None = None

    def place(self, indexes: Sequence[int], partition: int, base_offset: int) -> None:
        step = 0 if base_offset < 0 else 1
        if self._placed is None:
            if not self.future.done():
                self.future.set_result(Placed(partition, base_offset))  # type: ignore[arg-type]
            return
        offset = base_offset
        for index in indexes:
            self._placed[index] = Placed(partition, offset)
            offset += step
        self._count(len(indexes))

    def fail(self, indexes: Sequence[int], error: PenstockError) -> None:
        if self._placed is None:
            if not self.future.done():
                self.future.set_exception(error)
            return
        self._error = self._error or error
        self._count(len(indexes))

    def _count(self, settled: int) -> None:
        self._left -= settled
        if self._left == 0 and not self.future.done():
            if self._error is not None:
                self.future.set_exception(self._error)
            else:
                self.future.set_result(self._placed)  # type: ignore[arg-type]


class Run:
    """Records of one claim that follow each other, all for one partition."""

    __slots__ = ("acks", "claim", "deadline", "indexes", "is_fixed", "records", "size_bytes")

    def __init__(
        self,
        claim: Claim,
        indexes: Sequence[int],
        records: list[Record],
        size_bytes: int,
        acks: int,
        deadline: float,
        is_fixed: bool = False,
    ) -> None:
        """`is_fixed`: whoever published it chose the partition."""
        self.claim = claim
        self.is_fixed = is_fixed
        self.indexes = indexes
        self.records = records
        self.size_bytes = size_bytes
        self.acks = acks
        self.deadline = deadline

    def split(self, count: int) -> "tuple[Run, Run]":
        head_bytes = sum(map(record_bytes, self.records[:count]))
        rest = (self.acks, self.deadline, self.is_fixed)
        head = Run(self.claim, self.indexes[:count], self.records[:count], head_bytes, *rest)
        tail = Run(self.claim, self.indexes[count:], self.records[count:], self.size_bytes - head_bytes, *rest)
        return head, tail

    def fail(self, error: PenstockError) -> None:
        self.claim.fail(self.indexes, error)


def record_bytes(record: Record) -> int:
    """About what a record takes, for bounds."""
    size = RECORD_OVERHEAD_BYTES
    if record.value is not None:
        size += len(record.value)
    if record.key is not None:
        size += len(record.key)
    for name, content in record.headers:
        size += len(name) + len(content or b"") + 4
    return size


class State(enum.Enum):
    UNSENT = "unsent"
    SENT = "sent"
    FAILED = "failed"


class Batch:
    __slots__ = ("acks", "data", "deadline", "error", "lane", "runs", "size_bytes", "state")

    def __init__(self, lane: "Lane", runs: list[Run], size_bytes: int) -> None:
        self.lane = lane
        self.runs = runs
        self.size_bytes = size_bytes
        self.acks = runs[0].acks
        self.deadline = min(run.deadline for run in runs)
        self.state = State.UNSENT
        self.error: PenstockError | None = None
        self.data: bytearray = lane.encode(self)

    def place(self, base_offset: int) -> None:
        partition = self.lane.partition
        step = 0 if base_offset < 0 else 1
        offset = base_offset
        for run in self.runs:
            run.claim.place(run.indexes, partition, offset)
            offset += step * len(run.indexes)

    def fail(self, error: PenstockError) -> None:
        for run in self.runs:
            run.fail(error)


class Lane:
    __slots__ = (
        "_attributes", "_epoch", "_known", "_sequence", "attempts", "compression", "open", "partition", "producer_id",
        "resting", "topic", "waiting", "waiting_bytes",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, compression: int) -> None:
        self.topic = topic
        self.partition = partition
        self.compression = compression
        self.producer_id = -1
        self.waiting: deque[Run] = deque()
        self.waiting_bytes = 0
        self.open: deque[Batch] = deque()
        self.attempts = 0  # in a row that were refused for now
        self.resting = False  # between two such attempts
        self._epoch = 0
        self._attributes = 0
        self._sequence = 0
        self._known = False  # the server has stored something of this producer

    @property
    def is_idle(self) -> bool:
        return not self.open and not self.waiting

    def join(self, writer: Writer) -> None:
        """What goes here belongs to a named step, and nobody sees it before that is committed."""
        self.producer_id, self._epoch = writer
        self._attributes = TRANSACTIONAL

    @property
    def is_transactional(self) -> bool:
        return self._attributes != 0

    def add(self, run: Run) -> None:
        self.waiting.append(run)
        self.waiting_bytes += run.size_bytes

    # -- making batches -----------------------------------------------------------------------------------------

    def wants_to_send(self) -> bool:
        """A batch goes when none is under way, or when it is full: what comes meanwhile goes together."""
        if not self.waiting or self.resting or len(self.open) >= MAX_IN_FLIGHT:
            return False
        if not self.open:
            return True
        if not self._known:
            # From a producer it does not know the server takes any number for the first: so nothing may overtake it.
            return False
        return self.waiting_bytes >= BATCH_BYTES and all(batch.state is not State.FAILED for batch in self.open)

    def take(self) -> Batch:
        """The next batch, as large as a batch may be, of messages that want the same acks."""
        runs: list[Run] = []
        acks = self.waiting[0].acks
        left_bytes, left_records = BATCH_BYTES, BATCH_RECORDS
        while self.waiting and self.waiting[0].acks == acks and left_records > 0:
            run = self.waiting[0]
            if run.size_bytes <= left_bytes and len(run.records) <= left_records:
                self.waiting.popleft()
            else:
                count = _fitting(run.records, left_bytes, left_records)
                if count == 0 and not runs:
                    count = 1  # larger than a batch should be: it goes alone
                if count == 0:
                    break
                if count < len(run.records):
                    run, self.waiting[0] = run.split(count)
                else:
                    self.waiting.popleft()
            runs.append(run)
            left_bytes -= run.size_bytes
            left_records -= len(run.records)
            if left_bytes <= 0:
                break
        size_bytes = sum(run.size_bytes for run in runs)
        self.waiting_bytes -= size_bytes
        batch = Batch(self, runs, size_bytes)
        if batch.acks != 0:
            self.open.append(batch)
        return batch

    def encode(self, batch: Batch) -> bytearray:
        """Number the records and write them down. Without acks nobody asks again, so there are no numbers."""
        records = batch.runs[0].records if len(batch.runs) == 1 else [one for run in batch.runs for one in run.records]
        sequence = self._sequence
        first = sequence
        for record in records:
            record.offset = sequence
            sequence += 1
        if batch.acks == 0 or self.producer_id < 0:
            return encode_batch(records, base_offset=first, compression=self.compression)
        self._sequence = sequence
        return encode_batch(
            records,
            base_offset=first,
            compression=self.compression,
            producer_id=self.producer_id,
            producer_epoch=self._epoch,
            base_sequence=first & SEQUENCE_MASK,
            attributes=self._attributes,
        )

    # -- answers ------------------------------------------------------------------------------------------------

    def unsent(self) -> list[Batch]:
        return [batch for batch in self.open if batch.state is State.UNSENT]

    def stored(self, batch: Batch) -> None:
        self.attempts = 0
        self._known = True
        self.drop(batch)

    def drop(self, batch: Batch) -> None:
        if batch in self.open:
            self.open.remove(batch)

    def give_back(self) -> list[Run]:
        """All that is not stored, of a partition that is not there any more."""
        runs = [run for batch in self.open for run in batch.runs] + list(self.waiting)
        self.open.clear()
        self.waiting.clear()
        self.waiting_bytes = 0
        self.resting = False
        return runs

    def doubt(self) -> None:
        """The connection broke: nobody knows what became of what was sent."""
        for batch in self.open:
            batch.state = State.UNSENT
        self.resting = False

    def is_stuck(self) -> bool:
        """All that was sent is answered, and something was refused."""
        return bool(self.open) and all(batch.state is State.FAILED for batch in self.open)

    def retry(self) -> None:
        self.resting = False
        for batch in self.open:
            batch.state = State.UNSENT

    def is_misnumbered(self) -> bool:
        """The first open batch does not follow what the server has: what lies between was given up."""
        return bool(self.open) and isinstance(self.open[0].error, OutOfOrderSequence)

    def can_begin_epoch(self) -> bool:
        return self._epoch < MAX_EPOCH and not self.is_transactional

    def begin_epoch(self, producer_id: int | None = None) -> None:
        """New numbers from 0 for all that is open; only for what the server surely has not stored."""
        if producer_id is None:
            self._epoch += 1
        else:
            self.producer_id = producer_id
            self._epoch = 0
            self._known = False
        self._sequence = 0
        for batch in self.open:
            batch.data = self.encode(batch)
            batch.state = State.UNSENT


def _fitting(records: list[Record], left_bytes: int, left_records: int) -> int:
    count = 0
    for record in records[:left_records]:
        left_bytes -= record_bytes(record)
        if left_bytes < 0:
            break
        count += 1
    return count
