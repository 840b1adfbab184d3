"""Publishing: batches in, closed as they came; answered when they are durable."""

import asyncio
from functools import partial

from penstock.doors.line.binary_api import LATER, Call, failure_of, handles
from penstock.log.partition import Appended
from penstock.log.topics import Topic
from penstock.model.errors import InvalidRequest, PenstockError
from penstock.wire.native.messages import (
    Failure,
    IncomingPublish,
    ProducerId,
    Publish,
    Published,
    Stored,
    TakeProducerId,
)

NO_OFFSET = -1
FIRST_EPOCH = 0
_NO_ACKS = 0
_ACKS = (-1, _NO_ACKS, 1)


@handles(TakeProducerId)
async def take_producer_id(call: Call, request: TakeProducerId) -> ProducerId:
    return ProducerId(await call.broker.identities.take_producer_id(), FIRST_EPOCH)


@handles(Publish)
async def publish(call: Call, request: IncomingPublish) -> object:
    if request.acks not in _ACKS:
        raise InvalidRequest(f"acks is {request.acks}; -1, 0 and 1 are allowed")
    publisher = call.broker.publisher
    topics: dict[str, Topic] = {}
    results: list[Stored] = []
    pending: list[tuple[Stored, Appended]] = []
    for batch in request.batches:
        try:
            topic = topics.get(batch.topic)
            if topic is None:
                topic = call.broker.topics.get(batch.topic)
                publisher.check(call.principal, topic)
                topics[batch.topic] = topic
            appended = await publisher.publish(topic, batch.partition, batch.batch)
        except PenstockError as error:
            results.append(_refused(error))
        else:
            stored = Stored(appended.base_offset, appended.append_time_ms)
            results.append(stored)
            pending.append((stored, appended))
    published = _Published(call, results, len(pending), unanswered=request.acks == _NO_ACKS)
    if not pending:
        published.finish()
    for stored, appended in pending:
        appended.durable.add_done_callback(partial(published.settled, stored))
    return LATER


class _Published:
    """A publish until every batch of it is durable or has failed.

    One without acks is answered then too, with nothing unless it failed: it counts as under way until it is written,
    so a flood stays bounded.
    """

    __slots__ = ("_call", "_left", "_results", "_unanswered")

    def __init__(self, call: Call, results: list[Stored], left: int, *, unanswered: bool) -> None:
        self._call = call
        self._results = results
        self._left = left
        self._unanswered = unanswered

    def settled(self, stored: Stored, durable: "asyncio.Future[None]") -> None:
        failure = durable.exception()
        if failure is not None:
            refused = _refused(failure)
            stored.base_offset, stored.append_time_ms = refused.base_offset, refused.append_time_ms
            stored.error, stored.message, stored.retriable = refused.error, refused.message, refused.retriable
        self._left -= 1
        if not self._left:
            self.finish()

    def finish(self) -> None:
        if not self._unanswered:
            self._call.reply(Published(self._results))
            return
        refused = next((stored for stored in self._results if stored.error is not None), None)
        self._call.reply(None if refused is None else _failure(refused))


def _refused(error: BaseException) -> Stored:
    failure = failure_of(error)
    return Stored(NO_OFFSET, error=failure.code, message=failure.message, retriable=failure.retriable)


def _failure(refused: Stored) -> Failure:
    assert refused.error is not None
    return Failure(refused.error, refused.message, refused.retriable)
