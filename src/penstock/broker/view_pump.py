"""The pump: reads what a view wants to see from the log, and shows it to the view's machine.

At most one task per view, and only while there is something to read. When all is read the pump stops and watches the
partitions; the first news starts it again. A view that wants nothing is not watched for long: the first news that
finds it so ends the watch. So an idle view costs nothing, whatever is published beside it.
"""

import asyncio
import logging

from penstock.broker.view import Home, View, ViewStream
from penstock.log.partition import Partition
from penstock.model.errors import OffsetOutOfRange, PenstockError, UnknownTopic

CHUNK_BYTES = 256 << 10
RETRY_AFTER_MS = 1_000  # a partition that could not be read

_log = logging.getLogger(__name__)


class Pump:
    """Everything that reads for one view."""

    __slots__ = ("_dry", "_failing", "_home", "_task", "_view")

    def __init__(self, home: Home, view: View) -> None:
        self._home = home
        self._view = view
        self._task: asyncio.Task[None] | None = None
        self._dry = False  # everything is read, and every partition watched
        self._failing = False

    @property
    def running(self) -> bool:
        return self._task is not None

    def poke(self) -> None:
        """Something happened: go on if there is something to read for somebody."""
        if self._task is None and not self._dry and self._view.gone is None and self._next() is not None:
            self._task = self._home.spawn(self._run())

    def start_anew(self) -> None:
        """The streams have changed, or a partition may be read again."""
        self._dry = False
        self.poke()

    def stop(self) -> None:
        for stream in self._view.streams.values():
            self.unwatch(stream)
        if self._task is not None:
            self._task.cancel()

    # -- reading --------------------------------------------------------------------------------------------------

    def _next(self) -> tuple[ViewStream, int] | None:
        """The stream to read next and the offset to begin at; None when there is nothing to read."""
        view = self._view
        machine = view.machine
        wanted = machine.wants()
        watched = 0
        for number, offset in wanted:
            stream = view.streams[number]
            partition = stream.partition
            if stream.retry_ms and stream.retry_ms > self._home.now.monotonic_ms:
                continue
            if partition is None:
                return stream, offset
            machine.grew(number, partition.start_offset, partition.durable_end)
            if offset < partition.durable_end:
                return stream, max(offset, partition.start_offset)
            if not stream.watched:
                stream.watched = True
                partition.watch(self._news)
            watched += 1
        self._dry = bool(wanted) and watched == len(view.streams)
        return None

    async def _run(self) -> None:
        try:
            while self._view.gone is None and (found := self._next()) is not None:
                stream, offset = found
                try:
                    await self._read(stream, offset)
                except PenstockError as error:
                    self._failed(stream, error)
                await asyncio.sleep(0)  # others have their turn between two chunks
        finally:
            self._task = None
            self._view.wake()

    async def _read(self, stream: ViewStream, offset: int) -> None:
        view, home = self._view, self._home
        partition = stream.partition
        if partition is None:
            await self._home.topics.open(stream.topic, stream.index)
            return
        try:
            records, next_offset = await partition.records(offset, CHUNK_BYTES)
        except OffsetOutOfRange:
            return  # trimmed meanwhile: the next look finds the new start
        if view.gone is not None or stream.number not in view.streams:
            return
        arrivals = stream.sieve.arrivals(records)
        if len(arrivals) != len(records):
            taken = {arrival.offset for arrival in arrivals}
            records = [record for record in records if record.offset in taken]
        view.shelf.keep(stream.number, records)
        home.perform(view, view.machine.arrived(home.now, stream.number, arrivals, next_offset))
        stream.retry_ms = 0
        self._failing = False

    def _failed(self, stream: ViewStream, error: PenstockError) -> None:
        stream.retry_ms = self._home.now.monotonic_ms + RETRY_AFTER_MS
        self._home.chores.set(f"{self._view.alarm}:read", stream.retry_ms)
        if not self._failing and not isinstance(error, UnknownTopic):
            self._failing = True
            _log.warning("view %s cannot read %s-%d: %s", self._view.address, stream.topic.name, stream.index, error)

    # -- watching -------------------------------------------------------------------------------------------------

    def _news(self, partition: Partition, new_bytes: int) -> None:
        if self._task is not None:
            return
        self._dry = False
        self.poke()
        if self._task is None and not self._view.consumers:
            for stream in self._view.streams.values():
                self.unwatch(stream)

    def unwatch(self, stream: ViewStream) -> None:
        if stream.watched:
            stream.watched = False
            partition = stream.partition
            if partition is not None:
                partition.unwatch(self._news)
