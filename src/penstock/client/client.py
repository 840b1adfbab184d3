"""The client that users import. It says what can be done; the rooms beside it say how.

async with penstock.Client("127.0.0.1:7070") as client:
    await client.publish("orders", {"order_id": 101}, key="101")
    async for message in client.subscribe("orders", "queue"):
        await message.ack()
"""

import asyncio
import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Self, overload

from penstock.client.address import DEFAULT_PORT, parse_addresses
from penstock.client.admin import DEFAULT_VIEW, Admin, Match, match_fields
from penstock.client.groups import Groups
from penstock.client.lane import Writer
from penstock.client.log import PREFETCH_BYTES, LogSubscription, Start
from penstock.client.message import GivenHeaders, Key, Message, Value, make_record
from penstock.client.outbox import ANY_PARTITION
from penstock.client.pipelines import Pipelines
from penstock.client.publisher import ACKS, COMPRESSIONS, Publisher
from penstock.client.push import CREDIT as PUSH_CREDIT
from penstock.client.push import PubSubSubscription
from penstock.client.queue import CREDIT as QUEUE_CREDIT
from penstock.client.queue import Guarantee, QueueSubscription
from penstock.client.session import Session
from penstock.client.steps import STEP_TIMEOUT_S, NamedStep, Steps
from penstock.client.subscription import DEFAULT_BATCH, S, Subscription, take_any
from penstock.model.message import Placed
from penstock.wire.native import messages as wire

DEFAULT_SERVER = f"127.0.0.1:{DEFAULT_PORT}"
TIMEOUT_S = 30.0
KEEPALIVE_S = 10.0
MAX_BUFFERED_BYTES = 32 << 20
FLUSH_AT_CLOSE_S = 10.0

