"""A bare connection of the binary protocol for tests: sends what it is told, hands out what comes, hides nothing."""

import asyncio
import time
from collections import defaultdict, deque
from typing import Any, TypeVar

from penstock.model.batch import decode_batch, encode_batch, walk
from penstock.model.record import Record
from penstock.wire.native.framing import PREFACE, Receiver, decode_reply, encode, split
from penstock.wire.native.messages import (
    Batch,
    CreateTopic,
    Failure,
    Fetch,
    Fetched,
    Hello,
    Message,
    Publish,
    Published,
    Topics,
    Welcome,
)

TIMEOUT_S = 20
READ_BYTES = 1 << 16

_Reply = TypeVar("_Reply", bound=Message)


class Refused(Exception):
    """The server answered with a Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.code}: {failure.message}")
        self.failure = failure

    @property
    def code(self) -> str:
        return self.failure.code


class NativeWire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._receiver = Receiver(1 << 30)
        self._correlation_id = 0
        self.arrived: list[tuple[int, Any]] = []  # everything, in the order it came
        self._unread: deque[tuple[int, Any]] = deque()
        self._kept: defaultdict[int, deque[Any]] = defaultdict(deque)

    @classmethod
    async def connect(cls, address: str) -> "NativeWire":
        """Without a word said."""
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=READ_BYTES))

    @classmethod
    async def open(cls, address: str) -> "NativeWire":
        wire = await cls.connect(address)
        wire.writer.write(PREFACE)
        await wire.ask(Hello(1, "test"), Welcome)
        return wire

    def send(self, message: Message, correlation_id: int | None = None) -> int:
        """Send a request; its correlation id."""
        if correlation_id is None:
            self._correlation_id += 1
            correlation_id = self._correlation_id
        self.writer.write(encode(correlation_id, message))
        return correlation_id

    def send_raw(self, data: bytes | bytearray) -> None:
        self.writer.write(data)

    async def next(self) -> tuple[int, Any]:
        """Whatever comes next, with its correlation id."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self._unread:
                data = await self.reader.read(READ_BYTES)
                if not data:
                    raise ConnectionError("the server closed the connection")
                for frame in self._receiver.feed(data):
                    kind, correlation_id, body = split(frame)
                    self._unread.append((correlation_id, decode_reply(kind, body)))
        self.arrived.append(self._unread[0])
        return self._unread.popleft()

    async def of(self, correlation_id: int) -> Any:
        """The next that comes under this id; what comes for others is kept for them."""
        kept = self._kept[correlation_id]
        while not kept:
            came_for, message = await self.next()
            self._kept[came_for].append(message)
        return kept.popleft()

    async def reply(self, correlation_id: int, kind: type[_Reply]) -> _Reply:
        message = await self.of(correlation_id)
        if isinstance(message, Failure):
            raise Refused(message)
        assert isinstance(message, kind), message
        return message

    async def ask(self, message: Message, kind: type[_Reply]) -> _Reply:
        return await self.reply(self.send(message), kind)

    async def refused(self, message: Message) -> Failure:
        failure = await self.of(self.send(message))
        assert isinstance(failure, Failure), failure
        return failure

    async def values(self, topic: str, *, partition: int = 0) -> list[bytes | None]:
        """What the partition holds, all of it."""
        offset, found = 0, list[bytes | None]()
        while True:
            fetched = await self.reply(self.send_fetch(topic, offset, partition=partition), Fetched)
            found += [record.value for record in opened(fetched.batches) if record.offset >= offset]
            offset = fetched.next_offset
            if offset == fetched.end:
                return found

    async def values_now(self, topic: str, *, partition: int = 0) -> list[bytes | None]:
        """What of the partition is committed; an open transaction ends it."""
        offset, found = 0, list[bytes | None]()
        while True:
            fetched = await self.reply(self.send_fetch(topic, offset, partition=partition), Fetched)
            if fetched.next_offset == offset:
                return found
            found += [record.value for record in opened(fetched.batches) if record.offset >= offset]
            offset = fetched.next_offset

    async def is_closed(self) -> bool:
        """Whether the server closes this connection, whatever it says before."""
        try:
            while True:
                await self.next()
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.close()

    # -- requests that many tests make ------------------------------------------------------------------------

    async def create(self, topic: str, partitions: int = 1, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        await self.ask(CreateTopic(topic, partitions, named), Topics)

    def send_publish(self, topic: str, *values: bytes, partition: int = 0, acks: int = -1) -> int:
        return self.send(Publish(acks, [Batch(topic, partition, batch(*values))]))

    async def publish(self, topic: str, *values: bytes, partition: int = 0) -> int:
        (stored,) = (await self.reply(self.send_publish(topic, *values, partition=partition), Published)).results
        assert stored.error is None, stored
        return stored.base_offset

    def send_fetch(
        self, topic: str, offset: int, *, partition: int = 0, wait_ms: int = 0, max_bytes: int = 1 << 20
    ) -> int:
        return self.send(Fetch(topic, partition, offset, max_bytes, wait_ms))


def opened(stored: bytes) -> list[Record]:
    """The records of batches that stand back to back."""
    return [record for header in walk(stored, verify=True) for record in decode_batch(stored, header.position)]


def batch(*values: bytes, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    producer_id, epoch, sequence = producer
    now_ms = time.time_ns() // 1_000_000  # older records would be retention's to remove
    records = [Record(i, now_ms, None, value) for i, value in enumerate(values)]
    return bytes(encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))
