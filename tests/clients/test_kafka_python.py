"""kafka-python: idempotent by default since version 3, and the one that speaks the newest versions of the APIs."""

import time
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, OffsetSpec, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from members import KafkaPythonMember
from story import create_topic, eventually, read_topic, read_values

from penstock.testing.proxy import PRODUCE, Proxy
from penstock.testing.server import Server
from servers import StartServer

WAIT_S = 20


@pytest.fixture
def producer(server: Server) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(bootstrap_servers=server.kafka)
    yield producer
    producer.close()


def read_all(address: str, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=address, fetch_max_wait_ms=100, auto_offset_reset="earliest")
    pair = TopicPartition(topic, 0)
    consumer.assign([pair])
    consumer.seek_to_beginning(pair)
    values: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    while len(values) < count:
        assert time.monotonic() < deadline, f"only {len(values)} of {count}"
        for messages in consumer.poll(200).values():
            values += [message.value for message in messages]
    consumer.close()
    return values


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_comes_back_as_it_went(server: Server, topic: str, compression: str | None) -> None:
    values = [b"%d " % number * 30 for number in range(300)]
    producer = KafkaProducer(bootstrap_servers=server.kafka, compression_type=compression, linger_ms=5)
    futures = [producer.send(topic, value) for value in values]
    assert [future.get(WAIT_S).offset for future in futures] == list(range(300))
    producer.close()
    assert read_all(server.kafka, topic, 300) == values
    assert read_values(server.kafka, topic, 300) == values  # and librdkafka understands it too


