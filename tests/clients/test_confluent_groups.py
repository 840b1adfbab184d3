"""librdkafka in groups: members that come, go, return under their name, and outlive the server."""

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    TopicPartition,
)
from members import ConfluentMember
from story import WAIT_S, create_topic, eventually, read_values
from test_confluent import consumer_for, must_succeed, producer_for, publish

from penstock.testing.server import Server


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_come_and_go_and_every_message_is_read(server: Server, topic: str, group: str, strategy: str) -> None:
    create_topic(server.kafka, topic, partitions=6)
    values = {b"%d" % number for number in range(600)}
    members = [ConfluentMember(server.kafka, group, topic, strategy)]
    eventually(lambda: len(members[0].owned) == 6, "one member owns all")
    members.append(ConfluentMember(server.kafka, group, topic, strategy))
    eventually(lambda: [len(member.owned) for member in members] == [3, 3], "two members share")
    assert not members[0].owned & members[1].owned
    publish(server.kafka, topic, sorted(values), sticky_partitioning_linger_ms=0)
    eventually(lambda: set(members[0].values + members[1].values) == values, "all messages arrived")
    assert len(members[0].values) + len(members[1].values) == 600  # calm between rebalances: nothing twice
    members[0].leave()
    eventually(lambda: len(members[1].owned) == 6, "the one who stays takes over")
    publish(server.kafka, topic, [b"after"])
    eventually(lambda: b"after" in members[1].values, "the message after the rebalance")
    members[1].leave()
    committed = Consumer({"bootstrap.servers": server.kafka, "group.id": group}).committed(
        [TopicPartition(topic, number) for number in range(6)], WAIT_S
    )
    assert sum(max(pair.offset, 0) for pair in committed) == 601


def test_a_static_member_returns_to_its_partitions_without_a_rebalance(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic, partitions=4)
    stays = ConfluentMember(server.kafka, group, topic, "range", group_instance_id="stays", session_timeout_ms=20000)
    returns = ConfluentMember(
        server.kafka, group, topic, "range", group_instance_id="returns", session_timeout_ms=20000
    )
    eventually(lambda: len(stays.owned) == 2 and len(returns.owned) == 2, "both share")
    had, assignments = set(returns.owned), stays.assignments
    returns.leave()  # a static member does not send LeaveGroup
    returned = ConfluentMember(
        server.kafka, group, topic, "range", group_instance_id="returns", session_timeout_ms=20000
    )
    eventually(lambda: len(returned.owned) == 2, "it is back")
    assert returned.owned == had
    assert stays.assignments == assignments
    assert len(stays.owned) == 2
    stays.leave()
    returned.leave()


def test_a_second_static_member_of_one_name_fences_the_first(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic)
    first = consumer_for(server.kafka, group, group_instance_id="same")
    first.subscribe([topic])
    eventually(lambda: first.poll(0.05) or first.assignment(), "an assignment")
    second = consumer_for(server.kafka, group, group_instance_id="same")
    second.subscribe([topic])

    def fenced() -> bool:
        second.poll(0.05)
        message = first.poll(0.05)
        return message is not None and message.error() is not None and message.error().code() == KafkaError._FATAL

    eventually(fenced, "the first is fenced")
    eventually(lambda: second.poll(0.05) or second.assignment(), "the second has its place")
    second.close()
    first.close()


def test_group_reads_on_across_a_restart_of_the_server(fresh_server: Server, topic: str, group: str) -> None:
    create_topic(fresh_server.kafka, topic, partitions=2)
    member = ConfluentMember(fresh_server.kafka, group, topic, "range", reconnect_backoff_max_ms=200)
    publish(fresh_server.kafka, topic, [b"before-%d" % number for number in range(50)])
    eventually(lambda: len(member.values) == 50, "the messages before")
    fresh_server.restart()
    publish(fresh_server.kafka, topic, [b"after-%d" % number for number in range(50)])
    eventually(lambda: {b"after-%d" % number for number in range(50)} <= set(member.values), "the messages after")
    member.leave()
    assert set(member.values) == {b"%s-%d" % (when, number) for when in (b"before", b"after") for number in range(50)}
    committed = Consumer({"bootstrap.servers": fresh_server.kafka, "group.id": group}).committed(
        [TopicPartition(topic, number) for number in range(2)], WAIT_S
    )
    assert sum(pair.offset for pair in committed) == 100


def test_idempotent_producer_goes_on_across_a_restart(fresh_server: Server, topic: str) -> None:
    producer = producer_for(
        fresh_server.kafka, enable_idempotence=True, reconnect_backoff_max_ms=200, retry_backoff_ms=20
    )
    for number in range(200):
        producer.produce(topic, b"%d" % number, on_delivery=must_succeed)
    assert producer.flush(WAIT_S) == 0
    fresh_server.restart()
    for number in range(200, 400):
        producer.produce(topic, b"%d" % number, on_delivery=must_succeed)
    assert producer.flush(WAIT_S) == 0
    assert read_values(fresh_server.kafka, topic, 400) == [b"%d" % number for number in range(400)]
