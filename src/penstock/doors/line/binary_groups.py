"""Consumer groups as those see them who look after them. What a group reads is told by `binary_read`."""

from penstock.broker.coordinate import OffsetFact, TopicPartition
from penstock.doors.line.binary_api import Call, handles
from penstock.model.errors import PenstockError, UnknownPartition, UnknownTopic
from penstock.wire.native.messages import (
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    Done,
    GroupDescription,
    GroupInfo,
    GroupOffset,
    Groups,
    ListGroups,
    MemberInfo,
    Message,
)


@handles(ListGroups)
async def list_groups(call: Call, request: ListGroups) -> Groups:
    groups = call.broker.coordinator.groups(call.principal)
    return Groups([GroupInfo(one.group, one.state.value, one.protocol_type) for one in groups])


@handles(DescribeGroup)
async def describe_group(call: Call, request: DescribeGroup) -> object:
    return _describe(call, request.group)


async def _describe(call: Call, name: str) -> Message:
    coordinator = call.broker.coordinator
    committed = await coordinator.committed(call.principal, name)
    offsets = []
    for place, fact in sorted(committed.items(), key=lambda item: item[0]):
        if isinstance(fact, OffsetFact):
            offsets.append(GroupOffset(*place, fact.offset, await _end(call, place)))
    group = coordinator.describe(call.principal, name)
    members = [
        MemberInfo(one.member_id, one.instance_id, one.client_id, one.client_host.lstrip("/"), one.assignment)
        for one in group.members
    ]
    return GroupDescription(name, group.state.value, group.protocol_type, group.protocol, members, offsets)


async def _end(call: Call, place: TopicPartition) -> int | None:
    try:
        partition = await call.broker.observer.partition(call.principal, *place)
    except (UnknownTopic, UnknownPartition):
        return None
    return partition.stable_end


@handles(DeleteGroup)
async def delete_group(call: Call, request: DeleteGroup) -> object:
    deleting = call.broker.coordinator.delete(call.principal, request.group)

    async def delete() -> Message:
        await deleting
        return Done()

    return delete()


@handles(DeleteOffsets)
async def delete_offsets(call: Call, request: DeleteOffsets) -> object:
    places = [TopicPartition(topic, index) for topic, index in request.partitions]
    deleting = call.broker.coordinator.delete_offsets(call.principal, request.group, places)

    async def delete() -> Message:
        refusals: dict[TopicPartition, PenstockError | None] = await deleting
        for refused in refusals.values():
            if refused is not None:
                raise refused
        return Done(len(refusals))

    return delete()
