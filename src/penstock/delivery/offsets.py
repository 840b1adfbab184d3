"""The committed offsets of one group: what is kept, what is on its way to the ledger, and when it expires.

An offset is kept when its fact is durable, never before: `apply` is the one way in, and replay goes the same way.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from penstock.delivery.decision import Fact
from penstock.delivery.group_facts import NO_LEADER_EPOCH, OffsetFact, OffsetKey, offset_fact, read_offset


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class Commit(NamedTuple):
    """One offset as a client hands it in."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""


class Offsets:
    def __init__(self, group: str) -> None:
        self.group = group
        self._kept: dict[TopicPartition, OffsetFact] = {}
        self._in_flight: Counter[TopicPartition] = Counter()  # decided, not yet durable

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def is_blank(self) -> bool:
        return not self._kept and not self._in_flight

    def get(self, partition: TopicPartition) -> OffsetFact | None:
        return self._kept.get(partition)

    def items(self) -> Iterable[tuple[TopicPartition, OffsetFact]]:
        return self._kept.items()

    def known(self) -> Iterator[TopicPartition]:
        """Every partition that has an offset, or will have when all that was decided is durable."""
        yield from self._kept
        yield from (partition for partition in self._in_flight if partition not in self._kept)

    def of_topic(self, topic: str) -> bool:
        return any(partition.topic == topic for partition in self.known())

    # -- deciding -----------------------------------------------------------------------------------------------

    def commit(self, commits: Mapping[TopicPartition, Commit], now_ms: int, expires_ms: int | None) -> list[Fact]:
        return [
            self._decide(partition, OffsetFact(c.offset, now_ms, c.leader_epoch, c.metadata, expires_ms))
            for partition, c in commits.items()
        ]

    def commit_all(self, offsets: Mapping[TopicPartition, OffsetFact], now_ms: int) -> list[Fact]:
        """Offsets that were handed in before and count from now on."""
        return [
            self._decide(partition, msgspec.structs.replace(offset, committed_ms=now_ms))
            for partition, offset in offsets.items()
        ]

    def drop(self, wanted: Callable[[TopicPartition], bool]) -> list[Fact]:
        return [self._decide(partition, None) for partition in [p for p in self.known() if wanted(p)]]

    def _decide(self, partition: TopicPartition, value: OffsetFact | None) -> Fact:
        self._in_flight[partition] += 1
        return offset_fact(self.group, partition.topic, partition.partition, value)

    # -- what became of it --------------------------------------------------------------------------------------

    def settle(self, key: OffsetKey, value: bytes | None, durable: bool) -> OffsetFact | None:
        """A decided fact is durable, or never will be. Returns the offset that is now kept, if it is a new one."""
        partition = TopicPartition(key.topic, key.partition)
        if self._in_flight[partition] > 1:
            self._in_flight[partition] -= 1
        else:
            del self._in_flight[partition]
        return self.apply(key, value) if durable else None

    def apply(self, key: OffsetKey, value: bytes | None) -> OffsetFact | None:
        partition = TopicPartition(key.topic, key.partition)
        if value is None:
            self._kept.pop(partition, None)
            return None
        kept = self._kept[partition] = read_offset(value)
        return kept
