"""What the client tests share: bounded waiting, and reading a topic back as one list per partition.

The readers here are deliberately simple, so that a test of one library can check what another one wrote.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S = 20.0


def eventually(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """The first true value of `condition`, asked again and again for a bounded time."""
    deadline = time.monotonic() + timeout_s
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def create_topic(address: str, name: str, partitions: int = 1, **config: str) -> None:
    """Settings are given with underscores for dots: `max_message_bytes="1000"`."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
    admin.create_topics([new])[name].result(WAIT_S)
    eventually(lambda: name in admin.list_topics(timeout=WAIT_S).topics, "the new topic shows in the metadata")


def read_topic(
    address: str, topic: str, count: int, timeout_s: float = WAIT_S, **config: object
) -> dict[int, list[confluent_kafka.Message]]:
    """Everything in a topic per partition, from the beginning to its present end; `count` messages are expected."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader-of-its-own",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
    )
    found: dict[int, list[confluent_kafka.Message]] = defaultdict(list)
    try:
        partitions = sorted(consumer.list_topics(topic, WAIT_S).topics[topic].partitions)
        left: dict[int, int] = {}
        start = []
        for number in partitions:
            first, end = consumer.get_watermark_offsets(
                confluent_kafka.TopicPartition(topic, number), timeout=WAIT_S, cached=False
            )
            start.append(confluent_kafka.TopicPartition(topic, number, first))
            if first < end:
                left[number] = end
        consumer.assign(start)
        deadline = time.monotonic() + timeout_s
        while left:
            assert time.monotonic() < deadline, (
                f"{sum(map(len, found.values()))} messages read of {count}, then nothing"
            )
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None, message.error()
                found[message.partition()].append(message)
                if message.offset() + 1 >= left.get(message.partition(), 0):
                    left.pop(message.partition(), None)
    finally:
        consumer.close()
    assert sum(map(len, found.values())) == count
    return dict(found)


def read_values(address: str, topic: str, count: int, partition: int = 0) -> list[bytes | None]:
    return [message.value() for message in read_topic(address, topic, count).get(partition, [])]


def end_offsets(address: str, topic: str) -> dict[int, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "reader-of-its-own"})
    try:
        numbers = consumer.list_topics(topic, WAIT_S).topics[topic].partitions
        pairs = [confluent_kafka.TopicPartition(topic, number) for number in numbers]
        return {pair.partition: consumer.get_watermark_offsets(pair, timeout=WAIT_S, cached=False)[1] for pair in pairs}
    finally:
        consumer.close()
