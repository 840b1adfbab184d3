"""Publishing message by message: what comes in one loop tick, from whatever door, becomes one batch per partition.

target = await gatherer.target(principal, "orders")     # once: rights, first use, partitions opened
placed = await target.publish([Outgoing(None, b"x")])   # a plain call: the order is fixed when it returns
"""

import asyncio
import enum
from collections.abc import Sequence

from penstock.broker.administer import Administrator
from penstock.broker.publish import Publisher
from penstock.log.topics import Topic, Topics
from penstock.model.message import Outgoing, Placed
from penstock.security.principal import Principal


class Acks(enum.Enum):
    """What a publish waits for, as Kafka's acks. On one machine `leader` and `all` are the same."""

    NONE = "none"
    LEADER = "leader"
    ALL = "all"


class Target:
    """A topic that a principal may publish to. Not to be kept longer than the request or connection it serves."""

    topic: Topic

    def publish(
        self, messages: Sequence[Outgoing], *, acks: Acks = Acks.ALL, producer: str | None = None, sequence: int = 0
    ) -> asyncio.Future[list[Placed]]:
        """Resolves when all are durable (acks none: at once, with offset -1).

        `producer` names whoever numbers its messages: `sequence` is that of the first of these, the others follow; a
        repeat is not stored again and gets the first one's offsets. Numbers must rise and may have gaps. Without keys
        all messages of a named producer go to one partition. An idempotency key is a producer that publishes once.
        """
        raise NotImplementedError


class Gatherer:
    def __init__(self, topics: Topics, administrator: Administrator, publisher: Publisher) -> None: ...

    async def target(self, principal: Principal, topic: str) -> Target:
        """Raises UnknownTopic, NotAllowed, InvalidTopicName; makes the topic if the server does so on first use."""
        raise NotImplementedError

    def flush(self) -> None:
        """Append what was gathered now instead of at the end of the tick."""
