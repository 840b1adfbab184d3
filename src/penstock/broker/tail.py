"""The end of a partition, opened once for everyone who reads there.

A tail lives while somebody reads its partition. It keeps the newest stretches of opened messages in a ring of bounded
bytes; whoever is further behind than the ring reads for itself. One watcher per partition hears of what is new and
wakes those who wait, first come, first woken, some per turn of the loop: a thousand of them do not hold up the rest.

Each stretch of the ring is one `Messages` list, and every reader that takes all of it, or cuts the same piece from it,
gets the same list. So whoever formats messages can do it once for all readers, by keeping the result with the list:

    for part in taken.parts:
        write(part.formed("sse", to_sse))       # to_sse(part) runs for the first reader only

What is kept so lives exactly as long as the list: while it is in the ring or in a reader's hands.
"""

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate, repeat
from typing import Protocol, TypeVar

from penstock.log.partition import Partition
from penstock.model.batch import decode_batch, walk
from penstock.model.errors import CorruptBatch
from penstock.model.message import Incoming
from penstock.model.outgoing import size_bound
from penstock.storage.engine import Buffer

_log = logging.getLogger(__name__)

READ_BYTES = 1 << 20  # of stored bytes, opened at once
TAIL_BYTES = 4 << 20  # of opened messages in one ring, at most
ALL_TAILS_BYTES = 128 << 20  # of all rings together: many of them are smaller each
MIN_TAIL_BYTES = 64 << 10
TAIL_STRETCHES = 256  # readers look through them one by one
OPENED_MESSAGE_BYTES = 300  # what a message takes in memory besides its bytes
WAKE_AT_ONCE = 4  # a write to each takes its time, and a publisher waits some turns of the loop for its answer
MAX_SHARED_PIECES = 64  # of one stretch: readers with the same limits cut it in the same places

T = TypeVar("T")

_make_incoming = partial(tuple.__new__, Incoming)


class Messages(list[Incoming]):
    """Messages of one partition, in order. Not to be changed: others may hold the same list."""

    __slots__ = ("_forms",)

    def __init__(self, messages: Iterable[Incoming] = ()) -> None:
        super().__init__(messages)
        self._forms: dict[str, object] | None = None

    def formed(self, name: str, form: Callable[["Messages"], T]) -> T:
        """What `form` makes of these messages, made once for all who ask under this name."""
        if self._forms is None:
            self._forms = {}
        made = self._forms.get(name)
        if made is None:
            made = self._forms[name] = form(self)
        return made  # type: ignore[return-value]


class Opened:
    """Opened messages that cover the offsets from `start` to `end`; what is missing in between is not there."""

    __slots__ = ("_ends", "_pieces", "end", "memory_bytes", "messages", "size_bytes", "start", "unreadable")

    def __init__(self, start: int, end: int, messages: Messages, size_bytes: int, unreadable: int) -> None:
        self.start = start
        self.end = end
        self.messages = messages
        self.size_bytes = size_bytes  # the most that the messages take on a wire
        self.memory_bytes = size_bytes + OPENED_MESSAGE_BYTES * len(messages)
        self.unreadable = unreadable  # offsets of batches that a producer filled with something else
        self._ends: list[int] | None = None  # per message: the bytes up to its end
        self._pieces: dict[tuple[int, int], Messages] = {}

    def place_of(self, offset: int) -> int:
        """Index of the first message at or after this offset."""
        if offset <= self.start:
            return 0
        return bisect_left(self.messages, offset, key=_offset_of)

    def cut(self, start: int, max_messages: int, max_bytes: int) -> tuple[int, int]:
        """How far the messages from `start` on fit these limits, and how many bytes that are; at least one does."""
        if self._ends is None:
            self._ends = list(accumulate(size_bound(message.record) for message in self.messages))
        before = self._ends[start - 1] if start else 0
        last = min(len(self.messages), start + max_messages)
        stop = max(start + 1, bisect_right(self._ends, before + max_bytes, start, last))
        return stop, self._ends[stop - 1] - before

    def piece(self, start: int, stop: int) -> Messages:
        piece = self._pieces.get((start, stop))
        if piece is None:
            piece = Messages(self.messages[start:stop])
            if len(self._pieces) < MAX_SHARED_PIECES:
                self._pieces[start, stop] = piece
        return piece


def _go_on(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)


def _offset_of(message: Incoming) -> int:
    return message.record.offset


