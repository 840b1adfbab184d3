"""The verbs of transactions and named steps: the shell around their machines.

Each verb is a plain call: it asks the machine at once, so calls take effect in the order they are made, and returns a
future that resolves when the machine answers and everything it decided until then is durable.
"""

import asyncio
import re
from collections.abc import Collection

from penstock.broker.coordinate import CLUSTER, OffsetCommit, Refusals
from penstock.broker.transact_hosting import Owner
from penstock.broker.transact_shell import mark_seen, resolved
from penstock.broker.transact_steps import StepVerbs
from penstock.delivery.offsets import TopicPartition
from penstock.delivery.step import Step
from penstock.delivery.transaction import Transaction
from penstock.delivery.transaction_events import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Opened,
    ProducerIdentity,
    StepDescription,
    TransactionDescription,
    TransactionListing,
    TransactionSettings,
    TransactionState,
)
from penstock.log.partition import Partition
from penstock.log.topics import Topic
from penstock.model.batch import BatchHeader
from penstock.model.errors import (
    Conflict,
    InvalidProducerEpoch,
    InvalidProducerMapping,
    InvalidRequest,
    InvalidTransactionState,
    NotAllowed,
    PenstockError,
    ProducerFenced,
    UnknownPartition,
    UnknownTransaction,
)
from penstock.security.acl import Operation, Resource
from penstock.security.principal import Principal

__all__ = [
    "NO_EPOCH",
    "NO_PRODUCER_ID",
    "Opened",
    "ProducerIdentity",
    "StepDescription",
    "TransactionDescription",
    "TransactionListing",
    "TransactionSettings",
    "TransactionState",
    "Transactions",
]


