"""Who is there and what there is: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions."""

import asyncio
import bisect
from collections.abc import Iterable
from types import SimpleNamespace as Struct

from penstock.doors.kafka.api import HANDLERS, Call, handles
from penstock.doors.kafka.errors import error_code
from penstock.log.topics import Topic
from penstock.model.errors import InvalidTopicName, PenstockError, UnknownTopic
from penstock.model.ids import NO_TOPIC_ID, check_topic_name
from penstock.security.acl import Operation, Resource
from penstock.wire.kafka.api import ApiKey

LEADER_EPOCH = 0
MAX_DESCRIBED_PARTITIONS = 2000

BROKERS, CONTROLLERS = 1, 2
MISMATCHED_ENDPOINT_TYPE = 114
UNSUPPORTED_ENDPOINT_TYPE = 115
INVALID_REQUEST = 42

# Kafka's numbers of operations, as bits in the field of authorised operations.
_OPERATION_BITS = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER_ACTION: 9,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
}
_TOPIC_OPERATIONS = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_CLUSTER_OPERATIONS = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)


# What Kafka calls features: what all brokers of a cluster can do, and what has been agreed on (finalised). Clients that
# know the second transaction protocol (KIP-890) speak it where level 2 is finalised.
TRANSACTION_FEATURE, TRANSACTION_LEVEL = "transaction.version", 2
FEATURES_EPOCH = 1  # counts agreements: there was one


@handles(ApiKey.API_VERSIONS, 0, 4)
async def api_versions(call: Call) -> Struct:
    reply = versions_reply(0)
    if call.version >= 4:  # before, the lowest level of a feature could not be 0, and clients insist
        reply.supported_features = [Struct(name=TRANSACTION_FEATURE, min_version=0, max_version=TRANSACTION_LEVEL)]
    reply.finalized_features_epoch = FEATURES_EPOCH
    reply.finalized_features = [
        Struct(name=TRANSACTION_FEATURE, max_version_level=TRANSACTION_LEVEL, min_version_level=TRANSACTION_LEVEL)
    ]
    return reply


def versions_reply(code: int) -> Struct:
    """Also the answer to an ApiVersions request of a version we do not know: then as version 0, with an error."""
    keys = [
        Struct(api_key=key, min_version=served.advertised_min, max_version=served.max_version)
        for key, served in sorted(HANDLERS.items())
    ]
    return Struct(error_code=code, api_keys=keys)


@handles(ApiKey.METADATA, 0, 13)
async def metadata(call: Call) -> Struct:
    wanted = call.body.topics
    if wanted is None or (call.version == 0 and not wanted):
        topics = [_describe(call, topic) for topic in call.broker.observer.topics(call.principal)]
    else:
        once = {(asked.topic_id, asked.name): asked for asked in wanted}
        topics = await asyncio.gather(*(_metadata_of(call, asked) for asked in once.values()))
    reply = Struct(
        brokers=[_node(call)],
        cluster_id=call.broker.identities.cluster_id,
        controller_id=call.advertised.node_id,
        topics=topics,
    )
    if call.body.include_cluster_authorized_operations:
        reply.cluster_authorized_operations = _allowed(call, Resource.CLUSTER, "cluster", _CLUSTER_OPERATIONS)
    return reply


async def _metadata_of(call: Call, asked: Struct) -> Struct:
    by_id = asked.topic_id != NO_TOPIC_ID
    try:
        if by_id:
            topic = call.broker.topics.get_by_id(asked.topic_id)
            return _describe(call, call.broker.observer.topic(call.principal, topic.name))
        if asked.name is None:
            raise InvalidTopicName("a topic without a name")
        allowed = call.version < 4 or call.body.allow_auto_topic_creation
        topic = await call.broker.administrator.topic_on_first_use(call.principal, asked.name, allowed=allowed)
    except PenstockError as error:
        name = None if by_id and call.version >= 12 else asked.name or ""
        return Struct(error_code=error_code(error), name=name, topic_id=asked.topic_id, partitions=[])
    return _describe(call, topic)


