"""librdkafka, through confluent-kafka: the client whose habits most others share."""

import time

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    Producer,
    TopicPartition,
)
from story import WAIT_S, create_topic, end_offsets, eventually, read_topic, read_values

from penstock.testing.proxy import FETCH, PRODUCE, Proxy
from penstock.testing.server import Server
from servers import StartServer


def producer_for(address: str, **config: object) -> Producer:
    options = {key.replace("_", "."): value for key, value in config.items()}
    return Producer({"bootstrap.servers": address, "linger.ms": 1, "log_level": 2, **options})


def consumer_for(address: str, group: str, **config: object) -> Consumer:
    options = {key.replace("_", "."): value for key, value in config.items()}
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
            "fetch.wait.max.ms": 100,
            "log_level": 2,
            **options,
        }
    )


def publish(address: str, topic: str, values: list[bytes], **config: object) -> None:
    producer = producer_for(address, **config)
    for value in values:
        producer.produce(topic, value, on_delivery=must_succeed)
    assert producer.flush(WAIT_S) == 0


def must_succeed(error: KafkaError | None, message: object) -> None:
    assert error is None, error


def take(consumer: Consumer, count: int, timeout_s: float = WAIT_S) -> list[bytes | None]:
    values: list[bytes | None] = []
    deadline = time.monotonic() + timeout_s
    while len(values) < count:
        assert time.monotonic() < deadline, f"only {len(values)} of {count} messages came"
        for message in consumer.consume(count - len(values), 0.1):
            assert message.error() is None, message.error()
            values.append(message.value())
    return values


# -- producing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_comes_back_as_it_went(server: Server, topic: str, compression: str) -> None:
    values = [b"%d " % number * 50 for number in range(500)]
    publish(server.kafka, topic, values, compression_type=compression, enable_idempotence=True)
    assert read_values(server.kafka, topic, 500) == values


