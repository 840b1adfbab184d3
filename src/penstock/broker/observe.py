"""Observation: what topics there are and how far they reach. Nothing here changes anything."""

import ipaddress
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.log.partition import Found, Partition
from penstock.log.settings import SETTINGS, Setting
from penstock.log.topics import Topic, Topics
from penstock.log.transactions import Aborted
from penstock.model.errors import OffsetOutOfRange
from penstock.model.ids import check_topic_name
from penstock.security.acl import Authorizer, Operation, Resource
from penstock.security.principal import Principal
from penstock.storage.engine import FileSpan


class SettingView(NamedTuple):
    setting: Setting
    value: str
    own: bool  # set on the topic itself
    server: bool  # a default of this server's settings


class ActiveProducer(NamedTuple):
    """A producer that a partition remembers."""

    producer_id: int
    epoch: int
    last_sequence: int  # -1 when not known
    seen_ms: int
    transaction_start: int  # first offset of the transaction that it has open here, or -1


class Location(NamedTuple):
    """Where a range of a partition lies, and what of it was aborted."""

    files: Sequence[FileSpan]
    aborted: Sequence[Aborted]


class Observer:
    def __init__(self, topics: Topics, authorizer: Authorizer) -> None:
        self._topics = topics
        self._authorizer = authorizer

    def topics(self, principal: Principal, *, internal: bool = False) -> Iterator[Topic]:
        """Every topic the principal may see; the broker's own only when asked for."""
        for name in sorted(self._topics.by_name):
            topic = self._topics.by_name[name]
            if (internal or not topic.internal) and self._sees(principal, name):
                yield topic

    def topic(self, principal: Principal, name: str) -> Topic:
        self._authorizer.check(principal, Operation.DESCRIBE, Resource.TOPIC, name)
        return self._topics.get(name)

    def _sees(self, principal: Principal, name: str) -> bool:
        return self._authorizer.allows(principal, Operation.DESCRIBE, Resource.TOPIC, name)

    async def partition(self, principal: Principal, name: str, index: int) -> Partition:
        return await self._topics.open(self.topic(principal, name), index)

    async def offset_at(
        self, principal: Principal, name: str, index: int, timestamp_ms: int, *, committed: bool = True
    ) -> Found | None:
        """The first record at or after this time."""
        return await (await self.partition(principal, name, index)).find_time(timestamp_ms, committed=committed)

    async def newest(self, principal: Principal, name: str, index: int, *, committed: bool = True) -> Found | None:
        """The record with the largest timestamp."""
        return await (await self.partition(principal, name, index)).find_newest(committed=committed)

    async def locate(self, principal: Principal, name: str, index: int, start: int, end: int) -> Location:
        """Which files hold these offsets, for a reader on this machine; none for others, and none of a topic that is
        compacted: its files are replaced by others of the same name at any time."""
        self._authorizer.check(principal, Operation.READ, Resource.TOPIC, name)
        partition = await self.partition(principal, name, index)
        files: Sequence[FileSpan] = ()
        if _is_near(principal.host) and not partition.settings.compacted:
            files = await partition.engine.files(partition.stream, start, end)
        if not partition.start_offset <= start <= end <= partition.durable_end:
            kept = f"{partition.start_offset} to {partition.durable_end}"
            raise OffsetOutOfRange(f"{name}-{index} has the offsets {kept}, not {start} to {end}")
        return Location(files, partition.transactions.aborted_within(start, end))

    async def producers(self, principal: Principal, name: str, index: int) -> list[ActiveProducer]:
        """Who writes to a partition with an identity of its own, and which transactions are open there."""
        self._authorizer.check(principal, Operation.READ, Resource.TOPIC, name)
        partition = await self._topics.open(self._topics.get(check_topic_name(name)), index)
        opened = partition.transactions.open
        return [
            ActiveProducer(
                producer_id,
                producer.epoch,
                producer.batches[-1].last_sequence if producer.batches else -1,
                producer.seen_ms,
                opened[producer_id].first_offset if producer_id in opened else -1,
            )
            for producer_id, producer in partition.producers.active().items()
        ]

    def settings(self, principal: Principal, name: str) -> list[SettingView]:
        """Every setting of a topic with the value in force and where it comes from."""
        self._authorizer.check(principal, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name)
        return self.settings_of(principal, self._topics.get(check_topic_name(name)))

    def settings_of(self, principal: Principal, topic: Topic) -> list[SettingView]:
        self._authorizer.check(principal, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, topic.name)
        own, server = topic.settings.overrides, self._topics.defaults
        return [
            SettingView(s, own.get(s.name, server.get(s.name, s.default)), s.name in own, s.name in server)
            for s in SETTINGS.values()
        ]


def _is_near(host: str) -> bool:
    """Whether this is an address of the machine itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
