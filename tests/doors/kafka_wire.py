"""A bare Kafka connection for tests: sends what it is told, reads one reply at a time. Nothing is retried or hidden."""

import asyncio
import struct
import time
from types import SimpleNamespace as Struct

from penstock.model.batch import encode_batch
from penstock.model.record import Record
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.messages import decode_response, encode_request

TIMEOUT_S = 20


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._correlation_id = 0
        self._asked: list[tuple[int, int, int]] = []

    @classmethod
    async def open(cls, port: int) -> "Wire":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=64 << 20))

    def send(self, api_key: ApiKey, version: int, **fields: object) -> int:
        """Send a request; its correlation id."""
        self._correlation_id += 1
        frame = encode_request(api_key, version, self._correlation_id, "wire-test", Struct(**fields))
        self._writer.write(b"".join(bytes(part) for part in frame))
        self._asked.append((self._correlation_id, api_key, version))
        return self._correlation_id

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> Struct:
        """The next reply; it must belong to the oldest request that was not answered."""
        async with asyncio.timeout(TIMEOUT_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            frame = await self._reader.readexactly(size)
        correlation_id, api_key, version = self._asked.pop(0)
        answered, reply = decode_response(api_key, version, frame)
        assert answered == correlation_id, "replies come in the order of their requests"
        return reply

    async def ask(self, api_key: ApiKey, version: int, **fields: object) -> Struct:
        self.send(api_key, version, **fields)
        return await self.receive()

    async def receive_raw(self) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def closed(self) -> bool:
        """Whether the server closes this connection without another word."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        self._writer.close()

    # -- requests that many tests make ------------------------------------------------------------------------

    async def create(self, topic: str, partitions: int = 1, **settings: str) -> None:
        configs = [Struct(name=name.replace("_", "."), value=value) for name, value in settings.items()]
        asked = Struct(name=topic, num_partitions=partitions, replication_factor=1, assignments=[], configs=configs)
        reply = await self.ask(ApiKey.CREATE_TOPICS, 7, topics=[asked], timeout_ms=1000, validate_only=False)
        assert reply.topics[0].error_code == 0, reply.topics[0].error_message

    def send_produce(
        self, topic: str, records: bytes | bytearray, *, partition: int = 0, acks: int = -1, version: int = 9
    ) -> int:
        data = Struct(index=partition, records=records)
        return self.send(
            ApiKey.PRODUCE, version, acks=acks, timeout_ms=1000, topic_data=[Struct(name=topic, partition_data=[data])]
        )

    async def produce(self, topic: str, *values: bytes, partition: int = 0) -> int:
        self.send_produce(topic, batch(*values), partition=partition)
        reply = (await self.receive()).responses[0].partition_responses[0]
        assert reply.error_code == 0, reply.error_message
        offset: int = reply.base_offset
        return offset

    def send_fetch(
        self,
        topic: str,
        offset: int,
        *,
        partitions: tuple[int, ...] = (0,),
        wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        session: tuple[int, int] = (0, -1),
    ) -> int:
        asked = [Struct(partition=p, fetch_offset=offset, partition_max_bytes=partition_max_bytes) for p in partitions]
        return self.send(
            ApiKey.FETCH,
            12,
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            session_id=session[0],
            session_epoch=session[1],
            topics=[Struct(topic=topic, partitions=asked)] if asked else [],
        )


def batch(*values: bytes, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytearray:
    producer_id, epoch, sequence = producer
    now_ms = time.time_ns() // 1_000_000  # older records would be retention's to remove
    records = [Record(i, now_ms, None, value) for i, value in enumerate(values)]
    return encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