def test_keys_nulls_headers_and_timestamps_are_kept(server: Server, producer: KafkaProducer, topic: str) -> None:
    create_topic(server.kafka, topic)
    headers = [("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b"")]
    producer.send(topic, b"value", b"key", headers=headers, timestamp_ms=1_600_000_000_123, partition=0).get(WAIT_S)
    producer.send(topic, None, b"tombstone", partition=0).get(WAIT_S)
    producer.send(topic, b"keyless", None, partition=0).get(WAIT_S)
    consumer = KafkaConsumer(topic, bootstrap_servers=server.kafka, auto_offset_reset="earliest")
    first, tombstone, keyless = (next(consumer) for _ in range(3))
    consumer.close()
    assert (first.key, first.value, list(first.headers)) == (b"key", b"value", headers)
    assert (first.timestamp, first.timestamp_type) == (1_600_000_000_123, 0)
    assert (tombstone.key, tombstone.value) == (b"tombstone", None)
    assert (keyless.key, keyless.value) == (None, b"keyless")


def test_log_append_time_is_the_servers(server: Server, producer: KafkaProducer, topic: str) -> None:
    create_topic(server.kafka, topic, message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    sent = producer.send(topic, b"when?", timestamp_ms=1000).get(WAIT_S)
    assert sent.timestamp >= before_ms - 1000
    (message,) = read_topic(server.kafka, topic, 1)[0]
    assert message.timestamp() == (2, sent.timestamp)


def test_a_message_over_the_topics_limit_is_refused(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic, max_message_bytes="1000")
    producer = KafkaProducer(bootstrap_servers=server.kafka, enable_idempotence=False)
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, b"x" * 5000).get(WAIT_S)
    producer.send(topic, b"fits").get(WAIT_S)
    producer.close()
    assert read_values(server.kafka, topic, 1) == [b"fits"]


@pytest.mark.parametrize("lost", ["requests", "replies"])
def test_default_producer_with_forced_retries_stores_all_once_in_order(
    start_server: StartServer, topic: str, lost: str
) -> None:
    with Proxy() as proxy:
        server = start_server(kafka_advertised=proxy.address)
        proxy.upstream = server.kafka
        create_topic(proxy.address, topic, partitions=2)
        rule = getattr(proxy, f"lose_{lost}")(PRODUCE, every=6, limit=6)
        producer = KafkaProducer(
            bootstrap_servers=proxy.address,
            batch_size=200,
            reconnect_backoff_ms=5,
            reconnect_backoff_max_ms=50,
            retry_backoff_ms=10,
        )
        futures = [producer.send(topic, b"%d" % number, partition=number % 2) for number in range(600)]
        producer.flush(60)
        assert all(future.succeeded() for future in futures)
        producer.close()
        proxy.behave()
        assert rule.lost >= 3, "the test lost too little to prove anything"
        found = read_topic(proxy.address, topic, 600)
    for partition, messages in found.items():
        assert [int(message.value() or b"") for message in messages] == list(range(partition, 600, 2))


def test_seeking_by_timestamp_and_to_both_ends(server: Server, producer: KafkaProducer, topic: str) -> None:
    create_topic(server.kafka, topic)
    for number in range(10):
        producer.send(topic, b"%d" % number, timestamp_ms=1_000_000 + number * 1000).get(WAIT_S)
    consumer = KafkaConsumer(bootstrap_servers=server.kafka)
    pair = TopicPartition(topic, 0)
    assert consumer.beginning_offsets([pair]) == {pair: 0}
    assert consumer.end_offsets([pair]) == {pair: 10}
    found = consumer.offsets_for_times({pair: 1_004_500})[pair]
    assert (found.offset, found.timestamp) == (5, 1_005_000)
    assert consumer.offsets_for_times({pair: 9_000_000})[pair] is None
    consumer.assign([pair])
    consumer.seek(pair, 7)
    assert [next(consumer).value for _ in range(3)] == [b"7", b"8", b"9"]
    consumer.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_come_and_go_and_every_message_is_read(
    server: Server, producer: KafkaProducer, topic: str, group: str, strategy: str
) -> None:
    create_topic(server.kafka, topic, partitions=4)
    first = KafkaPythonMember(server.kafka, group, topic, strategy)
    eventually(lambda: len(first.owned) == 4, "one member owns all")
    second = KafkaPythonMember(server.kafka, group, topic, strategy)
    eventually(lambda: len(first.owned) == len(second.owned) == 2, "two members share")
    values = [b"%d" % number for number in range(200)]
    for number, value in enumerate(values):
        producer.send(topic, value, partition=number % 4)
    eventually(lambda: sorted(first.values + second.values) == sorted(values), "every message arrived once")
    first.leave()
    eventually(lambda: len(second.owned) == 4, "the one who stays takes over")
    second.leave()


def test_consumer_goes_on_across_a_restart_of_the_server(fresh_server: Server, topic: str, group: str) -> None:
    create_topic(fresh_server.kafka, topic)
    producer = KafkaProducer(bootstrap_servers=fresh_server.kafka, reconnect_backoff_max_ms=200)
    member = KafkaPythonMember(fresh_server.kafka, group, topic, "range")
    for number in range(20):
        producer.send(topic, b"%d" % number).get(WAIT_S)
    eventually(lambda: len(member.values) == 20, "the messages before")
    fresh_server.restart()
    for number in range(20, 40):
        producer.send(topic, b"%d" % number).get(WAIT_S)
    eventually(lambda: {b"%d" % number for number in range(40)} == set(member.values), "the messages after")
    member.leave()
    producer.close()
    assert read_values(fresh_server.kafka, topic, 40) == [b"%d" % number for number in range(40)]


def test_an_unknown_topic_has_no_metadata_where_topics_are_not_made_on_first_use(
    start_server: StartServer, topic: str
) -> None:
    strict = start_server(auto_create_topics=False)
    producer = KafkaProducer(bootstrap_servers=strict.kafka, max_block_ms=1500)
    with pytest.raises(KafkaError):
        producer.send(topic, b"into the void").get(WAIT_S)
    producer.close()


# -- administration ----------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(server: Server) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=server.kafka)
    yield admin
    admin.close()


def test_topics_and_their_settings(server: Server, admin: KafkaAdminClient, topic: str) -> None:
    created = admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "100000"})])
    (row,) = created["topics"]
    assert (row["num_partitions"], row["configs"]["retention.ms"]["value"]) == (2, "100000")
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(topic, 2, 1)])
    eventually(lambda: topic in admin.list_topics(), "the topic shows")
    admin.create_partitions({topic: 3})
    eventually(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 3, "three partitions")
    (described,) = admin.describe_topic_partitions([topic])["topics"]
    assert [part["partition_index"] for part in described["partitions"]] == [0, 1, 2]
    assert str(described["topic_id"]) == str(row["topic_id"])

    def settings() -> dict[str, str]:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])["topic"][topic]
        return {name: entry["value"] for name, entry in found.items()}

    assert settings() == {"retention.ms": "100000"}  # what was changed from the defaults
    change = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": "2000000"})
    admin.alter_configs([change], incremental=True)
    eventually(lambda: settings() == {"retention.ms": "100000", "max.message.bytes": "2000000"}, "one setting more")
    change = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"cleanup.policy": "compact,delete"})
    admin.alter_configs([change], incremental=False)
    # The older call replaces all; this client sends the present settings along with the change.
    eventually(lambda: settings().get("cleanup.policy") == "compact,delete", "another setting")
    admin.delete_topics([topic])
    eventually(lambda: topic not in admin.list_topics(), "the topic is gone")
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([topic])


