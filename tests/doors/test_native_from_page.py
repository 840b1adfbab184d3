"""A client written from docs/protocol.md alone, against a real server."""

import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer

from page_client import Page, PageClient, batch_of, murmur2_of_the_page
from penstock.testing.server import Server

HELLO, WELCOME, PING, DONE, FAILURE = 0x01, 0x81, 0x02, 0x82, 0xFF
FIND_TOPIC, CREATE_TOPIC, TOPICS = 0x10, 0x12, 0x91
TAKE_PRODUCER_ID, PRODUCER_ID, PUBLISH, PUBLISHED = 0x20, 0xA0, 0x21, 0xA1
LIST_OFFSETS, OFFSETS, FETCH, FETCHED = 0x30, 0xB0, 0x31, 0xB1
COMMIT, COMMITTED, COMMITS = 0x32, 0x33, 0xB3
DESCRIBE_TOPICS, TOPIC_DESCRIPTIONS = 0x15, 0x95
LIST_GROUPS, GROUPS, DESCRIBE_GROUP, GROUP_DESCRIPTION, DELETE_GROUP, DELETE_OFFSETS = (
    0x70, 0xF0, 0x71, 0xF1, 0x72, 0x73,
)  # fmt: skip
SUBSCRIBE_PUBSUB, SUBSCRIBE_LOG, RECORDS, ADD_CREDIT, UNSUBSCRIBE = 0x40, 0x41, 0xC0, 0x42, 0x43
SUBSCRIBE_QUEUE, LEASE, DELIVERIES, SETTLE, SETTLED, STEP = 0x50, 0x51, 0xD0, 0x52, 0xD2, 0x53

TIME_MS = 1_900_000_000_000
WITHIN_S = 30


@pytest.fixture
def client(server: Server) -> Iterator[PageClient]:
    opened = PageClient(server.line)
    kind, (version, name, cluster_id, max_frame_bytes) = opened.ask(HELLO, 1, "from the page")
    assert (kind, version) == (WELCOME, 1)
    assert name
    assert cluster_id
    assert max_frame_bytes > 0
    yield opened
    opened.close()


def published(client: PageClient, topic: str, partition: int, batch: bytes) -> int:
    kind, (results,) = client.ask(PUBLISH, -1, [[topic, partition, batch]])
    assert (kind, results[0][2]) == (PUBLISHED, None)
    offset: int = results[0][0]
    return offset


def test_publish_by_key_and_fetch(client: PageClient, topic: str) -> None:
    kind, (topics,) = client.ask(CREATE_TOPIC, topic, 12)
    assert (kind, topics[0][:2]) == (TOPICS, [topic, 12])
    kind, (topics,) = client.ask(FIND_TOPIC, topic, False)
    partition = (murmur2_of_the_page(b"order-1") & 0x7FFFFFFF) % topics[0][1]
    assert partition == 10
    kind, (producer_id, epoch) = client.ask(TAKE_PRODUCER_ID)
    assert kind == PRODUCER_ID
    batch = batch_of(
        [(TIME_MS, b"order-1", b"paid", [("source", b"web")]), (TIME_MS + 9, None, None, [])], (producer_id, epoch, 0)
    )
    assert published(client, topic, partition, batch) == 0
    assert published(client, topic, partition, batch) == 0  # again, and stored once
    assert client.ask(LIST_OFFSETS, topic, partition) == (OFFSETS, [0, 2, -1, 2])
    kind, (batches, next_offset, start, end) = client.ask(FETCH, topic, partition, 0, 1 << 20, 0)
    assert (kind, next_offset, start, end) == (FETCHED, 2, 0, 2)
    assert Page(batches).batch()[1] == [
        (0, TIME_MS, b"order-1", b"paid", (("source", b"web"),)),
        (1, TIME_MS + 9, None, None, ()),
    ]


def test_a_group_remembers(client: PageClient, topic: str, group: str) -> None:
    client.ask(CREATE_TOPIC, topic, 1)
    assert client.ask(COMMIT, group, [[topic, 0, 5]]) == (DONE, [1])
    assert client.ask(COMMITTED, group) == (COMMITS, [[[topic, 0, 5]]])


def test_a_group_is_looked_after(client: PageClient, topic: str, group: str) -> None:
    client.ask(CREATE_TOPIC, topic, 2)
    published(client, topic, 1, batch_of([(TIME_MS, None, b"x", [])]))
    client.ask(COMMIT, group, [[topic, 1, 0], [topic, 0, 0]])
    kind, (groups,) = client.ask(LIST_GROUPS)
    assert kind == GROUPS
    assert [group, "Empty", ""] in groups
    told = [group, "Empty", "", "", [], [[topic, 0, 0, 0], [topic, 1, 0, 1]]]
    assert client.ask(DESCRIBE_GROUP, group) == (GROUP_DESCRIPTION, told)
    assert client.ask(DELETE_OFFSETS, group, [[topic, 0]]) == (DONE, [1])
    assert client.ask(COMMITTED, group) == (COMMITS, [[[topic, 1, 0]]])
    assert client.ask(DELETE_GROUP, group) == (DONE, [0])
    assert client.ask(DESCRIBE_GROUP, group)[1][0] == "unknown-group"