def opened_from(partition: Partition, buffers: Iterable[Buffer], start: int, end: int) -> Opened:
    topic, index = partition.topic, partition.stream.partition
    messages = Messages()
    size_bytes = 0
    unreadable = 0
    for buffer in buffers:
        for header in walk(buffer):
            if header.is_control:
                continue
            try:
                records = decode_batch(buffer, header.position)
            except CorruptBatch as error:
                _log.warning("readers of %s pass over what is no batch of records: %s", partition.stream, error)
                unreadable += header.end_offset - max(header.base_offset, start)
                continue
            if header.base_offset < start:
                records = [record for record in records if record.offset >= start]
            messages.extend(map(_make_incoming, zip(repeat(topic), repeat(index), records)))
            size_bytes += sum(map(size_bound, records))
    return Opened(start, end, messages, size_bytes, unreadable)


class Waiting(Protocol):
    def wake(self) -> None: ...


class Tail:
    """See the module. `ring` covers the offsets up to `opened_end` without a hole."""

    __slots__ = (
        "_budget",
        "_opening",
        "_ring",
        "_ring_bytes",
        "_to_wake",
        "opened_end",
        "partition",
        "readers",
        "waiting",
    )

    def __init__(self, partition: Partition, budget: Callable[[], int]) -> None:
        self.partition = partition
        self.readers = 0
        self.waiting: dict[Waiting, None] = {}
        self.opened_end = partition.stable_end
        self._budget = budget  # how many bytes this ring may hold now
        self._ring: deque[Opened] = deque()
        self._ring_bytes = 0
        self._opening: list[asyncio.Future[None]] | None = None  # who waits for the opening that is under way
        self._to_wake: deque[Callable[[], None]] = deque()
        partition.watch(self._on_news, stable=True)

    def close(self) -> None:
        self.partition.unwatch(self._on_news)
        self._ring.clear()

    # -- opening ----------------------------------------------------------------------------------------------

    def find(self, offset: int) -> Opened | None:
        """The stretch of the ring that covers this offset; readers at the very end are served first."""
        for opened in reversed(self._ring):
            if opened.start <= offset:
                return opened if offset < opened.end else None
        return None

    def reaches(self, offset: int) -> bool:
        """Whether what follows this offset is the tail's to open, rather than a reader's own."""
        return offset >= self.opened_end

    async def open_next(self, offset: int) -> None:
        """Open what follows the ring, once however many ask; a reader that leaps ahead takes the ring along."""
        loop = asyncio.get_running_loop()
        if self._opening is not None:
            # Not all of them at once: those who were woken one after the other would all meet here, and go on together.
            turn = loop.create_future()
            self._opening.append(turn)
            await turn
            return
        waiting = self._opening = []
        try:
            start = max(offset, self.partition.start_offset)
            found = await self.partition.read_committed(start, READ_BYTES)
            if found.next_offset > start:
                self._add(opened_from(self.partition, found.buffers, start, found.next_offset))
        finally:
            self._opening = None
            self._stage(partial(_go_on, turn) for turn in waiting)  # each looks again, and opens what this one did not

    def _add(self, opened: Opened) -> None:
        if opened.start != self.opened_end:
            self._ring.clear()
            self._ring_bytes = 0
        self._ring.append(opened)
        self._ring_bytes += opened.memory_bytes
        self.opened_end = opened.end
        allowed_bytes = self._budget()
        while len(self._ring) > TAIL_STRETCHES or (self._ring_bytes > allowed_bytes and len(self._ring) > 1):
            self._ring_bytes -= self._ring.popleft().memory_bytes

    # -- waking -----------------------------------------------------------------------------------------------

    def _on_news(self, partition: Partition, new_bytes: int) -> None:
        if self.waiting and (new_bytes or partition.closed):
            waiting, self.waiting = self.waiting, {}
            self._stage(waiter.wake for waiter in waiting)

    def _stage(self, wakes: Iterable[Callable[[], None]]) -> None:
        """Have these called some per turn of the loop, after those who were here before."""
        idle = not self._to_wake
        self._to_wake.extend(wakes)
        if idle:
            self._wake_some()

    def _wake_some(self) -> None:
        for _ in range(min(WAKE_AT_ONCE, len(self._to_wake))):
            self._to_wake.popleft()()
        if self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake_some)


class Tails:
    """The tails of all partitions that somebody reads."""

    __slots__ = ("_by_partition",)

    def __init__(self) -> None:
        self._by_partition: dict[Partition, Tail] = {}

    def __len__(self) -> int:
        return len(self._by_partition)

    def attach(self, partition: Partition) -> Tail:
        tail = self._by_partition.get(partition)
        if tail is None:
            tail = self._by_partition[partition] = Tail(partition, self._budget)
        tail.readers += 1
        return tail

    def detach(self, tail: Tail) -> None:
        tail.readers -= 1
        if not tail.readers:
            tail.close()
            del self._by_partition[tail.partition]

    def _budget(self) -> int:
        return max(MIN_TAIL_BYTES, min(TAIL_BYTES, ALL_TAILS_BYTES // len(self._by_partition)))