def test_groups_and_their_offsets(
    server: Server, admin: KafkaAdminClient, producer: KafkaProducer, topic: str, group: str
) -> None:
    create_topic(server.kafka, topic)
    for number in range(10):
        producer.send(topic, b"%d" % number).get(WAIT_S)
    pair = TopicPartition(topic, 0)
    consumer = KafkaConsumer(
        topic, bootstrap_servers=server.kafka, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    assert [next(consumer).value for _ in range(10)] == [b"%d" % number for number in range(10)]
    consumer.commit({pair: OffsetAndMetadata(7, "a note", -1)})

    assert group in {one["group_id"] for one in admin.list_groups()}
    described = admin.describe_groups([group])[group]
    assert (described["group_state"], described["protocol_type"]) == ("Stable", "consumer")
    (member,) = described["members"]
    assert member["member_assignment"]["assigned_partitions"] == [{"topic": topic, "partitions": [0]}]
    assert admin.delete_groups([group]) == {group: "NonEmptyGroupError"}
    consumer.close(autocommit=False)

    kept = admin.list_group_offsets({group: None})[group][pair]
    assert (kept.offset, kept.metadata) == (7, "a note")
    admin.alter_group_offsets(group, {pair: OffsetAndMetadata(2, "", -1)})
    assert admin.list_group_offsets({group: None})[group][pair].offset == 2
    admin.delete_group_offsets(group, [pair])
    assert pair not in admin.list_group_offsets({group: None})[group]
    assert admin.delete_groups([group]) == {group: "OK"}
    assert group not in {one["group_id"] for one in admin.list_groups()}


def test_offsets_records_and_the_cluster(
    server: Server, admin: KafkaAdminClient, producer: KafkaProducer, topic: str
) -> None:
    create_topic(server.kafka, topic)
    for number in range(10):
        producer.send(topic, b"%d" % number, timestamp_ms=5_000 + number).get(WAIT_S)
    pair = TopicPartition(topic, 0)
    expected = {OffsetSpec.EARLIEST: 0, OffsetSpec.LATEST: 10, OffsetSpec.MAX_TIMESTAMP: 9}
    for spec, offset in expected.items():
        assert admin.list_partition_offsets({pair: spec})[pair].offset == offset
    assert admin.delete_records({pair: 6})[pair]["low_watermark"] == 6
    assert admin.list_partition_offsets({pair: OffsetSpec.EARLIEST})[pair].offset == 6
    assert read_all(server.kafka, topic, 4) == [b"6", b"7", b"8", b"9"]
    cluster = admin.describe_cluster()
    assert [f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]] == [server.kafka]
