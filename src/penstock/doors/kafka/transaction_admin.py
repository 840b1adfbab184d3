"""Transactions as administrators see them: DescribeProducers, DescribeTransactions, ListTransactions."""

import re
from types import SimpleNamespace as Struct

from penstock.broker.transact import NO_EPOCH, NO_PRODUCER_ID, TransactionState
from penstock.doors.kafka.api import Call, Reply, handles
from penstock.doors.kafka.errors import error_code, transaction_error_code
from penstock.model.errors import PenstockError
from penstock.security.acl import Operation, Resource
from penstock.wire.kafka.api import ApiKey

INVALID_REGULAR_EXPRESSION = 128
COORDINATOR_EPOCH = 0  # nobody takes the coordination over, so it never changes

# Matching is done in the server's one thread, and backtracks: a pattern that could take long is not tried at all.
MAX_PATTERN_CHARS = 255
MAX_REPEATS = 2
_SLOW = re.compile(r"\)[*+?{]|\(\?|\\[0-9]")  # repeated groups, looking around, references back

# States that Kafka knows and nothing here is ever in: to ask for them is no mistake.
_FOREIGN_STATES = ("Dead", "PrepareEpochFence")


@handles(ApiKey.DESCRIBE_PRODUCERS, 0, 0)
async def describe_producers(call: Call) -> Reply:
    return Struct(
        topics=[
            Struct(
                name=topic.name,
                partitions=[await _producers(call, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in call.body.topics
        ]
    )


async def _producers(call: Call, name: str, index: int) -> Struct:
    reply = Struct(partition_index=index, error_code=0, error_message=None, active_producers=[])
    try:
        producers = await call.broker.observer.producers(call.principal, name, index)
    except PenstockError as error:
        reply.error_code, reply.error_message = error_code(error), str(error)
        return reply
    reply.active_producers = [
        Struct(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.seen_ms,
            coordinator_epoch=COORDINATOR_EPOCH,
            current_txn_start_offset=producer.transaction_start,
        )
        for producer in producers
    ]
    return reply


@handles(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0)
async def describe_transactions(call: Call) -> Reply:
    names = dict.fromkeys(call.body.transactional_ids)
    return Struct(transaction_states=[_describe(call, name) for name in names])


def _describe(call: Call, transactional_id: str) -> Struct:
    reply = Struct(
        error_code=0,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=-1,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_EPOCH,
        topics=[],
    )
    try:
        found = call.broker.transactions.describe(call.principal, transactional_id)
    except PenstockError as error:
        reply.error_code = transaction_error_code(error)
        return reply
    reply.transaction_state = found.state.value
    reply.transaction_timeout_ms = found.timeout_ms
    reply.transaction_start_time_ms = found.started_ms
    reply.producer_id, reply.producer_epoch = found.identity
    topics: dict[str, list[int]] = {}
    for topic, index in found.partitions:
        topics.setdefault(topic, []).append(index)
    sees = call.broker.authorizer.allows
    reply.topics = [
        Struct(topic=topic, partitions=sorted(indexes))
        for topic, indexes in sorted(topics.items())
        if sees(call.principal, Operation.DESCRIBE, Resource.TOPIC, topic)
    ]
    return reply


@handles(ApiKey.LIST_TRANSACTIONS, 0, 2)
async def list_transactions(call: Call) -> Reply:
    body = call.body
    known = {state.value for state in TransactionState}
    unknown = [state for state in body.state_filters if state not in known and state not in _FOREIGN_STATES]
    states = [state for state in body.state_filters if state in known]
    reply = Struct(error_code=0, unknown_state_filters=unknown, transaction_states=[])
    if body.state_filters and not states:
        return reply
    pattern = body.transactional_id_pattern or None
    if pattern is not None and not _is_quick(pattern):
        reply.error_code = INVALID_REGULAR_EXPRESSION
        return reply
    try:
        found = call.broker.transactions.transactions(
            call.principal, states, body.producer_id_filters, body.duration_filter, pattern
        )
    except PenstockError as error:
        reply.error_code = transaction_error_code(error)
        return reply
    reply.transaction_states = [
        Struct(
            transactional_id=listing.transactional_id,
            producer_id=listing.producer_id,
            transaction_state=listing.state.value,
        )
        for listing in found
    ]
    return reply


def _is_quick(pattern: str) -> bool:
    """Whether this is a regular expression, and one that is soon done with any name."""
    repeats = sum(pattern.count(each) for each in "*+?{")
    if len(pattern) > MAX_PATTERN_CHARS or repeats > MAX_REPEATS or _SLOW.search(pattern):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
