"""The Java client: 3.9 speaks the first transaction protocol, 4.1 the second (KIP-890).

`java/TransactionStory.java` does what its arguments say and tells what happened in lines of JSON.
"""

import struct
from collections import defaultdict
from typing import Any

import pytest
from confluent_kafka import Producer
from java_program import VERSIONS, command, tell
from story import WAIT_S, create_topic
from transaction_story import UNCOMMITTED, committed_offsets, read_all, read_values

from penstock.testing.proxy import Proxy
from penstock.testing.server import Server
from penstock.wire.kafka.api import ApiKey
from servers import StartServer, only_penstock

# How the client tells that somebody or something has ended the transaction; which it is depends on what it asked last.
REFUSED = (
    "ProducerFencedException",
    "InvalidProducerEpochException",
    "InvalidTxnStateException",
    "KafkaException",
)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def java(version: str) -> list[str]:
    """The command that runs the program with one version of the client."""
    return command(version, "TransactionStory")


def told(java: list[str], *arguments: str) -> dict[str, Any]:
    return {name: value for line in tell(java, *arguments) for name, value in line.items()}


def test_a_commit_shows_and_an_abort_never_does(server: Server, topic: str, java: list[str]) -> None:
    create_topic(server.kafka, topic, partitions=2)
    assert told(java, "plan", server.kafka, topic, "2", topic, "cacca") == {"transactions": 5}
    assert read_all(server.kafka, topic) == {partition: ["0", "2", "3"] for partition in range(2)}
    everything = {partition: ["0", "1", "2", "3", "4"] for partition in range(2)}
    assert read_all(server.kafka, topic, UNCOMMITTED) == everything


@only_penstock  # Kafka's broker would be heard talking to itself
def test_the_protocol_that_is_spoken(
    start_server: StartServer, topic: str, group: str, java: list[str], version: str
) -> None:
    with Proxy(record=True) as proxy:
        server = start_server(kafka_advertised=proxy.address)
        proxy.upstream = server.kafka
        source, sink = f"{topic}-in", f"{topic}-out"
        create_topic(server.kafka, source)
        create_topic(server.kafka, sink)
        feed(server.kafka, source, 20)
        earlier = len(proxy.recordings)
        assert told(java, "move", proxy.address, source, sink, group, topic, "20") == {"moved": 20}
        spoken = versions_spoken(proxy.recordings[earlier:])
        assert read_values(proxy.address, sink) == [str(number) for number in range(20)]
    if version.startswith("3."):
        assert spoken[ApiKey.END_TXN] <= {3, 4}
        assert spoken[ApiKey.ADD_PARTITIONS_TO_TXN] == {3}
        assert spoken[ApiKey.ADD_OFFSETS_TO_TXN] <= {3, 4}
        assert max(spoken[ApiKey.PRODUCE]) < 12
    else:
        assert spoken[ApiKey.END_TXN] == {5}
        assert min(spoken[ApiKey.PRODUCE]) >= 12
        assert spoken[ApiKey.TXN_OFFSET_COMMIT] == {5}
        assert ApiKey.ADD_PARTITIONS_TO_TXN not in spoken
        assert ApiKey.ADD_OFFSETS_TO_TXN not in spoken


def versions_spoken(connections: list[list[bytes]]) -> dict[int, set[int]]:
    spoken: dict[int, set[int]] = defaultdict(set)
    for frames in connections:
        for frame in frames:
            api_key, api_version = struct.unpack_from(">hh", frame, 4)
            spoken[api_key].add(api_version)
    return dict(spoken)


def feed(address: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(count):
        producer.produce(topic, str(number))
    assert producer.flush(WAIT_S) == 0


def test_a_producer_that_was_replaced_is_fenced(server: Server, topic: str, java: list[str]) -> None:
    create_topic(server.kafka, topic)
    fenced = told(java, "zombie", server.kafka, topic, topic)["zombie"]
    assert fenced in REFUSED
    assert read_values(server.kafka, topic) == ["of the successor"]


def test_a_transaction_that_takes_too_long_is_aborted(server: Server, topic: str, java: list[str]) -> None:
    create_topic(server.kafka, topic)
    found = told(java, "late", server.kafka, topic, topic)
    assert found["state"] == "COMPLETE_ABORT"
    assert found["late"] in REFUSED
    assert read_values(server.kafka, topic) == ["0"]
    assert read_values(server.kafka, topic, UNCOMMITTED) == ["late", "0"]


def test_offsets_of_a_transaction_count_when_it_commits(
    server: Server, topic: str, group: str, java: list[str]
) -> None:
    source, sink = f"{topic}-in", f"{topic}-out"
    create_topic(server.kafka, source, partitions=2)
    create_topic(server.kafka, sink, partitions=2)
    producer = Producer({"bootstrap.servers": server.kafka})
    for number in range(60):
        producer.produce(source, str(number), partition=number % 2)
    assert producer.flush(WAIT_S) == 0
    assert told(java, "move", server.kafka, source, sink, group, topic, "60") == {"moved": 60}
    assert read_all(server.kafka, sink) == {p: [str(number) for number in range(p, 60, 2)] for p in range(2)}
    assert committed_offsets(server.kafka, group, source, 2) == [30, 30]


def test_administrators_see_transactions_and_producers(server: Server, topic: str, java: list[str]) -> None:
    create_topic(server.kafka, topic, partitions=2)
    found = told(java, "admin", server.kafka, topic, topic)
    assert found.pop("fenced") in REFUSED
    assert found == {
        "unknown": "TransactionalIdNotFoundException",
        "before": "EMPTY",
        "state": "ONGOING",
        "timeout": 50_000,
        "partitions": [1],
        "started": True,
        "listed": ["ONGOING true"],
        "listed as ended": 0,
        "listed of another": 0,
        "producers": [0],
    }


def test_a_producer_may_change_its_protocol_with_its_version(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic)
    for turn in range(2):
        for version in VERSIONS:
            java = command(version, "TransactionStory")
            assert told(java, "plan", server.kafka, topic, "1", topic, "ca") == {"transactions": 2}
        assert read_values(server.kafka, topic) == ["0"] * 2 * (turn + 1)
