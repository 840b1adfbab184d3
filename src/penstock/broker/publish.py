"""Publishing: the one way into the log, whatever the door."""

from penstock.log.admission import admit
from penstock.log.partition import Appended
from penstock.log.topics import Topic, Topics
from penstock.model.errors import NotAllowed
from penstock.security.acl import Authorizer, Operation, Resource
from penstock.security.principal import Principal


class Publisher:
    def __init__(self, topics: Topics, authorizer: Authorizer) -> None:
        self._topics = topics
        self._authorizer = authorizer

    def check(self, principal: Principal, topic: Topic) -> None:
        """Whether this principal may write to this topic. Once per topic of a request, before its batches."""
        self._authorizer.check(principal, Operation.WRITE, Resource.TOPIC, topic.name)
        if topic.internal:
            raise NotAllowed(f"topic {topic.name!r} is the broker's own; it cannot be written to")

    async def publish(self, topic: Topic, index: int, batch: bytearray | memoryview) -> Appended:
        """Take one batch into a partition. The order is fixed when this returns; durability is awaited apart."""
        partition = topic.partitions[index] if 0 <= index < len(topic.partitions) else None
        if partition is None:
            partition = await self._topics.open(topic, index)
        admitted = admit(batch, topic.settings, self._topics.clock.wall_ms())
        return partition.append(admitted.header, admitted.batch)
