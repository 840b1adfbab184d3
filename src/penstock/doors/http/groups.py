"""Consumer groups: what there are, and the offsets they committed. Members join through the Kafka door."""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.broker.coordinate import Commit, OffsetCommit, TopicPartition
from penstock.doors.http.call import Call, Reply, nothing, reply
from penstock.doors.http.routing import route
from penstock.model.errors import InvalidRequest, PenstockError

GROUPS = "Groups and offsets"


class GroupInfo(msgspec.Struct):
    group: str
    state: str
    protocol_type: str


class GroupList(msgspec.Struct):
    groups: list[GroupInfo]


class MemberInfo(msgspec.Struct):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str


class GroupDetail(msgspec.Struct):
    group: str
    state: str
    protocol_type: str
    protocol: str
    members: list[MemberInfo]


class GroupOffset(msgspec.Struct, forbid_unknown_fields=True):
    """The offset to go on from: one past the last record that was processed."""

    topic: str
    partition: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    metadata: str = ""


class GroupOffsets(msgspec.Struct, forbid_unknown_fields=True):
    offsets: list[GroupOffset]


class OffsetStanding(msgspec.Struct):
    topic: str
    partition: int
    offset: int
    metadata: str
    lag: int | None  # records between it and the end; null when the partition is gone


class OffsetStandings(msgspec.Struct):
    offsets: list[OffsetStanding]


class OffsetsQuery(msgspec.Struct, forbid_unknown_fields=True):
    topic: str | None = None


class CommitOffset(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One offset, or `offsets`."""

    group: str
    topic: str | None = None
    partition: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] = 0
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    metadata: str = ""
    offsets: list[GroupOffset] = []


@route("GET", "/v1/groups", GROUPS, "List groups", reply=GroupList, reads=True)
async def list_groups(call: Call) -> Reply:
    groups = sorted(call.broker.coordinator.groups(call.principal))
    return reply(GroupList([GroupInfo(g.group, g.state.value, g.protocol_type) for g in groups]))


@route("GET", "/v1/groups/{group}", GROUPS, "A group and its members", reply=GroupDetail, reads=True)
async def get_group(call: Call) -> Reply:
    found = call.broker.coordinator.describe(call.principal, call["group"])
    members = [MemberInfo(m.member_id, m.instance_id, m.client_id, m.client_host) for m in found.members]
    return reply(GroupDetail(found.group, found.state.value, found.protocol_type, found.protocol or "", members))


@route("DELETE", "/v1/groups/{group}", GROUPS, "Delete a group that has no members", status=204)
async def delete_group(call: Call) -> Reply:
    await call.broker.coordinator.delete(call.principal, call["group"])
    return nothing()


@route(
    "GET",
    "/v1/groups/{group}/offsets",
    GROUPS,
    "Committed offsets and lag",
    query=OffsetsQuery,
    reply=OffsetStandings,
    reads=True,
)
async def get_offsets(call: Call) -> Reply:
    topic = call.query(OffsetsQuery).topic
    found = await call.broker.coordinator.committed(call.principal, call["group"])
    standings = []
    for at, kept in sorted(found.items(), key=lambda item: item[0]):
        if kept is not None and not isinstance(kept, Exception) and topic in (None, at.topic):
            lag = await _lag(call, at, kept.offset)
            standings.append(OffsetStanding(at.topic, at.partition, kept.offset, kept.metadata, lag))
    return reply(OffsetStandings(standings))


async def _lag(call: Call, at: TopicPartition, offset: int) -> int | None:
    try:
        partition = await call.broker.observer.partition(call.principal, at.topic, at.partition)
    except PenstockError:
        return None
    return max(0, partition.stable_end - max(offset, partition.start_offset))


@route("POST", "/v1/groups/{group}/offsets", GROUPS, "Commit offsets", body=GroupOffsets, status=204)
async def commit_offsets(call: Call) -> Reply:
    """All of them or, where one is refused, an error that names it. While a group has members only they may commit."""
    return await _commit(call, call["group"], call.json(GroupOffsets).offsets)


@route("POST", "/v1/commit-offset", GROUPS, "CommitOffset", body=CommitOffset, status=204)
async def commit_offset(call: Call) -> Reply:
    """As committing offsets, with the group in the body."""
    ask = call.json(CommitOffset)
    offsets = list(ask.offsets)
    if ask.topic is not None and ask.offset is not None:
        offsets.append(GroupOffset(ask.topic, ask.partition, ask.offset, ask.metadata))
    elif ask.topic is not None or ask.offset is not None:
        raise InvalidRequest("`topic` and `offset` belong together")
    return await _commit(call, ask.group, offsets)


async def _commit(call: Call, group: str, offsets: list[GroupOffset]) -> Reply:
    if not group:
        raise InvalidRequest("`group` must have a name")
    if not offsets:
        raise InvalidRequest("there are no offsets to commit")
    commits: dict[TopicPartition, Commit] = {}
    for each in offsets:
        await call.broker.observer.partition(call.principal, each.topic, each.partition)  # or it is unknown
        commits[TopicPartition(each.topic, each.partition)] = Commit(each.offset, metadata=each.metadata)
    refusals = await call.broker.coordinator.commit(call.principal, group, OffsetCommit(commits))
    for at, error in refusals.items():
        if error is not None:
            raise type(error)(f"{at.topic}-{at.partition}: {error}")
    return nothing()
