"""FETCH: messages by their offset.

Who fetches one message mostly fetches the next one after it. So a reader is left where it stopped, with what it had
opened already, for the same connection to go on from; the door keeps the MAX_LEFT that were used last.
"""

from typing import NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.read import Reader, Start, Taken
from penstock.doors.line import text_words as words
from penstock.log.partition import Partition
from penstock.model.errors import InvalidRequest, OffsetOutOfRange, PenstockError, UnknownTopic
from penstock.security.principal import Principal
from penstock.wire.line import replies
from penstock.wire.line.parser import Command

MAX_COUNT = 10_000
MAX_BYTES = 1 << 20
ONE_BYTES = 64 << 10  # read for one message, so that those after it are at hand
MAX_WAIT_MS = 60_000
MAX_LEFT = 256


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int


class LeftReaders:
    """Of all connections of a door, one each."""

    def __init__(self) -> None:
        self._left: dict[object, tuple[Place, Reader]] = {}

    def take_up(self, owner: object, place: Place) -> Reader | None:
        """The owner's reader, if it stopped right there."""
        stopped, reader = self._left.pop(owner, (None, None))
        if reader is not None and stopped != place:
            reader.close()
            return None
        return reader

    def leave(self, owner: object, place: Place, reader: Reader) -> None:
        self._left[owner] = (place, reader)
        if len(self._left) > MAX_LEFT:
            self.forget(next(iter(self._left)))

    def forget(self, owner: object) -> None:
        left = self._left.pop(owner, None)
        if left is not None:
            left[1].close()

    def __len__(self) -> int:
        return len(self._left)


class Fetching:
    """FETCH of one connection."""

    def __init__(self, broker: Broker, principal: Principal, left: LeftReaders) -> None:
        self._broker, self._principal, self._left = broker, principal, left
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._left.forget(self)

    async def fetch(self, command: Command) -> bytes:
        topic, options = command.words[0], command.options
        wanted = words.position(command.words[1])
        wait_ms = words.optional_whole(options, "wait", 0, 0, MAX_WAIT_MS)
        count = words.optional_whole(options, "count", 0, 1, MAX_COUNT)
        with_meta = words.yes(options, "meta")
        partition_count = self._broker.observer.topic(self._principal, topic).partition_count
        place = Place(topic, index_of(topic, partition_count, wanted), wanted.offset)
        partition = await self._broker.observer.partition(self._principal, topic, place.partition)
        if not partition.start_offset <= place.offset <= partition.durable_end:
            raise _not_there(place, partition)
        taken = await self._take(place, count, wait_ms)
        if not taken.messages and not count:
            raise _not_there(place, partition)
        prefix = f"{place.partition}:" if partition_count > 1 else ""
        found = []
        for _, _, record in taken.messages:
            meta = replies.meta(record.key, record.timestamp_ms, record.headers) if with_meta else b""
            found.append(replies.message(f"{prefix}{record.offset}".encode(), record.value, meta))
        if not count:
            return found[0]
        following = taken.positions.get(place.partition, place.offset)
        return b"".join([message + b"\r\n" for message in found]) + replies.end(f"{prefix}{following}")

    async def _take(self, place: Place, count: int, wait_ms: int) -> Taken:
        reader = self._left.take_up(self, place)
        if reader is not None:
            try:
                return await self._take_from(reader, place, count, wait_ms)
            except UnknownTopic:
                pass  # deleted since, and there is another one of this name
        start = Start(offsets={place.partition: place.offset})
        reader = await self._broker.readers.log(self._principal, place.topic, start, partitions=[place.partition])
        return await self._take_from(reader, place, count, wait_ms)

    async def _take_from(self, reader: Reader, place: Place, count: int, wait_ms: int) -> Taken:
        try:
            taken = await reader.take(count or 1, MAX_BYTES if count else ONE_BYTES, wait_ms)
        except BaseException:
            reader.close()
            raise
        if self._closed:
            reader.close()
        else:
            position = taken.positions.get(place.partition, place.offset)
            self._left.leave(self, place._replace(offset=position), reader)
        return taken


def index_of(topic: str, partition_count: int, wanted: words.Position) -> int:
    if wanted.partition is not None:
        return wanted.partition
    if partition_count > 1:
        raise InvalidRequest(f"topic {topic} has {partition_count} partitions: say partition:offset, as in 0:50")
    return 0


def _not_there(place: Place, partition: Partition) -> PenstockError:
    start, end = partition.start_offset, partition.stable_end
    return OffsetOutOfRange(f"topic {place.topic} has no message {place.offset} (start={start} end={end})")
