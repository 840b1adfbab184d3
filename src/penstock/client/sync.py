"""The same client for code without a loop: the asynchronous one runs in a thread of its own, and calls wait for it.

Any number of threads may use one client. Messages cross over in batches, so iterating costs no switch per message.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, cast, overload

from penstock.client.admin import DEFAULT_VIEW, Bounds, Match, Queue, Router, RouterKind, Topic
from penstock.client.client import DEFAULT_SERVER, Acks, Client, Kind
from penstock.client.errors import ClientClosed
from penstock.client.log import PREFETCH_BYTES, LogSubscription, Start
from penstock.client.message import GivenHeaders, Key, Message, Value
from penstock.client.push import CREDIT as PUSH_CREDIT
from penstock.client.push import PubSubSubscription
from penstock.client.queue import CREDIT as QUEUE_CREDIT
from penstock.client.queue import Guarantee, Outcome, QueueSubscription, Step
from penstock.client.subscription import DEFAULT_BATCH, Subscription
from penstock.model.message import Placed
from penstock.wire.native.messages import Settings

AHEAD = 100  # messages that cross over at once when they are read one by one

T = TypeVar("T")
S = TypeVar("S", bound=Subscription)


class _Loop:
    """A loop in a thread. Ends with `stop()`; a thread that was forgotten does not keep the process alive."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="penstock-client")
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        if self._loop.is_closed():
            work.close()
            raise ClientClosed("this client is closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a call that waits cannot be made from the client's own thread")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while waiting: nobody asks for it any more
            raise

    def stop(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _await(make: Callable[[], Awaitable[T]]) -> T:
    """`make` runs in the loop's thread, where futures belong."""
    return await make()


class SyncMessage(Message):
    """A message whose settling waits until it is durable."""

    __slots__ = ("_face",)

    _face: "SyncSubscription[QueueSubscription]"

    def ack(self) -> None:  # type: ignore[override]
        self._settle("ack")

    def nack(self, delay_s: float | None = None) -> None:  # type: ignore[override]
        self._settle("nack", delay_s=delay_s)

    def reject(self) -> None:  # type: ignore[override]
        self._settle("reject")

    def release(self) -> None:  # type: ignore[override]
        self._settle("release")

    def extend(self, lease_s: float | None = None) -> None:  # type: ignore[override]
        self._settle("extend", lease_s=lease_s)

    def ack_nowait(self) -> "Future[None]":
        """As `ack`, without waiting; what follows closely travels together."""
        queue = self._queue()
        return self._face._loop.begin(_await(lambda: queue.settle([self], "ack")))

    def _settle(self, outcome: Outcome, **options: float | None) -> None:
        queue = self._queue()
        self._face._loop.wait(_await(lambda: queue.settle([self], outcome, **options)))


class SyncSubscription(Generic[S]):
    """An iterator of messages; `batches()` for many at once. `inner` is the asynchronous subscription."""

    def __init__(self, loop: _Loop, inner: S) -> None:
        self.inner = inner
        self._loop = loop
        self._ahead: deque[SyncMessage] = deque()

    @property
    def gap(self) -> int:
        """Messages that were dropped, or were no longer there, so far."""
        return self.inner.gap

    def __iter__(self) -> Iterator[SyncMessage]:
        return self

    def __next__(self) -> SyncMessage:
        if not self._ahead:
            self._ahead.extend(self.take(AHEAD))
        if not self._ahead:
            raise StopIteration
        return self._ahead.popleft()

    def take(self, max_messages: int = DEFAULT_BATCH, timeout_s: float | None = None) -> list[SyncMessage]:
        """At most so many messages; waits for the first. Empty when the time is over or the subscription closed."""
        if self._ahead:
            return [self._ahead.popleft() for _ in range(min(max_messages, len(self._ahead)))]
        return list(map(self._face, self._loop.wait(self.inner.take(max_messages, timeout_s))))

    def batches(self, max_messages: int = DEFAULT_BATCH) -> Iterator[list[SyncMessage]]:
        while batch := self.take(max_messages):
            yield batch

    def _face(self, message: Message) -> SyncMessage:
        faced = SyncMessage(
            message.topic,
            message.partition,
            message._record,
            message.attempt,
            message._number,
            message._stream,
            message._subscription,
        )
        faced._face = cast("SyncSubscription[QueueSubscription]", self)
        return faced

    # -- of a queue ---------------------------------------------------------------------------------------------

    def ack(self, messages: Sequence[Message]) -> None:
        self._settle(messages, "ack")

    def nack(self, messages: Sequence[Message], delay_s: float | None = None) -> None:
        self._settle(messages, "nack", delay_s=delay_s)

    def reject(self, messages: Sequence[Message]) -> None:
        self._settle(messages, "reject")

    def release(self, messages: Sequence[Message]) -> None:
        self._settle(messages, "release")

    def extend(self, messages: Sequence[Message], lease_s: float | None = None) -> None:
        self._settle(messages, "extend", lease_s=lease_s)

    def ack_nowait(self, messages: Sequence[Message]) -> "Future[None]":
        queue = self._queue()
        return self._loop.begin(_await(lambda: queue.settle(messages, "ack")))

    def add_credit(self, count: int) -> None:
        """Take so many more unsettled messages at once."""
        queue = self._queue()
        queue._loop.call_soon_threadsafe(queue.add_credit, count)

    def step(self, name: str | None = None) -> "SyncStep":
        return SyncStep(self._loop, self._queue().step(name))

    def _settle(self, messages: Sequence[Message], outcome: Outcome, **options: float | None) -> None:
        queue = self._queue()
        self._loop.wait(_await(lambda: queue.settle(messages, outcome, **options)))

    def _queue(self) -> QueueSubscription:
        if not isinstance(self.inner, QueueSubscription):
            raise TypeError("only messages of a queue are settled; a log is read, and its position committed")
        return self.inner

    # -- of a log -----------------------------------------------------------------------------------------------

    def commit(self, message: Message | None = None) -> None:
        if not isinstance(self.inner, LogSubscription):
            raise TypeError("only a log with a group has a position to commit")
        if message is None and self._ahead:  # these have crossed over, but nobody has seen them
            message = None
            unseen = {one.partition: one.offset for one in reversed(self._ahead)}
            self._loop.wait(self.inner._commit({**self.inner.positions, **unseen}))
            return
        self._loop.wait(self.inner.commit(message))

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin now rather than with the first message that is asked for."""
        self._loop.wait(self.inner.start())

    def close(self) -> None:
        if self._ahead and isinstance(self.inner, QueueSubscription):
            unread = list(self._ahead)
            self._ahead.clear()
            self.inner._loop.call_soon_threadsafe(self.inner.settle, unread, "release")
        self._loop.wait(self.inner.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncStep:
    """`with subscription.step() as step`; see `Step`."""

    def __init__(self, loop: _Loop, inner: Step) -> None:
        self._loop = loop
        self._inner = inner
        self.ack = inner.ack
        self.publish = inner.publish
        self.name = inner.name

    @property
    def repeated(self) -> bool:
        return self._inner.repeated

    def perform(self) -> bool:
        return self._loop.wait(self._inner.perform())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.perform()


class SyncClient:
    """`Client`, with calls that wait. Takes the same arguments; `inner` is the asynchronous client."""

    def __init__(self, servers: str | Sequence[str] = DEFAULT_SERVER, **options: Any) -> None:
        self.inner = Client(servers, **options)
        self._loop = _Loop()

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

    def topics(self) -> list[Topic]:
        return self._loop.wait(self.inner.topics())

    def topic(self, name: str) -> Topic:
        return self._loop.wait(self.inner.topic(name))

    def offsets(self, topic: str, partition: int = 0, timestamp_ms: int | None = None) -> Bounds:
        return self._loop.wait(self.inner.offsets(topic, partition, timestamp_ms))

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        self._loop.wait(self.inner.commit(group, offsets))

    def committed(self, group: str, topic: str | None = None) -> dict[tuple[str, int], int]:
        return self._loop.wait(self.inner.committed(group, topic))

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
