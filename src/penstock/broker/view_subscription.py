"""Consuming by a subscription: a consumer that stays, and is told of its messages by a callback."""

import asyncio
from collections.abc import Callable, Sequence

from penstock.broker.view import Consumer, Delivery, View
from penstock.broker.view_host import ViewHost
from penstock.model.errors import PenstockError


class Subscription:
    """One consumer of a view, told of deliveries by a callback in the loop; it must not raise or await."""

    __slots__ = ("_attached", "_credit", "_host", "_number", "_view", "topic", "view")

    def __init__(self, host: ViewHost, view: View) -> None:
        self.topic = view.definition.topic
        self.view = view.definition.name
        self._host = host
        self._view = view
        self._number = host.new_consumer()
        self._attached = False
        self._credit = 0  # until it is attached

    def begin(
        self,
        deliver: Callable[[Sequence[Delivery]], None],
        ended: Callable[[PenstockError], None] | None,
        credit: int,
        lease_ms: int | None,
    ) -> None:
        """Messages come from the next turn of the loop on: whoever subscribed holds the subscription by then."""
        self._view.consumers[self._number] = Consumer(deliver, ended)
        self._credit = credit
        asyncio.get_running_loop().call_soon(self._attach, lease_ms)

    def _attach(self, lease_ms: int | None) -> None:
        view, host = self._view, self._host
        if self._number in view.consumers:
            self._attached = True
            host.perform(view, view.machine.attach(host.now, self._number, self._credit, lease_ms=lease_ms))

    def add_credit(self, credit: int) -> None:
        view, host = self._view, self._host
        if not self._attached:
            self._credit += credit
        elif self._number in view.consumers:
            host.perform(view, view.machine.add_credit(host.now, self._number, credit))

    def close(self, *, lost: bool = False) -> None:
        """Leave: what is unsettled goes to others at once. If the consumer was lost, each has failed once more."""
        self._host.detach(self._view, self._number, lost=lost)
