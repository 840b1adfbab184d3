"""The log view: records in order, from wherever the reader begins, at its own pace.

Stored batches are fetched ahead, up to `prefetch_bytes`, and opened only when they are read. With a filter the server
sorts the records out and pushes those that pass. Either way the reader's position survives broken connections, and a
group's position survives the reader: it is committed by `commit()`, or by itself once the next message is asked for.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Literal

from penstock.client.connection import Answer, Connection
from penstock.client.errors import Disconnected
from penstock.client.groups import stable_end
from penstock.client.message import Message
from penstock.client.push import CREDIT, PushSubscription
from penstock.client.session import Session, pause_s
from penstock.model.batch import BatchHeader, check_batch, decode_batch
from penstock.model.errors import OffsetOutOfRange, PenstockError, StorageFailed, TimedOut
from penstock.wire.native import messages as wire

PREFETCH_BYTES = 4 << 20
FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 30_000
COMMIT_EVERY_S = 1.0

Start = Literal["earliest", "latest"] | Mapping[int, int] | datetime


class Track:
    """One partition: how far it was fetched, and how far it was read."""

    __slots__ = ("attempts", "buffered_bytes", "fetching", "partition", "position")

    def __init__(self, partition: int, position: int) -> None:
        self.partition = partition
        self.position = position  # of the next fetch
        self.buffered_bytes = 0
        self.fetching = False
        self.attempts = 0  # in a row that failed and may work later


class LogSubscription(PushSubscription):
    def __init__(
        self,
        session: Session,
        topic: str,
        *,
        start: Start,
        partitions: Sequence[int] | None,
        group: str | None,
        auto_commit: bool,
        prefetch_bytes: int,
        matches: Sequence[wire.MatchFields],
    ) -> None:
        super().__init__(session, topic, CREDIT)
        self.group = group
        self.positions: dict[int, int] = {}  # per partition: the offset after the last message that was handed out
        self._start_at = start
        self._partitions = partitions
        self._auto_commit = auto_commit and group is not None
        self._prefetch_bytes = prefetch_bytes
        self._matches = list(matches)
        self._tracks: dict[int, Track] = {}
        self._chunks: deque[tuple[Track, bytes, BatchHeader, int]] = deque()  # with the offset to begin at
        self._reach: dict[int, int] = {}  # of pushes
        self._last: Message | None = None  # handed out, and perhaps not yet processed
        self._processed: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._commit_timer: asyncio.TimerHandle | None = None
        self._committing: set[asyncio.Task[None]] = set()

    # -- where to begin -----------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        found = await self._session.call(wire.FindTopic(self.topic))
        known = range(found.topics[0].partitions)
        wanted = list(known) if self._partitions is None else list(self._partitions)
        offsets = await self._resolve(wanted)
        self._reach = dict(offsets)
        self.positions = dict(offsets)
        self._tracks = {partition: Track(partition, offset) for partition, offset in offsets.items()}
        if self._matches:
            await self._join()
        else:
            self._session.add(self)

    async def _resolve(self, partitions: Sequence[int]) -> dict[int, int]:
        offsets: dict[int, int] = {}
        if self.group is not None:
            answer = await self._session.call(wire.Committed(self.group, self.topic))
            offsets = {partition: offset for _, partition, offset in answer.offsets if partition in partitions}
        start = self._start_at
        if isinstance(start, Mapping):
            offsets = {**{one: start[one] for one in partitions if one in start}, **offsets}
        timestamp_ms = int(start.timestamp() * 1000) if isinstance(start, datetime) else None
        unknown = [partition for partition in partitions if partition not in offsets]
        asked = (self._session.call(wire.ListOffsets(self.topic, one, timestamp_ms)) for one in unknown)
        for partition, bounds in zip(unknown, await asyncio.gather(*asked), strict=True):
            if timestamp_ms is not None:
                offsets[partition] = bounds.found if bounds.found >= 0 else stable_end(bounds)
            else:
                offsets[partition] = stable_end(bounds) if start == "latest" else bounds.start
        return offsets

    # -- fetching -----------------------------------------------------------------------------------------------

    def resume(self, connection: Connection) -> None:
        if self._matches:
            super().resume(connection)
            return
        self._connection = connection
        for track in self._tracks.values():
            track.fetching = False
            self._fetch(track)

    def _request(self) -> wire.Message:
        return wire.SubscribeLog(self.topic, self._credit, self._reach, None, True, self._matches)

    def _reached(self, partition: int, next_offset: int) -> None:
        self._reach[partition] = next_offset

    def _fetch(self, track: Track) -> None:
        connection = self._connection
        if connection is None or track.fetching or track.buffered_bytes * len(self._tracks) >= self._prefetch_bytes:
            return
        track.fetching = True
        request = wire.Fetch(self.topic, track.partition, track.position, FETCH_BYTES, FETCH_WAIT_MS)
        connection.ask(request, partial(self._fetched, connection, track))

    def _fetched(self, connection: Connection, track: Track, answer: Answer) -> None:
        if connection is not self._connection or self._error is not None:
            return
        track.fetching = False
        if isinstance(answer, Disconnected):
            return
        if isinstance(answer, OffsetOutOfRange):
            self._find_again(connection, track, answer)
            return
        if isinstance(answer, (StorageFailed, TimedOut)):  # it may work later
            track.attempts += 1
            self._loop.call_later(pause_s(track.attempts), self._fetch, track)
            return
        if isinstance(answer, PenstockError):
            self._stop(answer)
            return
        track.attempts = 0
        try:
            self._keep(track, answer.batches)
        except PenstockError as error:
            self._stop(error)
            return
        track.position = max(answer.next_offset, track.position)
        self._fetch(track)
        self._wake()

    def _keep(self, track: Track, batches: bytes) -> None:
        at = 0
        while at < len(batches):
            header = check_batch(batches, at)
            if header.end_offset > track.position and not header.is_control:
                self._chunks.append((track, batches, header, track.position))
                track.buffered_bytes += header.size_bytes
            at += header.size_bytes

    def _find_again(self, connection: Connection, track: Track, error: PenstockError) -> None:
        """Retention may have taken what comes next: go on with what is there, and count what is not."""

        def found(answer: Answer) -> None:
            if connection is not self._connection or isinstance(answer, Disconnected):
                return
            if isinstance(answer, PenstockError):
                self._stop(answer)
            elif track.position < answer.start:
                self.gap += answer.start - track.position
                track.position = answer.start
                self._fetch(track)
            else:
                self._stop(error)

        connection.ask(wire.ListOffsets(self.topic, track.partition), found)

    # -- reading ------------------------------------------------------------------------------------------------

    def _next(self) -> Message | None:
        self._note_processed()
        if self._matches:
            message = super()._next()
        else:
            message = self._buffer.popleft() if self._buffer or self._open_chunk() else None
        if message is not None:
            self._last = message
            self.positions[message.partition] = message.offset + 1
        return message

    def _take(self, max_messages: int) -> list[Message]:
        self._note_processed()
        if not self._matches:
            while len(self._buffer) < max_messages and self._open_chunk():
                pass
        batch = super()._take(max_messages)
        for message in batch:
            self.positions[message.partition] = message.offset + 1
        if batch:
            self._last = batch[-1]
        return batch

    def _give_back(self, count: int) -> None:
        if self._matches:
            super()._give_back(count)

    def _open_chunk(self) -> bool:
        """Open the next batch that was fetched."""
        if not self._chunks:
            return False
        track, data, header, first = self._chunks.popleft()
        track.buffered_bytes -= header.size_bytes
        records = decode_batch(data, header.position)
        if header.base_offset < first:
            records = [record for record in records if record.offset >= first]
        topic, partition = self.topic, track.partition
        self._buffer.extend([Message(topic, partition, record) for record in records])
        if not track.fetching:
            self._fetch(track)
        return True

    def read_to(self, partition: int) -> int:
        """Everything before this offset was handed out, or is not a message."""
        track = self._tracks[partition]
        behind = track.buffered_bytes > 0 or any(message.partition == partition for message in self._buffer)
        return self.positions[partition] if behind or self._matches else max(self.positions[partition], track.position)

    # -- committing ---------------------------------------------------------------------------------------------

    async def commit(self, message: Message | None = None) -> None:
        """Commit the group's position: after this message, or after all that were handed out."""
        if self.group is None:
            raise ValueError("this subscription has no group to commit for")
        if message is not None:
            await self._commit({message.partition: message.offset + 1})
        else:
            await self._commit(dict(self.positions))

    async def _commit(self, positions: dict[int, int]) -> None:
        assert self.group is not None
        offsets = [(self.topic, partition, offset) for partition, offset in positions.items()]
        await self._session.call(wire.Commit(self.group, offsets))
        self._committed.update(positions)

    def _note_processed(self) -> None:
        """Asking for more says that what came before is done."""
        if self._last is None:
            return
        if self._auto_commit:
            self._processed.update(self.positions)
            if self._commit_timer is None:
                self._commit_timer = self._loop.call_later(COMMIT_EVERY_S, self._commit_soon)
        self._last = None

    def _commit_soon(self) -> None:
        self._commit_timer = None
        task = self._loop.create_task(self._commit_processed())
        self._committing.add(task)
        task.add_done_callback(self._committed_soon)

    def _committed_soon(self, task: "asyncio.Task[None]") -> None:
        self._committing.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, PenstockError) and not error.retriable:
            self._stop(error)

    async def _commit_processed(self) -> None:
        news = {one: offset for one, offset in self._processed.items() if self._committed.get(one) != offset}
        if news:
            await self._commit(news)

    async def _finish(self) -> None:
        if self._commit_timer is not None:
            self._commit_timer.cancel()
        if self._matches:
            await super()._finish()
        if self._auto_commit:
            if self._committing:
                await asyncio.wait(self._committing)
            try:
                await self._commit_processed()
            except PenstockError as error:
                if not error.retriable:
                    raise
