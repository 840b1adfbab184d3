"""Produce: batches in, closed as they came; replies when they are durable."""

import asyncio
import logging
from functools import partial
from types import SimpleNamespace as Struct

from penstock.doors.kafka.api import Call, Later, Reply, handles
from penstock.doors.kafka.errors import (
    INVALID_PRODUCER_EPOCH,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_SERVER_ERROR,
    error_code,
)
from penstock.log.partition import Appended
from penstock.log.topics import Topic
from penstock.model.errors import (
    ConcurrentTransactions,
    InvalidRequest,
    NotAllowed,
    PenstockError,
    ProducerFenced,
)
from penstock.wire.kafka.api import ApiKey

_log = logging.getLogger(__name__)

INVALID_REQUIRED_ACKS = 21
NOT_ENOUGH_REPLICAS = 19
_ACKS = (-1, 0, 1)
IMPLICIT_FROM = 12  # since this version (KIP-890) a batch itself adds its partition to its transaction
NO_TRANSACTION = ""  # never the name of one: a batch that says it belongs to a transaction finds none


class UnansweredFailure(Exception):
    """A request that wants no reply failed: closing the connection is the only way to say so."""


# Versions below 3 carry older record formats. They are advertised all the same: librdkafka takes their absence for a
# broker that cannot compress (KAFKA-18659).
@handles(ApiKey.PRODUCE, 3, 13, advertise_from=0)
async def produce(call: Call) -> Reply | Later:
    body = call.body
    response = Struct(responses=[])
    pending: list[tuple[Struct, Appended]] = []
    publish = partial(
        call.broker.publisher.publish,
        transactional_id=body.transactional_id or NO_TRANSACTION,
        implicit=call.version >= IMPLICIT_FROM,
    )
    unfit = _unfit(call)
    for topic_data in body.topic_data:
        replies: list[Struct] = []
        if call.version >= 13:
            response.responses.append(Struct(topic_id=topic_data.topic_id, partition_responses=replies))
        else:
            response.responses.append(Struct(name=topic_data.name, partition_responses=replies))
        topic, refusal = _topic(call, topic_data) if unfit is None else (None, unfit)
        for data in topic_data.partition_data:
            reply = Struct(index=data.index, error_code=0, base_offset=-1)
            replies.append(reply)
            try:
                if topic is None:
                    assert refusal is not None
                    raise refusal
                if data.records is None:
                    raise InvalidRequest("a partition without a record batch")
                appended = await publish(topic, data.index, data.records)
            except PenstockError as error:
                _refuse(reply, error, call.version)
            else:
                pending.append((reply, appended))
    if body.acks == 0:
        if any(reply.error_code for topic in response.responses for reply in topic.partition_responses):
            raise UnansweredFailure
        return _Durable(None, pending, call.version) if pending else None
    return _Durable(response, pending, call.version) if pending else response


def _unfit(call: Call) -> PenstockError | None:
    """Why nothing of this request can be taken, if so."""
    body = call.body
    if body.acks not in _ACKS:
        return _InvalidAcks(f"acks is {body.acks}; -1, 0 and 1 are allowed")
    if body.transactional_id is not None:
        try:
            call.broker.publisher.check_transaction(call.principal, body.transactional_id)
        except NotAllowed as error:
            return _TransactionNotAllowed(str(error))
    return None


def _topic(call: Call, topic_data: Struct) -> tuple[Topic | None, PenstockError | None]:
    try:
        topics = call.broker.topics
        topic = topics.get_by_id(topic_data.topic_id) if call.version >= 13 else topics.get(topic_data.name)
        call.broker.publisher.check(call.principal, topic)
        return topic, None
    except PenstockError as error:
        return None, error


class _InvalidAcks(InvalidRequest):
    pass


class _TransactionNotAllowed(NotAllowed):
    pass


class _Durable(Later):
    """Settled when every batch of a request is durable, or has failed.

    A request without acks is settled then too, with no reply: it counts as under way until it is written, so a flood
    stays bounded.
    """

    __slots__ = ("_left", "_response", "_version")

    def __init__(self, response: Reply, pending: list[tuple[Struct, Appended]], version: int) -> None:
        super().__init__()
        self._version = version
        self._response = response
        self._left = len(pending)
        for reply, appended in pending:
            appended.durable.add_done_callback(partial(self._settled, reply, appended))

    def _settled(self, reply: Struct, appended: Appended, durable: asyncio.Future[None]) -> None:
        failure = durable.exception()
        if failure is None:
            reply.base_offset = appended.base_offset
            reply.log_append_time_ms = appended.append_time_ms
            reply.log_start_offset = appended.start_offset
        elif isinstance(failure, PenstockError):
            _refuse(reply, failure, self._version)
        else:
            _log.error("kafka: a write failed for a reason that is not the disk's", exc_info=failure)
            reply.error_code = UNKNOWN_SERVER_ERROR
        self._left -= 1
        if not self._left:
            self.settle(self._response)


def _refuse(reply: Struct, error: PenstockError, version: int) -> None:
    reply.error_code = _error_code(error, version)
    reply.error_message = str(error)


def _error_code(error: PenstockError, version: int) -> int:
    match error:
        case _InvalidAcks():
            return INVALID_REQUIRED_ACKS
        case _TransactionNotAllowed():
            return TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        case ProducerFenced():  # which a produce reply has no word for: its coordinator will say it
            return INVALID_PRODUCER_EPOCH
        case ConcurrentTransactions() if version < IMPLICIT_FROM:  # older clients try again on this code only
            return NOT_ENOUGH_REPLICAS
    return error_code(error)
