"""The pump: reads what a view wants to see from the log, and shows it to the view's machine.

At most one task per view, and only while there is something to read. While somebody consumes the view its partitions
are watched, and news that the machine wants to see start the pump. News that find no consumer end the watch. So an idle
view costs nothing, whatever is published beside it.
"""

import asyncio
import logging
from collections.abc import Sequence

from penstock.broker.view import Home, View, ViewStream
from penstock.delivery.places import OFFSET_BITS
from penstock.delivery.queue_events import Status
from penstock.log.partition import Partition
from penstock.model.errors import OffsetOutOfRange, PenstockError, UnknownTopic
from penstock.model.record import Record

CHUNK_BYTES = 256 << 10
MAX_SHOWN_AT_ONCE = 1_000  # records; then others have their turn
RETRY_AFTER_MS = 1_000  # a partition that could not be opened or read

_log = logging.getLogger(__name__)


class Pump:
    """Everything that reads for one view."""

    __slots__ = ("_cold", "_failing", "_home", "_task", "_view")

    def __init__(self, home: Home, view: View) -> None:
        self._home = home
        self._view = view
        self._task: asyncio.Task[None] | None = None
        self._cold = True  # some partitions may not be watched
        self._failing = False

    @property
    def running(self) -> bool:
        return self._task is not None

    def poke(self) -> None:
        """Something happened: go on if there is something to read for somebody."""
        view = self._view
        if self._task is None and view.attentive and view.gone is None and self._next() is not None:
            self._task = self._home.spawn(self._run())

    def start_anew(self) -> None:
        """The streams have changed, or a partition may be read again."""
        self._cold = True
        self.poke()

    def stop(self) -> None:
        self._unwatch_all()
        if self._task is not None:
            self._task.cancel()

    # -- reading --------------------------------------------------------------------------------------------------

    def _next(self) -> tuple[ViewStream, int] | None:
        """The stream to read next and the offset to begin at; None when there is nothing to read."""
        view = self._view
        if self._cold:
            self._cold = False
            for stream in view.streams.values():
                if stream.watched:
                    continue
                partition = stream.partition
                if partition is not None:
                    self._watch(stream, partition)
                elif self._may_try(stream):
                    self._cold = True
                    return stream, 0
        for number, offset in view.machine.wants():
            stream = view.streams[number]
            if self._may_try(stream) and not ((partition := stream.partition) and partition.closed):
                return stream, offset
        return None

    def _may_try(self, stream: ViewStream) -> bool:
        return not stream.retry_ms or stream.retry_ms <= self._home.now.monotonic_ms

    async def _run(self) -> None:
        view = self._view
        try:
            while view.gone is None and view.attentive and (found := self._next()) is not None:
                stream, offset = found
                try:
                    await self._read(stream, offset)
                    stream.retry_ms = 0
                except PenstockError as error:
                    self._failed(stream, error)
                await asyncio.sleep(0)  # others have their turn between two chunks
        finally:
            self._task = None
            view.wake()

    async def _read(self, stream: ViewStream, offset: int) -> None:
        view, home = self._view, self._home
        partition = stream.partition
        if partition is None:
            await home.topics.open(stream.topic, stream.index)
            return
        view.look(stream, partition)
        edition = view.edition
        try:
            records, next_offset = await home.chunks.read(partition, max(offset, partition.start_offset), CHUNK_BYTES)
        except OffsetOutOfRange:
            return  # trimmed meanwhile: the next look finds the new start
        self._failing = False
        for at in range(0, max(len(records), 1), MAX_SHOWN_AT_ONCE):
            if at:
                await asyncio.sleep(0)
            if view.gone is not None or view.edition != edition or view.streams.get(stream.number) is not stream:
                return
            shown = records[at : at + MAX_SHOWN_AT_ONCE]
            is_last = at + len(shown) == len(records)
            self._show(stream, shown, next_offset if is_last else shown[-1].offset + 1)

    def _show(self, stream: ViewStream, records: Sequence[Record], next_offset: int) -> None:
        view, now = self._view, self._home.now
        arrivals, due = stream.sieve.sift(records, now.wall_ms)
        if records and records[0].offset < stream.known_end:
            due = self._waiting(stream, due)
        view.shelf.keep(stream.number, due)
        if view.shelf.wants_sweeping:
            status_of = view.machine.status_of
            view.shelf.sweep(lambda place: status_of(place) is Status.PENDING)
        self._home.perform(view, view.machine.arrived(now, stream.number, arrivals, next_offset))

    def _waiting(self, stream: ViewStream, records: Sequence[Record]) -> list[Record]:
        """Those that may be handed out: of what was seen before, some are settled or leased already."""
        status_of, high = self._view.machine.status_of, stream.number << OFFSET_BITS
        return [record for record in records if status_of(high | record.offset) is Status.PENDING]

    def _failed(self, stream: ViewStream, error: PenstockError) -> None:
        stream.retry_ms = self._home.now.monotonic_ms + RETRY_AFTER_MS
        self._home.chores.set(f"{self._view.alarm}:read", stream.retry_ms)
        if not self._failing and not isinstance(error, UnknownTopic):
            self._failing = True
            _log.warning("view %s cannot read %s-%d: %s", self._view.address, stream.topic.name, stream.index, error)

    # -- watching -------------------------------------------------------------------------------------------------

    def _watch(self, stream: ViewStream, partition: Partition) -> None:
        stream.watched = True
        if stream.known_end < 0:
            stream.known_end = partition.durable_end
        partition.watch(self._news, stable=True)
        self._view.look(stream, partition)

    def _news(self, partition: Partition, new_bytes: int) -> None:
        view = self._view
        if not view.attentive:
            self._unwatch_all()
            return
        number = view.numbers.get((partition.topic, partition.stream.partition))
        if number is not None:
            view.machine.grew(number, partition.start_offset, partition.stable_end)
            self.poke()

    def unwatch(self, stream: ViewStream) -> None:
        if stream.watched:
            stream.watched = False
            partition = stream.partition
            if partition is not None:
                partition.unwatch(self._news)

    def _unwatch_all(self) -> None:
        self._cold = True
        for stream in self._view.streams.values():
            self.unwatch(stream)
