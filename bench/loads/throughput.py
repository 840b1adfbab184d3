"""As many messages as go through, in one direction at a time: first in, then out."""

from confluent_kafka.admin import AdminClient, NewTopic

from bench import clients
from bench.loads import fresh_name, settle
from bench.peers import Peer

GB = 1e9


def throughput(peer: Peer, *, size_bytes: int, partitions: int, count: int) -> dict[str, float]:
    topic = fresh_name(f"throughput-{size_bytes}-{partitions}")
    admin = AdminClient({"bootstrap.servers": peer.kafka, "log_level": 2})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    volume_gb = count * size_bytes / GB
    numbers: dict[str, float] = {}
    for verb in ("produce", "consume"):
        settle(peer.data)
        cpu_before_s = peer.cpu_seconds()
        ran = clients.run(verb, peer.kafka, topic, count=count, size=size_bytes, partitions=partitions)
        numbers[f"{verb}_msg_s"] = ran["messages"] / ran["seconds"]
        numbers[f"{verb}_mb_s"] = ran["messages"] * size_bytes / ran["seconds"] / 1e6
        numbers[f"{verb}_server_cpu_s_per_gb"] = (peer.cpu_seconds() - cpu_before_s) / volume_gb
        numbers[f"{verb}_client_busy"] = ran["client_cpu_s"] / ran["seconds"]
    admin.delete_topics([topic])[topic].result(30)
    return numbers


def latency(peer: Peer, *, count: int) -> dict[str, float]:
    """One message of 100 bytes at a time, acks=all, no linger: the time from produce() to its delivery report."""
    topic = fresh_name("latency")
    settle(peer.data)
    ran = clients.run("latency", peer.kafka, topic, count=count, size=100)
    return {name: float(ran[name]) for name in ("p50_ms", "p99_ms", "max_ms")}
