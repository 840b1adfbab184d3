"""One partition: the order of its records, and what of it is durable and so may be seen.

    start_offset        first offset that may be read (moved by retention and DeleteRecords)
    stable_end          first offset of the oldest open transaction, or durable_end: what is committed ends here
    durable_end         readers see up to here: everything before it is as durable as the topic promises
    end_offset          the next offset to be given out; what lies between durable_end and here is being written

append() is a plain call: it fixes the order. The engine's future grants durability; when it resolves, first
durable_end moves, then waiting readers wake, then the producer is answered. What readers of committed records must
not see lies behind stable_end, or is known to `transactions`.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from penstock.log import retention
from penstock.log.committed import committed_only, opened
from penstock.log.holds import Holds
from penstock.log.producers import Producers, Written
from penstock.log.replay import make_checkpoint, replay
from penstock.log.settings import TopicSettings
from penstock.log.transactions import NEVER, Transactions
from penstock.log.waiting import durable_at
from penstock.model.batch import BatchHeader, read_header, stamp
from penstock.model.clock import Clock
from penstock.model.errors import OffsetOutOfRange, UnknownTopic
from penstock.model.ids import StreamId
from penstock.model.marker import encode_marker
from penstock.model.record import Record
from penstock.storage.engine import Chunk, Engine, Slice, Span, StreamState

LEADER_EPOCH = 0
SKIP_READ_BYTES = 64 << 10  # where a reader found nothing committed, it looks on in steps of at least so much
CHECKPOINT_EVERY_BYTES = 64 << 20

_log = logging.getLogger(__name__)

Watcher = Callable[["Partition", int], None]


class Appended(NamedTuple):
    """Where a batch went. `durable` resolves when it is as safe as its topic promises."""

    base_offset: int  # -1: a named producer's batch that was stored before, nobody knows where
    append_time_ms: int  # -1 when the producer's own timestamps are kept
    start_offset: int  # of the partition
    durable: asyncio.Future[None]


class Found(NamedTuple):
    offset: int
    timestamp_ms: int


def _nobody(_: "Partition") -> None:
    """Attends to a partition before a housekeeper does."""


class Partition:
    """See the module. Made by `Partition.open`; every method needs the running loop."""

    __slots__ = (
        "_aging_end",
        "_attention_bytes",
        "_checkpoint_bytes",
        "_checkpoint_offset",
        "_failing",
        "_held_bytes",
        "_holds",
        "_watchers",
        "active_ms",
        "aged_end",
        "aging_since_ms",
        "appended_bytes",
        "attend",
        "cleaned_end",
        "clock",
        "closed",
        "durable_end",
        "end_offset",
        "engine",
        "housekeeping_due_ms",
        "opened_end",
        "producers",
        "rewinds",
        "settings",
        "settled_end",
        "stable_end",
        "start_offset",
        "stream",
        "topic",
        "transactions",
    )

    def __init__(
        self, stream: StreamId, engine: Engine, settings: TopicSettings, state: StreamState, clock: Clock
    ) -> None:
        self.stream = stream
        self.engine = engine
        self.settings = settings
        self.clock = clock
        self.topic = stream.topic  # the name it has; that of the stream is the one it was made under
        self.closed = False  # its topic was deleted, or has another log now
        self.start_offset = state.start_offset
        self.end_offset = state.end_offset
        self.durable_end = state.end_offset
        self.stable_end = state.end_offset
        self.opened_end = state.end_offset  # what was there; a crash may have cost some of it, as its topic promises
        self.transactions = Transactions()
        self.producers = Producers(kept=self.transactions.open)
        self.cleaned_end = state.start_offset
        self.settled_end: int | None = None  # what lies before it, every queue view has settled; None: there is none
        self.appended_bytes = 0  # since the housekeeper last looked
        self.active_ms = clock.wall_ms()  # when the housekeeper last found something new
        self.aged_end = state.end_offset  # what lies before it has been readable for its grace
        self.aging_since_ms = self.active_ms
        self._aging_end = state.end_offset
        self.housekeeping_due_ms: int | None = None
        self.attend: Callable[[Partition], None] = _nobody  # the housekeeper, once it knows this partition
        self._attention_bytes = min(settings.spec.segment_bytes, CHECKPOINT_EVERY_BYTES)
        self._checkpoint_offset = -1
        self._checkpoint_bytes = 0
        self._held_bytes = 0  # durable, and not yet counted as stable
        self._holds = Holds()
        self.rewinds = 0  # how many times offsets were taken back
        self._failing = False
        # One entry per reader that waits here, and whether for what is stable; each is bounded by its connection.
        self._watchers: dict[Watcher, bool] | None = None

    @classmethod
    async def open(cls, stream: StreamId, engine: Engine, settings: TopicSettings, clock: Clock) -> "Partition":
        state = await engine.open(stream, settings.spec)
        partition = cls(stream, engine, settings, state, clock)
        if state.checkpoint is not None and state.checkpoint.offset <= state.end_offset:
            partition._checkpoint_offset = state.checkpoint.offset
        partition._checkpoint_bytes = await replay(partition, state.checkpoint)
        partition.stable_end = partition._stable_now()
        return partition

    # -- writing ----------------------------------------------------------------------------------------------

    def append(self, header: BatchHeader, batch: bytearray | memoryview) -> Appended:
        """Give a checked batch its offset and hand it to the engine; a repeat is answered from memory."""
        if self.closed:
            raise UnknownTopic(f"topic {self.topic!r} is not here any more; look for it again")
        if header.producer_id >= 0:
            repeat = self.producers.find_repeat(header)
            if repeat is not None:
                # What was stored before somewhere is durable when all until now is.
                durable = durable_at(self, repeat.end_offset if repeat.base_offset >= 0 else self.end_offset)
                return Appended(repeat.base_offset, repeat.timestamp_ms, self.start_offset, durable)
            if header.is_transactional or self.transactions.open:
                self.transactions.check(header)
        base_offset = self.end_offset
        durable = self._write(header, batch)
        append_time_ms = header.max_timestamp_ms if self.settings.log_append_time else -1
        if header.producer_id >= 0:
            now_ms = self.clock.wall_ms()
            written = Written(header.base_sequence, header.last_sequence, base_offset, self.end_offset, append_time_ms)
            self.producers.add(header, written, self.durable_end, now_ms)
            if header.is_transactional:
                self.transactions.note(header, base_offset, now_ms)
        self._await(header.size_bytes, durable)
        return Appended(base_offset, append_time_ms, self.start_offset, durable)

    def end_transaction(self, producer_id: int, producer_epoch: int, commit: bool) -> Appended:
        """Append the marker that ends the producer's transaction here; it is over when the marker is durable.

        From now on older epochs of the producer are refused. Without an open transaction the marker is just that fence.
        """
        self.producers.check_marker(producer_id, producer_epoch)
        now_ms, marker_offset = self.clock.wall_ms(), self.end_offset
        batch = encode_marker(producer_id, producer_epoch, commit, now_ms)
        header = read_header(batch)
        durable = self._write(header, batch)
        self.producers.add_marker(producer_id, producer_epoch, now_ms)
        self.transactions.end(producer_id, commit, marker_offset)
        self._await(header.size_bytes, durable)
        return Appended(marker_offset, -1, self.start_offset, durable)

    def _write(self, header: BatchHeader, batch: bytearray | memoryview) -> asyncio.Future[None]:
        base_offset = self.end_offset
        end_offset = base_offset + header.last_offset_delta + 1
        stamp(batch, base_offset, LEADER_EPOCH)
        durable = self.engine.append(self.stream, Chunk(batch, base_offset, end_offset, header.max_timestamp_ms))
        self.end_offset = end_offset
        return durable

    def _await(self, size_bytes: int, durable: asyncio.Future[None]) -> None:
        settled = partial(self._settled, self.end_offset, size_bytes, self.rewinds)
        if durable.done():
            settled(durable)  # a callback would come a tick late, after whoever awaits a future that is done already
        else:
            durable.add_done_callback(settled)

    def _settled(self, end_offset: int, size_bytes: int, rewinds: int, durable: asyncio.Future[None]) -> None:
        failure = durable.exception()
        stable_bytes = size_bytes
        if failure is not None:
            size_bytes = stable_bytes = 0
            self._rewind(rewinds, failure)
        else:
            self.durable_end = end_offset
            if self.transactions.first_open == NEVER and self._holds.first == NEVER:
                self.stable_end = end_offset
            else:
                stable_bytes = self._stabilise(size_bytes)
            self.appended_bytes += size_bytes
            self._checkpoint_bytes += size_bytes
            if self._failing:
                self._failing = False
                _log.info("writes to %s succeed again", self.stream)
            if self.housekeeping_due_ms is None or self.appended_bytes >= self._attention_bytes:
                self.attend(self)
        if self._watchers:
            for watcher, stable in list(self._watchers.items()):
                if not stable:
                    watcher(self, size_bytes)
                elif stable_bytes or failure is not None:
                    watcher(self, stable_bytes)

    def _stabilise(self, durable_bytes: int) -> int:
        """Let stable_end follow durable_end as far as open transactions allow; how many bytes that sets free."""
        self.transactions.settle(self.durable_end)
        self._held_bytes += durable_bytes
        stable_end = self._stable_now()
        if stable_end == self.stable_end:
            return 0
        self.stable_end = stable_end
        stable_bytes, self._held_bytes = self._held_bytes, 0
        return stable_bytes

    def _stable_now(self) -> int:
        # Whoever deletes records may delete those of an open transaction: what is left begins where the log does.
        return min(self.durable_end, max(self.start_offset, min(self.transactions.first_open, self._holds.first)))

    def hold(self, holder: object, producer_id: int) -> bool:
        """Keep stable_end before what this producer has open here, also when that is over, until `let_go`: what ends in
        several partitions is seen in all at once. False: nothing is open."""
        transaction = self.transactions.open.get(producer_id)
        if transaction is not None:
            self._holds.add(holder, transaction.first_offset)
        return transaction is not None

    def let_go(self, holder: object) -> int:
        """How many bytes that sets free; who waits for them is told by `tell_stable`."""
        self._holds.remove(holder)
        return self._stabilise(0)

    def tell_stable(self, stable_bytes: int) -> None:
        if stable_bytes:
            for watcher, stable in list((self._watchers or {}).items()):
                if stable:
                    watcher(self, stable_bytes)

    def _rewind(self, rewinds: int, failure: BaseException) -> None:
        """Take back the offsets that were given to what was not stored."""
        if rewinds != self.rewinds:
            return  # the engine fails every later append of a stream too; one rewind serves them all
        self.rewinds += 1
        self.end_offset = self.durable_end
        self.producers.rewind(self.durable_end)
        self.transactions.rewind(self.durable_end)
        if not self._failing and not self.closed:
            self._failing = True  # once, not for every retry of every producer
            _log.warning("a write to %s failed, its producers are told to try again: %s", self.stream, failure)

    # -- reading ----------------------------------------------------------------------------------------------

    async def read(self, offset: int, max_bytes: int, *, stable: bool = False) -> Slice:
        """Whole durable batches from the one that holds `offset`; `stable`: before any transaction that is open.

        With `stable`, `transactions.aborted_within` tells at once after this call what of them was aborted.
        """
        if not self.start_offset <= offset <= self.durable_end:
            raise OffsetOutOfRange(
                f"offset {offset} of {self.stream} is not within {self.start_offset} to {self.durable_end}"
            )
        end_offset = self.stable_end if stable else self.durable_end
        if offset >= end_offset:
            return Slice((), 0, offset)
        pruned = self.transactions.pruned
        found = await self.engine.read(self.stream, offset, max_bytes, end_offset)
        if stable and pruned != self.transactions.pruned:
            return await self.read(offset, max_bytes, stable=True)  # what was aborted may be forgotten meanwhile
        return found

    async def read_committed(self, offset: int, max_bytes: int) -> Slice:
        """Whole committed batches from the one that holds `offset`; no markers, nothing that was aborted.

        Nothing is found only if nothing is there before `stable_end`; `next_offset` is past what was left out.
        """
        found = await self.read(offset, max_bytes, stable=True)
        transactions = self.transactions
        if not found.buffers or not transactions.touch(offset, found.next_offset):
            return found
        while True:
            aborted = transactions.aborted_within(offset, found.next_offset)
            found = committed_only(found, aborted, max_bytes)
            offset = found.next_offset
            if found.buffers or offset >= self.stable_end:
                return found
            await asyncio.sleep(0)  # it may be a long way; others have their turn
            found = await self.read(offset, max(max_bytes, SKIP_READ_BYTES), stable=True)

    async def records(self, offset: int, max_bytes: int) -> tuple[list[Record], int]:
        """Opened committed records from `offset` on and the offset to go on from. For doors that hand out messages."""
        found = await self.read_committed(offset, max_bytes)
        return opened(found, offset), found.next_offset

    def watch(self, watcher: Watcher, *, stable: bool = False) -> None:
        """Until `unwatch`, call `watcher(partition, new_bytes)` after every append that is durable, or failed (0).

        `stable`: only when stable_end has moved, with the bytes that are new before it, or when an append failed.
        """
        if self._watchers is None:
            self._watchers = {}
        self._watchers[watcher] = stable

    @property
    def watcher_count(self) -> int:
        return len(self._watchers or ())

    def unwatch(self, watcher: Watcher) -> None:
        if self._watchers is not None:
            self._watchers.pop(watcher, None)
            if not self._watchers:
                self._watchers = None

    def close(self) -> None:
        """The topic is gone: readers that wait here look again and find that out."""
        self.closed = True
        for watcher in list(self._watchers or ()):
            watcher(self, 0)

    async def find_time(self, timestamp_ms: int, *, committed: bool = True) -> Found | None:
        """The first record, of those that are committed or of all, whose timestamp is at least this."""
        offset = await self.engine.seek(self.stream, timestamp_ms)
        while offset is not None and offset < (self.stable_end if committed else self.durable_end):
            # A batch's header may promise a later time than its records keep, so look on when none fits.
            offset = max(offset, self.start_offset)
            found = await (self.read_committed(offset, 1) if committed else self.read(offset, 1))
            for record in opened(found, offset):
                if record.timestamp_ms >= timestamp_ms:
                    return Found(record.offset, record.timestamp_ms)
            if found.next_offset <= offset:
                break
            offset = found.next_offset
        return None

    async def find_newest(self, *, committed: bool = True) -> Found | None:
        """The first record that has the largest timestamp of all; None if that one is not committed."""
        newest_ms = max((span.max_timestamp_ms for span in self.spans()), default=-1)
        return await self.find_time(newest_ms, committed=committed) if newest_ms >= 0 else None

    def spans(self) -> list[Span]:
        return list(self.engine.spans(self.stream))

    # -- keeping ----------------------------------------------------------------------------------------------

    async def trim(self, start_offset: int) -> None:
        """Records before this offset are gone for readers at once, and from storage in whole spans."""
        if start_offset > self.durable_end:
            raise OffsetOutOfRange(f"{self.stream} ends at {self.durable_end}; {start_offset} lies beyond")
        if start_offset > self.start_offset:
            await self.engine.trim(self.stream, start_offset)
            self.start_offset = max(self.start_offset, start_offset)
            self.cleaned_end = max(self.cleaned_end, start_offset)
            self.stable_end = self._stable_now()
            self.transactions.prune(self.start_offset)

    def note_settled(self, settled_end: int | None) -> None:
        """How far all queue views that read this partition have settled it. Not for every message: it looks around."""
        self.settled_end = settled_end
        if retention.frees_settled(self.spans(), self.settings, settled_end):
            self.attend(self)

    def configure(self, settings: TopicSettings) -> None:
        self.settings = settings
        self._attention_bytes = min(settings.spec.segment_bytes, CHECKPOINT_EVERY_BYTES)
        self.engine.configure(self.stream, settings.spec)

    def grow_older(self, grace_ms: int, now_ms: int) -> None:
        """Note how far the log reached a while ago: only what was readable for that while may be forgotten."""
        if now_ms - self.aging_since_ms >= grace_ms:
            self.aged_end = max(self.aged_end, self._aging_end)
        if self.aged_end >= self._aging_end:
            self._aging_end, self.aging_since_ms = self.durable_end, now_ms

    def wants_checkpoint(self) -> bool:
        return self._checkpoint_bytes >= CHECKPOINT_EVERY_BYTES

    async def checkpoint(self) -> None:
        """Let the next open go on from here instead of reading the log's headers from its start."""
        if self.durable_end != self.end_offset:
            return  # producers hold batches that may still fail; the next call takes them
        if self._checkpoint_offset != self.durable_end:
            self._checkpoint_offset, self._checkpoint_bytes = self.durable_end, 0
            await self.engine.checkpoint(self.stream, make_checkpoint(self))
