"""Penstock through its own client: publish_many; a queue subscription whose batches are acked at once."""

import penstock
from bench.clients.queues import BATCH


class PenstockQueue:
    async def open(self, address: str) -> None:
        self._client = await penstock.Client(address).connect()

    async def close(self) -> None:
        await self._client.close()

    async def make(self, queue: str) -> None:
        await self._client.create_queue(queue)

    async def drop(self, queue: str) -> None:
        await self._client.delete_topic(queue)

    async def publish(self, queue: str, values: list[bytes]) -> None:
        for first in range(0, len(values), BATCH):
            await self._client.publish_many(queue, values[first : first + BATCH])

    async def publish_one(self, queue: str, value: bytes) -> None:
        await self._client.publish(queue, value)

    async def work(self, queue: str, count: int) -> int:
        total = taken = 0
        async with self._client.subscribe(queue, "queue") as subscription:
            async for messages in subscription.batches(BATCH):
                for message in messages:
                    total += int.from_bytes(message.value[:8], "big")
                await subscription.ack(messages)
                taken += len(messages)
                if taken >= count:
                    break
        return total
