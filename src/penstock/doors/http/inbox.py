"""What a queue view hands to one stream, until the stream writes it. Bounded by the credit that the stream gives."""

import asyncio
from collections.abc import Sequence

from penstock.broker.queues import Delivery
from penstock.model.errors import PenstockError


class Inbox:
    def __init__(self) -> None:
        self._deliveries: list[Delivery] = []
        self._arrived: asyncio.Future[None] | None = None
        self.finished = False
        self.error: PenstockError | None = None  # why it is finished, if it was not by ourselves

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries.extend(deliveries)
        self._wake()

    def ended(self, error: PenstockError) -> None:
        self.error = error
        self.finish()

    def finish(self) -> None:
        self.finished = True
        self._wake()

    async def take(self) -> list[Delivery]:
        """All that is there, as soon as anything is. Empty when nothing will come any more."""
        if not self._deliveries and not self.finished:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        taken, self._deliveries = self._deliveries, []
        return [] if self.finished else taken

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
