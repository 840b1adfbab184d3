"""Transactions, one after the other, by one producer: what a commit costs."""

import statistics
import time
import uuid

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers import Peer

MESSAGES = 100
VALUE = b"x" * 100
PARTITIONS = 4
TIMEOUT_S = 60


def transactions(peer: Peer, *, count: int) -> dict[str, float]:
    topic = f"bench-transactions-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": peer.kafka})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result(TIMEOUT_S)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": peer.kafka, "transactional.id": topic, "linger.ms": 0, "acks": "all"}
    )
    producer.init_transactions(TIMEOUT_S)
    took_s = [_one(producer, topic) for _ in range(count)]
    return {"txn_s": count / sum(took_s), "p50_ms": statistics.median(took_s) * 1000}


def _one(producer: confluent_kafka.Producer, topic: str) -> float:
    started = time.monotonic()
    producer.begin_transaction()
    for number in range(MESSAGES):
        producer.produce(topic, VALUE, partition=number % PARTITIONS)
    producer.commit_transaction(TIMEOUT_S)
    return time.monotonic() - started
