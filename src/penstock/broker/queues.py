"""The verbs of queue views: the shell around the queue machines. A view is addressed as `<topic>/<name>`.

Plain calls take effect in the order they are made; their futures resolve when what was decided is durable.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from penstock.broker.administer import Administrator
from penstock.broker.gather import Gatherer
from penstock.broker.hosting import Ledger
from penstock.delivery.filters import Match
from penstock.delivery.queue_events import Counts, Outcome, QueueSettings, Reason, Receipt, Status
from penstock.log.topics import Topics
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.message import Outgoing
from penstock.model.record import Record
from penstock.security.acl import Authorizer
from penstock.security.principal import Principal

__all__ = [
    "Counts", "Delivery", "Match", "Outcome", "Publication", "QueueSettings", "Queues", "Reason", "Receipt", "Source",
    "Status", "Subscription", "ViewInfo",
]  # fmt: skip

DEFAULT_VIEW = "queue"  # what `SUBSCRIBE orders/queue` means


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topic that a view reads, and what of it."""

    topic: str
    matches: tuple[Match, ...] = ()


class ViewInfo(NamedTuple):
    topic: str
    name: str
    settings: QueueSettings
    sources: tuple[Source, ...]
    paused: bool
    counts: Counts


class Delivery(NamedTuple):
    """One leased message. `receipt` settles it."""

    topic: str
    partition: int
    record: Record
    receipt: Receipt
    attempt: int


class Publication(msgspec.Struct, frozen=True, array_like=True):
    """What a step publishes to one topic."""

    topic: str
    messages: tuple[Outgoing, ...]


class Subscription:
    """One consumer of a view, told of deliveries by a callback in the loop; it must not raise or await."""

    topic: str
    view: str

    def add_credit(self, credit: int) -> None: ...

    def close(self) -> None:
        """Leave: what is unsettled goes to others at once."""


class Queues:
    def __init__(
        self,
        ledger: Ledger,
        topics: Topics,
        clock: Clock,
        authorizer: Authorizer,
        administrator: Administrator,
        gatherer: Gatherer,
        *,
        max_views: int,
    ) -> None: ...

    # -- views ------------------------------------------------------------------------------------------------

    async def create(
        self,
        principal: Principal,
        topic: str,
        name: str,
        settings: QueueSettings | None = None,
        *,
        matches: Sequence[Match] = (),
        start: Literal["earliest", "latest"] = "earliest",
        or_existing: bool = False,
    ) -> ViewInfo:
        """A new view of a topic (made on first use). `or_existing`: a view that is there is left as it is.

        Raises ViewExists, InvalidViewName, InvalidSetting, LimitReached.
        """
        raise NotImplementedError

    async def configure(
        self,
        principal: Principal,
        topic: str,
        name: str,
        settings: QueueSettings,
        matches: Sequence[Match] | None = None,
    ) -> ViewInfo:
        raise NotImplementedError

    async def delete(self, principal: Principal, topic: str, name: str) -> None:
        raise NotImplementedError

    def views(self, principal: Principal, topic: str | None = None) -> list[ViewInfo]:
        raise NotImplementedError

    def describe(self, principal: Principal, topic: str, name: str) -> ViewInfo:
        """Raises UnknownView."""
        raise NotImplementedError

    async def pause(self, principal: Principal, topic: str, name: str, *, paused: bool) -> None:
        raise NotImplementedError

    async def purge(self, principal: Principal, topic: str, name: str) -> int:
        raise NotImplementedError

    async def redrive(self, principal: Principal, topic: str, name: str, limit: int = 10_000) -> int:
        """Dead letters of this view back to the topics they came from, for this view only; how many that were."""
        raise NotImplementedError

    async def peek(self, principal: Principal, topic: str, name: str, limit: int = 10) -> list[Delivery]:
        """The next messages, without leasing them (receipts with number 0)."""
        raise NotImplementedError

    def status_of(self, principal: Principal, topic: str, name: str, partition: int, offset: int) -> Status:
        raise NotImplementedError

    # -- consuming --------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        principal: Principal,
        topic: str,
        name: str,
        deliver: Callable[[Sequence[Delivery]], None],
        credit: int,
        *,
        lease_ms: int | None = None,
        ended: Callable[[PenstockError], None] | None = None,
    ) -> Subscription:
        """Credit: how many unsettled messages it takes at once. `ended` is told when the view is deleted."""
        raise NotImplementedError

    async def lease(
        self, principal: Principal, topic: str, name: str, limit: int, *, wait_ms: int = 0, lease_ms: int | None = None
    ) -> list[Delivery]:
        """Up to `limit` messages; waits for the first. They are leased beyond this call, until settled or timed out."""
        raise NotImplementedError

    def settle(
        self,
        principal: Principal,
        topic: str,
        name: str,
        outcome: Outcome,
        receipts: Sequence[Receipt],
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
    ) -> asyncio.Future[list[PenstockError | None]]:
        """Per receipt None, or LeaseLost. Raises UnknownView."""
        raise NotImplementedError

    async def step(
        self,
        principal: Principal,
        topic: str,
        name: str,
        step: str,
        receipts: Sequence[Receipt],
        publications: Sequence[Publication],
    ) -> bool:
        """Settle and publish, both or neither. False: this step was done before, nothing happened now."""
        raise NotImplementedError

    def receipt(self, topic: str, name: str, partition: int, offset: int, number: int) -> Receipt:
        """For doors whose clients name messages by partition and offset of the view's own topic."""
        raise NotImplementedError

    # -- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Replay, and go on with what was under way. After topics are known, before `topics.sweep()`."""

    def release(self) -> None:
        """The server is about to stop: nobody waits any more."""

    async def stop(self) -> None: ...

    async def forget_topic(self, topic: str) -> None:
        """A topic was deleted: so are its views, and other views no longer read it."""
