"""Publishing: the one way into the log, whatever the door.

A batch of a transaction passes the gate first: the transaction must be there, be the newest of its name, and have the
partition, or get it now. It is answered when it and its transaction's knowledge of the partition are both durable; they
are written side by side.
"""

import asyncio
from typing import Protocol

from penstock.log.admission import admit
from penstock.log.partition import Appended
from penstock.log.topics import Topic, Topics
from penstock.model.batch import BatchHeader
from penstock.model.errors import InvalidTransactionState, NotAllowed
from penstock.security.acl import Authorizer, Operation, Resource
from penstock.security.principal import Principal
from penstock.storage.engine import Grant


class Gate(Protocol):
    """Who knows the transactions (see broker/transact.py)."""

    def admit(
        self, header: BatchHeader, topic: Topic, index: int, *, transactional_id: str | None, implicit: bool
    ) -> asyncio.Future[None] | None:
        """Raise unless the batch may be appended now. What is returned must be durable before the batch counts."""
        ...


class Publisher:
    def __init__(self, topics: Topics, authorizer: Authorizer, gate: Gate | None = None) -> None:
        self._topics = topics
        self._authorizer = authorizer
        self.gate = gate  # without one no transaction is known

    def check(self, principal: Principal, topic: Topic) -> None:
        """Whether this principal may write to this topic. Once per topic of a request, before its batches."""
        self._authorizer.check(principal, Operation.WRITE, Resource.TOPIC, topic.name)
        if topic.internal:
            raise NotAllowed(f"topic {topic.name!r} is the broker's own; it cannot be written to")

    def check_transaction(self, principal: Principal, transactional_id: str) -> None:
        """Whether this principal may write in transactions of this name. Once per request, too."""
        self._authorizer.check(principal, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)

    async def publish(
        self,
        topic: Topic,
        index: int,
        batch: bytearray | memoryview,
        *,
        transactional_id: str | None = None,
        implicit: bool = True,
    ) -> Appended:
        """Take one batch into a partition. The order is fixed when this returns; durability is awaited apart.

        `implicit`: a partition that its transaction does not have yet is added to it by the batch itself.
        """
        partition = topic.partitions[index] if 0 <= index < len(topic.partitions) else None
        if partition is None:
            partition = await self._topics.open(topic, index)
        header, batch = admit(batch, topic.settings, self._topics.clock.wall_ms())
        if not header.is_transactional:
            return partition.append(header, batch)
        if self.gate is None:
            raise InvalidTransactionState("no transaction is known here that this batch could belong to")
        known = self.gate.admit(header, topic, index, transactional_id=transactional_id, implicit=implicit)
        appended = partition.append(header, batch)
        return appended if known is None else appended._replace(durable=_both(known, appended.durable))


def _both(known: asyncio.Future[None], durable: asyncio.Future[None]) -> asyncio.Future[None]:
    """Done when both are, and failed when one of them has."""
    both = Grant(loop=asyncio.get_running_loop())

    def landed(_: asyncio.Future[None]) -> None:
        if both.done() or not (known.done() and durable.done()):
            return  # both may be done before either calls back
        failure = _failure(durable) or _failure(known)
        if failure is None:
            both.set_result(None)
        else:
            both.set_exception(failure)

    if known.done() and durable.done():
        landed(durable)
    else:
        for future in (known, durable):
            if not future.done():
                future.add_done_callback(landed)
    return both


def _failure(future: asyncio.Future[None]) -> BaseException | None:
    return InvalidTransactionState("its transaction is being ended") if future.cancelled() else future.exception()
