"""Reading message by message: the log view and the pub/sub view.

A reader holds offsets, never copies: a thousand readers at the end of a partition share one opened batch. The log view
reads everything at its own pace. The pub/sub view is bounded by how far it may fall behind; beyond that the oldest are
dropped and counted, or the subscription ends, as its subscriber chose.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.delivery.filters import Match
from penstock.log.topics import Topics
from penstock.model.message import Incoming
from penstock.security.acl import Authorizer
from penstock.security.principal import Principal

__all__ = ["Match", "Overflow", "Reader", "Readers", "Start", "Taken"]


class Overflow(enum.Enum):
    DROP_OLDEST = "drop-oldest"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a log reader begins: an offset per partition, a time, or one end for all that are not named."""

    offsets: Mapping[int, int] | None = None
    timestamp_ms: int | None = None
    earliest: bool = True


class Taken(NamedTuple):
    messages: Sequence[Incoming]
    gap: int  # messages dropped since the last take, by a pub/sub view that was too slow
    positions: Mapping[int, int]  # per partition that moved: the offset to go on from


class Reader:
    async def take(self, max_messages: int, max_bytes: int, wait_ms: int) -> Taken:
        """What is there now; if nothing is, wait. In order within each partition. Empty when the time is over.

        Raises OffsetOutOfRange when a log reader's position is gone, UnknownTopic when the topic was deleted,
        SlowSubscriber when a pub/sub view that asked for it fell too far behind.
        """
        raise NotImplementedError

    def close(self) -> None: ...


class Readers:
    def __init__(self, topics: Topics, authorizer: Authorizer) -> None: ...

    async def log(
        self,
        principal: Principal,
        topic: str,
        start: Start | None = None,
        *,
        partitions: Sequence[int] | None = None,
        matches: Sequence[Match] = (),
    ) -> Reader:
        """Start: None is the earliest."""
        raise NotImplementedError

    async def pubsub(
        self,
        principal: Principal,
        topic: str,
        *,
        matches: Sequence[Match] = (),
        max_behind: int = 10_000,
        overflow: Overflow = Overflow.DROP_OLDEST,
    ) -> Reader:
        """Everything that becomes durable from now on."""
        raise NotImplementedError

    def release(self) -> None:
        """The server is about to stop: nobody waits any more."""
