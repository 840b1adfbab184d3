"""What the tests of transactional clients share: reading under an isolation level, and what a group has committed."""

import time
from collections import defaultdict

import confluent_kafka
from confluent_kafka import KafkaError
from story import WAIT_S

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


def read_messages(address: str, topic: str, isolation: str = COMMITTED) -> dict[int, list[confluent_kafka.Message]]:
    """Every partition, from the beginning to where a reader of this isolation gets to at present."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader-of-its-own",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    found: dict[int, list[confluent_kafka.Message]] = defaultdict(list)
    try:
        left = set(consumer.list_topics(topic, WAIT_S).topics[topic].partitions)
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in left])
        deadline = time.monotonic() + WAIT_S
        while left:
            assert time.monotonic() < deadline, f"partitions {left} have no end within {WAIT_S} s"
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    found[message.partition()].append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(message.partition())
    finally:
        consumer.close()
    return dict(found)


def read_all(address: str, topic: str, isolation: str = COMMITTED) -> dict[int, list[str]]:
    """The values of every partition."""
    found = read_messages(address, topic, isolation)
    return {number: [(message.value() or b"").decode() for message in all_] for number, all_ in found.items()}


def read_values(address: str, topic: str, isolation: str = COMMITTED) -> list[str]:
    """All of them in order; of topics with several partitions, partition by partition."""
    found = read_all(address, topic, isolation)
    return [value for number in sorted(found) for value in found[number]]


def committed_offsets(address: str, group: str, topic: str, partitions: int = 1) -> list[int]:
    """The group's offsets, once they are stable; -1001 where there is none."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": group})
    try:
        asked = [confluent_kafka.TopicPartition(topic, number) for number in range(partitions)]
        return [found.offset for found in consumer.committed(asked, WAIT_S)]
    finally:
        consumer.close()
