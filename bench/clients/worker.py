"""`python -m bench.clients.worker CLIENT ADDRESS VERB QUEUE OPTIONS`: one client does one thing and prints its numbers.

A message begins with its number, 8 bytes, big-endian; the sum of the numbers that were published and of those that were
taken must agree, so nobody is fast by losing messages.
"""

import asyncio
import importlib
import itertools
import json
import statistics
import sys
import time
from typing import Any

import uvloop

from bench.clients.processes import hold
from bench.clients.queues import QueueClient
from bench.clients.subscribers import MARK

MODULES = {
    "redis": ("bench.clients.redis_streams", "RedisStreams"),
    "nats": ("bench.clients.jetstream", "JetStream"),
    "penstock": ("bench.clients.penstock_queue", "PenstockQueue"),
}
PREPARED = 50_000  # messages made before the clock starts, sent again and again
PORTION = 5_000  # between two looks at the clock


def main() -> None:
    client_name, address, verb, queue, options = sys.argv[1:]
    module, name = MODULES[client_name]
    client: QueueClient = getattr(importlib.import_module(module), name)()
    hold()
    print(json.dumps(uvloop.run(do(client, address, verb, queue, json.loads(options)))))


async def do(client: QueueClient, address: str, verb: str, queue: str, options: dict[str, Any]) -> dict[str, Any]:
    opening = time.monotonic()
    await client.open(address)
    open_s = time.monotonic() - opening
    try:
        return {**await VERBS[verb](client, queue, **options), "open_s": open_s}
    finally:
        await client.close()


async def make(client: QueueClient, queue: str) -> dict[str, Any]:
    await client.make(queue)
    return {}


async def drop(client: QueueClient, queue: str) -> dict[str, Any]:
    await client.drop(queue)
    return {}


async def publish(client: QueueClient, queue: str, size: int, seconds: float = 0, count: int = 0) -> dict[str, Any]:
    """So many messages, or as many as go in the time."""
    prepared = min(count, PREPARED) if count else PREPARED
    values = [number.to_bytes(8, "big") + bytes(size - 8) for number in range(prepared)]
    portions = [values[first : first + PORTION] for first in range(0, len(values), PORTION)]
    sums = [sum(int.from_bytes(value[:8], "big") for value in portion) for portion in portions]
    sent = total = 0
    watch = Watch()
    for portion, portion_sum in itertools.cycle(zip(portions, sums, strict=True)):
        await client.publish(queue, portion)
        sent += len(portion)
        total += portion_sum
        if sent >= count and time.monotonic() - watch.started >= seconds:
            break
    return {**watch.read(), "messages": sent, "sum": total}


async def burst(client: QueueClient, queue: str, size: int, count: int) -> dict[str, Any]:
    """So many messages at once, of text, each with the mark that readers of events count."""
    watch = Watch()
    await client.publish(queue, [marked(size)] * count)
    return {**watch.read(), "messages": count}


def marked(size: int) -> bytes:
    return MARK + b"x" * (size - 1)


async def latency(
    client: QueueClient, queue: str, size: int, seconds: float, rate: float = 0, warm_up: int = 50
) -> dict[str, Any]:
    """One message at a time: the next when the last is acknowledged, and not before its turn if there is a rate."""
    value = marked(size)
    for _ in range(warm_up):
        await client.publish_one(queue, value)
    took_ms: list[float] = []
    watch = Watch()
    end = watch.started + seconds
    while (before := time.monotonic()) < end:
        await client.publish_one(queue, value)
        took_ms.append((time.monotonic() - before) * 1000)
        if rate and (early_s := watch.started + len(took_ms) / rate - time.monotonic()) > 0:
            await asyncio.sleep(early_s)
    cuts = statistics.quantiles(took_ms, n=100)
    return {**watch.read(), "messages": len(took_ms), "p50_ms": cuts[49], "p99_ms": cuts[98]}


async def work(client: QueueClient, queue: str, count: int) -> dict[str, Any]:
    watch = Watch()
    total = await client.work(queue, count)
    return {**watch.read(), "messages": count, "sum": total}


class Watch:
    """Time and this process's processor time from now on."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self._cpu_started = time.process_time()

    def read(self) -> dict[str, float]:
        ended = time.monotonic()
        return {
            "started": self.started,
            "ended": ended,
            "seconds": ended - self.started,
            "client_cpu_s": time.process_time() - self._cpu_started,
        }


VERBS = {"make": make, "drop": drop, "publish": publish, "burst": burst, "latency": latency, "work": work}

if __name__ == "__main__":
    main()
