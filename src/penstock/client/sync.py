"""The same client for code without a loop: the asynchronous one runs in a thread of its own, and calls wait for it.

Any number of threads may use one client. Messages cross over in batches, so iterating costs no switch per message.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, Self, overload

from penstock.client.admin import DEFAULT_VIEW, Match, Queue, Router, RouterKind, Topic, TopicDescription
from penstock.client.background import Background
from penstock.client.client import DEFAULT_SERVER, Acks, Client, Kind
from penstock.client.errors import ClientClosed
from penstock.client.groups import Bounds, Group, GroupListing, Place
from penstock.client.log import PREFETCH_BYTES, LogSubscription, Start
from penstock.client.message import GivenHeaders, Key, Message, Value
from penstock.client.pipelines import SyncPipelines
from penstock.client.push import CREDIT as PUSH_CREDIT
from penstock.client.push import PubSubSubscription
from penstock.client.queue import CREDIT as QUEUE_CREDIT
from penstock.client.queue import Guarantee, QueueSubscription
from penstock.client.steps import STEP_TIMEOUT_S, SyncNamedStep, SyncSteps
from penstock.client.subscription import DEFAULT_BATCH, S, Subscription
from penstock.client.sync_subscription import SyncMessage, SyncSubscription
from penstock.model.message import Placed
from penstock.wire.native.messages import Settings


class SyncClient:
    """`Client`, with calls that wait. Takes the same arguments; `inner` is the asynchronous client."""

    def __init__(self, servers: str | Sequence[str] = DEFAULT_SERVER, **options: Any) -> None:
        self.inner = Client(servers, **options)
        self._loop = Background()
        self.pipelines = SyncPipelines(self.inner.pipelines, self._loop)
        self.steps = SyncSteps(self.inner.steps, self._loop)

    # -- life ---------------------------------------------------------------------------------------------------

    def connect(self) -> Self:
        self._loop.wait(self.inner.connect())
        return self

    def close(self) -> None:
        """As `Client.close`; the thread ends too."""
        try:
            self._loop.wait(self.inner.close())
        except ClientClosed:
            return
        finally:
            self._loop.stop()

    def __enter__(self) -> Self:
        try:
            return self.connect()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_connected(self) -> bool:
        return self.inner.is_connected

    @property
    def reconnects(self) -> int:
        return self.inner.reconnects

    @property
    def buffered_bytes(self) -> int:
        return self.inner.buffered_bytes

    # -- publishing ---------------------------------------------------------------------------------------------

    def publish(
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
        work = self.inner.publish(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            delay_s=delay_s,
            deliver_at_ms=deliver_at_ms,
            ttl_s=ttl_s,
            priority=priority,
            acks=acks,
        )
        return self._loop.wait(work)

    def publish_nowait(self, topic: str, value: Value, **options: Any) -> "Future[Placed]":
        """As `publish`, with a future instead of waiting. Waits for room like `publish`, in the background."""
        return self._loop.begin(self.inner.publish(topic, value, **options))

    def publish_many(self, topic: str, messages: Iterable[Value], *, acks: Acks = "all") -> list[Placed]:
        return self._loop.wait(self.inner.publish_many(topic, list(messages), acks=acks))

    def step(
        self, name: str, epoch: int, *, mark: str = "", timeout_s: float = STEP_TIMEOUT_S, writer: str = ""
    ) -> SyncNamedStep:
        """See `Client.step`."""
        step = self.inner.step(name, epoch, mark=mark, timeout_s=timeout_s, writer=writer)
        return SyncNamedStep(step, self._loop)

    def flush(self) -> None:
        self._loop.wait(self.inner.flush())

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
    ) -> SyncSubscription[LogSubscription]: ...

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
        settings: Settings | None = None,
    ) -> SyncSubscription[QueueSubscription]: ...

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
    ) -> SyncSubscription[PubSubSubscription]: ...

    def subscribe(self, topic: str, kind: Kind = "log", **options: Any) -> SyncSubscription[Any]:
        """See `Client.subscribe`."""

        async def make() -> Subscription:
            return self.inner.subscribe(topic, kind, **options)

        return SyncSubscription(self._loop, self._loop.wait(make()))

    def take_any(
        self,
        subscriptions: Sequence[SyncSubscription[S]],
        max_messages: int = DEFAULT_BATCH,
        timeout_s: float | None = None,
    ) -> tuple[SyncSubscription[S] | None, list[SyncMessage]]:
        """See `Client.take_any`."""
        for one in subscriptions:
            if one.has_ahead:
                return one, one.take(max_messages)
        inner = [one.inner for one in subscriptions]
        found, batch = self._loop.wait(self.inner.take_any(inner, max_messages, timeout_s))
        taken = next((one for one in subscriptions if one.inner is found), None)
        return taken, taken.faced(batch) if taken is not None else []

    # -- administration -----------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int | None = None, settings: Mapping[str, str] | None = None
    ) -> Topic:
        return self._loop.wait(self.inner.create_topic(name, partitions, settings))

    def delete_topic(self, name: str) -> None:
        self._loop.wait(self.inner.delete_topic(name))

    def alter_topic(
        self, name: str, settings: Mapping[str, str | None] | None = None, partitions: int | None = None
    ) -> None:
        self._loop.wait(self.inner.alter_topic(name, settings, partitions))

    def topics(self, *, internal: bool = False) -> list[Topic]:
        return self._loop.wait(self.inner.topics(internal=internal))

    def topic(self, name: str) -> Topic:
        return self._loop.wait(self.inner.topic(name))

    def describe_topic(self, name: str) -> TopicDescription:
        return self._loop.wait(self.inner.describe_topic(name))

    def describe_topics(self, names: Iterable[str], *, settings: bool = True) -> list[TopicDescription]:
        return self._loop.wait(self.inner.describe_topics(names, settings=settings))

    def swap_topics(
        self, name: str, other: str, ends: Sequence[int], offsets: Mapping[str, Mapping[int, int]] | None = None
    ) -> None:
        self._loop.wait(self.inner.swap_topics(name, other, ends, offsets))

    def offsets(self, topic: str, partition: int = 0, timestamp_ms: int | None = None) -> Bounds:
        return self._loop.wait(self.inner.offsets(topic, partition, timestamp_ms))

    def bounds(self, places: Iterable[Place], timestamp_ms: int | None = None) -> dict[Place, Bounds]:
        return self._loop.wait(self.inner.bounds(places, timestamp_ms))

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        self._loop.wait(self.inner.commit(group, offsets))

    def committed(self, group: str, topic: str | None = None) -> dict[Place, int]:
        return self._loop.wait(self.inner.committed(group, topic))

    def delete_offsets(self, group: str, places: Iterable[Place]) -> None:
        self._loop.wait(self.inner.delete_offsets(group, places))

    def groups(self) -> list[GroupListing]:
        return self._loop.wait(self.inner.groups())

    def group(self, name: str) -> Group:
        return self._loop.wait(self.inner.group(name))

    def delete_group(self, name: str) -> None:
        self._loop.wait(self.inner.delete_group(name))

    def create_queue(self, topic: str, name: str = DEFAULT_VIEW, **options: Any) -> Queue:
        return self._loop.wait(self.inner.create_queue(topic, name, **options))

    def configure_queue(self, topic: str, name: str = DEFAULT_VIEW, **options: Any) -> Queue:
        return self._loop.wait(self.inner.configure_queue(topic, name, **options))

    def queues(self, topic: str | None = None) -> list[Queue]:
        return self._loop.wait(self.inner.queues(topic))

    def queue(self, topic: str, name: str = DEFAULT_VIEW) -> Queue:
        return self._loop.wait(self.inner.queue(topic, name))

    def delete_queue(self, topic: str, name: str = DEFAULT_VIEW) -> None:
        self._loop.wait(self.inner.delete_queue(topic, name))

    def pause_queue(self, topic: str, name: str = DEFAULT_VIEW) -> None:
        self._loop.wait(self.inner.pause_queue(topic, name))

    def resume_queue(self, topic: str, name: str = DEFAULT_VIEW) -> None:
        self._loop.wait(self.inner.resume_queue(topic, name))

    def purge_queue(self, topic: str, name: str = DEFAULT_VIEW) -> int:
        return self._loop.wait(self.inner.purge_queue(topic, name))

    def redrive_queue(self, topic: str, name: str = DEFAULT_VIEW, limit: int = 10_000) -> int:
        return self._loop.wait(self.inner.redrive_queue(topic, name, limit))

    def peek_queue(self, topic: str, name: str = DEFAULT_VIEW, limit: int = 10) -> list[Message]:
        return self._loop.wait(self.inner.peek_queue(topic, name, limit))

    def create_router(self, name: str, kind: RouterKind) -> Router:
        return self._loop.wait(self.inner.create_router(name, kind))

    def delete_router(self, name: str) -> None:
        self._loop.wait(self.inner.delete_router(name))

    def bind(self, router: str, to: str, **options: Any) -> Router:
        return self._loop.wait(self.inner.bind(router, to, **options))

    def unbind(self, router: str, to: str, **options: Any) -> Router:
        return self._loop.wait(self.inner.unbind(router, to, **options))

    def routers(self) -> list[Router]:
        return self._loop.wait(self.inner.routers())
