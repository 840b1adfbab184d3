"""aiokafka: asyncio, the oldest API versions of the four, its own Cython batches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError
from members import AiokafkaMember
from story import create_topic, end_offsets, eventually, read_topic, read_values

from penstock.testing.proxy import PRODUCE, Proxy
from penstock.testing.server import Server
from servers import StartServer

WAIT_S = 20


@asynccontextmanager
async def producing(address: str, **options: object) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=address, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consuming(address: str, *topics: str, **options: object) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        *topics, bootstrap_servers=address, auto_offset_reset="earliest", fetch_max_wait_ms=100, **options
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def take(consumer: AIOKafkaConsumer, count: int) -> list[bytes | None]:
    async with asyncio.timeout(WAIT_S):
        return [(await consumer.getone()).value for _ in range(count)]


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_every_compression_comes_back_as_it_went(server: Server, topic: str, compression: str | None) -> None:
    values = [b"%d " % number * 30 for number in range(300)]
    create_topic(server.kafka, topic)
    async with producing(server.kafka, compression_type=compression, linger_ms=5) as producer:
        await asyncio.gather(*[await producer.send(topic, value) for value in values])
    async with consuming(server.kafka, topic) as consumer:
        assert await take(consumer, 300) == values
    assert read_values(server.kafka, topic, 300) == values  # and librdkafka understands it too


async def test_keys_nulls_headers_and_timestamps_are_kept(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic)
    headers = [("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b"")]
    async with producing(server.kafka) as producer:
        await producer.send_and_wait(topic, b"value", b"key", headers=headers, timestamp_ms=1_600_000_000_123)
        await producer.send_and_wait(topic, None, b"tombstone")
        await producer.send_and_wait(topic, b"keyless")
    async with consuming(server.kafka, topic) as consumer, asyncio.timeout(WAIT_S):
        first, tombstone, keyless = [await consumer.getone() for _ in range(3)]
    assert (first.key, first.value, list(first.headers)) == (b"key", b"value", headers)
    assert (first.timestamp, first.timestamp_type) == (1_600_000_000_123, 0)
    assert (tombstone.key, tombstone.value) == (b"tombstone", None)
    assert (keyless.key, keyless.value) == (None, b"keyless")


async def test_a_topic_is_made_on_first_use(server: Server, topic: str) -> None:
    async with producing(server.kafka) as producer:
        sent = await producer.send_and_wait(topic, b"first")
    assert (sent.partition, sent.offset) == (0, 0)


async def test_a_message_over_the_topics_limit_is_refused(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic, max_message_bytes="1000")
    async with producing(server.kafka) as producer:
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, b"x" * 5000)
        await producer.send_and_wait(topic, b"fits")
    assert read_values(server.kafka, topic, 1) == [b"fits"]


@pytest.mark.parametrize("lost", ["requests", "replies"])
async def test_idempotent_producer_with_forced_retries_stores_all_once_in_order(
    start_server: StartServer, topic: str, lost: str
) -> None:
    with Proxy() as proxy:
        server = start_server(kafka_advertised=proxy.address)
        proxy.upstream = server.kafka
        create_topic(proxy.address, topic, partitions=2)
        rule = getattr(proxy, f"lose_{lost}")(PRODUCE, every=6, limit=6)
        async with producing(
            proxy.address, enable_idempotence=True, max_batch_size=200, retry_backoff_ms=10
        ) as producer:
            pending = [await producer.send(topic, b"%d" % number, partition=number % 2) for number in range(600)]
            sent = await asyncio.wait_for(asyncio.gather(*pending), 60)
        assert len({(one.partition, one.offset) for one in sent}) == 600
        proxy.behave()
        assert rule.lost >= 3, "the test lost too little to prove anything"
        found = await asyncio.to_thread(read_topic, proxy.address, topic, 600)
    for partition, messages in found.items():
        assert [int(message.value() or b"") for message in messages] == list(range(partition, 600, 2))


async def test_offsets_by_time_and_seeking(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic)
    pair = TopicPartition(topic, 0)
    async with producing(server.kafka) as producer:
        for number in range(10):
            await producer.send_and_wait(topic, b"%d" % number, timestamp_ms=1_000_000 + number * 1000)
    async with consuming(server.kafka) as consumer:
        consumer.assign([pair])
        assert await consumer.beginning_offsets([pair]) == {pair: 0}
        assert await consumer.end_offsets([pair]) == {pair: 10}
        found = (await consumer.offsets_for_times({pair: 1_004_500}))[pair]
        assert (found.offset, found.timestamp) == (5, 1_005_000)
        consumer.seek(pair, 7)
        assert await take(consumer, 3) == [b"7", b"8", b"9"]


async def test_a_group_resumes_where_it_committed(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic)
    async with producing(server.kafka) as producer:
        for number in range(10):
            await producer.send_and_wait(topic, b"%d" % number)
    async with consuming(server.kafka, topic, group_id=group, enable_auto_commit=False) as consumer:
        assert len(await take(consumer, 10)) == 10
        await consumer.commit({TopicPartition(topic, 0): (4, "a note")})
    async with consuming(server.kafka, topic, group_id=group, enable_auto_commit=False) as consumer:
        assert await take(consumer, 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]
        assert await consumer.committed(TopicPartition(topic, 0)) == 4


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_members_come_and_go_and_every_message_is_read(server: Server, topic: str, group: str, strategy: str) -> None:
    create_topic(server.kafka, topic, partitions=4)
    first = AiokafkaMember(server.kafka, group, topic, strategy)
    eventually(lambda: len(first.owned) == 4, "one member owns all")
    second = AiokafkaMember(server.kafka, group, topic, strategy)
    eventually(lambda: len(first.owned) == len(second.owned) == 2, "two members share")
    values = [b"%d" % number for number in range(200)]

    async def publish() -> None:
        async with producing(server.kafka) as producer:
            for number, value in enumerate(values):
                await producer.send(topic, value, partition=number % 4)

    asyncio.run(publish())
    eventually(lambda: sorted(first.values + second.values) == sorted(values), "every message arrived once")
    first.leave()
    eventually(lambda: len(second.owned) == 4, "the one who stays takes over")
    second.leave()


def test_consumer_goes_on_across_a_restart_of_the_server(fresh_server: Server, topic: str, group: str) -> None:
    create_topic(fresh_server.kafka, topic)
    member = AiokafkaMember(fresh_server.kafka, group, topic, "range")

    async def publish(numbers: range) -> None:
        async with producing(fresh_server.kafka, enable_idempotence=True) as producer:
            for number in numbers:
                await producer.send_and_wait(topic, b"%d" % number)

    asyncio.run(publish(range(20)))
    eventually(lambda: len(member.values) == 20, "the messages before")
    fresh_server.restart()
    asyncio.run(publish(range(20, 40)))
    eventually(lambda: {b"%d" % number for number in range(40)} == set(member.values), "the messages after")
    member.leave()


async def test_administration(server: Server, topic: str, group: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=server.kafka)
    await admin.start()
    try:
        created = await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "100000"})])
        assert [error[1] for error in created.topic_errors] == [0]
        again = await admin.create_topics([NewTopic(topic, 2, 1)])
        assert [error[1] for error in again.topic_errors] == [36]  # TOPIC_ALREADY_EXISTS
        widened = await admin.create_partitions({topic: NewPartitions(3)})
        assert [error[1] for error in widened.topic_errors] == [0]
        await asyncio.to_thread(eventually, lambda: len(end_offsets(server.kafka, topic)) == 3, "three partitions")
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": ""})
        (described,) = await admin.describe_configs([resource])
        assert [entry[:2] for entry in described.resources[0][4]] == [("retention.ms", "100000")]
        change = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"cleanup.policy": "compact,delete"})
        (altered,) = await admin.alter_configs([change])
        assert altered.resources[0][0] == 0

        async with producing(server.kafka) as producer:
            for _ in range(3):
                await producer.send_and_wait(topic, b"value", b"key", partition=0)
        pair = TopicPartition(topic, 0)
        assert await admin.delete_records({pair: RecordsToDelete(2)}) == {pair: 2}
        async with consuming(server.kafka, topic, group_id=group, enable_auto_commit=False) as consumer:
            await consumer.commit({pair: (3, "a note")})
            assert (group, "consumer") in await admin.list_consumer_groups()
            (found,) = await admin.describe_consumer_groups([group])
            assert found.groups[0][:4] == (0, group, "Stable", "consumer")
        kept = await admin.list_consumer_group_offsets(group)
        assert (kept[pair].offset, kept[pair].metadata) == (3, "a note")
        cluster = await admin.describe_cluster()
        assert [f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]] == [server.kafka]
        deleted = await admin.delete_topics([topic])
        assert [error[1] for error in deleted.topic_error_codes] == [0]
    finally:
        await admin.close()
