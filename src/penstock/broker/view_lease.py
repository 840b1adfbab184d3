"""Leasing by a call: a consumer that lives as long as the call, and whose leases outlive it."""

import asyncio
from collections.abc import Sequence

from penstock.broker.view import Consumer, Delivery, View
from penstock.broker.view_host import ViewHost
from penstock.delivery.queue_events import Outcome
from penstock.model.errors import PenstockError

# Who does not wait still waits so long for what is being read: an answer of nothing should mean that there is nothing.
PATIENCE_S = 0.5
# Who has some but may have more waits so long for what is being read.
LINGER_S = 0.02


class Taker:
    """One lease call."""

    def __init__(self, host: ViewHost, view: View, limit: int) -> None:
        self._host = host
        self._view = view
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._released = False
        self._error: PenstockError | None = None
        self.taken: list[Delivery] = []

    async def take(self, wait_ms: int, lease_ms: int | None, *, patience_s: float = PATIENCE_S) -> list[Delivery]:
        """Up to the limit; no message is lost when the caller is cancelled meanwhile."""
        host, view = self._host, self._view
        number = host.new_consumer()
        view.consumers[number] = Consumer(self._deliver, self._end)
        host.perform(view, view.machine.attach(host.now, number, self._limit, lease_ms=lease_ms))
        try:
            await self._first(wait_ms, patience_s)
            await self._more()
        except BaseException:
            host.detach(view, number)
            raise
        if view.gone is None:
            host.perform(view, view.machine.detach(host.now, number, keep_leases=True))
        try:
            await self._quiet(number)
        except BaseException:
            view.consumers.pop(number, None)
            host.settle_quietly(view, Outcome.RELEASE, [delivery.receipt for delivery in self.taken])
            raise
        view.consumers.pop(number, None)
        if self._error is not None and not self.taken:
            raise self._error
        return self.taken

    def release(self) -> None:
        """Do not wait any longer."""
        self._released = True
        self._rouse()

    # -- waiting ----------------------------------------------------------------------------------------------------

    async def _first(self, wait_ms: int, patience_s: float) -> None:
        begun_s = self._loop.time()
        until_s = begun_s + wait_ms / 1000
        patient_s = max(until_s, begun_s + patience_s)
        while not (self.taken or self._released or self._error):
            now_s = self._loop.time()
            if self._is_busy() and now_s < patient_s:
                await self._wait(patient_s - now_s)
            elif now_s < until_s:
                await self._wait(until_s - now_s, for_delivery_only=True)
            else:
                return

    async def _more(self) -> None:
        until_s = self._loop.time() + LINGER_S
        while 0 < len(self.taken) < self._limit and self._is_busy() and not self._released:
            left_s = until_s - self._loop.time()
            if left_s <= 0:
                return
            await self._wait(left_s)

    async def _quiet(self, number: int) -> None:
        """What was decided for this consumer before it left is still its own."""
        view = self._view
        if view.at_most_once and view.turns:
            landed = False

            def land() -> None:
                nonlocal landed
                landed = True
                self._rouse()

            self._host.when_durable(view, land)
            while not landed and view.gone is None:
                await self._wait(None)
        while view.gone is None and view.outbox.holds(number):
            await self._wait(None)

    def _is_busy(self) -> bool:
        view = self._view
        return view.pump.running or not view.outbox.empty or (view.at_most_once and bool(view.turns))

    async def _wait(self, seconds: float | None, *, for_delivery_only: bool = False) -> None:
        waiter = self._waiter = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(seconds, self._rouse)
        if not for_delivery_only:
            self._view.waiters.add(waiter)
            if self._view.at_most_once and self._view.turns:
                self._host.when_durable(self._view, self._rouse)
        try:
            await waiter
        finally:
            self._waiter = None
            self._view.waiters.discard(waiter)
            if timer is not None:
                timer.cancel()

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        self.taken.extend(deliveries)
        self._rouse()

    def _end(self, error: PenstockError) -> None:
        self._error = error
        self._rouse()

    def _rouse(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