Acks = Literal["none", "leader", "all"]
Kind = Literal["log", "queue", "pubsub"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


class Client(Admin, Groups):
    """One connection to one server, kept alive; any number of tasks may use it at once."""

    def __init__(
        self,
        servers: str | Sequence[str] = DEFAULT_SERVER,
        *,
        name: str | None = None,
        user: str | None = None,
        password: str | None = None,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float | None = None,
        keepalive_s: float = KEEPALIVE_S,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
        linger_ms: float = 0,
        compression: Compression = "none",
        idempotent: bool = True,
    ) -> None:
        """`servers`: `host:port`, or several of them; whichever answers is taken.

        `timeout_s` bounds every call, reconnecting and repeating included; `connect_timeout_s`, if given, the search
        for the first connection instead (0: every address once). `max_buffered_bytes` bounds what is
        published and not yet acknowledged. Without `idempotent` a publish that is repeated after a lost connection may
        be stored twice.
        """
        if compression not in COMPRESSIONS:
            raise ValueError(f"compression {compression!r} is not known; choose one of {', '.join(COMPRESSIONS)}")
        self._addresses = parse_addresses(servers)
        self._hello = wire.Hello(wire.VERSION, name or f"python-{os.getpid()}", user, password)
        self._timeout_s = timeout_s
        self._connect_timeout_s = timeout_s if connect_timeout_s is None else connect_timeout_s
        self._keepalive_s = keepalive_s
        self._publishing: dict[str, Any] = {
            "timeout_s": timeout_s,
            "max_buffered_bytes": max_buffered_bytes,
            "linger_ms": linger_ms,
            "compression": compression,
            "idempotent": idempotent,
        }
        self._opened: tuple[Session, Publisher] | None = None
        self._subscriptions: list[Subscription] = []
        self.pipelines = Pipelines(self._call)
        self.steps = Steps(self._call)

    # -- life ---------------------------------------------------------------------------------------------------

    async def connect(self) -> Self:
        """Connect now rather than with the first call. Raises Unreachable."""
        await self._session.ready()
        return self

    async def close(self) -> None:
        """End the subscriptions, wait a bounded time for what was published to be acknowledged, and disconnect."""
        if self._opened is None:
            return
        session, publisher = self._opened
        farewells = [subscription.close() for subscription in self._subscriptions]
        self._subscriptions = []
        results: list[BaseException | None] = []
        try:
            async with asyncio.timeout(FLUSH_AT_CLOSE_S):
                results = await asyncio.gather(*farewells, publisher.flush(), return_exceptions=True)
        except TimeoutError:
            pass  # whoever waits is told that the client was closed
        finally:
            publisher.close()
            await session.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        return self._opened is not None and self._opened[0].connection is not None

    @property
    def reconnects(self) -> int:
        """How often a connection was lost."""
        return self._opened[0].reconnects if self._opened else 0

    @property
    def buffered_bytes(self) -> int:
        """What is published and not yet acknowledged."""
        return self._opened[1].buffered_bytes if self._opened else 0

    def _open(self) -> tuple[Session, Publisher]:
        """On first use, because that is when there is a loop."""
        if self._opened is None:
            session = Session(
                self._addresses,
                self._hello,
                timeout_s=self._timeout_s,
                connect_timeout_s=self._connect_timeout_s,
                keepalive_s=self._keepalive_s,
            )
            publisher = Publisher(session, **self._publishing)
            self._opened = session, publisher
            session.add(publisher)
        return self._opened

    @property
    def _session(self) -> Session:  # type: ignore[override]
        return (self._opened or self._open())[0]

    async def _call(self, request: wire.Message) -> Any:
        return await self._session.call(request)

    @property
    def _publisher(self) -> Publisher:
        return (self._opened or self._open())[1]

    # -- publishing ---------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Key = None,
        headers: GivenHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        delay_s: float | None = None,
        deliver_at_ms: int | None = None,
        ttl_s: float | None = None,
        priority: int | None = None,
        acks: Acks = "all",
    ) -> Placed:
        """Publish one message and return where it stands, when it is as durable as its topic promises.

        Waits for room first when too much is unacknowledged. Cancelling this does not take the message back.
        """
        record = make_record(key, value, headers, timestamp_ms, delay_s, deliver_at_ms, ttl_s, priority)
        chosen = ANY_PARTITION if partition is None else partition
        return await self._publisher.publish(topic, record, chosen, ACKS[acks])

    def publish_nowait(
        self,
        topic: str,
        value: Value,
        *,
        key: Key = None,
        headers: GivenHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        delay_s: float | None = None,
        deliver_at_ms: int | None = None,
        ttl_s: float | None = None,
        priority: int | None = None,
        acks: Acks = "all",
    ) -> "asyncio.Future[Placed]":
        """As `publish` without waiting: the order is fixed when this returns. Raises BufferFull if there is no room."""
        record = make_record(key, value, headers, timestamp_ms, delay_s, deliver_at_ms, ttl_s, priority)
        chosen = ANY_PARTITION if partition is None else partition
        return self._publisher.publish_nowait(topic, record, chosen, ACKS[acks])

    async def publish_many(self, topic: str, messages: Iterable[Value], *, acks: Acks = "all") -> list[Placed]:
        """Publish values, or `Outgoing`s where there is more to say; where each of them stands, in their order.

        Raises the first error when any of them failed; the others are stored nevertheless.
        """
        values = messages if isinstance(messages, (list, tuple)) else list(messages)
        return await self._publisher.publish_many(topic, values, ACKS[acks])

    def step(
        self, name: str, epoch: int, *, mark: str = "", timeout_s: float = STEP_TIMEOUT_S, writer: str = ""
    ) -> NamedStep:
        """`async with client.step("name", epoch) as step`: what it publishes is seen when the block ends without an
        error, all at once, and once for a name and epoch.

        `mark` tells what this epoch does: the same epoch with another mark is refused with StepMismatch. `timeout_s` is
        how long the server waits for a step of which it hears nothing.
        """
        return NamedStep(self.steps, self._step_publisher, name, epoch, mark, timeout_s, writer or self._hello.client)

    def _step_publisher(self, writer: Writer) -> tuple[Session, Publisher]:
        session = self._session
        publisher = Publisher(session, **{**self._publishing, "writer": writer})
        session.add(publisher)
        return session, publisher

    async def flush(self) -> None:
        """Return when nothing is on its way any more: all that was published is acknowledged, or has failed."""
        await self._publisher.flush()

    # -- subscribing --------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self,
        topic: str,
        kind: Literal["log"] = "log",
        *,
        start: Start = "earliest",
        partitions: Sequence[int] | None = None,
        group: str | None = None,
        auto_commit: bool = True,
        prefetch_bytes: int = PREFETCH_BYTES,
        matches: Sequence[Match] = (),
    ) -> LogSubscription: ...

    @overload
    def subscribe(
        self,
        topic: str,
        kind: Literal["queue"],
        *,
        name: str = DEFAULT_VIEW,
        credit: int = QUEUE_CREDIT,
        lease_s: float | None = None,
        create: bool = True,
        guarantee: Guarantee | None = None,
        matches: Sequence[Match] = (),
        settings: wire.Settings | None = None,
    ) -> QueueSubscription: ...

    @overload
    def subscribe(
        self,
        topic: str,
        kind: Literal["pubsub"],
        *,
        credit: int = PUSH_CREDIT,
        matches: Sequence[Match] = (),
        max_behind: int = 10_000,
        overflow: Literal["drop-oldest", "disconnect"] = "drop-oldest",
    ) -> PubSubSubscription: ...

    def subscribe(self, topic: str, kind: Kind = "log", **options: Any) -> Subscription:
        """Read a topic in one of its three ways.

        log      every record from `start` on: "earliest", "latest", a datetime, or an offset per partition; with
                 `group`, from where the group has committed.
        queue    messages of the view `name`, shared with its other consumers, each to be settled; at most `credit`
                 unsettled ones at once. The view is made on first use, with `settings` and `guarantee`.
        pubsub   what is published from now on, to everyone who is here. `gap` counts what a slow reader missed.

        `matches` takes only what passes a filter.
        """
        options["matches"] = match_fields(options.get("matches", ()))
        subscription: Subscription
        if kind == "queue":
            subscription = self._queue(topic, **options)
        elif kind == "pubsub":
            subscription = self._pubsub(topic, **options)
        elif kind == "log":
            subscription = self._log(topic, **options)
        else:
            raise ValueError(f"there is no subscription of kind {kind!r}: choose log, queue or pubsub")
        self._subscriptions = [one for one in self._subscriptions if not one.is_closed]
        self._subscriptions.append(subscription)
        return subscription

    async def take_any(
        self, subscriptions: Sequence[S], max_messages: int = DEFAULT_BATCH, timeout_s: float | None = None
    ) -> tuple[S | None, list[Message]]:
        """As `take` of a subscription, of whichever has something, the first of them first; which one that was."""
        return await take_any(subscriptions, max_messages, timeout_s)

    def _log(
        self,
        topic: str,
        start: Start = "earliest",
        partitions: Sequence[int] | None = None,
        group: str | None = None,
        auto_commit: bool = True,
        prefetch_bytes: int = PREFETCH_BYTES,
        matches: Sequence[wire.MatchFields] = (),
    ) -> LogSubscription:
        return LogSubscription(
            self._session,
            topic,
            start=start,
            partitions=partitions,
            group=group,
            auto_commit=auto_commit,
            prefetch_bytes=prefetch_bytes,
            matches=matches,
        )

    def _queue(
        self,
        topic: str,
        name: str = DEFAULT_VIEW,
        credit: int = QUEUE_CREDIT,
        lease_s: float | None = None,
        create: bool = True,
        guarantee: Guarantee | None = None,
        matches: Sequence[wire.MatchFields] = (),
        settings: wire.Settings | None = None,
    ) -> QueueSubscription:
        given: wire.Settings = dict(settings or {})
        if guarantee is not None:
            given["guarantee"] = guarantee
        return QueueSubscription(
            self._session,
            topic,
            name,
            credit=credit,
            lease_s=lease_s,
            create=create,
            settings=given,
            matches=matches,
        )

    def _pubsub(
        self,
        topic: str,
        credit: int = PUSH_CREDIT,
        matches: Sequence[wire.MatchFields] = (),
        max_behind: int = 10_000,
        overflow: str = "drop-oldest",
    ) -> PubSubSubscription:
        return PubSubSubscription(
            self._session, topic, credit=credit, matches=matches, max_behind=max_behind, overflow=overflow
        )
