"""From end to end, once: producers, consumers that settle and publish in steps, cables that are pulled, `kill -9`."""

import asyncio
import random
from collections import Counter

import penstock
from penstock.testing import Proxy
from servers import StartServer

WAIT_S = 90.0
PARTITIONS = 3
PER_PARTITION = 3_000


async def read_all(address: str, topic: str) -> Counter[str]:
    found: Counter[str] = Counter()
    async with penstock.Client(address) as client:
        for partition in range((await client.topic(topic)).partitions):
            left = (await client.offsets(topic, partition)).end
            async with client.subscribe(topic, partitions=[partition]) as subscription:
                while left:
                    batch = await subscription.take(10_000, timeout_s=WAIT_S)
                    found.update(message.text for message in batch)
                    left -= len(batch)
    return found


async def test_what_goes_in_comes_out_once_whatever_breaks_between(start_server: StartServer) -> None:
    server = start_server()
    chance = random.Random(7)
    everything = {f"{partition}:{number}" for partition in range(PARTITIONS) for number in range(PER_PARTITION)}
    done: set[str] = set()
    calm = asyncio.Event()

    async def produce(client: penstock.Client, partition: int) -> None:
        number = 0
        while number < PER_PARTITION:
            count = min(chance.choice([1, 5, 50, 200]), PER_PARTITION - number)
            numbers = range(number, number + count)
            messages = [penstock.Outgoing(f"{partition}:{one}", partition=partition) for one in numbers]
            placed = await client.publish_many("in", messages)
            assert [place.offset for place in placed] == list(numbers)
            number += count

    async def work(client: penstock.Client) -> None:
        async with client.subscribe("in", "queue", credit=50, guarantee="exactly-once") as subscription:
            while len(done) < len(everything):
                batch = await subscription.take(20, timeout_s=0.2)
                assert not done.intersection(message.text for message in batch), "what is settled does not come again"
                try:
                    async with subscription.step() as step:
                        for message in batch:
                            step.publish("out", message.text)
                            step.ack(message)
                except penstock.LeaseLost:
                    continue  # leased on a connection that broke: it comes again, here or elsewhere
                done.update(message.text for message in batch)

    async def mishaps() -> None:
        while not calm.is_set():
            await asyncio.sleep(chance.uniform(0.02, 0.2))
            proxy.cut()
            if chance.random() < 0.15:
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)

    with Proxy(server.line, native=True) as proxy:
        async with (
            penstock.Client(proxy.address, timeout_s=WAIT_S) as producer,
            penstock.Client(proxy.address, timeout_s=WAIT_S) as consumer,
            asyncio.timeout(WAIT_S),
        ):
            await producer.create_topic("in", PARTITIONS)
            trouble = asyncio.create_task(mishaps())
            await asyncio.gather(
                *(produce(producer, partition) for partition in range(PARTITIONS)),
                *(work(consumer) for _ in range(2)),
            )
            calm.set()
            await trouble
            assert producer.reconnects + consumer.reconnects > 0
    assert await read_all(server.line, "out") == Counter(everything)
    async with penstock.Client(server.line) as client:
        queue = await client.queue("in")
        assert (queue.pending, queue.processing, queue.processed) == (0, 0, len(everything))
