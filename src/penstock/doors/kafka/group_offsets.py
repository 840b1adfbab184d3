"""What groups have read: OffsetCommit, OffsetFetch, OffsetDelete.

Offsets are kept by the topic's name. Version 10 speaks of topics by id: it is translated on the way in and out.
"""

from collections.abc import Awaitable, Iterable
from types import SimpleNamespace as Struct
from typing import NamedTuple

from penstock.broker.coordinate import ANY_GENERATION, Commit, OffsetCommit, OffsetFact, TopicPartition
from penstock.doors.kafka.api import Call, Reply, handles
from penstock.doors.kafka.errors import error_code
from penstock.doors.kafka.groups import member_error_code
from penstock.model.errors import PenstockError, UnknownGroup, UnknownPartition, UnknownTopic
from penstock.security.acl import Operation, Resource
from penstock.wire.kafka.api import ApiKey

ILLEGAL_GENERATION = 22
NO_OFFSET = -1
NO_LEADER_EPOCH = -1

Found = dict[TopicPartition, OffsetFact | PenstockError | None]


class _Named(NamedTuple):
    """A topic of a request under its name, or why it has none."""

    name: str
    refused: PenstockError | None


def _name(call: Call, topic: Struct) -> _Named:
    if call.version < 10:
        return _Named(topic.name, None)
    try:
        return _Named(call.broker.topics.get_by_id(topic.topic_id).name, None)
    except PenstockError as error:
        return _Named("", error)


def check_exists(call: Call, name: str, index: int) -> None:
    """Nothing is kept for what does not exist. Who may not see the topic is told that, later, and not whether it is."""
    if not call.broker.authorizer.allows(call.principal, Operation.READ, Resource.TOPIC, name):
        return
    topic = call.broker.topics.by_name.get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name!r}")
    if not 0 <= index < topic.partition_count:
        raise UnknownPartition(f"topic {name!r} has {topic.partition_count} partitions, none is {index}")


# -- OffsetCommit -----------------------------------------------------------------------------------------------


@handles(ApiKey.OFFSET_COMMIT, 2, 10)
async def offset_commit(call: Call) -> Reply | Awaitable[Reply]:
    body = call.body
    commits: dict[TopicPartition, Commit] = {}
    replies: list[tuple[Struct, TopicPartition]] = []  # those that wait for the coordinator
    response = Struct(topics=[])
    for topic in body.topics:
        named = _name(call, topic)
        answered = _called_as(call, topic, [])
        response.topics.append(answered)
        for asked in topic.partitions:
            reply = Struct(partition_index=asked.partition_index, error_code=0)
            answered.partitions.append(reply)
            try:
                if named.refused is not None:
                    raise named.refused
                check_exists(call, named.name, asked.partition_index)
            except PenstockError as error:
                reply.error_code = error_code(error)
                continue
            partition = TopicPartition(named.name, asked.partition_index)
            commits[partition] = Commit(
                asked.committed_offset, asked.committed_leader_epoch, asked.committed_metadata or ""
            )
            replies.append((reply, partition))
    ask = OffsetCommit(
        commits,
        body.member_id,
        max(body.generation_id_or_member_epoch, ANY_GENERATION),
        body.group_instance_id,
        None if body.retention_time_ms < 0 else body.retention_time_ms,
    )
    try:
        committing = call.broker.coordinator.commit(call.principal, body.group_id, ask)
    except PenstockError as error:
        _refuse_all(call, replies, error)
        return response
    return _commit_reply(call, response, replies, committing)


