"""Transactions over connections that lose requests and replies: what is repeated counts once, and nothing is torn."""

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from java_program import VERSIONS, command, tell
from story import WAIT_S, create_topic
from transaction_story import read_all

from penstock.testing.proxy import PRODUCE, Proxy, Rule
from penstock.wire.kafka.api import ApiKey
from servers import make_server

PLAN = "ccacacc" * 4
EXPECTED = [str(number) for number, letter in enumerate(PLAN) if letter == "c"]


@pytest.fixture(scope="module")
def shared_proxy() -> Iterator[Proxy]:
    """All clients of the module's server are behind it."""
    with Proxy() as proxy, make_server(kafka_advertised=proxy.address) as server:
        proxy.upstream = server.kafka
        yield proxy


@pytest.fixture
def proxy(shared_proxy: Proxy, topic: str) -> Iterator[Proxy]:
    """Loses nothing but what the test tells it to, and has the test's topic behind it."""
    create_topic(shared_proxy.address, topic, partitions=2)
    yield shared_proxy
    shared_proxy.behave()


def lose(proxy: Proxy, lost: str, api: int, every: int) -> Rule:
    rule: Rule = getattr(proxy, f"lose_{lost}")(api, every=every, limit=10)
    return rule


@pytest.mark.parametrize("api", [ApiKey.END_TXN, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE])
@pytest.mark.parametrize("lost", ["requests", "replies"])
def test_librdkafka_repeats_itself(proxy: Proxy, topic: str, lost: str, api: ApiKey) -> None:
    producer = Producer(
        {
            "bootstrap.servers": proxy.address,
            "transactional.id": topic,
            "linger.ms": 0,
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 20,
            "retry.backoff.ms": 5,
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    rule = lose(proxy, lost, api, 5)
    for number, letter in enumerate(PLAN):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(topic, str(number), partition=partition)
        if letter == "c":
            commit(producer)
        else:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)
    proxy.behave()
    assert rule.lost >= 3, "the test lost too little to prove anything"
    assert read_all(proxy.address, topic) == {0: EXPECTED, 1: EXPECTED}


def commit(producer: Producer) -> None:
    """As librdkafka wants it: what may be tried again is the same call, and it knows where it stopped."""
    for _ in range(10):
        try:
            producer.commit_transaction(WAIT_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
    raise AssertionError("a commit that never ends")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("lost", "api"), [("requests", PRODUCE), ("replies", PRODUCE), ("replies", ApiKey.END_TXN)])
def test_java_repeats_itself(proxy: Proxy, topic: str, version: str, lost: str, api: int) -> None:
    rule = lose(proxy, lost, api, 6)
    java = command(version, "TransactionStory")
    assert tell(java, "plan", proxy.address, topic, "2", topic, PLAN) == [{"transactions": len(PLAN)}]
    proxy.behave()
    assert rule.lost >= 3, "the test lost too little to prove anything"
    assert read_all(proxy.address, topic) == {0: EXPECTED, 1: EXPECTED}