def test_a_member_reads_what_its_assignment_says(client: PageClient, server: Server, topic: str, group: str) -> None:
    client.ask(CREATE_TOPIC, topic, 3)
    member = KafkaConsumer(topic, bootstrap_servers=server.kafka, group_id=group)
    try:
        deadline = time.monotonic() + WITHIN_S
        while not member.assignment():
            assert time.monotonic() < deadline
            member.poll(100)
        _, (_, state, protocol_type, _, ((*_, assignment),), _) = client.ask(DESCRIBE_GROUP, group)
    finally:
        member.close()
    assert (state, protocol_type) == ("Stable", "consumer")
    _version, topics, name_bytes = struct.unpack_from(">hih", assignment)
    name = assignment[8 : 8 + name_bytes].decode()
    count, *partitions = struct.unpack_from(">4i", assignment, 8 + name_bytes)
    assert (topics, name, count, sorted(partitions)) == (1, topic, 3, [0, 1, 2])


def test_a_topic_is_described(client: PageClient, topic: str) -> None:
    client.ask(CREATE_TOPIC, topic, 1, {"retention.ms": "60000"})
    kind, (topics,) = client.ask(DESCRIBE_TOPICS, [topic, topic + "-gone"])
    ((name, _topic_id, internal, (partition,), settings),) = topics
    assert (kind, name, internal, partition[:2]) == (TOPIC_DESCRIPTIONS, topic, False, [0, 0])
    assert ["retention.ms", "60000", "topic"] in settings


def test_pushes_within_credit(client: PageClient, topic: str) -> None:
    client.ask(CREATE_TOPIC, topic, 1)
    pubsub = client.send(SUBSCRIBE_PUBSUB, topic, 1, [{"key": "mine"}])
    assert client.receive(pubsub) == (DONE, [0])
    published(client, topic, 0, batch_of([(TIME_MS, key, b"x", []) for key in (b"other", b"mine", b"mine")]))
    kind, (batches, gap) = client.receive(pubsub)
    assert (kind, gap) == (RECORDS, 0)
    assert [record[:3] for record in Page(batches[0][2]).batch()[1]] == [(1, TIME_MS, b"mine")]
    client.send(ADD_CREDIT, pubsub, 10)
    kind, (batches, _) = client.receive(pubsub)
    assert [record[0] for record in Page(batches[0][2]).batch()[1]] == [2]
    log = client.send(SUBSCRIBE_LOG, topic, 10, {0: 1})
    assert client.receive(log) == (DONE, [0])
    assert [record[0] for record in Page(client.receive(log)[1][0][0][2]).batch()[1]] == [1, 2]
    assert client.ask(UNSUBSCRIBE, log) == (DONE, [1])


def leased(body: Any) -> list[tuple[list[int], bytes | None, int]]:
    """Receipt, value and attempt of every message of Deliveries."""
    return [
        ([stream << 48 | record[0], number], record[3], attempt)
        for _topic, _partition, stream, batch, numbers, attempts in body[0]
        for record, number, attempt in zip(Page(batch).batch()[1], numbers, attempts, strict=True)
    ]


def test_a_queue_from_end_to_end(client: PageClient, topic: str) -> None:
    client.ask(CREATE_TOPIC, topic, 1)
    client.ask(CREATE_TOPIC, topic + "-out", 1)
    published(client, topic, 0, batch_of([(TIME_MS, None, value, []) for value in (b"a", b"b", b"c")]))
    queue = client.send(SUBSCRIBE_QUEUE, topic, "mail", 2)
    assert client.receive(queue) == (DONE, [0])
    kind, body = client.receive(queue)
    assert kind == DELIVERIES
    (first, *_), (second, *_) = got = leased(body)
    assert [(value, attempt) for _, value, attempt in got] == [(b"a", 1), (b"b", 1)]
    assert client.ask(SETTLE, topic, "mail", "ack", [first]) == (SETTLED, [[]])
    ((third, value, _),) = leased(client.receive(queue)[1])
    assert value == b"c"
    assert client.ask(SETTLE, topic, "mail", "nack", [second], 0) == (SETTLED, [[]])
    ((again, value, attempt),) = leased(client.receive(queue)[1])
    assert (value, attempt) == (b"b", 2)
    out = [[topic + "-out", b"key", b"done", [["h", None]]]]
    for count in (1, 0):
        assert client.ask(STEP, topic, "mail", "step", [again, third], out) == (DONE, [count])
    _, (batches, *_) = client.ask(FETCH, topic + "-out", 0, 0, 1 << 20, 0)
    assert [record[2:] for record in Page(batches).batch()[1]] == [(b"key", b"done", (("h", None),))]
    assert client.ask(LEASE, topic, "mail", 5) == (DELIVERIES, [[]])


def test_failures_are_told(client: PageClient, topic: str) -> None:
    kind, (code, message, retriable) = client.ask(FETCH, topic, 0, 0, 100, 0)
    assert (kind, code, retriable) == (FAILURE, "unknown-topic", True)
    assert topic in message
    assert client.ask(PING) == (DONE, [0])