def test_keys_nulls_headers_and_timestamps_are_kept(server: Server, topic: str) -> None:
    producer = producer_for(server.kafka)
    headers = [("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b""), ("null", None)]
    producer.produce(topic, b"value", b"key", headers=headers, timestamp=1_600_000_000_123)
    producer.produce(topic, None, b"tombstone", timestamp=1_600_000_000_124)
    producer.produce(topic, b"", b"", timestamp=1_600_000_000_125)
    producer.produce(topic, b"keyless", timestamp=1_600_000_000_126)
    assert producer.flush(WAIT_S) == 0

    first, tombstone, empty, keyless = read_topic(server.kafka, topic, 4)[0]
    assert (first.key(), first.value(), first.headers()) == (b"key", b"value", headers)
    assert (tombstone.key(), tombstone.value(), tombstone.headers()) == (b"tombstone", None, None)
    assert (empty.key(), empty.value()) == (b"", b"")
    assert (keyless.key(), keyless.value()) == (None, b"keyless")
    stamps = [message.timestamp() for message in (first, tombstone, empty, keyless)]
    assert stamps == [(1, 1_600_000_000_123 + step) for step in range(4)]  # 1: the producer's time
    assert [message.offset() for message in (first, tombstone, empty, keyless)] == [0, 1, 2, 3]


def test_log_append_time_is_the_servers(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic, message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    producer = producer_for(server.kafka)
    producer.produce(topic, b"when?", timestamp=1_000)
    assert producer.flush(WAIT_S) == 0
    (message,) = read_topic(server.kafka, topic, 1)[0]
    kind, stamp_ms = message.timestamp()
    assert kind == 2
    assert before_ms - 1000 <= stamp_ms <= time.time() * 1000 + 1000


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(server: Server, topic: str, acks: str) -> None:
    create_topic(server.kafka, topic)
    publish(server.kafka, topic, [b"%d" % number for number in range(100)], acks=acks)
    eventually(lambda: end_offsets(server.kafka, topic) == {0: 100}, "all messages stored")
    assert read_values(server.kafka, topic, 100) == [b"%d" % number for number in range(100)]


def test_messages_of_more_than_a_megabyte(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic, max_message_bytes=str(8 << 20))
    values = [bytes([number]) * (1 << 20) * (number + 1) for number in range(4)]
    publish(server.kafka, topic, values, message_max_bytes=8 << 20)
    assert read_values(server.kafka, topic, 4) == values


def test_a_message_over_the_topics_limit_is_refused_and_the_next_one_is_not(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic, max_message_bytes="1000")
    errors: list[KafkaError | None] = []
    producer = producer_for(server.kafka)
    for value in (b"x" * 5000, b"fits"):
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(WAIT_S) == 0
    assert errors[0] is not None
    assert errors[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert errors[1] is None
    assert read_values(server.kafka, topic, 1) == [b"fits"]


def test_a_hundred_and_twenty_partitions(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic, partitions=120)
    producer = producer_for(server.kafka)
    for number in range(1200):
        producer.produce(topic, b"%d" % number, partition=number % 120, on_delivery=must_succeed)
    assert producer.flush(WAIT_S) == 0
    found = read_topic(server.kafka, topic, 1200)
    assert len(found) == 120
    for partition, messages in found.items():
        assert [int(message.value() or b"") for message in messages] == list(range(partition, 1200, 120))


def test_an_unknown_topic_is_an_error_where_topics_are_not_made_on_first_use(
    start_server: StartServer, topic: str
) -> None:
    strict = start_server(auto_create_topics=False)
    producer = producer_for(strict.kafka, topic_metadata_propagation_max_ms=200, message_timeout_ms=3000)
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"into the void", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert errors[0] is not None
    assert errors[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._MSG_TIMED_OUT)
    assert topic not in producer.list_topics(timeout=WAIT_S).topics


# -- idempotence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["requests", "replies"])
def test_idempotent_producer_with_forced_retries_stores_all_once_in_order(
    start_server: StartServer, topic: str, lost: str
) -> None:
    with Proxy() as proxy:
        server = start_server(kafka_advertised=proxy.address)
        proxy.upstream = server.kafka
        create_topic(proxy.address, topic, partitions=3)
        rule = getattr(proxy, f"lose_{lost}")(PRODUCE, every=7)
        producer = producer_for(
            proxy.address,
            enable_idempotence=True,
            batch_num_messages=20,
            linger_ms=0,
            reconnect_backoff_ms=1,
            reconnect_backoff_max_ms=20,
            retry_backoff_ms=5,
        )
        acknowledged: list[tuple[int, int]] = []

        def note(error: KafkaError | None, message: object) -> None:
            assert error is None, error
            acknowledged.append((message.partition(), message.offset()))  # type: ignore[attr-defined]

        for number in range(1500):
            producer.produce(topic, b"%d" % number, partition=number % 3, on_delivery=note)
            if number % 10 == 0:
                producer.poll(0.001)  # so that the load comes as many requests, not one
        assert producer.flush(60) == 0
        proxy.behave()
        assert rule.lost >= 3, "the test lost too little to prove anything"
        assert len(set(acknowledged)) == 1500
        found = read_topic(proxy.address, topic, 1500)
    for partition, messages in found.items():
        assert [int(message.value() or b"") for message in messages] == list(range(partition, 1500, 3))


def test_consumer_survives_lost_fetches(start_server: StartServer, topic: str, group: str) -> None:
    with Proxy() as proxy:
        server = start_server(kafka_advertised=proxy.address)
        proxy.upstream = server.kafka
        for start in range(0, 2000, 100):  # in many batches, so that there are many fetches
            publish(proxy.address, topic, [b"%d" % number for number in range(start, start + 100)])
        rule = proxy.lose_replies(FETCH, every=2, limit=5)
        consumer = consumer_for(
            proxy.address, group, fetch_message_max_bytes=2000, reconnect_backoff_ms=1, reconnect_backoff_max_ms=20
        )
        consumer.subscribe([topic])
        assert take(consumer, 2000) == [b"%d" % number for number in range(2000)]
        consumer.close()
        assert rule.lost >= 1


# -- consuming ---------------------------------------------------------------------------------------------------------


def test_a_parked_fetch_is_woken_by_new_data(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic)
    consumer = consumer_for(server.kafka, group, fetch_wait_max_ms=8000, fetch_min_bytes=1)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.5) is None  # by now the fetch is parked
    started = time.monotonic()
    publish(server.kafka, topic, [b"wake up"])
    assert take(consumer, 1) == [b"wake up"]
    assert time.monotonic() - started < 4
    consumer.close()


def test_a_parked_fetch_waits_for_min_bytes(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic)
    consumer = consumer_for(server.kafka, group, fetch_wait_max_ms=1500, fetch_min_bytes=100_000)
    publish(server.kafka, topic, [b"thin"])
    started = time.monotonic()
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert take(consumer, 1) == [b"thin"]
    assert time.monotonic() - started > 1.2
    consumer.close()


def test_a_new_group_may_start_at_the_beginning(server: Server, topic: str, group: str) -> None:
    publish(server.kafka, topic, [b"old"])
    consumer = consumer_for(server.kafka, group, auto_offset_reset="earliest")
    consumer.subscribe([topic])
    assert take(consumer, 1) == [b"old"]
    consumer.close()


def test_a_new_group_may_start_at_the_end(server: Server, topic: str, group: str) -> None:
    publish(server.kafka, topic, [b"old"])
    consumer = consumer_for(server.kafka, group, auto_offset_reset="latest")
    consumer.subscribe([topic])

    def first_read() -> bytes | None:
        publish(server.kafka, topic, [b"new"])  # again and again: where the end is when the group looks, is its affair
        message = consumer.poll(0.2)
        return message and message.value()

    assert eventually(first_read, "a message after the start") == b"new"
    consumer.close()


def test_a_new_group_may_refuse_to_guess(server: Server, topic: str, group: str) -> None:
    publish(server.kafka, topic, [b"old"])
    consumer = consumer_for(server.kafka, group, auto_offset_reset="error")
    consumer.subscribe([topic])
    message = eventually(lambda: consumer.poll(0.1), "an error event")
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    consumer.close()


def test_seeking_by_timestamp(server: Server, topic: str, group: str) -> None:
    producer = producer_for(server.kafka)
    for number in range(10):
        producer.produce(topic, b"%d" % number, timestamp=1_000_000 + number * 1000)
        assert producer.flush(WAIT_S) == 0
    consumer = consumer_for(server.kafka, group)
    asked = [TopicPartition(topic, 0, stamp) for stamp in (0, 1_004_500)]
    assert [consumer.offsets_for_times([one], WAIT_S)[0].offset for one in asked] == [0, 5]
    (beyond,) = consumer.offsets_for_times([TopicPartition(topic, 0, 9_000_000)], WAIT_S)
    assert beyond.offset == -1  # librdkafka's OFFSET_END: no such message yet
    consumer.assign([TopicPartition(topic, 0, 5)])
    assert take(consumer, 5) == [b"5", b"6", b"7", b"8", b"9"]
    consumer.close()


def test_an_offset_out_of_range_is_reset(server: Server, topic: str, group: str) -> None:
    publish(server.kafka, topic, [b"only"])
    consumer = consumer_for(server.kafka, group)
    consumer.assign([TopicPartition(topic, 0, 500)])
    assert take(consumer, 1) == [b"only"]
    consumer.close()


def test_committed_offsets_and_metadata_are_kept(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic, partitions=2)
    consumer = consumer_for(server.kafka, group, enable_auto_commit=False)
    consumer.commit(offsets=[TopicPartition(topic, 0, 3, "a note"), TopicPartition(topic, 1, 9)], asynchronous=False)
    again = consumer_for(server.kafka, group)
    first, second = again.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], WAIT_S)
    assert (first.offset, first.metadata, second.offset) == (3, "a note", 9)
    consumer.close()
    again.close()
