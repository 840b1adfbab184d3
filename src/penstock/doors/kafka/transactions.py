"""Transactions as producers see them: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn.

    first protocol      partitions and groups are added by requests of their own before they are written to; the epoch
                        changes only when a producer begins anew
    second protocol     (KIP-890) a batch or an offset adds its partition or group by itself (Produce 12+,
                        TxnOffsetCommit 5+), and every end gives the producer a new epoch (EndTxn 5+)

A handler asks the broker at once, in the order of the connection's requests; what it returns waits for the answer.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from types import SimpleNamespace as Struct

from penstock.broker.coordinate import ANY_GENERATION, Commit, OffsetCommit, Refusals, TopicPartition
from penstock.broker.transact import NO_EPOCH, NO_PRODUCER_ID, ProducerIdentity
from penstock.doors.kafka.api import Call, Reply, handles
from penstock.doors.kafka.errors import (
    GROUP_AUTHORIZATION_FAILED,
    INVALID_PRODUCER_EPOCH,
    cluster_error_code,
    error_code,
    transaction_error_code,
)
from penstock.doors.kafka.group_offsets import check_exists
from penstock.model.errors import InvalidRequest, NotAllowed, PenstockError, ProducerFenced
from penstock.security.acl import Operation, Resource
from penstock.wire.kafka.api import ApiKey

BATCHED_FROM = 4  # AddPartitionsToTxn of many transactions, and to verify only: what brokers ask each other
BUMPED_FROM = 5  # EndTxn
IMPLICIT_FROM = 5  # TxnOffsetCommit

# Since these versions the requests know of fenced producers.
_FENCED_FROM = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}


def _code(call: Call, error: PenstockError) -> int:
    return transaction_error_code(error, knows_fenced=call.version >= _FENCED_FROM[ApiKey(call.api_key)])


def _group_refused(call: Call, group: str) -> bool:
    """Whether it is the group that this principal may not use, and not the transaction."""
    return not call.broker.authorizer.allows(call.principal, Operation.READ, Resource.GROUP, group)


# -- InitProducerId ---------------------------------------------------------------------------------------------


@handles(ApiKey.INIT_PRODUCER_ID, 0, 5)
async def init_producer_id(call: Call) -> Reply | Awaitable[Reply]:
    """Without a transactional id a fresh one each time: who lost track of its sequences starts anew with it."""
    body = call.body
    try:
        if (body.producer_id == NO_PRODUCER_ID) != (body.producer_epoch == NO_EPOCH):
            raise InvalidRequest("a producer is known by its id and its epoch together")
        if body.transactional_id is None:
            call.broker.authorizer.check(call.principal, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, "cluster")
            return _identity(ProducerIdentity(await call.broker.identities.take_producer_id(), 0))
        if not body.transactional_id:
            raise InvalidRequest("a transactional id may not be empty")
        initialising = call.broker.transactions.init(
            call.principal,
            body.transactional_id,
            body.transaction_timeout_ms,
            body.producer_id,
            body.producer_epoch,
            via=call.via,
        )
    except PenstockError as error:
        return _no_identity(cluster_error_code(error) if body.transactional_id is None else _code(call, error))
    return _identity_reply(call, initialising)


async def _identity_reply(call: Call, identity: Awaitable[ProducerIdentity]) -> Struct:
    try:
        return _identity(await identity)
    except PenstockError as error:
        return _no_identity(_code(call, error))


def _identity(identity: ProducerIdentity) -> Struct:
    return Struct(error_code=0, producer_id=identity.producer_id, producer_epoch=identity.epoch)


def _no_identity(code: int) -> Struct:
    return Struct(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)


# -- AddPartitionsToTxn -----------------------------------------------------------------------------------------


@handles(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5)
async def add_partitions_to_txn(call: Call) -> Reply | Awaitable[Reply]:
    body = call.body
    if call.version < BATCHED_FROM:
        asked = Struct(
            transactional_id=body.v3_and_below_transactional_id,
            producer_id=body.v3_and_below_producer_id,
            producer_epoch=body.v3_and_below_producer_epoch,
            verify_only=False,
            topics=body.v3_and_below_topics,
        )
        return _added_reply(call, asked, _add(call, asked))
    try:
        call.broker.authorizer.check(call.principal, Operation.CLUSTER_ACTION, Resource.CLUSTER, "cluster")
    except PenstockError as error:
        return Struct(error_code=cluster_error_code(error), results_by_transaction=[])
    return _all_added_reply(call, [(asked, _add(call, asked)) for asked in body.transactions])


Added = Awaitable[Refusals] | PenstockError


def _add(call: Call, asked: Struct) -> Added:
    partitions = [TopicPartition(topic.name, index) for topic in asked.topics for index in topic.partitions]
    try:
        return call.broker.transactions.add_partitions(
            call.principal,
            asked.transactional_id,
            asked.producer_id,
            asked.producer_epoch,
            partitions,
            via=call.via,
            verify_only=asked.verify_only,
        )
    except PenstockError as error:
        return error


async def _added_reply(call: Call, asked: Struct, added: Added) -> Struct:
    return Struct(results_by_topic_v3_and_below=await _topic_results(call, asked, added))


async def _all_added_reply(call: Call, all_added: list[tuple[Struct, Added]]) -> Struct:
    results = await asyncio.gather(*(_topic_results(call, asked, added) for asked, added in all_added))
    return Struct(
        error_code=0,
        results_by_transaction=[
            Struct(transactional_id=asked.transactional_id, topic_results=topics)
            for (asked, _), topics in zip(all_added, results, strict=True)
        ],
    )


async def _topic_results(call: Call, asked: Struct, added: Added) -> list[Struct]:
    try:
        if isinstance(added, PenstockError):
            raise added
        refusals = await added
    except PenstockError as error:
        return _results(asked, dict.fromkeys(_partitions(asked), _code(call, error)))
    return _results(asked, {p: 0 if refused is None else error_code(refused) for p, refused in refusals.items()})


def _partitions(asked: Struct) -> Iterable[TopicPartition]:
    return (TopicPartition(topic.name, index) for topic in asked.topics for index in topic.partitions)


def _results(asked: Struct, codes: dict[TopicPartition, int]) -> list[Struct]:
    return [
        Struct(
            name=topic.name,
            results_by_partition=[
                Struct(partition_index=index, partition_error_code=codes[TopicPartition(topic.name, index)])
                for index in topic.partitions
            ],
        )
        for topic in asked.topics
    ]


# -- AddOffsetsToTxn --------------------------------------------------------------------------------------------


@handles(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4)
async def add_offsets_to_txn(call: Call) -> Reply | Awaitable[Reply]:
    body = call.body
    try:
        if _group_refused(call, body.group_id):
            return Struct(error_code=GROUP_AUTHORIZATION_FAILED)
        adding = call.broker.transactions.add_group(
            call.principal, body.transactional_id, body.producer_id, body.producer_epoch, body.group_id, via=call.via
        )
    except PenstockError as error:
        return Struct(error_code=_code(call, error))
    return _group_reply(call, adding)


async def _group_reply(call: Call, adding: Awaitable[None]) -> Struct:
    try:
        await adding
    except PenstockError as error:
        return Struct(error_code=_code(call, error))
    return Struct(error_code=0)


# -- EndTxn -----------------------------------------------------------------------------------------------------


@handles(ApiKey.END_TXN, 0, 5)
async def end_txn(call: Call) -> Reply | Awaitable[Reply]:
    body = call.body
    try:
        ending = call.broker.transactions.end(
            call.principal,
            body.transactional_id,
            body.producer_id,
            body.producer_epoch,
            body.committed,
            via=call.via,
            bump=call.version >= BUMPED_FROM,
        )
    except PenstockError as error:
        return _no_identity(_code(call, error))
    return _identity_reply(call, ending)


# -- TxnOffsetCommit --------------------------------------------------------------------------------------------


@handles(ApiKey.TXN_OFFSET_COMMIT, 0, 5)
async def txn_offset_commit(call: Call) -> Reply | Awaitable[Reply]:
    body = call.body
    commits: dict[TopicPartition, Commit] = {}
    replies: list[tuple[Struct, TopicPartition]] = []  # those that wait for the broker
    response = Struct(topics=[])
    for topic in body.topics:
        answered = Struct(name=topic.name, partitions=[])
        response.topics.append(answered)
        for asked in topic.partitions:
            reply = Struct(partition_index=asked.partition_index, error_code=0)
            answered.partitions.append(reply)
            try:
                check_exists(call, topic.name, asked.partition_index)
            except PenstockError as error:
                reply.error_code = error_code(error)
                continue
            partition = TopicPartition(topic.name, asked.partition_index)
            commits[partition] = Commit(
                asked.committed_offset, asked.committed_leader_epoch, asked.committed_metadata or ""
            )
            replies.append((reply, partition))
    generation = max(body.generation_id, ANY_GENERATION)
    ask = OffsetCommit(commits, body.member_id or "", generation, body.group_instance_id)
    try:
        committing = call.broker.transactions.commit_offsets(
            call.principal,
            body.transactional_id,
            body.producer_id,
            body.producer_epoch,
            body.group_id,
            ask,
            implicit=call.version >= IMPLICIT_FROM,
        )
    except PenstockError as error:
        _refuse_all(call, replies, error)
        return response
    return _offsets_reply(call, response, replies, committing)


async def _offsets_reply(
    call: Call, response: Struct, replies: list[tuple[Struct, TopicPartition]], committing: Awaitable[Refusals]
) -> Struct:
    try:
        results = await committing
    except PenstockError as error:
        _refuse_all(call, replies, error)
        return response
    for reply, partition in replies:
        refused = results[partition]
        reply.error_code = 0 if refused is None else error_code(refused)
    return response


def _refuse_all(call: Call, replies: Iterable[tuple[Struct, TopicPartition]], error: PenstockError) -> None:
    if isinstance(error, NotAllowed) and _group_refused(call, call.body.group_id):
        code = GROUP_AUTHORIZATION_FAILED
    elif isinstance(error, ProducerFenced):  # which this reply has no word for, in any version
        code = INVALID_PRODUCER_EPOCH
    else:
        code = transaction_error_code(error)
    for reply, _ in replies:
        reply.error_code = code
