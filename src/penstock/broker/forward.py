"""A forwarder: copies what a binding takes from a router's topic to another topic, once each and in order.

It consumes a queue view of the broker's own and publishes under a name, with the offset of the original as number. One
publish is under way at a time: numbers must not overtake each other, for what lies below the last one counts as stored.
What was copied and not yet acknowledged when a crash came is copied again, and the log stores nothing of it.

A copy that its topic refuses for good is dropped with a warning; any other failure is tried again after a while.
"""

import asyncio
import logging
from collections.abc import Sequence

from penstock.broker.gather import Gatherer, Target
from penstock.broker.queues import Delivery, Outcome, Queues, Subscription
from penstock.log.topics import Topics
from penstock.model.errors import (
    InvalidRecord,
    InvalidTimestamp,
    PenstockError,
    RecordTooLarge,
    UnknownTopic,
    UnknownView,
)
from penstock.model.message import Outgoing, Placed
from penstock.security.principal import BROKER

_log = logging.getLogger(__name__)

FIRST_CREDIT = 64  # messages that a forwarder holds at once; twice as many each time they prove to be small
MAX_CREDIT = 2_048
MAX_HELD_BYTES = 16 << 20  # above this it begins with few again
RETRY_FIRST_S = 0.1
RETRY_CEILING_S = 10.0

_REFUSALS = (InvalidRecord, InvalidTimestamp, RecordTooLarge)


class Forwarder:
    def __init__(self, topics: Topics, gatherer: Gatherer, queues: Queues, router: str, view: str, target: str) -> None:
        self._topics = topics
        self._gatherer = gatherer
        self._queues = queues
        self._router = router
        self._view = view
        self._target = target
        self._held: list[Delivery] = []
        self._news = asyncio.Event()
        self._over = False
        self._retry_s = 0.0
        self._task = asyncio.create_task(self._run(), name=f"forward {router} to {target}")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while not self._over:
            subscription: Subscription | None = None
            try:
                self._held.clear()
                subscription = await self._queues.subscribe(
                    BROKER, self._router, self._view, self._take, FIRST_CREDIT, ended=self._end
                )
                await self._copy_all(subscription)
            except UnknownView:
                return
            except PenstockError as error:
                _log.warning("messages of %s do not reach %s, trying again: %s", self._router, self._target, error)
                self._retry_s = min(max(RETRY_FIRST_S, 2 * self._retry_s), RETRY_CEILING_S)
            finally:
                if subscription is not None:
                    subscription.close()  # what it held comes again, the oldest first
            await asyncio.sleep(self._retry_s)

    def _take(self, deliveries: Sequence[Delivery]) -> None:
        self._held += deliveries
        self._news.set()

    def _end(self, _: PenstockError) -> None:
        self._over = True
        self._news.set()

    # -- copying ----------------------------------------------------------------------------------------------

    async def _copy_all(self, subscription: Subscription) -> None:
        """Copy what comes; ends when large messages came and fewer of them should be held."""
        credit = FIRST_CREDIT
        while not self._over:
            await self._news.wait()
            self._news.clear()
            held, self._held = self._held, []
            if held:
                await self._copy_held(held)
                self._retry_s = 0.0
                held_bytes = sum(len(d.record.value or b"") + len(d.record.key or b"") for d in held)
                if held_bytes > MAX_HELD_BYTES and credit > FIRST_CREDIT:
                    return
                if len(held) >= credit // 2 and credit < MAX_CREDIT and held_bytes < MAX_HELD_BYTES // 4:
                    subscription.add_credit(credit)
                    credit *= 2

    async def _copy_held(self, held: Sequence[Delivery]) -> None:
        if self._target not in self._topics.by_name:
            raise UnknownTopic(f"there is no topic {self._target!r}")
        target = await self._gatherer.target(BROKER, self._target)
        streams: dict[int, list[Delivery]] = {}
        for delivery in held:
            streams.setdefault(delivery.partition, []).append(delivery)
        for deliveries in streams.values():
            deliveries.sort(key=lambda delivery: delivery.record.offset)
        outcomes = await asyncio.gather(
            *(self._copy(target, index, deliveries) for index, deliveries in streams.items()), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _copy(self, target: Target, index: int, deliveries: list[Delivery]) -> None:
        """Copy these of one partition, then acknowledge them."""
        producer = f"route:{self._topics.identity(self._topics.get(self._router))}:{index}:{self._view}"
        try:
            await _publish(target, producer, deliveries)
        except _REFUSALS:
            for delivery in deliveries:
                try:
                    await _publish(target, producer, [delivery])
                except _REFUSALS as error:
                    _log.warning(
                        "offset %d of %s-%d is not copied: topic %s refuses it: %s",
                        *(delivery.record.offset, self._router, index, self._target, error),
                    )
        receipts = [delivery.receipt for delivery in deliveries]
        self._queues.settle(BROKER, self._router, self._view, Outcome.ACK, receipts).add_done_callback(_noted)


def _publish(target: Target, producer: str, deliveries: Sequence[Delivery]) -> asyncio.Future[list[Placed]]:
    messages = []
    numbers = []
    for delivery in deliveries:
        record = delivery.record
        messages.append(Outgoing(record.key, record.value, record.headers, record.timestamp_ms))
        numbers.append(record.offset)
    return target.publish_numbered(messages, producer, numbers)


def _noted(settled: asyncio.Future[list[PenstockError | None]]) -> None:
    """What was not acknowledged, because the ledger failed or the view is gone, comes again or need not."""
    if not settled.cancelled() and settled.exception() is not None:
        _log.warning("a copy could not be acknowledged: %s", settled.exception())
