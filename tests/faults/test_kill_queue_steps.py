"""Workers that settle and publish to several partitions in one step, and a server that is killed again and again."""

import asyncio
import random
from collections import Counter

import penstock
from servers import StartServer

MESSAGES = 300
KILLS = 5
PARTS = 3
WITHIN_S = 120


async def test_each_step_happens_once_and_whole(start_server: StartServer) -> None:
    server = start_server()
    seeded = random.Random(11)
    done: set[str] = set()
    async with penstock.Client(server.line, timeout_s=60) as client:
        await client.create_topic("in", 2)
        await client.create_topic("out", 2)
        await client.create_topic("log", 1)
        await client.create_queue("in", lease_ms=60_000, max_attempts=0, retry_initial_ms=0)
        await client.publish_many("in", [penstock.Outgoing(str(n), partition=n % 2) for n in range(MESSAGES)])

        async def work() -> None:
            async with client.subscribe("in", "queue", credit=10) as subscription:
                while len(done) < MESSAGES:
                    for message in await subscription.take(10, timeout_s=0.2):
                        try:
                            async with subscription.step(f"copy {message.text}") as step:
                                step.ack(message)
                                for partition in (0, 1):
                                    step.publish("out", message.text, partition=partition)
                                step.publish("log", message.text)
                        except (penstock.LeaseLost, penstock.StorageFailed, penstock.TimedOut):
                            continue  # it comes again, or was done
                        done.add(message.text)

        async def kill() -> None:
            for number in range(1, KILLS + 1):
                while len(done) < MESSAGES * number // (KILLS + 1):  # noqa: ASYNC110 - at any moment after that
                    await asyncio.sleep(seeded.uniform(0.005, 0.02))
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)

        killing = asyncio.ensure_future(kill())
        workers = [asyncio.ensure_future(work()) for _ in range(3)]
        try:
            async with asyncio.timeout(WITHIN_S):
                await until_settled(client)
        finally:
            for task in (killing, *workers):
                task.cancel()
            await asyncio.gather(killing, *workers, return_exceptions=True)
        assert client.reconnects >= KILLS - 1
        came = Counter[str]()
        for topic, partition in (("out", 0), ("out", 1), ("log", 0)):
            subscription = client.subscribe(topic, partitions=[partition])
            while got := await subscription.take(1000, timeout_s=1):
                came.update(message.text for message in got)
        assert came == {str(number): PARTS for number in range(MESSAGES)}


async def until_settled(client: penstock.Client) -> None:
    while True:
        queue = await client.queue("in")
        if queue.processed == MESSAGES and not queue.processing:
            return
        await asyncio.sleep(0.1)
