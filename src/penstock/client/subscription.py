"""What all subscriptions share: a bounded buffer of messages, someone who waits for them, and an end.

    async with client.subscribe("orders", "log") as subscription:
        async for message in subscription: ...          # one by one
        async for batch in subscription.batches(): ...  # or as many as are there

A subscription begins at `async with` or at the first message that is asked for, outlives broken connections, and ends
with `close()`, with the client, or by the error that it raises to whoever reads it.
"""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from penstock.client.connection import Connection
from penstock.client.errors import ClientClosed
from penstock.client.message import Message
from penstock.client.session import Session
from penstock.model.errors import PenstockError

DEFAULT_BATCH = 1_000


class Subscription:
    def __init__(self, session: Session, topic: str) -> None:
        self.topic = topic
        self.gap = 0  # messages that were dropped, or were no longer there, so far
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._buffer: deque[Message] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._starting: asyncio.Task[None] | None = None
        self._started = False
        self._error: PenstockError | None = None

    @property
    def is_closed(self) -> bool:
        return self._error is not None

    # -- reading ------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message; ends when the subscription is closed, raises what ended it otherwise."""
        while True:
            message = self._next()
            if message is not None:
                return message
            try:
                await self._more()
            except ClientClosed:
                raise StopAsyncIteration from None

    async def batches(self, max_messages: int = DEFAULT_BATCH) -> AsyncIterator[list[Message]]:
        """Lists of what is there, at least one message and at most so many."""
        while True:
            batch = await self.take(max_messages)
            if not batch:
                return
            yield batch

    async def take(self, max_messages: int = DEFAULT_BATCH, timeout_s: float | None = None) -> list[Message]:
        """At most so many messages; waits for the first. Empty when the time is over or the subscription closed."""
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        while True:
            batch = self._take(max_messages)
            if batch:
                return batch
            try:
                async with asyncio.timeout_at(deadline):
                    await self._more()
            except ClientClosed:
                return []
            except TimeoutError:
                return self._take(max_messages)

    def _next(self) -> Message | None:
        return self._buffer.popleft() if self._buffer else None

    def _take(self, max_messages: int) -> list[Message]:
        buffer = self._buffer
        if len(buffer) <= max_messages:
            batch = list(buffer)
            buffer.clear()
            return batch
        return [buffer.popleft() for _ in range(max_messages)]

    async def _more(self) -> None:
        """Wait until something changed: a message came, or the end."""
        if self._error is not None:
            raise self._error
        if not self._started:
            await self.start()
            return
        waiter = self._await_news()
        try:
            await waiter
        finally:
            self._stop_waiting(waiter)

    def _await_news(self) -> "asyncio.Future[None]":
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def _stop_waiting(self, waiter: "asyncio.Future[None]") -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin now rather than with the first message that is asked for."""
        if self._error is not None:
            raise self._error
        if self._started:
            return
        if self._starting is None:
            self._starting = self._loop.create_task(self._begin())
            self._starting.add_done_callback(self._begun)
        starting = self._starting
        if starting.done():  # `_begun` is yet to run: awaiting what is done would not let it
            await asyncio.sleep(0)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():  # closed meanwhile, which is not the reader's being cancelled
                raise ClientClosed("this subscription was closed") from None
            raise

    def _begun(self, task: "asyncio.Task[None]") -> None:
        self._starting = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._started = True
            self._wake()
        else:
            self._stop(error if isinstance(error, PenstockError) else PenstockError(str(error)))

    async def close(self) -> None:
        """Leave; what a queue handed out and was not settled goes to others."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._error is None:
            await self._finish()
        self._stop(ClientClosed("this subscription was closed"))

    def _stop(self, error: PenstockError) -> None:
        if self._error is None:
            self._error = error
        self._session.discard(self)
        if isinstance(self._error, ClientClosed):
            self._buffer.clear()
        self._wake()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def _begin(self) -> None:
        """Learn what must be known, and become a member of the session."""

    async def _finish(self) -> None:
        """Say farewell, while there is still somebody to say it to."""

    # -- the session's member -----------------------------------------------------------------------------------

    @property
    def needs_connection(self) -> bool:
        return self._error is None

    @abstractmethod
    def resume(self, connection: Connection) -> None: ...

    def suspend(self) -> None:
        self._connection = None

    def fail(self, error: PenstockError) -> None:
        self._stop(error)


S = TypeVar("S", bound=Subscription)


async def take_any(
    subscriptions: Sequence[S], max_messages: int = DEFAULT_BATCH, timeout_s: float | None = None
) -> tuple[S | None, list[Message]]:
    """See `Client.take_any`."""
    deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    for one in subscriptions:
        with suppress(ClientClosed):  # one that is closed has nothing, and the others go on
            await one.start()
    while True:
        for one in subscriptions:
            batch = one._take(max_messages)
            if batch:
                return one, batch
            if one._error is not None and not isinstance(one._error, ClientClosed):
                raise one._error
        waiters = [(one, one._await_news()) for one in subscriptions if not one.is_closed]
        if not waiters:
            return None, []
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.wait([waiter for _, waiter in waiters], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            return None, []
        finally:
            for one, waiter in waiters:
                one._stop_waiting(waiter)
