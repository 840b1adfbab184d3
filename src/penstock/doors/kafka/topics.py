"""Administration of topics: CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

import asyncio
from collections import Counter
from types import SimpleNamespace as Struct

from penstock.doors.kafka.api import Call, handles
from penstock.doors.kafka.configs import config_entry
from penstock.doors.kafka.errors import error_code
from penstock.log.topics import Topic
from penstock.model.errors import (
    InvalidAssignment,
    InvalidPartitions,
    InvalidReplication,
    InvalidRequest,
    NotAllowed,
    PenstockError,
)
from penstock.model.ids import NO_TOPIC_ID
from penstock.wire.kafka.api import ApiKey

BY_DEFAULT = -1


@handles(ApiKey.CREATE_TOPICS, 2, 7)
async def create_topics(call: Call) -> Struct:
    # All at once: the facts of one request become one write.
    repeated = {name for name, count in Counter(t.name for t in call.body.topics).items() if count > 1}
    wanted = {t.name: t for t in call.body.topics}
    return Struct(topics=await asyncio.gather(*(_create(call, t, t.name in repeated) for t in wanted.values())))


async def _create(call: Call, asked: Struct, repeated: bool) -> Struct:
    reply = Struct(name=asked.name, error_code=0, error_message=None)
    try:
        if repeated:
            raise InvalidRequest(f"topic {asked.name!r} stands more than once in the request")
        settings = {config.name: config.value for config in asked.configs}
        topic = await call.broker.administrator.create_topic(
            call.principal,
            asked.name,
            _partition_count(call, asked),
            settings,
            validate_only=call.body.validate_only,
        )
        reply.topic_id, reply.num_partitions, reply.replication_factor = topic.id, topic.partition_count, 1
        _describe_settings(call, topic, reply)
    except PenstockError as error:
        reply.error_code, reply.error_message = error_code(error), str(error)
    return reply


def _describe_settings(call: Call, topic: Topic, reply: Struct) -> None:
    try:
        reply.configs = [config_entry(v) for v in call.broker.observer.settings_of(call.principal, topic)]
    except NotAllowed as error:  # who may create a topic need not know its settings
        reply.configs, reply.topic_config_error_code = None, error_code(error)


def _partition_count(call: Call, asked: Struct) -> int | None:
    if asked.assignments:
        if asked.num_partitions != BY_DEFAULT or asked.replication_factor != BY_DEFAULT:
            raise InvalidRequest("give an assignment, or the numbers of partitions and replicas, not both")
        if sorted(a.partition_index for a in asked.assignments) != list(range(len(asked.assignments))):
            raise InvalidAssignment("an assignment names the partitions 0, 1, 2 ... each once")
        if any(a.broker_ids != [call.advertised.node_id] for a in asked.assignments):
            raise InvalidAssignment(f"every partition lives on node {call.advertised.node_id}")
        return len(asked.assignments)
    if asked.replication_factor not in (1, BY_DEFAULT):
        raise InvalidReplication(
            f"replication factor {asked.replication_factor} needs more nodes than there are; use 1 or the default"
        )
    if asked.num_partitions == BY_DEFAULT:
        return None
    if asked.num_partitions < 1:
        raise InvalidPartitions(f"a topic has at least 1 partition, not {asked.num_partitions}")
    count: int = asked.num_partitions
    return count


@handles(ApiKey.DELETE_TOPICS, 1, 6)
async def delete_topics(call: Call) -> Struct:
    asked = (
        call.body.topics if call.version >= 6 else [Struct(name=n, topic_id=NO_TOPIC_ID) for n in call.body.topic_names]
    )
    counts = Counter((topic.name, topic.topic_id) for topic in asked)
    once = {(topic.name, topic.topic_id): topic for topic in asked}
    return Struct(responses=await asyncio.gather(*(_delete(call, t, counts[key] > 1) for key, t in once.items())))


async def _delete(call: Call, asked: Struct, repeated: bool) -> Struct:
    reply = Struct(name=asked.name, topic_id=asked.topic_id, error_code=0)
    try:
        if repeated:
            raise InvalidRequest("the topic stands more than once in the request")
        if (asked.name is None) == (asked.topic_id == NO_TOPIC_ID):
            raise InvalidRequest("a topic is deleted by its name or by its id, by one of them")
        if asked.name is None:
            reply.name = call.broker.topics.get_by_id(asked.topic_id).name
        elif (topic := call.broker.topics.by_name.get(asked.name)) is not None:
            reply.topic_id = topic.id
        await call.broker.administrator.delete_topic(call.principal, reply.name)
    except PenstockError as error:
        reply.error_code, reply.error_message = error_code(error), str(error)
    return reply


@handles(ApiKey.CREATE_PARTITIONS, 0, 3)
async def create_partitions(call: Call) -> Struct:
    repeated = {name for name, count in Counter(t.name for t in call.body.topics).items() if count > 1}
    wanted = {t.name: t for t in call.body.topics}
    return Struct(
        results=await asyncio.gather(*(_add_partitions(call, t, t.name in repeated) for t in wanted.values()))
    )


async def _add_partitions(call: Call, asked: Struct, repeated: bool) -> Struct:
    reply = Struct(name=asked.name, error_code=0)
    try:
        if repeated:
            raise InvalidRequest(f"topic {asked.name!r} stands more than once in the request")
        topic = call.broker.observer.topic(call.principal, asked.name)
        added = asked.count - topic.partition_count
        if asked.assignments is not None and added > 0 and len(asked.assignments) != added:
            raise InvalidAssignment(f"{added} partitions are added, the assignment is for {len(asked.assignments)}")
        if any(a.broker_ids != [call.advertised.node_id] for a in asked.assignments or ()):
            raise InvalidAssignment(f"every partition lives on node {call.advertised.node_id}")
        await call.broker.administrator.add_partitions(
            call.principal, asked.name, asked.count, validate_only=call.body.validate_only
        )
    except PenstockError as error:
        reply.error_code, reply.error_message = error_code(error), str(error)
    return reply


@handles(ApiKey.DELETE_RECORDS, 0, 2)
async def delete_records(call: Call) -> Struct:
    topics = []
    for topic in call.body.topics:
        partitions = [await _delete_records(call, topic.name, p) for p in topic.partitions]
        topics.append(Struct(name=topic.name, partitions=partitions))
    return Struct(topics=topics)


async def _delete_records(call: Call, name: str, asked: Struct) -> Struct:
    reply = Struct(partition_index=asked.partition_index, low_watermark=-1, error_code=0)
    try:
        reply.low_watermark = await call.broker.administrator.delete_records(
            call.principal, name, asked.partition_index, asked.offset
        )
    except PenstockError as error:
        reply.error_code = error_code(error)
    return reply
