"""NATS JetStream through nats-py: publish_async within its own bound of pending messages; a durable pull consumer.

`ack()` is a message that nobody answers; the last of each batch is `ack_sync()`, so that a batch counts as settled when
the server has said so, as with the others.
"""

import asyncio

import nats
from nats.js.api import StorageType

from bench.clients.queues import BATCH

CONSUMER = "workers"


class JetStream:
    async def open(self, address: str) -> None:
        self._connection = await nats.connect(f"nats://{address}")
        self._stream = self._connection.jetstream()

    async def close(self) -> None:
        await self._connection.close()

    async def make(self, queue: str) -> None:
        await self._stream.add_stream(name=queue, subjects=[queue], storage=StorageType.FILE)
        await self._stream.pull_subscribe(queue, CONSUMER)

    async def drop(self, queue: str) -> None:
        await self._stream.delete_stream(queue)

    async def publish(self, queue: str, values: list[bytes]) -> None:
        stream = self._stream
        acknowledged = [await stream.publish_async(queue, value) for value in values]
        await asyncio.gather(*acknowledged)

    async def publish_one(self, queue: str, value: bytes) -> None:
        await self._stream.publish(queue, value)

    async def work(self, queue: str, count: int) -> int:
        subscription = await self._stream.pull_subscribe(queue, CONSUMER)
        total = taken = 0
        while taken < count:
            messages = await subscription.fetch(BATCH, timeout=10)
            for message in messages:
                total += int.from_bytes(message.data[:8], "big")
            for message in messages[:-1]:
                await message.ack()
            await messages[-1].ack_sync()
            taken += len(messages)
        return total