class Transactions(StepVerbs):
    # -- Kafka's transactions -----------------------------------------------------------------------------------

    def init(
        self,
        principal: Principal,
        transactional_id: str,
        timeout_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        epoch: int = NO_EPOCH,
        *,
        via: int = 0,
    ) -> asyncio.Future[ProducerIdentity]:
        """Take the transactional id over. Whoever names the identity it had continues it, and may repeat itself."""
        self._check(principal, Operation.WRITE, transactional_id)
        given = None if producer_id == NO_PRODUCER_ID else ProducerIdentity(producer_id, epoch)

        def ask(new_id: int) -> asyncio.Future[ProducerIdentity]:
            owner = self._host.admit(transactional_id)
            init = owner.machine.init
            return self._ask(owner, lambda ticket: init(self._host.now, ticket, timeout_ms, given, new_id, via))

        known = self._host.transactions.get(transactional_id)
        return self._with_id(ask) if known is None or known.machine.wants_id else ask(NO_PRODUCER_ID)

    def add_partitions(
        self,
        principal: Principal,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[TopicPartition],
        *,
        via: int = 0,
        verify_only: bool = False,
    ) -> asyncio.Future[dict[TopicPartition, PenstockError | None]]:
        """Resolves to a result per partition: None, or why it cannot be part of a transaction; the others are."""
        owner, identity = self._find(principal, transactional_id, producer_id, epoch)
        machine: Transaction = owner.machine
        results = {partition: self._refusal(principal, partition) for partition in partitions}
        if verify_only:
            for partition, refused in results.items():
                if refused is None and not machine.has(identity, partition):
                    results[partition] = _not_part(partition)
            return resolved(results)
        wanted = [partition for partition, refused in results.items() if refused is None]
        if not wanted:
            return resolved(results)
        return self._ask(owner, lambda ticket: machine.add(self._host.now, ticket, identity, wanted, via, results))

    def _refusal(self, principal: Principal, partition: TopicPartition) -> PenstockError | None:
        try:
            topic = self._topics.get(partition.topic)
            self._authorizer.check(principal, Operation.WRITE, Resource.TOPIC, topic.name)
            if topic.internal:
                return NotAllowed(f"topic {topic.name!r} is the broker's own; it cannot be written to")
            if not 0 <= partition.partition < topic.partition_count:
                return UnknownPartition(f"topic {topic.name!r} has no partition {partition.partition}")
        except PenstockError as error:
            return error
        return None

    def add_group(
        self, principal: Principal, transactional_id: str, producer_id: int, epoch: int, group: str, *, via: int = 0
    ) -> asyncio.Future[None]:
        owner, identity = self._find(principal, transactional_id, producer_id, epoch)
        self._authorizer.check(principal, Operation.READ, Resource.GROUP, group)
        add = owner.machine.add
        return self._ask(owner, lambda ticket: add(self._host.now, ticket, identity, (group,), via))

    def commit_offsets(
        self,
        principal: Principal,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        group: str,
        commit: OffsetCommit,
        *,
        implicit: bool,
    ) -> asyncio.Future[Refusals]:
        """Offsets that count when the transaction is committed. `implicit`: its group need not have been added."""
        owner, identity = self._find(principal, transactional_id, producer_id, epoch)
        machine: Transaction = owner.machine
        if machine.covers(identity, group):
            return self._coordinator.pend(principal, group, commit, producer_id)
        if not implicit and not machine.has(identity, group):
            raise InvalidTransactionState(f"group {group!r} is not part of the transaction: add it first")
        return self._begin(self._add_group_and_pend(principal, owner, identity, group, commit))

    async def _add_group_and_pend(
        self, principal: Principal, owner: Owner, identity: ProducerIdentity, group: str, commit: OffsetCommit
    ) -> Refusals:
        """The transaction knows of the group before the group knows of the offsets, so that both end."""
        machine: Transaction = owner.machine
        await self._ask(owner, lambda ticket: machine.add(self._host.now, ticket, identity, (group,)))
        if not machine.covers(identity, group):  # it may have been ended meanwhile
            raise InvalidTransactionState(f"group {group!r} is not part of the transaction any more")
        return await self._coordinator.pend(principal, group, commit, identity.producer_id)

    def end(
        self,
        principal: Principal,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        commit: bool,
        *,
        via: int = 0,
        bump: bool,
    ) -> asyncio.Future[ProducerIdentity]:
        """Resolves, with the identity for the next transaction, when everyone can see the result.

        `bump`: the second protocol (EndTxn v5+), in which every end gives the producer a new epoch.
        """
        owner, identity = self._find(principal, transactional_id, producer_id, epoch)
        end = owner.machine.end

        def ask(new_id: int) -> asyncio.Future[ProducerIdentity]:
            return self._ask(owner, lambda ticket: end(self._host.now, ticket, identity, commit, bump, via, new_id))

        return self._with_id(ask) if bump and owner.machine.wants_id else ask(NO_PRODUCER_ID)

    def admit(
        self, header: BatchHeader, topic: Topic, index: int, *, transactional_id: str | None, implicit: bool
    ) -> asyncio.Future[None] | None:
        """Before a transactional batch is appended, with no await between the two: raises if no transaction owns it.

        None: its partition is known to be part of the transaction. Otherwise the batch may be appended, and is
        acknowledged when this future has resolved, too. `implicit`: the partition need not have been added.
        """
        owner = self._host.owners.get(header.producer_id)
        if owner is None:
            raise InvalidProducerMapping(f"no transaction has the producer id {header.producer_id}")
        identity = ProducerIdentity(header.producer_id, header.producer_epoch)
        place = TopicPartition(topic.name, index)
        machine: Transaction | Step = owner.machine
        if isinstance(machine, Step):
            covered = machine.covers(self._host.now, identity, place)
        else:
            covered = self._covers(machine, identity, place, transactional_id, implicit)
        if covered:
            return None
        add = machine.add
        known: asyncio.Future[None] = self._ask(owner, lambda ticket: add(self._host.now, ticket, identity, (place,)))
        known.add_done_callback(mark_seen)  # the batch may be refused after all, and nobody look at it
        return known

    def _covers(
        self,
        machine: Transaction,
        identity: ProducerIdentity,
        place: TopicPartition,
        transactional_id: str | None,
        implicit: bool,
    ) -> bool:
        if transactional_id != machine.name:
            raise InvalidProducerMapping(f"{transactional_id!r} does not have the producer id {identity.producer_id}")
        try:
            if machine.covers(identity, place):
                return True
        except ProducerFenced as error:  # as Kafka's Produce has it
            raise InvalidProducerEpoch(str(error)) from None
        if not implicit and not machine.has(identity, place):
            raise _not_part(place)
        return False

    def describe(self, principal: Principal, transactional_id: str) -> TransactionDescription:
        self._check(principal, Operation.DESCRIBE, transactional_id)
        owner = self._host.transactions.get(transactional_id)
        if owner is None:
            raise UnknownTransaction(f"there is no transactional id {transactional_id!r}")
        description: TransactionDescription = owner.machine.describe()
        return description

    def transactions(
        self,
        principal: Principal,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        min_age_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Those the principal may see; an empty filter lets everything through, `pattern` is a regular expression."""
        try:
            matches = re.compile(pattern or "").fullmatch if pattern else None
        except re.error as error:
            raise InvalidRequest(f"{pattern!r} is not a regular expression: {error}") from None
        begun_by_ms = self._host.now.wall_ms - min_age_ms
        sees_all = self._authorizer.allows(principal, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER)
        found = []
        for name, owner in self._host.transactions.items():
            machine: Transaction = owner.machine
            if (
                (not states or machine.state.value in states)
                and (not producer_ids or machine.identity.producer_id in producer_ids)
                and (min_age_ms < 0 or 0 <= machine.started_ms <= begun_by_ms)
                and (matches is None or matches(name))
                and (sees_all or self._allows(principal, Operation.DESCRIBE, name))
            ):
                found.append(TransactionListing(name, machine.identity.producer_id, machine.state))
        return found

    def check_may_find(self, principal: Principal, transactional_id: str) -> None:
        """Whether the principal may know who coordinates the transactional id."""
        self._check(principal, Operation.DESCRIBE, transactional_id)

    # -- partitions ---------------------------------------------------------------------------------------------

    def adopt(self, partition: Partition) -> None:
        """A partition opens: what is open there and no known transaction owns is aborted."""
        self._host.adopt(partition)

    def check_unwritten(self, topic: str) -> None:
        """Raise Conflict while a transaction or a step has written to the topic and is not ended."""
        if self._host.has_topic(topic):
            raise Conflict(f"a transaction is open in topic {topic!r}")

    def forget_topic(self, name: str) -> None:
        """A topic was deleted: there is nothing left to end in it."""
        self._host.forget_topic(name)

    # -- within -------------------------------------------------------------------------------------------------

    def _find(
        self, principal: Principal, transactional_id: str, producer_id: int, epoch: int
    ) -> tuple[Owner, ProducerIdentity]:
        self._check(principal, Operation.WRITE, transactional_id)
        owner = self._host.transactions.get(transactional_id)
        if owner is None:
            raise InvalidProducerMapping(f"{transactional_id!r} does not have the producer id {producer_id}")
        return owner, ProducerIdentity(producer_id, epoch)


def _not_part(partition: TopicPartition) -> InvalidTransactionState:
    return InvalidTransactionState(f"{partition.topic}-{partition.partition} is not part of the transaction")
