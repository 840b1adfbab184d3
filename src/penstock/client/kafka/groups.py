"""Groups from outside: which there are, who is in them, what they have read, and setting that anew."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.client.kafka.assignment import Assignment, decode_assignment
from penstock.client.kafka.cluster import Cluster, TopicPartition, by_topic
from penstock.client.kafka.errors import ClientError, Missing, check
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.messages import Struct

CONSUMER = "consumer"
DEAD = "Dead"
GROUP_ID_NOT_FOUND = 69
STANDALONE_GENERATION = -1
NO_OFFSET = -1


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: str  # empty from servers that do not tell


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: Assignment | None  # None when it is not the consumers' kind of assignment


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: list[Member]


def list_groups(cluster: Cluster) -> list[GroupListing]:
    """Each server knows only the groups it coordinates: all are asked."""

    def ask() -> list[GroupListing]:
        cluster.metadata([])
        found: dict[str, GroupListing] = {}
        for node_id in cluster.node_ids:
            answer = cluster.node(node_id).call(ApiKey.LIST_GROUPS, Struct(states_filter=[], types_filter=[]))
            check(answer.error_code, "cannot list groups")
            for group in answer.groups:
                listing = GroupListing(group.group_id, group.protocol_type, getattr(group, "group_state", ""))
                found[group.group_id] = listing
        return sorted(found.values())

    return cluster.retry(ask)


def describe_group(cluster: Cluster, group_id: str) -> GroupInfo:
    def ask() -> GroupInfo:
        request = Struct(groups=[group_id], include_authorized_operations=False)
        answer = cluster.coordinator(group_id).call(ApiKey.DESCRIBE_GROUPS, request)
        group = answer.groups[0]
        if group.error_code == GROUP_ID_NOT_FOUND or (not group.error_code and group.group_state == DEAD):
            raise Missing(f"there is no group {group_id!r}; 'penstock group list' shows what there is")
        check(group.error_code, f"cannot describe group {group_id!r}", getattr(group, "error_message", None))
        members = [_member(member, group.protocol_type) for member in group.members]
        return GroupInfo(
            group_id,
            group.group_state,
            group.protocol_type,
            group.protocol_data,
            sorted(members, key=lambda member: member.member_id),
        )

    return cluster.retry(ask)


def _member(member: Struct, protocol_type: str) -> Member:
    try:
        assignment = decode_assignment(member.member_assignment) if protocol_type == CONSUMER else None
    except ValueError:
        assignment = None
    instance_id = getattr(member, "group_instance_id", None)
    return Member(member.member_id, instance_id, member.client_id, member.client_host.lstrip("/"), assignment)


def committed_offsets(
    cluster: Cluster, group_id: str, partitions: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, int]:
    """Committed offsets of these partitions (None: of all that have one); partitions without one are left out."""
    topics = None
    if partitions is not None:
        topics = [Struct(name=topic, partition_indexes=indexes) for topic, indexes in by_topic(partitions).items()]

    def ask() -> dict[TopicPartition, int]:
        answer = cluster.coordinator(group_id).call(ApiKey.OFFSET_FETCH, Struct(group_id=group_id, topics=topics))
        check(getattr(answer, "error_code", 0), f"cannot read the offsets of group {group_id!r}")
        offsets = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                check(partition.error_code, f"offset of {topic.name}-{partition.partition_index}")
                if partition.committed_offset != NO_OFFSET:
                    offsets[topic.name, partition.partition_index] = partition.committed_offset
        return offsets

    return cluster.retry(ask)


def commit_offsets(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    generation: int = STANDALONE_GENERATION,
    member_id: str = "",
) -> None:
    """As a member of a generation, or, by default, from outside: the server then refuses while there are members."""
    request = Struct(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[
            Struct(
                name=topic,
                partitions=[
                    Struct(partition_index=index, committed_offset=offsets[topic, index], committed_metadata="")
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(offsets).items()
        ],
    )

    def ask() -> None:
        answer = cluster.coordinator(group_id).call(ApiKey.OFFSET_COMMIT, request)
        for topic in answer.topics:
            for partition in topic.partitions:
                what = f"cannot commit {topic.name}-{partition.partition_index} for group {group_id!r}"
                check(partition.error_code, what)

    cluster.retry(ask)


def delete_group(cluster: Cluster, group_id: str) -> None:
    def ask() -> None:
        answer = cluster.coordinator(group_id).call(ApiKey.DELETE_GROUPS, Struct(groups_names=[group_id]))
        for result in answer.results:
            check(result.error_code, f"cannot delete group {group_id!r}")

    cluster.retry(ask, repeatable=False)


def require_no_members(cluster: Cluster, group_id: str) -> None:
    """Offsets set from outside would be overwritten by members at once; say so before anything is changed."""
    try:
        group = describe_group(cluster, group_id)
    except Missing:
        return  # a group that is yet to be may begin where we say
    if group.members:
        count = len(group.members)
        raise ClientError(
            f"group {group_id!r} has {count} member{'s' if count > 1 else ''}; stop the consumers first, "
            f"'penstock group describe {group_id}' shows them"
        )
