"""kafka-python, the first transaction protocol, and its tools for administrators."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, TransactionalIdNotFoundError
from kafka.structs import OffsetAndMetadata
from story import create_topic, eventually
from transaction_story import UNCOMMITTED, committed_offsets, read_all, read_values

from penstock.testing.server import Server

Make = Callable[..., Any]


@pytest.fixture
def producer_of(server: Server) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(transactional_id: str, **more: Any) -> KafkaProducer:
            producer = KafkaProducer(
                bootstrap_servers=server.kafka, transactional_id=transactional_id, retry_backoff_ms=10, **more
            )
            stack.callback(producer.close, timeout=1)
            producer.init_transactions()
            return producer

        yield make


@pytest.fixture
def admin(server: Server) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=server.kafka)
    yield client
    client.close()


def test_a_commit_shows_at_once_and_an_abort_never(server: Server, topic: str, producer_of: Make) -> None:
    create_topic(server.kafka, topic, partitions=2)
    producer = producer_of(topic)
    for number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for partition in range(2):
            producer.send(topic, b"%d" % number, partition=partition)
        producer.flush()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        assert read_all(server.kafka, topic) == {p: ["0", "2"][: number // 2 + 1] for p in range(2)}
    assert read_all(server.kafka, topic, UNCOMMITTED) == {p: ["0", "1", "2"] for p in range(2)}
    reader = KafkaConsumer(
        topic,
        bootstrap_servers=server.kafka,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=1000,
    )
    try:
        assert sorted(message.value for message in reader) == [b"0", b"0", b"2", b"2"]
    finally:
        reader.close()


def test_a_producer_that_was_replaced_is_fenced(server: Server, topic: str, producer_of: Make) -> None:
    create_topic(server.kafka, topic)
    zombie = producer_of(topic)
    zombie.begin_transaction()
    zombie.send(topic, b"of the zombie")
    zombie.flush()
    successor = producer_of(topic)
    with pytest.raises(KafkaError):
        zombie.send(topic, b"too late")
        zombie.flush()
        zombie.commit_transaction()
    successor.begin_transaction()
    successor.send(topic, b"of the successor")
    successor.commit_transaction()
    assert read_values(server.kafka, topic) == ["of the successor"]


def test_offsets_of_a_transaction_count_when_it_commits(
    server: Server, topic: str, group: str, producer_of: Make
) -> None:
    source, sink = f"{topic}-in", f"{topic}-out"
    create_topic(server.kafka, source)
    create_topic(server.kafka, sink)
    feed = KafkaProducer(bootstrap_servers=server.kafka)
    for number in range(20):
        feed.send(source, b"%d" % number)
    feed.close()
    producer = producer_of(topic)
    consumer = KafkaConsumer(
        source,
        bootstrap_servers=server.kafka,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_poll_records=5,
    )
    place, done = TopicPartition(source, 0), 0
    try:
        for turn in range(4):
            messages = eventually(lambda: consumer.poll(timeout_ms=100).get(place), "more to read")
            producer.begin_transaction()
            for message in messages:
                producer.send(sink, message.value)
            end = messages[-1].offset + 1
            offsets = {place: OffsetAndMetadata(end, "", -1)}
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            if turn % 2:
                producer.commit_transaction()
                done = end
            else:
                producer.abort_transaction()
                consumer.seek(place, done)
            assert committed_offsets(server.kafka, group, source) == [done or -1001]
            assert read_values(server.kafka, sink) == [str(number) for number in range(done)]
    finally:
        consumer.close()
    assert done >= 10


def test_a_transaction_that_takes_too_long_is_aborted(server: Server, topic: str, producer_of: Make) -> None:
    create_topic(server.kafka, topic)
    producer = producer_of(topic, transaction_timeout_ms=1000)
    producer.begin_transaction()
    producer.send(topic, b"late")
    producer.flush()
    feed = KafkaProducer(bootstrap_servers=server.kafka)
    feed.send(topic, b"behind")
    feed.close()
    eventually(lambda: read_values(server.kafka, topic) == ["behind"], "the transaction is given up")
    with pytest.raises(KafkaError):
        producer.commit_transaction()


def test_administrators_see_transactions_and_producers(
    server: Server, topic: str, producer_of: Make, admin: KafkaAdminClient
) -> None:
    create_topic(server.kafka, topic, partitions=2)
    producer = producer_of(topic, transaction_timeout_ms=50_000)

    def listed(**filters: Any) -> list[str]:
        everywhere = admin.list_transactions(**filters).values()
        return [found.state.value for listed in everywhere for found in listed if found.transactional_id == topic]

    assert listed() == ["Empty"]
    producer.begin_transaction()
    producer.send(topic, b"x", partition=1)
    producer.flush()
    assert listed() == ["Ongoing"]
    assert listed(state_filters=["Ongoing"]) == ["Ongoing"]
    assert listed(state_filters=["CompleteCommit"]) == []
    described = admin.describe_transactions([topic])[topic]
    assert (described.state.value, described.transaction_timeout_ms) == ("Ongoing", 50_000)
    assert described.transaction_start_time_ms > 0
    assert set(described.topic_partitions) == {TopicPartition(topic, 1)}
    place = TopicPartition(topic, 1)
    (active,) = admin.describe_producers([place])[place].active_producers
    assert (active.producer_id, active.producer_epoch) == (described.producer_id, described.producer_epoch)
    assert (active.current_transaction_start_offset, active.last_sequence) == (0, 0)
    producer.commit_transaction()
    eventually(lambda: listed() == ["CompleteCommit"], "the transaction is over")
    (active,) = admin.describe_producers([place])[place].active_producers
    assert active.current_transaction_start_offset == -1
    with pytest.raises(TransactionalIdNotFoundError):
        admin.describe_transactions([topic + "-unknown"])
