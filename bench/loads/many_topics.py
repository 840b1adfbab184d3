"""Many topics, little traffic: what they cost at rest, and how long a restart takes with them.

Every partition gets a message first: a topic that nobody has written to may be no more than a name. And a server may
say that it is ready before it has looked at its logs, so a restart is timed twice: to the first metadata reply, and
until every partition has told its end offset, which is checked.
"""

import time

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.loads import until_answered
from bench.loads.lifecycle import timed_start
from bench.peers import Peer

BATCH = 50
TIMEOUT_S = 300


def many_topics(peer: Peer, *, topics: int, partitions: int, settle_s: float, idle_window_s: float) -> dict[str, float]:
    names = [f"many-{number}" for number in range(topics)]
    numbers = {"create_s": create(peer, names, partitions), "first_messages_s": fill(peer, names, partitions)}
    peer.stop()
    started = time.monotonic()
    numbers["restart_s"] = timed_start(peer)
    check_all(peer, names, partitions)
    numbers["restart_answered_s"] = time.monotonic() - started
    time.sleep(settle_s)  # what a start leaves behind is not idleness
    cpu_before_s = peer.cpu_seconds()
    time.sleep(idle_window_s)
    numbers["idle_cpu_percent"] = (peer.cpu_seconds() - cpu_before_s) / idle_window_s * 100
    numbers["rss_mb"] = peer.rss_bytes() / 1e6  # after every partition was asked, so nothing is left unopened
    peer.kill()
    started = time.monotonic()
    numbers["restart_after_kill_s"] = timed_start(peer)
    check_all(peer, names, partitions)
    numbers["restart_after_kill_answered_s"] = time.monotonic() - started
    return numbers


def create(peer: Peer, names: list[str], partitions: int) -> float:
    admin = AdminClient({"bootstrap.servers": peer.kafka, "log_level": 2, "socket.timeout.ms": 120_000})
    started = time.monotonic()
    for first in range(0, len(names), BATCH):
        wanted = [NewTopic(name, partitions, 1) for name in names[first : first + BATCH]]
        for future in admin.create_topics(wanted, operation_timeout=60, request_timeout=120).values():
            future.result(TIMEOUT_S)
    return time.monotonic() - started


def fill(peer: Peer, names: list[str], partitions: int) -> float:
    producer = Producer({"bootstrap.servers": peer.kafka, "log_level": 2})
    started = time.monotonic()
    for name in names:
        for partition in range(partitions):
            producer.produce(name, b"one message", partition=partition)
        producer.poll(0)
    if producer.flush(TIMEOUT_S) != 0:
        raise RuntimeError("the first messages were not all acknowledged")
    return time.monotonic() - started


def check_all(peer: Peer, names: list[str], partitions: int) -> None:
    """Each partition holds its one message."""
    admin = AdminClient({"bootstrap.servers": peer.kafka, "log_level": 2, "socket.timeout.ms": 120_000})
    for first in range(0, len(names), BATCH):
        asked = {
            TopicPartition(name, partition): OffsetSpec.latest()
            for name in names[first : first + BATCH]
            for partition in range(partitions)
        }

        def ends(asked: dict[TopicPartition, OffsetSpec] = asked) -> set[int]:
            futures = admin.list_offsets(asked, request_timeout=120).values()
            return {future.result(TIMEOUT_S).offset for future in futures}

        if until_answered(ends) != {1}:
            raise RuntimeError(f"{peer.name}: a message is missing after the restart")
