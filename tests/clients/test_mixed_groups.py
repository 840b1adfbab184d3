"""Members of two client libraries in one group: the server only carries what they tell each other.

A strategy works across libraries where their encodings of it agree: Range and RoundRobin everywhere, cooperative-sticky
in librdkafka, kafka-python and Java (aiokafka has none).
"""

import confluent_kafka
import pytest
from members import AiokafkaMember, ConfluentMember, KafkaPythonMember, Member
from story import WAIT_S, create_topic, end_offsets, eventually

from penstock.testing.server import Server

PARTITIONS = 6
MIXES = [
    (ConfluentMember, KafkaPythonMember, "range"),
    (ConfluentMember, KafkaPythonMember, "roundrobin"),
    (ConfluentMember, KafkaPythonMember, "cooperative-sticky"),
    (KafkaPythonMember, AiokafkaMember, "range"),
    (AiokafkaMember, ConfluentMember, "roundrobin"),
]


@pytest.mark.parametrize(("first_kind", "second_kind", "strategy"), MIXES)
def test_two_libraries_share_the_work_and_take_over_from_each_other(
    server: Server, topic: str, group: str, first_kind: type[Member], second_kind: type[Member], strategy: str
) -> None:
    create_topic(server.kafka, topic, partitions=PARTITIONS)
    first = first_kind(server.kafka, group, topic, strategy)
    eventually(lambda: len(first.owned) == PARTITIONS, "the first member owns all")
    second = second_kind(server.kafka, group, topic, strategy)
    share_the_work(server.kafka, topic, first, second)
    first.leave()
    eventually(lambda: len(second.owned) == PARTITIONS, "the second member takes over")
    send(server.kafka, topic, "late", 60)
    eventually(lambda: {b"late-%d" % number for number in range(60)} <= set(second.values), "the late messages")
    second.leave()
    reader = confluent_kafka.Consumer({"bootstrap.servers": server.kafka, "group.id": group})
    pairs = [confluent_kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
    committed = {pair.partition: pair.offset for pair in reader.committed(pairs, WAIT_S)}
    reader.close()
    assert committed == end_offsets(server.kafka, topic)


def share_the_work(address: str, topic: str, first: Member, second: Member) -> None:
    half = PARTITIONS // 2
    eventually(lambda: len(first.owned) == len(second.owned) == half, "both own half")
    assert first.owned | second.owned == set(range(PARTITIONS))
    send(address, topic, "early", 120)
    expected = sorted(b"early-%d" % number for number in range(120))
    eventually(lambda: sorted(first.values + second.values) == expected, "every message arrived once")
    assert len(first.values) == len(second.values) == 60


def send(address: str, topic: str, word: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 1})
    for number in range(count):
        producer.produce(topic, f"{word}-{number}".encode(), partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
