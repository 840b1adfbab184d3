"""Consumer groups as their members see them: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

A handler asks the coordinator at once, in the order of the connection's requests; what it returns waits for the answer.
"""

from collections.abc import Awaitable
from types import SimpleNamespace as Struct

from penstock.broker.coordinate import Join, Joined, Leaver, NewMemberId, Sync, Synced
from penstock.doors.kafka.api import Call, Reply, handles
from penstock.doors.kafka.errors import COORDINATOR_NOT_AVAILABLE, group_error_code, transaction_error_code
from penstock.model.errors import (
    InconsistentProtocol,
    InvalidRequest,
    PenstockError,
    StorageFailed,
    UnknownMember,
)
from penstock.wire.kafka.api import ApiKey

MEMBER_ID_REQUIRED = 79

GROUP_KEY = 0
TRANSACTION_KEY = 1


def member_error_code(error: PenstockError) -> int:
    """What a group could not store is no fault of its members: they look for the coordinator and try again."""
    return COORDINATOR_NOT_AVAILABLE if isinstance(error, StorageFailed) else group_error_code(error)


# -- FindCoordinator --------------------------------------------------------------------------------------------


@handles(ApiKey.FIND_COORDINATOR, 0, 6)
async def find_coordinator(call: Call) -> Reply:
    if call.version >= 4:
        keys = dict.fromkeys(call.body.coordinator_keys)
        return Struct(coordinators=[Struct(key=key, **vars(_find(call, key))) for key in keys])
    return _find(call, call.body.key)


def _find(call: Call, key: str) -> Struct:
    """Everything is coordinated here, and here is where this client has reached us."""
    reply = Struct(error_code=0, error_message=None, node_id=-1, host="", port=-1)
    try:
        if call.body.key_type == TRANSACTION_KEY:
            call.broker.transactions.check_may_find(call.principal, key)
        elif call.body.key_type == GROUP_KEY:
            call.broker.coordinator.check_may_find(call.principal, key)
        else:
            raise InvalidRequest(f"nothing of key type {call.body.key_type} is coordinated here")
    except PenstockError as error:
        transactional = call.body.key_type == TRANSACTION_KEY
        reply.error_code = transaction_error_code(error) if transactional else group_error_code(error)
        reply.error_message = str(error)
    else:
        reply.node_id, reply.host, reply.port = call.advertised
    return reply


# -- JoinGroup --------------------------------------------------------------------------------------------------


@handles(ApiKey.JOIN_GROUP, 0, 9)
async def join_group(call: Call) -> Reply | Awaitable[Reply]:
    body = call.body
    ask = Join(
        member_id=body.member_id,
        new_member_id="",
        instance_id=body.group_instance_id,
        client_id=call.client_id or "",
        client_host=f"/{call.client_host}",
        session_timeout_ms=body.session_timeout_ms,
        # Version 0 knows one time-out for both.
        rebalance_timeout_ms=max(0, body.rebalance_timeout_ms) if call.version >= 1 else body.session_timeout_ms,
        protocol_type=body.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols),
        requires_known_id=call.version >= 4,
        can_skip_assignment=call.version >= 9,
    )
    try:
        joining = call.broker.coordinator.join(call.principal, body.group_id, ask)
    except PenstockError as error:
        return _not_joined(call, member_error_code(error))
    return _join_reply(call, joining)


async def _join_reply(call: Call, joining: Awaitable[Joined | NewMemberId]) -> Struct:
    try:
        joined = await joining
    except PenstockError as error:
        return _not_joined(call, member_error_code(error))
    if isinstance(joined, NewMemberId):
        return _not_joined(call, MEMBER_ID_REQUIRED, joined.member_id)
    return Struct(
        error_code=0,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol,
        leader=joined.leader_id,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            Struct(member_id=m.member_id, group_instance_id=m.instance_id, metadata=m.metadata) for m in joined.members
        ],
    )


def _not_joined(call: Call, code: int, member_id: str | None = None) -> Struct:
    return Struct(
        error_code=code,
        protocol_name=None if call.version >= 7 else "",
        member_id=call.body.member_id if member_id is None else member_id,
        members=[],
    )


# -- SyncGroup --------------------------------------------------------------------------------------------------


@handles(ApiKey.SYNC_GROUP, 0, 5)
async def sync_group(call: Call) -> Reply | Awaitable[Reply]:
    body = call.body
    ask = Sync(
        member_id=body.member_id,
        generation=body.generation_id,
        assignments={each.member_id: bytes(each.assignment) for each in body.assignments},
        instance_id=body.group_instance_id,
        protocol_type=body.protocol_type,
        protocol=body.protocol_name,
    )
    try:
        if call.version >= 5 and (ask.protocol_type is None or ask.protocol is None):
            raise InconsistentProtocol("from version 5 on a member repeats the protocol it was told")
        syncing = call.broker.coordinator.sync(call.principal, body.group_id, ask)
    except PenstockError as error:
        return Struct(error_code=member_error_code(error))
    return _sync_reply(syncing)


async def _sync_reply(syncing: Awaitable[Synced]) -> Struct:
    try:
        synced = await syncing
    except PenstockError as error:
        return Struct(error_code=member_error_code(error))
    return Struct(
        error_code=0,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )


# -- Heartbeat --------------------------------------------------------------------------------------------------


@handles(ApiKey.HEARTBEAT, 0, 4)
async def heartbeat(call: Call) -> Reply | Awaitable[Reply]:
    body = call.body
    try:
        beating = call.broker.coordinator.heartbeat(
            call.principal, body.group_id, body.member_id, body.generation_id, body.group_instance_id
        )
    except PenstockError as error:
        return Struct(error_code=member_error_code(error))
    return _heartbeat_reply(beating)


async def _heartbeat_reply(beating: Awaitable[None]) -> Struct:
    try:
        await beating
    except PenstockError as error:
        return Struct(error_code=member_error_code(error))
    return Struct(error_code=0)


# -- LeaveGroup -------------------------------------------------------------------------------------------------


@handles(ApiKey.LEAVE_GROUP, 0, 5)
async def leave_group(call: Call) -> Reply | Awaitable[Reply]:
    body = call.body
    if call.version >= 3:
        leavers = [Leaver(member.member_id, member.group_instance_id) for member in body.members]
    else:
        leavers = [Leaver(body.member_id)]
    try:
        leaving = call.broker.coordinator.leave(call.principal, body.group_id, leavers)
    except UnknownMember as error:  # no such group: nobody of it can leave
        return _left(call, leavers, [error] * len(leavers))
    except PenstockError as error:
        return Struct(error_code=member_error_code(error), members=[])
    return _leave_reply(call, leavers, leaving)


async def _leave_reply(call: Call, leavers: list[Leaver], leaving: Awaitable[list[PenstockError | None]]) -> Struct:
    try:
        return _left(call, leavers, await leaving)
    except PenstockError as error:
        return Struct(error_code=member_error_code(error), members=[])


def _left(call: Call, leavers: list[Leaver], results: list[PenstockError | None]) -> Struct:
    codes = [0 if refused is None else member_error_code(refused) for refused in results]
    if call.version < 3:
        return Struct(error_code=codes[0])
    return Struct(
        error_code=0,
        members=[
            Struct(member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=code)
            for leaver, code in zip(leavers, codes, strict=True)
        ],
    )
