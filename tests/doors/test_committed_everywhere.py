"""Kafka producers commit and abort; through whichever door somebody reads, then or later, it is the same."""

import asyncio
import random

import httpx
from confluent_kafka import Producer
from line_talk import Talk

from penstock import Client
from penstock.testing.server import Server

WAIT_S = 30
LAST = b"last"


def make_producer(server: Server, transactional_id: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": server.kafka, "transactional.id": transactional_id, "linger.ms": 0, "log_level": 0}
    )
    producer.init_transactions(WAIT_S)
    return producer


def produce(server: Server, topic: str) -> list[bytes]:
    """Two producers, interleaved; what they committed."""
    chance, committed = random.Random(11), []
    producers = [make_producer(server, f"{topic}-{number}") for number in range(2)]
    for round_ in range(8):
        for producer in producers:
            producer.begin_transaction()
        written: list[list[bytes]] = [[], []]
        for number in range(6):
            which = chance.randrange(2)
            value = b"%d-%d-%d" % (round_, which, number)
            producers[which].produce(topic, value, partition=0)
            assert producers[which].flush(WAIT_S) == 0
            written[which].append(value)
        for which in chance.sample(range(2), 2):
            if chance.random() < 0.5:
                producers[which].commit_transaction(WAIT_S)
                committed += written[which]
            else:
                producers[which].abort_transaction(WAIT_S)
    producers[0].begin_transaction()
    producers[0].produce(topic, LAST, partition=0)
    producers[0].commit_transaction(WAIT_S)
    return [*committed, LAST]


async def until_last(subscription, *, ack: bool = False) -> list[bytes | None]:
    values: list[bytes | None] = []
    async for message in subscription:
        values.append(message.value)
        if ack:
            await message.ack()
        if message.value == LAST:
            break
    return values


async def test_every_door_sees_the_same_and_only_what_was_committed(server: Server, topic: str) -> None:
    async with Client(server.line) as client, httpx.AsyncClient(base_url=server.http, timeout=WAIT_S) as http:
        await client.create_topic(topic, 1)
        async with (
            client.subscribe(topic, start="earliest") as log,
            client.subscribe(topic, "pubsub") as pubsub,
            client.subscribe(topic, "queue", name="work") as queue,
        ):
            live = [
                asyncio.create_task(until_last(log)),
                asyncio.create_task(until_last(pubsub)),
                asyncio.create_task(until_last(queue, ack=True)),
            ]
            committed = await asyncio.wait_for(asyncio.to_thread(produce, server, topic), 120)
            seen = await asyncio.wait_for(asyncio.gather(*live), WAIT_S)
        async with client.subscribe(topic, start="earliest") as late:
            expected = await asyncio.wait_for(until_last(late), WAIT_S)
        assert sorted(committed) == sorted(expected)  # type: ignore[type-var]
        assert seen == [expected] * 3

        place = f"/v1/topics/{topic}/partitions/0/records"
        answer = (await http.get(place)).json()
        assert [record["value"].encode() for record in answer["records"]] == expected
        talk = await Talk.open(int(server.line.rpartition(":")[2]))
        talk.send(f"FETCH {topic} 0 count=1000\r\n")
        text = b""
        async with asyncio.timeout(WAIT_S):
            while b"END" not in text.rpartition(LAST)[2]:
                text += await talk.reader.read(1 << 16)
        assert all(value in text for value in committed)
        talk.writer.close()
        async with client.subscribe(topic, "queue", name="second") as again:
            assert await asyncio.wait_for(until_last(again), WAIT_S) == expected
