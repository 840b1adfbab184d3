"""Where partitions begin and end: ListOffsets, OffsetForLeaderEpoch."""

from types import SimpleNamespace as Struct

from penstock.doors.kafka.api import Call, handles
from penstock.doors.kafka.errors import error_code
from penstock.log.partition import Found
from penstock.model.errors import FencedLeaderEpoch, PenstockError, UnknownLeaderEpoch, UnsupportedVersion
from penstock.wire.kafka.api import ApiKey

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

LEADER_EPOCH = 0
READ_COMMITTED = 1


@handles(ApiKey.LIST_OFFSETS, 1, 11)
async def list_offsets(call: Call) -> Struct:
    topics = []
    for topic in call.body.topics:
        partitions = [await _list(call, topic.name, p) for p in topic.partitions]
        topics.append(Struct(name=topic.name, partitions=partitions))
    return Struct(topics=topics)


async def _list(call: Call, name: str, asked: Struct) -> Struct:
    reply = Struct(partition_index=asked.partition_index, error_code=0)
    try:
        if call.version >= 4:
            check_leader_epoch(asked.current_leader_epoch)
        found = await _find(call, name, asked.partition_index, asked.timestamp)
    except PenstockError as error:
        reply.error_code = error_code(error)
    else:
        if found is not None:
            reply.offset, reply.timestamp, reply.leader_epoch = found.offset, found.timestamp_ms, LEADER_EPOCH
    return reply


async def _find(call: Call, name: str, index: int, timestamp: int) -> Found | None:
    observer = call.broker.observer
    committed = call.version >= 2 and call.body.isolation_level == READ_COMMITTED
    if timestamp == MAX_TIMESTAMP and call.version >= 7:
        return await observer.newest(call.principal, name, index, committed=committed)
    if timestamp >= 0:
        return await observer.offset_at(call.principal, name, index, timestamp, committed=committed)
    partition = await observer.partition(call.principal, name, index)
    if timestamp == LATEST:
        return Found(partition.stable_end if committed else partition.durable_end, -1)
    if timestamp == EARLIEST or (timestamp == EARLIEST_LOCAL and call.version >= 8):
        return Found(partition.start_offset, -1)
    if (timestamp == LATEST_TIERED and call.version >= 9) or (
        timestamp == EARLIEST_PENDING_UPLOAD and call.version >= 11
    ):
        return None  # nothing is kept in a second tier
    raise UnsupportedVersion(f"timestamp {timestamp} has no meaning in version {call.version}")


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4)
async def offset_for_leader_epoch(call: Call) -> Struct:
    """There is one epoch and it never ends, so it ends where the log ends."""
    topics = []
    for topic in call.body.topics:
        partitions = []
        for asked in topic.partitions:
            reply = Struct(partition=asked.partition, error_code=0)
            partitions.append(reply)
            try:
                check_leader_epoch(asked.current_leader_epoch)
                partition = await call.broker.observer.partition(call.principal, topic.topic, asked.partition)
            except PenstockError as error:
                reply.error_code = error_code(error)
            else:
                if asked.leader_epoch == LEADER_EPOCH:
                    reply.leader_epoch, reply.end_offset = LEADER_EPOCH, partition.durable_end
        topics.append(Struct(topic=topic.topic, partitions=partitions))
    return Struct(topics=topics)


def check_leader_epoch(epoch: int) -> None:
    """A client that has seen a later leader than us, or none of ours, must ask for metadata again."""
    if epoch > LEADER_EPOCH:
        raise UnknownLeaderEpoch(f"leader epoch {epoch} is not known here")
    if epoch < -1:
        raise FencedLeaderEpoch(f"leader epoch {epoch} is over")
