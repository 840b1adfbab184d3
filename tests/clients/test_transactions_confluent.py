"""confluent-kafka (librdkafka), the first transaction protocol."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from story import WAIT_S, create_topic, eventually
from transaction_story import COMMITTED, UNCOMMITTED, committed_offsets, read_all, read_values

from penstock.testing.server import Server

NO_OFFSET = -1001

MakeProducer = Callable[..., Producer]


@pytest.fixture
def producer_of(server: Server) -> MakeProducer:
    def make(transactional_id: str, **more: object) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": server.kafka,
                "transactional.id": transactional_id,
                "linger.ms": 0,
                "retry.backoff.ms": 10,
                "log_level": 0,
                **{name.replace("_", "."): value for name, value in more.items()},
            }
        )
        producer.init_transactions(WAIT_S)
        return producer

    return make


@pytest.fixture
def consumer_of(server: Server) -> Iterator[Callable[..., Consumer]]:
    with ExitStack() as stack:

        def make(group: str, topic: str, **more: object) -> Consumer:
            consumer = Consumer(
                {
                    "bootstrap.servers": server.kafka,
                    "group.id": group,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                    "fetch.wait.max.ms": 20,
                    **{name.replace("_", "."): value for name, value in more.items()},
                }
            )
            stack.callback(consumer.close)  # more than once does no harm
            consumer.subscribe([topic])
            return consumer

        yield make


def test_a_commit_shows_at_once_and_an_abort_never(server: Server, topic: str, producer_of: MakeProducer) -> None:
    create_topic(server.kafka, topic, partitions=3)
    producer = producer_of(topic)
    for number, commit in enumerate((True, False, True, False)):
        producer.begin_transaction()
        for partition in range(3):
            producer.produce(topic, f"{number}", partition=partition)
        if commit:
            producer.commit_transaction(WAIT_S)
        else:
            assert producer.flush(WAIT_S) == 0  # so that there is something to abort
            producer.abort_transaction(WAIT_S)
        expected = ["0", "2"][: number // 2 + 1]
        assert read_all(server.kafka, topic) == dict.fromkeys(range(3), expected)
    assert read_all(server.kafka, topic, UNCOMMITTED) == {number: ["0", "1", "2", "3"] for number in range(3)}


def test_readers_of_what_is_committed_wait_for_the_oldest_open_transaction(
    server: Server, topic: str, producer_of: MakeProducer
) -> None:
    create_topic(server.kafka, topic)
    slow, quick = producer_of(topic + "-slow"), producer_of(topic + "-quick")
    slow.begin_transaction()
    slow.produce(topic, "slow")
    assert slow.flush(WAIT_S) == 0
    quick.begin_transaction()
    quick.produce(topic, "quick")
    quick.commit_transaction(WAIT_S)
    assert read_values(server.kafka, topic, UNCOMMITTED) == ["slow", "quick"]
    assert read_values(server.kafka, topic, COMMITTED) == []
    slow.abort_transaction(WAIT_S)
    assert read_values(server.kafka, topic, COMMITTED) == ["quick"]


def test_a_waiting_consumer_is_woken_by_the_commit(
    server: Server, topic: str, group: str, producer_of: MakeProducer, consumer_of: Callable[..., Consumer]
) -> None:
    create_topic(server.kafka, topic)
    consumer = consumer_of(group, topic, fetch_wait_max_ms=60_000, socket_timeout_ms=90_000)
    eventually(lambda: consumer.poll(0.05) or consumer.assignment(), "the consumer owns its partition")
    producer = producer_of(topic)
    producer.begin_transaction()
    producer.produce(topic, "x")
    producer.commit_transaction(WAIT_S)
    message = eventually(lambda: consumer.poll(0.1), "the committed message arrives")
    assert message.value() == b"x"


def test_a_producer_that_was_replaced_is_fenced_and_what_it_wrote_is_gone(
    server: Server, topic: str, producer_of: MakeProducer
) -> None:
    create_topic(server.kafka, topic)
    zombie = producer_of(topic)
    zombie.begin_transaction()
    zombie.produce(topic, "of the zombie")
    assert zombie.flush(WAIT_S) == 0
    successor = producer_of(topic)
    assert read_values(server.kafka, topic) == [], "the zombie's transaction was aborted by its successor"
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(WAIT_S)
    error = caught.value.args[0]
    assert error.fatal() and error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    successor.begin_transaction()
    successor.produce(topic, "of the successor")
    successor.commit_transaction(WAIT_S)
    assert read_values(server.kafka, topic) == ["of the successor"]


def test_a_zombie_cannot_write_into_the_transaction_of_its_successor(
    server: Server, topic: str, producer_of: MakeProducer
) -> None:
    create_topic(server.kafka, topic)
    zombie = producer_of(topic)
    zombie.begin_transaction()
    successor = producer_of(topic)
    successor.begin_transaction()
    successor.produce(topic, "good")
    assert successor.flush(WAIT_S) == 0
    with pytest.raises(KafkaException):
        zombie.produce(topic, "bad")
        zombie.flush(WAIT_S)
        zombie.commit_transaction(WAIT_S)
    successor.commit_transaction(WAIT_S)
    assert read_values(server.kafka, topic, UNCOMMITTED) == ["good"]


def test_a_transaction_that_takes_too_long_is_aborted(server: Server, topic: str, producer_of: MakeProducer) -> None:
    create_topic(server.kafka, topic)
    # The client has a time-out of its own, as long as the transaction's, which must not be what is tested here.
    producer = producer_of(topic, transaction_timeout_ms=1000, message_timeout_ms=900)
    other = producer_of(topic + "-other")
    producer.begin_transaction()
    producer.produce(topic, "late")
    assert producer.flush(WAIT_S) == 0
    other.begin_transaction()
    other.produce(topic, "behind")
    other.commit_transaction(WAIT_S)
    eventually(lambda: read_values(server.kafka, topic) == ["behind"], "the transaction is given up")
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT_S)
    again = producer_of(topic)
    again.begin_transaction()
    again.produce(topic, "in time")
    again.commit_transaction(WAIT_S)
    assert read_values(server.kafka, topic) == ["behind", "in time"]


def test_a_transaction_may_not_take_longer_than_the_server_allows(server: Server, topic: str) -> None:
    settings = {"bootstrap.servers": server.kafka, "transactional.id": topic, "log_level": 0}
    producer = Producer({**settings, "transaction.timeout.ms": 900_001})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(WAIT_S)
    assert caught.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_over_many_partitions_counts_as_a_whole(
    server: Server, topic: str, producer_of: MakeProducer, commit: bool
) -> None:
    names = [f"{topic}-{letter}" for letter in "ab"]
    for name in names:
        create_topic(server.kafka, name, partitions=40)
    producer = producer_of(topic)
    producer.begin_transaction()
    for number in range(200):
        for name in names:
            producer.produce(name, str(number), partition=number % 40)
    assert producer.flush(WAIT_S) == 0
    if commit:
        producer.commit_transaction(WAIT_S)
    else:
        producer.abort_transaction(WAIT_S)
    expected = {p: [str(n) for n in range(p, 200, 40)] for p in range(40)} if commit else {}
    for name in names:
        assert read_all(server.kafka, name) == expected


def test_offsets_of_a_transaction_count_when_it_commits(
    server: Server, topic: str, group: str, producer_of: MakeProducer, consumer_of: Callable[..., Consumer]
) -> None:
    source, sink = f"{topic}-in", f"{topic}-out"
    create_topic(server.kafka, source)
    create_topic(server.kafka, sink)
    feed = Producer({"bootstrap.servers": server.kafka})
    for number in range(30):
        feed.produce(source, str(number))
    assert feed.flush(WAIT_S) == 0

    producer = producer_of(topic)
    consumer = consumer_of(group, source)
    done = 0
    for turn in range(6):  # every other one is given up, and what it took is taken again
        messages = [eventually(lambda: consumer.poll(0.1), "more to read") for _ in range(10)]
        producer.begin_transaction()
        for message in messages:
            assert message.error() is None, message.error()
            producer.produce(sink, message.value())
        position = [TopicPartition(source, 0, messages[-1].offset() + 1)]
        producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), WAIT_S)
        if turn % 2:
            producer.commit_transaction(WAIT_S)
            done += 10
        else:
            producer.abort_transaction(WAIT_S)
            consumer.seek(TopicPartition(source, 0, done))
        assert committed_offsets(server.kafka, group, source) == [done or NO_OFFSET]
        assert read_values(server.kafka, sink) == [str(number) for number in range(done)]


def test_whoever_starts_reading_waits_for_the_offsets_of_an_open_transaction(
    server: Server, topic: str, group: str, producer_of: MakeProducer, consumer_of: Callable[..., Consumer]
) -> None:
    create_topic(server.kafka, topic)
    feed = Producer({"bootstrap.servers": server.kafka})
    for number in range(10):
        feed.produce(topic, str(number))
    assert feed.flush(WAIT_S) == 0
    first = consumer_of(group, topic)
    eventually(lambda: first.poll(0.1), "the first consumer reads")
    producer = producer_of(topic)
    producer.begin_transaction()
    metadata = first.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], metadata, WAIT_S)
    first.close()
    second = consumer_of(group, topic)
    eventually(lambda: second.poll(0.05) or second.assignment(), "the second consumer owns the partition")
    assert second.poll(0.5) is None, "which offset counts is not decided yet"
    producer.commit_transaction(WAIT_S)
    message = eventually(lambda: second.poll(0.1), "the second consumer goes on")
    assert (message.offset(), message.value()) == (7, b"7")


def test_a_member_that_was_left_behind_cannot_hand_in_offsets(
    server: Server, topic: str, group: str, producer_of: MakeProducer, consumer_of: Callable[..., Consumer]
) -> None:
    create_topic(server.kafka, topic)
    first = consumer_of(group, topic)
    eventually(lambda: first.poll(0.05) or first.assignment(), "the first consumer owns the partition")
    stale = first.consumer_group_metadata()
    first.close()
    second = consumer_of(group, topic)
    eventually(lambda: second.poll(0.05) or second.assignment(), "the second consumer owns the partition")
    producer = producer_of(topic)
    producer.begin_transaction()
    with pytest.raises(KafkaException) as caught:
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 5)], stale, WAIT_S)
    assert caught.value.args[0].txn_requires_abort()
    producer.abort_transaction(WAIT_S)
    assert committed_offsets(server.kafka, group, topic) == [NO_OFFSET]