def _describe(call: Call, topic: Topic) -> Struct:
    reply = _topic(topic, [_partition(call, index) for index in range(topic.partition_count)])
    if call.body.include_topic_authorized_operations:
        reply.topic_authorized_operations = _allowed(call, Resource.TOPIC, topic.name, _TOPIC_OPERATIONS)
    return reply


def _topic(topic: Topic, partitions: list[Struct]) -> Struct:
    return Struct(error_code=0, name=topic.name, topic_id=topic.id, is_internal=topic.internal, partitions=partitions)


def _partition(call: Call, index: int) -> Struct:
    nodes = [call.advertised.node_id]
    return Struct(
        error_code=0,
        partition_index=index,
        leader_id=call.advertised.node_id,
        leader_epoch=LEADER_EPOCH,
        replica_nodes=nodes,
        isr_nodes=nodes,
    )


def _node(call: Call) -> Struct:
    return Struct(node_id=call.advertised.node_id, host=call.advertised.host, port=call.advertised.port)


def _allowed(call: Call, resource: Resource, name: str, operations: Iterable[Operation]) -> int:
    return sum(
        1 << _OPERATION_BITS[operation]
        for operation in operations
        if call.broker.authorizer.allows(call.principal, operation, resource, name)
    )


@handles(ApiKey.DESCRIBE_CLUSTER, 0, 2)
async def describe_cluster(call: Call) -> Struct:
    if call.body.endpoint_type != BROKERS:
        return Struct(
            error_code=MISMATCHED_ENDPOINT_TYPE
            if call.body.endpoint_type == CONTROLLERS
            else UNSUPPORTED_ENDPOINT_TYPE,
            error_message="brokers listen here; there are no controllers to ask",
            brokers=[],
        )
    node = Struct(broker_id=call.advertised.node_id, host=call.advertised.host, port=call.advertised.port)
    reply = Struct(
        error_code=0,
        cluster_id=call.broker.identities.cluster_id,
        controller_id=call.advertised.node_id,
        brokers=[node],
    )
    if call.body.include_cluster_authorized_operations:
        reply.cluster_authorized_operations = _allowed(call, Resource.CLUSTER, "cluster", _CLUSTER_OPERATIONS)
    return reply


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0)
async def describe_topic_partitions(call: Call) -> Struct:
    """Topics in the order of their names, so many partitions at a time; the cursor says where to go on."""
    cursor = call.body.cursor
    names = sorted({topic.name for topic in call.body.topics})
    if not names:
        names = [topic.name for topic in call.broker.observer.topics(call.principal)]
    elif cursor is not None and cursor.topic_name not in names:
        return _refused_page(names)  # which page of these is meant nobody can tell
    if cursor is not None:
        if cursor.partition_index < 0:
            return _refused_page(names)
        names = names[bisect.bisect_left(names, cursor.topic_name) :]
    left = max(1, min(call.body.response_partition_limit, MAX_DESCRIBED_PARTITIONS))
    reply = Struct(topics=[], next_cursor=None)
    for name in names:
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if left <= 0:
            reply.next_cursor = Struct(topic_name=name, partition_index=first)
            break
        try:
            topic = call.broker.observer.topic(call.principal, check_topic_name(name))
        except (UnknownTopic, InvalidTopicName) as error:
            reply.topics.append(Struct(error_code=error_code(error), name=name, partitions=[]))
            continue
        stop = min(topic.partition_count, first + left)
        partitions = [_partition(call, index) for index in range(first, stop)]
        for partition in partitions:
            # The schema allows null here, the Java client does not expect it.
            partition.eligible_leader_replicas = partition.last_known_elr = []
        reply.topics.append(_topic(topic, partitions))
        reply.topics[-1].topic_authorized_operations = _allowed(call, Resource.TOPIC, name, _TOPIC_OPERATIONS)
        left -= stop - first
        if stop < topic.partition_count:
            reply.next_cursor = Struct(topic_name=name, partition_index=stop)
            break
    return reply


def _refused_page(names: Iterable[str]) -> Struct:
    return Struct(topics=[Struct(error_code=INVALID_REQUEST, name=name, partitions=[]) for name in names])
