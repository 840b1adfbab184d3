"""The queue view: messages leased to this consumer, settled one by one or many at once.

What is settled in one tick of the loop travels in one frame. A settlement whose answer was lost is sent again before
anything else on the next connection; what was handed out and not settled by then comes again.

At-most-once views settle before they hand out, so nothing there would hold the server back: of those this consumer
asks for as many as it has room for, instead of having them pushed.
"""

import asyncio
import uuid
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from penstock.client.connection import Answer, Connection
from penstock.client.errors import ClientClosed, Disconnected
from penstock.client.message import GivenHeaders, Key, Message, Value, header_pairs, key_bytes, value_bytes
from penstock.client.session import Session
from penstock.client.subscription import Subscription
from penstock.model.batch import decode_batch
from penstock.model.errors import LeaseLost, PenstockError, RecordTooLarge, TimedOut
from penstock.wire.native import messages as wire
from penstock.wire.native.framing import MAX_STEP_BYTES

CREDIT = 1_000
RECEIPTS_PER_FRAME = 10_000
LEASE_WAIT_MS = 30_000
STEP_OVERHEAD_BYTES = 256 << 10  # for names, headers and receipts

Outcome = Literal["ack", "nack", "reject", "release", "extend"]
Guarantee = Literal["at-most-once", "at-least-once", "exactly-once"]
Manner = tuple[str, int | None, int | None]  # outcome, delay, lease


class Settlement:
    """What goes in one Settle: who waits for which of its receipts."""

    __slots__ = ("manner", "receipts", "timer", "waiting")

    def __init__(self, manner: Manner) -> None:
        self.manner = manner
        self.receipts: list[tuple[int, int]] = []
        self.waiting: list[tuple[asyncio.Future[None], int, Sequence[Message]]] = []  # with where theirs begin
        self.timer: asyncio.TimerHandle | None = None

    def add(self, future: "asyncio.Future[None]", messages: Sequence[Message]) -> None:
        self.waiting.append((future, len(self.receipts), messages))
        self.receipts += [message.receipt for message in messages]

    def fail(self, error: PenstockError) -> None:
        for future, _, _ in self.waiting:
            _refuse(future, error)

    def done(self, lost: Sequence[int]) -> None:
        missing = set(lost)
        for future, start, messages in self.waiting:
            gone = [one for index, one in enumerate(messages, start) if index in missing] if missing else []
            if gone:
                _refuse(future, _lease_lost(gone, len(messages)))
            elif not future.done():
                future.set_result(None)


