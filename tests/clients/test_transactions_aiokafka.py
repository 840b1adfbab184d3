"""aiokafka, the first transaction protocol in its first versions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from story import WAIT_S, create_topic, eventually
from transaction_story import UNCOMMITTED, committed_offsets, read_all, read_values

from penstock.testing.server import Server

MakeProducer = Callable[..., Awaitable[AIOKafkaProducer]]


@pytest.fixture
async def producer_of(server: Server) -> AsyncIterator[MakeProducer]:
    async with AsyncExitStack() as stack:

        async def make(transactional_id: str, **more: object) -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=server.kafka, transactional_id=transactional_id, retry_backoff_ms=10, **more
            )
            await producer.start()
            stack.push_async_callback(producer.stop)
            return producer

        yield make


async def test_a_commit_shows_at_once_and_an_abort_never(server: Server, topic: str, producer_of: MakeProducer) -> None:
    await asyncio.to_thread(create_topic, server.kafka, topic, partitions=2)
    producer = await producer_of(topic)
    for number, commit in enumerate((True, False, True)):
        await producer.begin_transaction()
        for partition in range(2):
            await producer.send_and_wait(topic, b"%d" % number, partition=partition)
        await (producer.commit_transaction() if commit else producer.abort_transaction())
        found = await asyncio.to_thread(read_all, server.kafka, topic)
        assert found == {p: ["0", "2"][: number // 2 + 1] for p in range(2)}
    found = await asyncio.to_thread(read_all, server.kafka, topic, UNCOMMITTED)
    assert found == {p: ["0", "1", "2"] for p in range(2)}
    reader = AIOKafkaConsumer(
        topic, bootstrap_servers=server.kafka, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    async with reader:
        values = [(await asyncio.wait_for(anext(reader), WAIT_S)).value for _ in range(4)]
    assert sorted(values) == [b"0", b"0", b"2", b"2"]


async def test_a_producer_that_was_replaced_is_fenced(server: Server, topic: str, producer_of: MakeProducer) -> None:
    await asyncio.to_thread(create_topic, server.kafka, topic)
    zombie = await producer_of(topic)
    await zombie.begin_transaction()
    await zombie.send_and_wait(topic, b"of the zombie")
    successor = await producer_of(topic)
    with pytest.raises(KafkaError):
        await zombie.commit_transaction()
    async with successor.transaction():
        await successor.send_and_wait(topic, b"of the successor")
    assert await asyncio.to_thread(read_values, server.kafka, topic) == ["of the successor"]


async def test_offsets_of_a_transaction_count_when_it_commits(
    server: Server, topic: str, group: str, producer_of: MakeProducer
) -> None:
    source, sink = f"{topic}-in", f"{topic}-out"
    await asyncio.to_thread(create_topic, server.kafka, source)
    await asyncio.to_thread(create_topic, server.kafka, sink)
    async with AIOKafkaProducer(bootstrap_servers=server.kafka) as feed:
        for number in range(20):
            await feed.send_and_wait(source, b"%d" % number)
    producer = await producer_of(topic)
    consumer = AIOKafkaConsumer(
        source,
        bootstrap_servers=server.kafka,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    place, done = TopicPartition(source, 0), 0
    async with consumer:
        for turn in range(4):
            messages = [await asyncio.wait_for(consumer.getone(), WAIT_S) for _ in range(5)]
            await producer.begin_transaction()
            for message in messages:
                await producer.send(sink, message.value)
            end = messages[-1].offset + 1
            await producer.send_offsets_to_transaction({place: end}, group)
            if turn % 2:
                await producer.commit_transaction()
                done = end
            else:
                await producer.abort_transaction()
                consumer.seek(place, done)
            assert await asyncio.to_thread(committed_offsets, server.kafka, group, source) == [done or -1001]
            assert await asyncio.to_thread(read_values, server.kafka, sink) == [str(n) for n in range(done)]
    assert done == 10


async def test_a_transaction_that_takes_too_long_is_aborted(
    server: Server, topic: str, producer_of: MakeProducer
) -> None:
    await asyncio.to_thread(create_topic, server.kafka, topic)
    producer = await producer_of(topic, transaction_timeout_ms=1000)
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"late")
    async with AIOKafkaProducer(bootstrap_servers=server.kafka) as feed:
        await feed.send_and_wait(topic, b"behind")
    await asyncio.to_thread(
        eventually, lambda: read_values(server.kafka, topic) == ["behind"], "the transaction is given up"
    )
    with pytest.raises(KafkaError):
        await producer.commit_transaction()


async def test_many_transactions_one_after_another(server: Server, topic: str, producer_of: MakeProducer) -> None:
    await asyncio.to_thread(create_topic, server.kafka, topic, partitions=3)
    producer = await producer_of(topic)
    for number in range(50):
        async with producer.transaction():
            for partition in range(3):
                await producer.send(topic, b"%d" % number, partition=partition)
    found = await asyncio.to_thread(read_all, server.kafka, topic)
    assert found == {partition: [str(number) for number in range(50)] for partition in range(3)}
