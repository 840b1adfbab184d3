"""What every verb of transactions and named steps needs: their machines' host, new producer ids, the right to ask.

A verb that needs a new producer id first is put in order when it has one.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.broker.coordinate import Coordinator
from penstock.broker.hosting import Ledger, stopping
from penstock.broker.transact_hosting import Owner, TransactionHost
from penstock.delivery.decision import Decision
from penstock.delivery.transaction_events import TransactionSettings
from penstock.log.identities import Identities
from penstock.log.topics import Topics
from penstock.model.clock import Clock
from penstock.security.acl import AllowAll, Authorizer, Operation, Resource
from penstock.security.principal import Principal

T = TypeVar("T")


class TransactionShell:
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
        self._topics = topics
        self._identities = identities
        self._coordinator = coordinator
        self._authorizer = authorizer or AllowAll()
        self._host = TransactionHost(ledger, clock, settings or TransactionSettings(), topics, coordinator)
        self._tasks: set[asyncio.Task[Any]] = set()  # each is somebody's request; doors bound them

    async def start(self) -> None:
        """Replay what is known: what was decided is carried through, what was open waits for its client or time-out."""
        await self._host.load()

    def release(self) -> None:
        """The server is about to stop: whoever waits is told to try again elsewhere."""
        self._host.release()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._host.stop()

    def run_due(self) -> None:
        """Let happen what time brings. A timer does this; a test with a clock of its own may."""
        self._host.alarms.run_due()

    def _ask(self, owner: Owner, event: Callable[[int], Decision]) -> asyncio.Future[Any]:
        return self._host.ask(owner, event)

    def _with_id(self, ask: Callable[[int], asyncio.Future[T]]) -> asyncio.Future[T]:
        async def take_and_ask() -> T:
            return await ask(await self._identities.take_producer_id())

        return self._begin(take_and_ask())

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        if self._host.is_stopping:
            work.close()
            raise stopping()
        task = asyncio.create_task(work, name="transactions")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(mark_seen)  # whoever asked may have gone
        return task

    def _check(self, principal: Principal, operation: Operation, name: str) -> None:
        self._authorizer.check(principal, operation, Resource.TRANSACTIONAL_ID, name)

    def _allows(self, principal: Principal, operation: Operation, name: str) -> bool:
        return self._authorizer.allows(principal, operation, Resource.TRANSACTIONAL_ID, name)


def resolved(result: T) -> asyncio.Future[T]:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


def mark_seen(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