def _refuse(future: "asyncio.Future[None]", error: PenstockError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # who does not await a settlement has chosen not to know


def _lease_lost(gone: list[Message], asked: int) -> LeaseLost:
    first = gone[0]
    which = f"{first.topic}-{first.partition} @{first.offset}"
    if asked > 1:
        which = f"{len(gone)} of {asked} messages ({which} the first)"
    error = LeaseLost(f"{which}: the lease ended, and somebody else has it now")
    error.messages = gone  # type: ignore[attr-defined]
    return error


class QueueSubscription(Subscription):
    def __init__(
        self,
        session: Session,
        topic: str,
        view: str,
        *,
        credit: int,
        lease_s: float | None,
        create: bool,
        settings: wire.Settings,
        matches: Sequence[wire.MatchFields],
    ) -> None:
        super().__init__(session, topic)
        self.view = view
        self._credit = credit
        self._lease_ms = None if lease_s is None else round(lease_s * 1000)
        self._create = create
        self._settings = settings
        self._matches = list(matches)
        self._id = 0
        self._pulling = False  # an at-most-once view
        self._asking = False
        self._gathering: dict[Manner, Settlement] = {}
        self._open: dict[Settlement, None] = {}  # sent, or to be sent again

    # -- life ---------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        if self._create:
            request: wire.Message = wire.CreateView(
                self.topic, self.view, self._settings, self._matches, "earliest", or_existing=True
            )
        else:
            request = wire.ListViews(self.topic, self.view)
        answer = await self._session.call(request)
        self._pulling = answer.views[0].settings.get("guarantee") == "at-most-once"
        self._session.add(self)

    def resume(self, connection: Connection) -> None:
        self._connection = connection
        for settlement in list(self._open):
            self._send(settlement)
        if self._error is not None:
            return
        if self._pulling:
            self._asking = False
            self._pull()
            return
        request = wire.SubscribeQueue(self.topic, self.view, self._credit, self._lease_ms, create=False)
        self._id = connection.subscribe(request, self._answered, partial(self._pushed, connection))

    def suspend(self) -> None:
        self._connection = None
        if not self._pulling:
            self._buffer.clear()  # they come again

    def fail(self, error: PenstockError) -> None:
        for settlement in [*self._open, *self._gathering.values()]:
            settlement.fail(error)
        self._open.clear()
        self._gathering.clear()
        self._stop(error)

    def _answered(self, answer: Answer) -> None:
        if isinstance(answer, PenstockError) and not isinstance(answer, Disconnected):
            self._stop(answer)

    async def _finish(self) -> None:
        """Settle what is being settled, give back what was not looked at, leave."""
        unread, self._buffer = list(self._buffer), type(self._buffer)()
        if unread and not self._pulling:
            self.settle(unread, "release")
        pending = [entry[0] for one in [*self._open, *self._gathering.values()] for entry in one.waiting]
        if pending:
            await asyncio.wait(pending)  # not `gather`, which would cancel them with us
        if self._connection is not None and self._id:
            connection, self._connection = self._connection, None
            connection.forget(self._id)
            await asyncio.gather(connection.request(wire.Unsubscribe(self._id)), return_exceptions=True)

    # -- deliveries ---------------------------------------------------------------------------------------------

    def _pushed(self, connection: Connection, push: Answer) -> None:
        if connection is not self._connection:
            return
        if isinstance(push, PenstockError):
            self._stop(push)
            return
        self._keep(push.leased)

    def _keep(self, leased: Sequence[wire.Leased]) -> None:
        for part in leased:
            topic, partition, stream = part.topic, part.partition, part.stream
            self._buffer.extend(
                [
                    Message(topic, partition, record, attempt, number, stream, self)
                    for record, attempt, number in zip(
                        decode_batch(part.batch), part.attempts, part.numbers, strict=True
                    )
                ]
            )
        self._wake()

    def _pull(self) -> None:
        connection = self._connection
        room = self._credit - len(self._buffer)
        if self._asking or connection is None or self._error is not None or room * 2 < self._credit:
            return
        self._asking = True
        request = wire.Lease(self.topic, self.view, room, LEASE_WAIT_MS, self._lease_ms)
        connection.ask(request, partial(self._pulled, connection))

    def _pulled(self, connection: Connection, answer: Answer) -> None:
        if connection is not self._connection:
            return
        self._asking = False
        if isinstance(answer, Disconnected):
            return
        if isinstance(answer, PenstockError):
            self._stop(answer)
            return
        self._keep(answer.leased)
        self._pull()

    def _next(self) -> Message | None:
        message = super()._next()
        if self._pulling:
            self._pull()
        return message

    def _take(self, max_messages: int) -> list[Message]:
        batch = super()._take(max_messages)
        if self._pulling:
            self._pull()
        return batch

    def add_credit(self, count: int) -> None:
        """Take so many more unsettled messages at once."""
        self._credit += count
        if self._connection is not None and not self._pulling:
            self._connection.tell(wire.AddCredit(self._id, count))

    # -- settling -----------------------------------------------------------------------------------------------

    def settle(
        self,
        messages: Sequence[Message],
        outcome: Outcome,
        *,
        delay_s: float | None = None,
        lease_s: float | None = None,
    ) -> "asyncio.Future[None]":
        """Settle these; the order is fixed when this returns. The future raises LeaseLost, whose `messages` are those
        that somebody else has now; the others are settled."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self._pulling and outcome != "extend":  # settled before it was handed out
            future.set_result(None)
            return future
        if self._connection is None and isinstance(self._error, ClientClosed):
            _refuse(future, self._error)
            return future
        delay_ms = None if delay_s is None else round(delay_s * 1000)
        lease_ms = None if lease_s is None else round(lease_s * 1000)
        manner = (outcome, delay_ms, lease_ms)
        settlement = self._gathering.get(manner)
        if settlement is None or len(settlement.receipts) + len(messages) > RECEIPTS_PER_FRAME:
            if settlement is not None:
                self._dispatch(settlement)
            if not self._gathering:
                self._loop.call_soon(self._settle_gathered)
            settlement = self._gathering[manner] = Settlement(manner)
        settlement.add(future, messages)
        return future

    def ack(self, messages: Sequence[Message]) -> "asyncio.Future[None]":
        return self.settle(messages, "ack")

    def nack(self, messages: Sequence[Message], delay_s: float | None = None) -> "asyncio.Future[None]":
        return self.settle(messages, "nack", delay_s=delay_s)

    def reject(self, messages: Sequence[Message]) -> "asyncio.Future[None]":
        return self.settle(messages, "reject")

    def release(self, messages: Sequence[Message]) -> "asyncio.Future[None]":
        return self.settle(messages, "release")

    def extend(self, messages: Sequence[Message], lease_s: float | None = None) -> "asyncio.Future[None]":
        return self.settle(messages, "extend", lease_s=lease_s)

    def _settle_gathered(self) -> None:
        gathered, self._gathering = self._gathering, {}
        for settlement in gathered.values():
            self._dispatch(settlement)

    def _dispatch(self, settlement: Settlement) -> None:
        self._open[settlement] = None
        settlement.timer = self._loop.call_later(self._session.timeout_s, self._late, settlement)
        if self._connection is not None:
            self._send(settlement)

    def _send(self, settlement: Settlement) -> None:
        assert self._connection is not None
        outcome, delay_ms, lease_ms = settlement.manner
        request = wire.Settle(self.topic, self.view, outcome, settlement.receipts, delay_ms, lease_ms)
        self._connection.ask(request, partial(self._settled, settlement))

    def _settled(self, settlement: Settlement, answer: Answer) -> None:
        if settlement not in self._open or isinstance(answer, Disconnected):
            return
        self._close(settlement)
        if isinstance(answer, PenstockError):
            settlement.fail(answer)
        else:
            settlement.done(answer.lost)

    def _late(self, settlement: Settlement) -> None:
        if settlement in self._open:
            self._close(settlement)
            settlement.fail(TimedOut(f"not settled within {self._session.timeout_s:g} s: it may or may not be"))

    def _close(self, settlement: Settlement) -> None:
        del self._open[settlement]
        if settlement.timer is not None:
            settlement.timer.cancel()

    # -- steps --------------------------------------------------------------------------------------------------

    def step(self, name: str | None = None) -> "Step":
        """Settle and publish in one atomic step, which happens once however often it is repeated under its name."""
        return Step(self, name or uuid.uuid4().hex)

    async def perform(self, step: "Step") -> bool:
        request = wire.Step(self.topic, self.view, step.name, [one.receipt for one in step.acked], step.published)
        size_bytes = sum(len(one.value or b"") + len(one.key or b"") for one in step.published)
        if size_bytes > MAX_STEP_BYTES - STEP_OVERHEAD_BYTES:
            raise RecordTooLarge(
                f"a step that publishes {size_bytes} bytes; at most about {MAX_STEP_BYTES} are allowed"
            )
        answer = await self._session.call(request)
        return bool(answer.count)


class Step:
    """`async with subscription.step() as step`: what it acks and publishes happens when the block ends without an
    error, all of it or nothing. `repeated` tells afterwards that a step of this name was done before, so that nothing
    happened now."""

    def __init__(self, subscription: QueueSubscription, name: str) -> None:
        self.name = name
        self.acked: list[Message] = []
        self.published: list[wire.StepMessage] = []
        self.repeated = False
        self._subscription = subscription

    def ack(self, *messages: Message) -> None:
        self.acked += messages

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
    ) -> None:
        pairs: list[Any] = list(header_pairs(headers, delay_s, deliver_at_ms, ttl_s, priority))
        self.published.append(
            wire.StepMessage(
                topic,
                key_bytes(key),
                value_bytes(value),
                pairs,
                -1 if timestamp_ms is None else timestamp_ms,
                -1 if partition is None else partition,
            )
        )

    async def perform(self) -> bool:
        """Do it; False if it was done before."""
        done = await self._subscription.perform(self)
        self.repeated = not done
        return done

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.perform()
