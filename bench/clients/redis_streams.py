"""Redis Streams through redis-py with hiredis: pipelined XADD; XREADGROUP and XACK. Its blocking face, the faster."""

import redis

from bench.clients.queues import BATCH

GROUP = "workers"


class RedisStreams:
    async def open(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._redis = redis.Redis(host, int(port))

    async def close(self) -> None:
        self._redis.close()

    async def make(self, queue: str) -> None:
        self._redis.xgroup_create(queue, GROUP, id="0", mkstream=True)

    async def drop(self, queue: str) -> None:
        self._redis.delete(queue)

    async def publish(self, queue: str, values: list[bytes]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for first in range(0, len(values), BATCH):
            for value in values[first : first + BATCH]:
                pipeline.xadd(queue, {"v": value})
            pipeline.execute()

    async def publish_one(self, queue: str, value: bytes) -> None:
        self._redis.xadd(queue, {"v": value})

    async def work(self, queue: str, count: int) -> int:
        total = taken = 0
        while taken < count:
            answer = self._redis.xreadgroup(GROUP, "worker", {queue: ">"}, count=BATCH, block=10_000)
            entries = answer[0][1]
            for _, fields in entries:
                total += int.from_bytes(fields[b"v"][:8], "big")
            self._redis.xack(queue, GROUP, *[entry_id for entry_id, _ in entries])
            taken += len(entries)
        return total
