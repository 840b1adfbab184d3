"""The verbs of transactions and named steps: the shell around their machines.

Each verb is a plain call: it asks the machine at once, so calls take effect in the order they are made, and returns a
future that resolves when the machine answers and everything it decided until then is durable.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from penstock.broker.coordinate import Coordinator, OffsetCommit, Refusals
from penstock.broker.hosting import Ledger
from penstock.delivery.offsets import TopicPartition
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
from penstock.log.identities import Identities
from penstock.log.partition import Partition
from penstock.log.topics import Topic, Topics
from penstock.model.batch import BatchHeader
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.security.acl import Authorizer
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


class Transactions:
    def __init__(
        self,
        ledger: Ledger,
        topics: Topics,
        clock: Clock,
        identities: Identities,
        coordinator: Coordinator,
        settings: TransactionSettings | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Replay what is known; what was prepared is carried through, what was open waits for its client or time-out."""
        raise NotImplementedError

    def release(self) -> None:
        """The server is about to stop: whoever waits is told to try again elsewhere."""
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    def run_due(self) -> None:
        """Let happen what time brings. A timer does this; a test with a clock of its own may."""
        raise NotImplementedError

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
        raise NotImplementedError

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
        raise NotImplementedError

    def add_group(
        self, principal: Principal, transactional_id: str, producer_id: int, epoch: int, group: str, *, via: int = 0
    ) -> asyncio.Future[None]:
        raise NotImplementedError

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
        raise NotImplementedError

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
        raise NotImplementedError

    def admit(
        self, header: BatchHeader, topic: Topic, index: int, *, transactional_id: str | None, implicit: bool
    ) -> asyncio.Future[None] | None:
        """Before a transactional batch is appended, with no await between the two: raises if no transaction owns it.

        None: its partition is known to be part of the transaction. Otherwise the batch may be appended, and is
        acknowledged when this future has resolved, too. `implicit`: the partition need not have been added.
        """
        raise NotImplementedError

    def describe(self, principal: Principal, transactional_id: str) -> TransactionDescription:
        raise NotImplementedError

    def transactions(
        self,
        principal: Principal,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        min_age_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Those the principal may see; an empty filter lets everything through, `pattern` is a regular expression."""
        raise NotImplementedError

    # -- named steps --------------------------------------------------------------------------------------------

    def open_writer(
        self, principal: Principal, name: str, epoch: int, label: str, timeout_ms: int
    ) -> asyncio.Future[Opened]:
        raise NotImplementedError

    def commit_step(
        self,
        principal: Principal,
        name: str,
        epoch: int,
        writers: Sequence[int],
        mark: str,
        offsets: Mapping[str, Mapping[TopicPartition, int]],
    ) -> asyncio.Future[bool]:
        """Show what these writers wrote and abort the others. False: that was done before."""
        raise NotImplementedError

    def abort_step(self, principal: Principal, name: str, epoch: int) -> asyncio.Future[int]:
        """Resolves to the number of writers that were aborted."""
        raise NotImplementedError

    def describe_step(self, principal: Principal, name: str) -> StepDescription:
        raise NotImplementedError

    def forget_step(self, principal: Principal, name: str) -> asyncio.Future[None]:
        raise NotImplementedError

    # -- partitions ---------------------------------------------------------------------------------------------

    def adopt(self, partition: Partition) -> None:
        """A partition opens: what is open there and no known transaction owns is aborted."""
        raise NotImplementedError

    def forget_topic(self, name: str) -> None:
        """A topic was deleted: there is nothing left to end in it."""
        raise NotImplementedError
