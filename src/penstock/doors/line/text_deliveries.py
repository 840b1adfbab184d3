"""What subscriptions deliver: `MSG <message id> <size>`, the payload, a line break.

orders:0:50             topic, partition, offset
orders:0:50@mail        handed out by the view `mail` of the same topic
orders:0:50@all/mail    handed out by the view `mail` of the topic `all`, which reads `orders` too
"""

import asyncio
from collections.abc import Sequence

from penstock.broker.queues import DEFAULT_VIEW, Delivery
from penstock.broker.queues import Subscription as QueueConsumer
from penstock.broker.read import Messages, Reader
from penstock.doors.line.text_settle import Handed, Unsettled
from penstock.doors.line.text_subscriptions import Address, Outlet
from penstock.model.errors import PenstockError
from penstock.model.record import Record
from penstock.wire.line import replies

MAX_MESSAGES = 500
MAX_BYTES = 256 << 10
WAIT_MS = 3_600_000
EMPTY_PAUSE_S = 0.1  # a server that is about to stop lets nobody wait for messages


def delivered(name: str, record: Record, *, with_meta: bool, attempt: int = 0) -> bytes:
    meta = replies.meta(record.key, record.timestamp_ms, record.headers, attempt) if with_meta else b""
    return replies.message(name.encode(), record.value, meta) + b"\r\n"


def _without_meta(messages: Messages) -> bytes:
    return b"".join(
        [delivered(f"{topic}:{index}:{record.offset}", record, with_meta=False) for topic, index, record in messages]
    )


def _with_meta(messages: Messages) -> bytes:
    return b"".join(
        [delivered(f"{topic}:{index}:{record.offset}", record, with_meta=True) for topic, index, record in messages]
    )


class ReaderSubscription:
    """Pub/sub and log: pumped from a reader at the pace at which the subscriber reads."""

    def __init__(self, address: Address, reader: Reader, outlet: Outlet, *, with_meta: bool) -> None:
        self.address = address
        self._reader = reader
        self._outlet = outlet
        self._with_meta = with_meta
        self._pump: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        if not self._closed:
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                await self._outlet.drained()
                taken = await self._reader.take(MAX_MESSAGES, MAX_BYTES, WAIT_MS)
                lines = [replies.gap(self.address.topic, taken.gap)] if taken.gap else []
                form = _with_meta if self._with_meta else _without_meta
                lines += [part.formed(f"line{form.__name__}", form) for part in taken.parts]
                if lines:
                    self._outlet.write(b"".join(lines))
                # A backlog leaves others their turns.
                await asyncio.sleep(0 if lines else EMPTY_PAUSE_S)
        except PenstockError as error:
            self._outlet.ended(self.address, error)
        except Exception as error:
            self._outlet.broken(error)

    def close(self, *, lost: bool = False) -> None:
        self._closed = True
        self._reader.close()
        if self._pump is not None:
            self._pump.cancel()


class QueueSubscription:
    """A consumer of a queue view; how much it is handed unsettled, its credit bounds."""

    def __init__(self, address: Address, outlet: Outlet, unsettled: Unsettled, *, with_meta: bool) -> None:
        self.address = address
        self.consumer: QueueConsumer | None = None
        self.settled_before = False  # at most once: nothing is there to be settled
        self._outlet = outlet
        self._unsettled = unsettled
        self._with_meta = with_meta
        self._owed_credit = 0
        self._repaying: asyncio.Task[None] | None = None
        self._early: list[Delivery] | None = []  # handed over before the subscriber was told that it is one

    def start(self) -> None:
        early, self._early = self._early, None
        if early:
            self.deliver(early)

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        if self._early is not None:
            self._early.extend(deliveries)
            return
        lines = []
        for delivery in deliveries:
            record, topic = delivery.record, delivery.topic
            name = f"{topic}:{delivery.partition}:{record.offset}{self._suffix(topic)}"
            if not self.settled_before:
                self._unsettled.remember(name, Handed(self.address.topic, self.address.view, delivery.receipt))
            lines.append(delivered(name, record, with_meta=self._with_meta, attempt=delivery.attempt))
        self._outlet.write(b"".join(lines))
        if self.settled_before:
            self._owed_credit += len(lines)
            if self._repaying is None:
                self._repaying = asyncio.get_running_loop().create_task(self._repay())

    async def _repay(self) -> None:
        """What need not be settled is done with when it was read."""
        await self._outlet.drained()
        owed, self._owed_credit = self._owed_credit, 0
        self._repaying = None
        if self.consumer is not None:
            self.consumer.add_credit(owed)

    def _suffix(self, topic: str) -> str:
        if topic != self.address.topic:
            return f"@{self.address.topic}/{self.address.view}"
        return "" if self.address.view == DEFAULT_VIEW else f"@{self.address.view}"

    def ended(self, error: PenstockError) -> None:
        self._outlet.ended(self.address, error)

    def close(self, *, lost: bool = False) -> None:
        if self.consumer is not None:
            self.consumer.close(lost=lost)
            self.consumer = None
        self._early = []
        if self._repaying is not None:
            self._repaying.cancel()
        self._unsettled.forget_view(self.address.topic, self.address.view)