async def _commit_reply(
    call: Call,
    response: Struct,
    replies: list[tuple[Struct, TopicPartition]],
    committing: Awaitable[dict[TopicPartition, PenstockError | None]],
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
    code = member_error_code(error)
    if isinstance(error, UnknownGroup) and call.version < 9:
        code = ILLEGAL_GENERATION  # older clients know no other word for it
    for reply, _ in replies:
        reply.error_code = code


# -- OffsetFetch ------------------------------------------------------------------------------------------------


@handles(ApiKey.OFFSET_FETCH, 1, 10)
async def offset_fetch(call: Call) -> Reply | Awaitable[Reply]:
    if call.version < 8:
        return _fetch(call, call.body)
    return _fetch_replies([_fetch(call, group) for group in call.body.groups])


async def _fetch_replies(fetching: list[Awaitable[Struct]]) -> Struct:
    return Struct(groups=[await each for each in fetching])


def _fetch(call: Call, asked: Struct) -> Awaitable[Struct]:
    """The offsets of one group: a whole response before version 8, one of many since (then with the group's name)."""
    wanted = None if asked.topics is None else [(topic, _name(call, topic)) for topic in asked.topics]
    partitions = None
    if wanted is not None:
        partitions = [TopicPartition(n.name, i) for t, n in wanted if n.refused is None for i in t.partition_indexes]
    found: Awaitable[Found] | PenstockError
    try:
        stable = bool(call.body.require_stable)
        found = call.broker.coordinator.committed(call.principal, asked.group_id, partitions, stable=stable)
    except PenstockError as error:
        found = error
    return _fetch_reply(call, asked, wanted, found)


async def _fetch_reply(
    call: Call, asked: Struct, wanted: list[tuple[Struct, _Named]] | None, found: Awaitable[Found] | PenstockError
) -> Struct:
    response = Struct(error_code=0, topics=[])
    if call.version >= 8:
        response.group_id = asked.group_id
    if isinstance(found, PenstockError):
        response.error_code = member_error_code(found)
        if call.version < 2:  # which has no place for an error of the whole group
            response.topics = [_refused_topic(call, topic, response.error_code) for topic in asked.topics]
        return response
    offsets = await found
    if wanted is None:
        response.topics = _everything(call, offsets)
        return response
    for topic, named in wanted:
        if named.refused is not None:
            response.topics.append(_refused_topic(call, topic, error_code(named.refused)))
        else:
            replies = [_offset(i, offsets[TopicPartition(named.name, i)]) for i in topic.partition_indexes]
            response.topics.append(_called_as(call, topic, replies))
    return response


def _everything(call: Call, found: Found) -> list[Struct]:
    topics: dict[str, Struct] = {}
    for partition, kept in sorted(found.items(), key=lambda item: item[0]):
        known = call.broker.topics.by_name.get(partition.topic)
        if known is None and call.version >= 10:
            continue  # it has no id to be called by
        topic = topics.get(partition.topic)
        if topic is None:
            topic = topics[partition.topic] = Struct(name=partition.topic, partitions=[])
            if known is not None and call.version >= 10:
                topic.topic_id = known.id
        topic.partitions.append(_offset(partition.partition, kept))
    return list(topics.values())


def _offset(index: int, kept: OffsetFact | PenstockError | None) -> Struct:
    if isinstance(kept, OffsetFact):
        return Struct(
            partition_index=index,
            committed_offset=kept.offset,
            committed_leader_epoch=kept.leader_epoch,
            metadata=kept.metadata,
            error_code=0,
        )
    return _no_offset(index, 0 if kept is None else error_code(kept))


def _no_offset(index: int, code: int) -> Struct:
    return Struct(
        partition_index=index,
        committed_offset=NO_OFFSET,
        committed_leader_epoch=NO_LEADER_EPOCH,
        metadata="",
        error_code=code,
    )


def _refused_topic(call: Call, topic: Struct, code: int) -> Struct:
    return _called_as(call, topic, [_no_offset(index, code) for index in topic.partition_indexes])


def _called_as(call: Call, topic: Struct, partitions: list[Struct]) -> Struct:
    """A topic of a response under the name or the id that the request gave it."""
    answered = Struct(name=topic.name, partitions=partitions)
    if call.version >= 10:
        answered.topic_id = topic.topic_id
    return answered


# -- OffsetDelete -----------------------------------------------------------------------------------------------


@handles(ApiKey.OFFSET_DELETE, 0, 0)
async def offset_delete(call: Call) -> Reply:
    response = Struct(error_code=0, topics=[])
    replies: list[tuple[Struct, TopicPartition]] = []
    for topic in call.body.topics:
        answered = _called_as(call, topic, [])
        response.topics.append(answered)
        for asked in topic.partitions:
            reply = Struct(partition_index=asked.partition_index, error_code=0)
            answered.partitions.append(reply)
            try:
                check_exists(call, topic.name, asked.partition_index)
            except PenstockError as error:
                reply.error_code = error_code(error)
            else:
                replies.append((reply, TopicPartition(topic.name, asked.partition_index)))
    try:
        results = await call.broker.coordinator.delete_offsets(
            call.principal, call.body.group_id, [partition for _, partition in replies]
        )
    except PenstockError as error:
        return Struct(error_code=member_error_code(error), topics=[])
    for reply, partition in replies:
        refused = results[partition]
        reply.error_code = 0 if refused is None else error_code(refused)
    return response
