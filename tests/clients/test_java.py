"""The Java client, 3.9 (what Spark's connector carries) and the newest: the reference that all others copy.

`java/KafkaStory.java` does what its arguments say and tells what happened in lines of JSON.
"""

from collections import defaultdict
from typing import Any

import pytest
from java_program import VERSIONS, command, tell
from members import ConfluentMember, JavaMember, Member
from story import create_topic, eventually, read_topic
from test_mixed_groups import PARTITIONS, share_the_work

from penstock.testing.proxy import PRODUCE, Proxy
from penstock.testing.server import Server
from servers import StartServer

FIRST_TIME_MS = 1_600_000_000_000


@pytest.fixture(params=VERSIONS)
def java(request: pytest.FixtureRequest) -> list[str]:
    """The command that runs the program with one version of the client."""
    return command(request.param, "KafkaStory")


def test_default_producer_and_consumer_keep_everything(server: Server, topic: str, java: list[str]) -> None:
    create_topic(server.kafka, topic, partitions=2)
    assert tell(java, "produce", server.kafka, topic, "40", "2") == [{"sent": {"0": 20, "1": 20}}]
    *records, end = tell(java, "consume", server.kafka, topic, "40")
    assert end == {"end": 40}
    for record in sorted(records, key=lambda record: (record["partition"], record["offset"])):
        number = record["offset"] * 2 + record["partition"]
        assert record == {
            "partition": number % 2,
            "offset": number // 2,
            "timestamp": FIRST_TIME_MS + number,
            "timestamp_type": "CreateTime",
            "key": f"key-{number}",
            "value": None if number % 10 == 9 else str(number),
            "headers": [["n", str(number)], ["null", "<null>"]],
        }
    assert len(records) == 40
    first = read_topic(server.kafka, topic, 40)[0][0]
    assert (first.key(), first.value(), first.headers()) == (b"key-0", b"0", [("n", b"0"), ("null", None)])


def test_every_compression_comes_back_as_it_went(server: Server, topic: str, java: list[str]) -> None:
    create_topic(server.kafka, topic, partitions=5)
    tell(java, "squeeze", server.kafka, topic, "100")
    *records, _ = tell(java, "consume", server.kafka, topic, "500")
    by_partition: dict[int, list[str]] = defaultdict(list)
    for record in records:
        by_partition[record["partition"]].append(record["value"])
    expected = [f"{number} " * 20 for number in range(100)]
    assert by_partition == dict.fromkeys(range(5), expected)
    for messages in read_topic(server.kafka, topic, 500).values():  # and librdkafka understands it too
        assert [(message.value() or b"").decode() for message in messages] == expected


@pytest.mark.parametrize("lost", ["requests", "replies"])
def test_default_producer_with_forced_retries_stores_all_once_in_order(
    start_server: StartServer, topic: str, java: list[str], lost: str
) -> None:
    with Proxy() as proxy:
        server = start_server(kafka_advertised=proxy.address)
        proxy.upstream = server.kafka
        create_topic(proxy.address, topic, partitions=2)
        rule = getattr(proxy, f"lose_{lost}")(PRODUCE, every=6, limit=8)
        small = ("batch.size=200", "linger.ms=0")
        assert tell(java, "produce", proxy.address, topic, "600", "2", *small) == [{"sent": {"0": 300, "1": 300}}]
        proxy.behave()
        assert rule.lost >= 3, "the test lost too little to prove anything"
        found = read_topic(proxy.address, topic, 600)
    for partition, messages in found.items():
        assert [message.key() for message in messages] == [b"key-%d" % number for number in range(partition, 600, 2)]


def test_a_message_over_the_topics_limit_is_refused(server: Server, topic: str, java: list[str]) -> None:
    create_topic(server.kafka, topic, max_message_bytes="40")
    assert tell(java, "produce", server.kafka, topic, "1", "1") == [{"sent": {"RecordTooLargeException": 1}}]


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_java_and_librdkafka_share_a_group(
    server: Server, topic: str, group: str, java: list[str], strategy: str
) -> None:
    create_topic(server.kafka, topic, partitions=PARTITIONS)
    first: Member = ConfluentMember(server.kafka, group, topic, strategy)
    eventually(lambda: len(first.owned) == PARTITIONS, "the first member owns all")
    second = JavaMember(server.kafka, group, topic, strategy, java=java)
    share_the_work(server.kafka, topic, first, second)
    first.leave()
    eventually(lambda: len(second.owned) == PARTITIONS, "Java takes over")
    second.leave()


def test_administration(server: Server, topic: str, group: str, java: list[str]) -> None:
    told: dict[str, Any] = {}
    for line in tell(java, "admin", server.kafka, topic, group):
        told |= line
    assert told.pop("cluster")
    assert told == {
        "created": 2,
        "created again": "TopicExistsException",
        "listed": True,
        "partitions": 3,
        "id agrees": True,
        "nodes": [server.kafka],
        "retention": "1000000",
        "limit": "2000000",
        "retention after": "604800000",
        "policy": "delete,compact",
        "bad setting": "InvalidConfigurationException",
        "sent": {"0": 10},
        "earliest": 0,
        "latest": 10,
        "by time": 4,
        "by max time": 9,
        "beyond": -1,
        "low watermark": 3,
        "earliest after": 3,
        "members": 1,
        "assignor": "range",
        "busy": "GroupNotEmptyException",
        "group listed": True,
        "committed": "8 a note",
        "altered": 5,
        "offsets left": 0,
        "group gone": "GroupIdNotFoundException",
        "topic gone": "UnknownTopicOrPartitionException",
    }
