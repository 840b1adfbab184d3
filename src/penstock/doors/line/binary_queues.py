"""Consuming queue views: leases pushed or asked for, settled, and stepped on from.

A push goes to a subscription as it comes: the broker hands out what the subscriber's credit allows. So that large
messages do not pile up here, the broker is told of as much of the credit as makes HELD_BYTES of messages of the size
seen so far, and of none while the client does not take what it gets. Where messages are settled before they are handed
out, credit given says how much was taken; so it is passed on as it is, and is small at first.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import cast

from penstock.broker.queues import Delivery, Outcome, Publication, QueueSettings, Receipt, Subscription
from penstock.doors.line.binary_api import LATER, Call, handles
from penstock.doors.line.binary_push import checked_credit, fields_as, matches_of
from penstock.model.batch import encode_batch
from penstock.model.errors import InvalidRequest, PenstockError
from penstock.model.message import Outgoing
from penstock.model.record import Record
from penstock.wire.native.messages import (
    Deliveries,
    Done,
    Lease,
    Leased,
    Message,
    PeekView,
    Settle,
    Settled,
    Step,
    StepMessage,
    SubscribeQueue,
)

HELD_BYTES = 4 << 20
FIRST_CREDIT = 32
AT_MOST_ONCE_CREDIT = 50
LEAST_CREDIT = 4
LEASE_GROWTH = 8  # how many times as many as before are asked for, while they are small
MAX_LEASED = 10_000  # by one request
MAX_WAIT_MS = 3_600_000
_OFFSET_BITS = 48  # of a place, as docs/protocol.md has it


class QueuePush:
    """A subscription to a view."""

    def __init__(self, call: Call, credit: int, settings: QueueSettings) -> None:
        self._call = call
        self._credit = credit
        self._settled_first = settings.guarantee == "at-most-once"
        self._allowed = min(credit, AT_MOST_ONCE_CREDIT if self._settled_first else FIRST_CREDIT)
        self._given = self._allowed  # what the broker knows of what it should
        self._ordered = settings.max_priority > 0
        self._has_room = True
        self._early: list[Sequence[Delivery]] | None = []  # until the request was answered
        self.subscription: Subscription | None = None

    @property
    def given(self) -> int:
        return self._given

    def begin(self) -> None:
        """The client was told that it is subscribed: what came before that may follow."""
        early, self._early = self._early, None
        for deliveries in early or ():
            self.deliver(deliveries)
        self._tell()

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        if self._early is not None:
            self._early.append(deliveries)
            return
        size_bytes = self._push(deliveries)
        worth_holding = max(LEAST_CREDIT, HELD_BYTES * len(deliveries) // max(1, size_bytes))
        self._allowed = min(self._credit, max(worth_holding, self._allowed // 2), 2 * self._allowed)
        self._tell()

    def _push(self, deliveries: Sequence[Delivery]) -> int:
        """In frames of about HELD_BYTES at most; how many bytes that were."""
        leased, size_bytes = leased_of(deliveries, ordered=self._ordered)
        if size_bytes > HELD_BYTES and len(deliveries) > 1:
            half = len(deliveries) // 2
            return self._push(deliveries[:half]) + self._push(deliveries[half:])
        self._call.connection.push(self._call.correlation_id, Deliveries(leased))
        return size_bytes

    def _tell(self) -> None:
        """Let the broker know of as much credit as it should."""
        wanted = self._allowed if self._has_room else 0
        if wanted != self._given and self.subscription is not None and not self._settled_first:
            more, self._given = wanted - self._given, wanted
            self.subscription.add_credit(more)

    def ended(self, error: PenstockError) -> None:
        self._call.connection.ended(self._call.correlation_id, error)

    def add_credit(self, credit: int) -> None:
        if self._settled_first and self.subscription is not None:
            self.subscription.add_credit(checked_credit(credit))
            return
        self._credit = checked_credit(self._credit + credit)
        self._allowed = min(self._credit, self._allowed + credit)
        self._tell()

    def room_changed(self, has_room: bool) -> None:
        self._has_room = has_room
        self._tell()

    def close(self, *, lost: bool = False) -> None:
        if self.subscription is not None:
            self.subscription.close(lost=lost)
            self.subscription = None


def leased_of(deliveries: Iterable[Delivery], *, ordered: bool = False) -> tuple[list[Leased], int]:
    """One entry for each partition, or more where offsets do not rise, and about how many bytes that is.

    `ordered`: the deliveries stay in exactly the order they have, as priorities need it.
    """
    found: list[tuple[list[Record], Leased]] = []
    latest: dict[int, tuple[list[Record], Leased]] = {}
    last_stream = last_offset = -1
    records: list[Record] = []
    numbers: list[int] = []
    attempts: list[int] = []
    for topic, partition, record, (place, number), attempt in deliveries:
        stream = place >> _OFFSET_BITS
        offset = record.offset
        if stream != last_stream or offset <= last_offset:
            last_stream = stream
            entry = None if ordered else latest.get(stream)
            if entry is None or entry[0][-1].offset >= offset:
                latest[stream] = entry = ([], Leased(topic, partition, stream, b"", [], []))
                found.append(entry)
            records, numbers, attempts = entry[0], entry[1].numbers, entry[1].attempts
        records.append(record)
        numbers.append(number)
        attempts.append(attempt)
        last_offset = offset
    size_bytes = 0
    for records, leased in found:
        leased.batch = cast(bytes, encode_batch(records))
        size_bytes += len(leased.batch)
    return [leased for _, leased in found], size_bytes


@handles(SubscribeQueue)
async def subscribe_queue(call: Call, request: SubscribeQueue) -> object:
    connection, queues = call.connection, call.broker.queues
    connection.check_new(call.correlation_id)
    credit = checked_credit(request.credit)
    if request.create:
        settings = fields_as(QueueSettings, request.settings)
        view = await queues.create(
            call.principal,
            request.topic,
            request.view,
            settings,
            matches=matches_of(request.matches),
            or_existing=True,
        )
    else:
        view = queues.describe(call.principal, request.topic, request.view)
    push = QueuePush(call, credit, view.settings)
    push.subscription = await queues.subscribe(
        call.principal,
        request.topic,
        request.view,
        push.deliver,
        push.given,
        lease_ms=request.lease_ms,
        ended=push.ended,
    )
    call.reply(Done())
    connection.add(call.correlation_id, push)
    push.begin()
    return LATER


# -- asking for leases --------------------------------------------------------------------------------------


@handles(Lease, waits=True)
async def lease(call: Call, request: Lease) -> object:
    if not 1 <= request.limit <= MAX_LEASED:
        raise InvalidRequest(f"limit is {request.limit}; 1 to {MAX_LEASED} are allowed")
    return _lease(call, request)


async def _lease(call: Call, request: Lease) -> Message | None:
    """A few first, then more while they are small, as far as they are there."""
    await call.connection.outlet.room()
    deliveries: list[Delivery] = []
    leased: list[Leased] = []
    size_bytes = 0
    ask, wait_ms = LEAST_CREDIT, min(max(0, request.wait_ms), MAX_WAIT_MS)
    while True:
        ask = min(ask, request.limit - len(deliveries))
        try:
            some = await _lease_some(call, request, ask, wait_ms)
        except BaseException:
            _give_back(call, request, deliveries)
            raise
        more, more_bytes = leased_of(some, ordered=True)
        deliveries += some
        leased += more
        size_bytes += more_bytes
        if len(some) < ask or len(deliveries) == request.limit or size_bytes >= HELD_BYTES:
            break
        ask, wait_ms = min(LEASE_GROWTH * ask, HELD_BYTES * ask // max(1, more_bytes) + 1), 0
    if call.connection.closed:
        _give_back(call, request, deliveries)
        return None
    return Deliveries(leased)


async def _lease_some(call: Call, request: Lease, limit: int, wait_ms: int) -> list[Delivery]:
    return await call.broker.queues.lease(
        call.principal, request.topic, request.view, limit, wait_ms=wait_ms, lease_ms=request.lease_ms
    )


def _give_back(call: Call, request: Lease, deliveries: Sequence[Delivery]) -> None:
    """Nobody is there to work on them."""
    receipts = [delivery.receipt for delivery in deliveries]
    if receipts:
        settling = call.broker.queues.settle(call.principal, request.topic, request.view, Outcome.RELEASE, receipts)
        settling.add_done_callback(lambda settled: settled.exception())


@handles(PeekView)
async def peek_view(call: Call, request: PeekView) -> object:
    if not 1 <= request.limit <= MAX_LEASED:
        raise InvalidRequest(f"limit is {request.limit}; 1 to {MAX_LEASED} are allowed")
    return _peek(call, request)


async def _peek(call: Call, request: PeekView) -> Message:
    found = await call.broker.queues.peek(call.principal, request.topic, request.view, request.limit)
    return Deliveries(leased_of(found, ordered=True)[0])


# -- settling -----------------------------------------------------------------------------------------------

_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_receipt: Callable[[tuple[int, int]], Receipt] = partial(tuple.__new__, Receipt)


@handles(Settle)
async def settle(call: Call, request: Settle) -> object:
    outcome = _OUTCOMES.get(request.outcome)
    if outcome is None:
        raise InvalidRequest(f"outcome is {request.outcome!r}; allowed are {', '.join(_OUTCOMES)}")
    settling = call.broker.queues.settle(
        call.principal,
        request.topic,
        request.view,
        outcome,
        list(map(_receipt, request.receipts)),
        delay_ms=request.delay_ms,
        lease_ms=request.lease_ms,
    )
    settling.add_done_callback(partial(_settled, call))
    return LATER


def _settled(call: Call, settling: "asyncio.Future[list[PenstockError | None]]") -> None:
    error = settling.exception()
    if error is not None:
        call.fail(error)
        return
    results = settling.result()
    lost = [index for index, refused in enumerate(results) if refused is not None] if any(results) else []
    call.reply(Settled(lost))


@handles(Step)
async def step(call: Call, request: Step) -> object:
    return _step(call, request)


async def _step(call: Call, request: Step) -> Message:
    topics: dict[str, list[Outgoing]] = {}
    for message in request.messages:
        topics.setdefault(message.topic, []).append(_outgoing(message))
    done_now = await call.broker.queues.step(
        call.principal,
        request.topic,
        request.view,
        request.name,
        list(map(_receipt, request.receipts)),
        [Publication(topic, tuple(messages)) for topic, messages in topics.items()],
    )
    return Done(int(done_now))


def _outgoing(message: StepMessage) -> Outgoing:
    headers = tuple((name, value) for name, value in message.headers)
    return Outgoing(message.key, message.value, headers, message.timestamp_ms, message.partition)
