"""Topics in memory begin anew with the server; what the disk keeps about them must not take the new for the old."""

import asyncio

import penstock
from servers import StartServer

LIVES = 3
MESSAGES = 5


async def test_views_dead_letters_and_copies_of_a_topic_in_memory(start_server: StartServer) -> None:
    server = start_server()
    async with server.client() as client:
        await client.create_topic("events", settings={"storage": "memory"})
        await client.create_topic("copies")
        await client.create_router("events", "fanout")
        await client.bind("events", "copies")
        await client.create_queue("events", "work")
        for life in range(LIVES):
            # More of them each time: otherwise offsets alone would tell that they are new.
            values = [f"{life}-{number}" for number in range(MESSAGES + life)]
            await client.publish_many("events", values)
            async with asyncio.timeout(20):
                async with client.subscribe("events", "queue", name="work", create=False) as work:
                    for value in values:
                        message = await anext(work)
                        assert message.text == value
                        await message.reject()
            expected = [f"{past}-{number}" for past in range(life + 1) for number in range(MESSAGES + past)]
            assert await values_of(client, "events.work.dead", len(expected)) == expected
            assert await values_of(client, "copies", len(expected)) == expected
            await asyncio.to_thread(server.restart)


async def values_of(client: penstock.Client, topic: str, count: int) -> list[str]:
    found: list[str] = []
    async with client.subscribe(topic, "log", start="earliest") as log, asyncio.timeout(20):
        while len(found) < count:
            found += [message.text for message in await log.take()]
    return found
