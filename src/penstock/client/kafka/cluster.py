"""Who is where: the servers of a cluster, who leads which partition, who coordinates which group, and how to ask them.

A call that fails because something has moved, or is not there yet, is made again until `retry_s` have passed.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from penstock.client.kafka.connection import Address, Connection
from penstock.client.kafka.errors import ClientError, Disconnected, Invalid, Missing, Refused, Unreachable, check
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.messages import Struct

DEFAULT_PORT = 9092
RETRY_PAUSE_S = 0.1
LEADER_NOT_AVAILABLE = 5
UNKNOWN_TOPIC = 3

TopicPartition = tuple[str, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    index: int
    leader: int  # node id; -1 when there is none
    leader_epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: UUID | None  # None from servers that have none
    internal: bool
    partitions: Mapping[int, PartitionInfo]


def parse_servers(text: str) -> list[Address]:
    """`host[:port]`, comma-separated; IPv6 addresses in brackets."""
    addresses = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part.startswith("["):
            host, _, rest = part[1:].partition("]")
            port = rest.removeprefix(":")
        else:
            host, _, port = part.partition(":")
        if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
            raise Invalid(f"server {part!r} is not allowed: write host:port, as in 127.0.0.1:{DEFAULT_PORT}")
        addresses.append(Address(host, int(port) if port else DEFAULT_PORT))
    if not addresses:
        raise Invalid(f"no server given: write host:port, as in 127.0.0.1:{DEFAULT_PORT}")
    return addresses


class Cluster:
    def __init__(self, servers: str, timeout_s: float = 10.0, retry_s: float = 15.0) -> None:
        self.servers = parse_servers(servers)
        self.timeout_s = timeout_s
        self.retry_s = retry_s
        self._bootstrap: Connection | None = None
        self._nodes: dict[int, Address] = {}
        self._connections: dict[int, Connection] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._coordinators: dict[str, int] = {}
        self._controller = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in [*self._connections.values(), *filter(None, [self._bootstrap])]:
            connection.close()
        self._connections.clear()

    # -- asking -------------------------------------------------------------------------------------------------

    def retry(self, action: Callable[[], T], *, repeatable: bool = True) -> T:
        """Do it again while the server says that it may work later, or, if repeatable, while connections break."""
        deadline = time.monotonic() + self.retry_s
        while True:
            try:
                return action()
            except Refused as error:
                if not error.retriable or time.monotonic() >= deadline:
                    raise
                if error.refresh:
                    self.forget()
            except Disconnected:
                if not repeatable or time.monotonic() >= deadline:
                    raise
                self.forget()
            time.sleep(RETRY_PAUSE_S)

    def forget(self) -> None:
        """Where things are has to be asked again."""
        self._topics.clear()
        self._coordinators.clear()
        self._controller = -1

    def any(self) -> Connection:
        """A connection to whichever of the given servers answers."""
        for connection in [*self._connections.values(), *filter(None, [self._bootstrap])]:
            if connection.is_open:
                return connection
        hint = "; is the server running? start it with 'penstock serve' or name another with --server"
        failure: ClientError | None = None
        for address in self.servers:
            try:
                self._bootstrap = Connection(address, self.timeout_s, hint)
                return self._bootstrap
            except Unreachable as error:
                failure = failure or error
        assert failure is not None  # there is at least one server
        raise failure

    def node(self, node_id: int) -> Connection:
        connection = self._connections.get(node_id)
        if connection is not None and connection.is_open:
            return connection
        if node_id not in self._nodes:
            self.metadata([])
        address = self._nodes.get(node_id)
        if address is None:
            raise Refused(8, f"server {node_id}")
        bootstrap = self._bootstrap
        if bootstrap is not None and bootstrap.is_open and bootstrap.address == address:
            self._connections[node_id] = bootstrap
            return bootstrap
        via = self.servers[0] if bootstrap is None else bootstrap.address
        hint = f"; {via} says that clients should connect there: is its advertised address right (--kafka-advertised)?"
        self._connections[node_id] = Connection(address, self.timeout_s, hint)
        return self._connections[node_id]

    @property
    def node_ids(self) -> list[int]:
        return sorted(self._nodes)

    def controller(self) -> Connection:
        if self._controller < 0:
            self.metadata([])
        return self.node(self._controller) if self._controller in self._nodes else self.any()

    def coordinator(self, group: str) -> Connection:
        """Where a group is looked after; raises a retriable error while nobody does."""
        node_id = self._coordinators.get(group)
        if node_id is None:
            answer = self.any().call(ApiKey.FIND_COORDINATOR, Struct(key=group, key_type=0))
            check(answer.error_code, f"group {group!r}", getattr(answer, "error_message", None))
            node_id = self._coordinators[group] = answer.node_id
            self._nodes[node_id] = Address(answer.host, answer.port)
        return self.node(node_id)

    # -- knowing ------------------------------------------------------------------------------------------------

    def metadata(self, topics: Collection[str] | None, *, create: bool = False) -> dict[str, TopicInfo]:
        """What the server says about these topics (None: all), as far as they exist."""
        wanted = None if topics is None else [Struct(name=name) for name in topics]
        answer = self.any().call(ApiKey.METADATA, Struct(topics=wanted, allow_auto_topic_creation=create))
        self._nodes.update({node.node_id: Address(node.host, node.port) for node in answer.brokers})
        self._controller = getattr(answer, "controller_id", -1)
        found = {}
        for topic in answer.topics:
            if topic.error_code == UNKNOWN_TOPIC:
                continue
            check(topic.error_code, f"topic {topic.name!r}")
            found[topic.name] = _topic_info(topic)
        self._topics.update(found)
        return found

    def topic(self, name: str, *, create: bool = False) -> TopicInfo:
        """One topic whose partitions all have leaders; waits for that as long as `retry_s`."""
        known = self._topics.get(name)
        if known is not None:
            return known

        def ask() -> TopicInfo:
            info = self.metadata([name], create=create).get(name)
            if info is None:
                if create:
                    raise Refused(LEADER_NOT_AVAILABLE, f"topic {name!r}")
                raise Missing(
                    f"there is no topic {name!r}; create it with 'penstock topic create {name}', "
                    "or see 'penstock topic list'"
                )
            if any(partition.leader < 0 for partition in info.partitions.values()):
                self._topics.pop(name, None)
                raise Refused(LEADER_NOT_AVAILABLE, f"topic {name!r}")
            return info

        return self.retry(ask)

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """The partitions, sorted by the node that leads them."""
        sorted_out: dict[int, list[TopicPartition]] = {}
        for topic, partition in partitions:
            if partition not in self.topic(topic).partitions:
                self._topics.pop(topic)  # it may have grown since we asked
            info = self.topic(topic).partitions.get(partition)
            if info is None:
                count = len(self.topic(topic).partitions)
                raise Missing(f"topic {topic!r} has no partition {partition}; it has 0 to {count - 1}")
            sorted_out.setdefault(info.leader, []).append((topic, partition))
        return sorted_out


def _topic_info(topic: Struct) -> TopicInfo:
    return TopicInfo(
        topic.name,
        getattr(topic, "topic_id", None),
        getattr(topic, "is_internal", False),
        {
            partition.partition_index: PartitionInfo(
                partition.partition_index,
                partition.leader_id,
                getattr(partition, "leader_epoch", -1),
                partition.replica_nodes,
                partition.isr_nodes,
            )
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
        },
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped
