"""Subscriptions for code without a loop: iterators of messages, and settling that waits."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Generic, Self, cast

from penstock.client.background import Background, awaited
from penstock.client.log import LogSubscription
from penstock.client.message import Message
from penstock.client.queue import Outcome, QueueSubscription, Step
from penstock.client.subscription import DEFAULT_BATCH, S

AHEAD = 100  # messages that cross over at once when they are read one by one


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
        return self._face._loop.begin(awaited(lambda: queue.settle([self], "ack")))

    def _settle(self, outcome: Outcome, **options: float | None) -> None:
        queue = self._queue()
        self._face._loop.wait(awaited(lambda: queue.settle([self], outcome, **options)))


class SyncSubscription(Generic[S]):
    """An iterator of messages; `batches()` for many at once. `inner` is the asynchronous subscription."""

    def __init__(self, loop: Background, inner: S) -> None:
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
        return self.faced(self._loop.wait(self.inner.take(max_messages, timeout_s)))

    @property
    def has_ahead(self) -> bool:
        """Whether messages have crossed over that nobody has seen."""
        return bool(self._ahead)

    def faced(self, messages: Sequence[Message]) -> list[SyncMessage]:
        """As they are handed out on this side."""
        return list(map(self._face, messages))

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
        return self._loop.begin(awaited(lambda: queue.settle(messages, "ack")))

    def add_credit(self, count: int) -> None:
        """Take so many more unsettled messages at once."""
        queue = self._queue()
        queue._loop.call_soon_threadsafe(queue.add_credit, count)

    def step(self, name: str | None = None) -> "SyncStep":
        return SyncStep(self._loop, self._queue().step(name))

    def _settle(self, messages: Sequence[Message], outcome: Outcome, **options: float | None) -> None:
        queue = self._queue()
        self._loop.wait(awaited(lambda: queue.settle(messages, outcome, **options)))

    def _queue(self) -> QueueSubscription:
        if not isinstance(self.inner, QueueSubscription):
            raise TypeError("only messages of a queue are settled; a log is read, and its position committed")
        return self.inner

    # -- of a log -----------------------------------------------------------------------------------------------

    def read_to(self, partition: int) -> int:
        """Everything before this offset was handed out, or is not a message."""
        log = self.inner
        if not isinstance(log, LogSubscription):
            raise TypeError("only a log has a position")

        async def ask() -> int:
            return log.read_to(partition)

        return self._loop.wait(ask())

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

    def __init__(self, loop: Background, inner: Step) -> None:
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
