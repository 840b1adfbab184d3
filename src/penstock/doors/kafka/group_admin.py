"""Consumer groups as administrators see them: DescribeGroups, ListGroups, DeleteGroups."""

import asyncio
from types import SimpleNamespace as Struct

from penstock.broker.coordinate import GroupState
from penstock.doors.kafka.api import Call, Reply, handles
from penstock.doors.kafka.errors import group_error_code
from penstock.doors.kafka.groups import member_error_code
from penstock.model.errors import PenstockError, UnknownGroup
from penstock.security.acl import Operation, Resource
from penstock.wire.kafka.api import ApiKey

# Every group here is of the kind that Kafka calls classic since there are others.
GROUP_TYPE = "classic"

# Kafka's numbers of the operations that a group knows, as bits in the field of authorised operations.
_OPERATION_BITS = ((Operation.READ, 3), (Operation.DELETE, 6), (Operation.DESCRIBE, 8))


@handles(ApiKey.DESCRIBE_GROUPS, 0, 6)
async def describe_groups(call: Call) -> Reply:
    return Struct(groups=[_describe(call, name) for name in call.body.groups])


def _describe(call: Call, name: str) -> Struct:
    reply = Struct(group_id=name, error_code=0, members=[])
    try:
        description = call.broker.coordinator.describe(call.principal, name)
    except UnknownGroup as error:
        reply.group_state = GroupState.DEAD.value
        if call.version >= 6:  # before, a group that is not there was no error
            reply.error_code, reply.error_message = group_error_code(error), str(error)
    except PenstockError as error:
        reply.error_code, reply.error_message = group_error_code(error), str(error)
        return reply
    else:
        reply.group_state = description.state.value
        reply.protocol_type = description.protocol_type
        reply.protocol_data = description.protocol
        reply.members = [
            Struct(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in description.members
        ]
    if call.body.include_authorized_operations:
        reply.authorized_operations = _allowed(call, name)
    return reply


def _allowed(call: Call, name: str) -> int:
    allows = call.broker.authorizer.allows
    return sum(1 << bit for op, bit in _OPERATION_BITS if allows(call.principal, op, Resource.GROUP, name))


@handles(ApiKey.LIST_GROUPS, 0, 5)
async def list_groups(call: Call) -> Reply:
    states = {state.lower() for state in call.body.states_filter}
    types = {kind.lower() for kind in call.body.types_filter}
    if types and GROUP_TYPE not in types:
        return Struct(error_code=0, groups=[])
    return Struct(
        error_code=0,
        groups=[
            Struct(
                group_id=group.group,
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type=GROUP_TYPE,
            )
            for group in call.broker.coordinator.groups(call.principal)
            if not states or group.state.value.lower() in states
        ],
    )


@handles(ApiKey.DELETE_GROUPS, 0, 2)
async def delete_groups(call: Call) -> Reply:
    # All at once: the facts of one request become one write.
    names = dict.fromkeys(call.body.groups_names)
    return Struct(results=await asyncio.gather(*(_delete(call, name) for name in names)))


async def _delete(call: Call, name: str) -> Struct:
    try:
        await call.broker.coordinator.delete(call.principal, name)
    except PenstockError as error:
        return Struct(group_id=name, error_code=member_error_code(error))
    return Struct(group_id=name, error_code=0)
