"""Pub/sub and log subscriptions: opened records pushed within the subscriber's credit.

Each subscription is a task that waits for credit, then for room in what is written, then for records. It never holds
more than one push of MAX_PUSH_BYTES.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

import msgspec

from penstock.broker.read import Match, Overflow, Reader, Start
from penstock.doors.line.binary_api import Call, handles
from penstock.model.batch import encode_batch
from penstock.model.errors import InvalidRequest, InvalidSetting, LimitReached
from penstock.model.message import Incoming
from penstock.wire.native.messages import (
    AddCredit,
    Batch,
    Done,
    MatchFields,
    Records,
    SubscribeLog,
    SubscribePubSub,
    Unsubscribe,
)

MAX_CREDIT = 1_000_000  # of one subscription at once
MAX_PUSH_MESSAGES = 10_000
MAX_PUSH_BYTES = 256 << 10
LONG_MS = 3_600_000

_Fields = TypeVar("_Fields")


class Pushing:
    """A subscription to a reader."""

    def __init__(self, call: Call, reader: Reader, credit: int) -> None:
        self._connection = call.connection
        self._id = call.correlation_id
        self._reader = reader
        self._credit = credit
        self._more_credit = asyncio.Event()
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._push())

    def add_credit(self, credit: int) -> None:
        self._credit = checked_credit(self._credit + credit)
        self._more_credit.set()

    def room_changed(self, has_room: bool) -> None:
        """The task looks by itself."""

    def close(self, *, lost: bool = False) -> None:
        self._closed = True
        self._reader.close()
        asyncio.get_running_loop().call_soon(self._task.cancel)

    async def _push(self) -> None:
        try:
            while not self._closed:
                await self._push_once()
        except Exception as error:
            self._reader.close()
            self._connection.ended(self._id, error)

    async def _push_once(self) -> None:
        while self._credit <= 0:
            self._more_credit.clear()
            await self._more_credit.wait()
        await self._connection.outlet.room()
        taken = await self._reader.take(min(self._credit, MAX_PUSH_MESSAGES), MAX_PUSH_BYTES, LONG_MS)
        if self._closed:
            return
        if taken.messages or taken.gap:
            self._credit -= len(taken.messages)
            batches = [part.formed("native", _batch) for part in taken.parts]
            self._connection.push(self._id, Records(batches, taken.gap))
        await asyncio.sleep(0)  # a backlog leaves in pushes with others' turns between them


def _batch(messages: Sequence[Incoming]) -> Batch:
    """Messages of one partition. Offsets rise, with gaps where a filter passed something over."""
    first = messages[0]
    return Batch(first.topic, first.partition, cast(bytes, encode_batch([message.record for message in messages])))


# -- requests -----------------------------------------------------------------------------------------------


@handles(SubscribePubSub)
async def subscribe_pubsub(call: Call, request: SubscribePubSub) -> Done:
    call.connection.check_new(call.correlation_id)
    credit = checked_credit(request.credit)
    try:
        overflow = Overflow(request.overflow)
    except ValueError:
        allowed = ", ".join(choice.value for choice in Overflow)
        raise InvalidRequest(f"overflow is {request.overflow!r}; allowed are {allowed}") from None
    if request.max_behind < 1:
        raise InvalidRequest(f"max_behind is {request.max_behind}; it must be at least 1")
    reader = await call.broker.readers.pubsub(
        call.principal,
        request.topic,
        matches=matches_of(request.matches),
        max_behind=request.max_behind,
        overflow=overflow,
    )
    call.connection.add(call.correlation_id, Pushing(call, reader, credit))
    return Done()


@handles(SubscribeLog)
async def subscribe_log(call: Call, request: SubscribeLog) -> Done:
    call.connection.check_new(call.correlation_id)
    credit = checked_credit(request.credit)
    start = Start(request.offsets, request.timestamp_ms, request.earliest)
    reader = await call.broker.readers.log(call.principal, request.topic, start, matches=matches_of(request.matches))
    call.connection.add(call.correlation_id, Pushing(call, reader, credit))
    return Done()


@handles(AddCredit)
async def add_credit(call: Call, request: AddCredit) -> None:
    if request.credit < 1:
        raise InvalidRequest(f"credit is {request.credit}; it must be at least 1")
    subscription = call.connection.subscriptions.get(request.subscription)
    if subscription is not None:  # else it ended while this was on its way
        subscription.add_credit(request.credit)


@handles(Unsubscribe)
async def unsubscribe(call: Call, request: Unsubscribe) -> Done:
    subscription = call.connection.subscriptions.pop(request.subscription, None)
    if subscription is None:
        return Done(0)  # it ended while this was on its way
    subscription.close()
    return Done(1)


def checked_credit(credit: int) -> int:
    if credit < 0:
        raise InvalidRequest(f"a credit of {credit}; it must not be negative")
    if credit > MAX_CREDIT:
        raise LimitReached(f"a subscription has a credit of at most {MAX_CREDIT}")
    return credit


def matches_of(matches: Iterable[MatchFields]) -> tuple[Match, ...]:
    return tuple(fields_as(Match, match) for match in matches)


def fields_as(kind: type[_Fields], fields: object) -> _Fields:
    """Settings by their names as the broker's own class; what it does not know is refused."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise InvalidSetting(f"{kind.__name__}: {error}") from None
