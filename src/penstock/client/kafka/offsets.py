"""Where a partition begins and ends, and which offset a point in time has."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from penstock.client.kafka.cluster import Cluster, TopicPartition, by_topic
from penstock.client.kafka.errors import check
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.messages import Struct

# Timestamps that ListOffsets gives a meaning of its own.
LATEST = -1
EARLIEST = -2

READ_UNCOMMITTED = 0
NO_REPLICA = -1

T = TypeVar("T")


def list_offsets(cluster: Cluster, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offset of the first record at or after the time, LATEST or EARLIEST; -1 when there is no such record."""
    return cluster.retry(lambda: _list_offsets(cluster, timestamps_ms))


def bounds(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """First offset and end of each partition."""
    starts = list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    return {partition: (starts[partition], ends[partition]) for partition in partitions}


def ask_leaders(
    cluster: Cluster,
    api: ApiKey,
    partitions: Iterable[TopicPartition],
    request: Callable[[dict[str, list[int]]], Struct],
    timeout_s: float | None = None,
) -> list[Struct]:
    """Send every leader its part at once, then gather the answers: the slowest counts, not the sum."""
    asked = []
    try:
        for node_id, led in cluster.by_leader(partitions).items():
            connection = cluster.node(node_id)
            connection.send(api, request(by_topic(led)))
            asked.append(connection)
        return [connection.receive(timeout_s) for connection in asked]
    except BaseException:  # an answer that nobody waits for any more must not be taken for the next one
        for connection in asked:
            connection.close()
        raise


def _list_offsets(cluster: Cluster, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    def request(led: dict[str, list[int]]) -> Struct:
        return Struct(
            replica_id=NO_REPLICA,
            isolation_level=READ_UNCOMMITTED,
            timeout_ms=int(cluster.timeout_s * 1000),
            topics=[
                Struct(
                    name=topic,
                    partitions=[
                        Struct(partition_index=index, timestamp=timestamps_ms[topic, index]) for index in indexes
                    ],
                )
                for topic, indexes in led.items()
            ],
        )

    offsets: dict[TopicPartition, int] = {}
    for answer in ask_leaders(cluster, ApiKey.LIST_OFFSETS, timestamps_ms, request):
        for topic in answer.topics:
            for partition in topic.partitions:
                check(partition.error_code, f"offsets of {topic.name}-{partition.partition_index}")
                offsets[topic.name, partition.partition_index] = partition.offset
    return offsets
