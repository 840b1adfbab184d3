"""What is asked of a group, what it answers, and the bounds it keeps. Plain nouns; the group gives them meaning."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.delivery.offsets import Commit, TopicPartition
from penstock.delivery.roster import Protocols

ANY_GENERATION = -1  # of a commit by someone who is no member


class GroupState(enum.Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    # The first members of a group are awaited so long, and again while more arrive, so that consumers which start
    # together get one rebalance, not one each. A tenth of a second covers processes that start side by side on a small
    # machine and is not felt by a person; Kafka's three seconds are meant for fleets and can be set.
    initial_rebalance_delay_ms: int = 100
    # A parked join has no heartbeat. One of a member that was never told its id may be repeated under a new one when
    # its connection is lost, so it is not believed for ever.
    new_member_join_timeout_ms: int = 300_000
    max_size: int = 10_000  # members, and as many ids handed out to members that are yet to come
    max_groups: int = 100_000
    offset_metadata_max_bytes: int = 4_096
    max_pending_offsets: int = 100_000  # of one group, in transactions that have not ended
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    offsets_retention_check_ms: int = 600_000  # what expires, or an empty group without offsets, goes this much later


# -- asked ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Join:
    member_id: str  # empty: not a member yet
    new_member_id: str  # to be used if it becomes one
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_id: bool = False  # JoinGroup v4+: hand out the id first, so that a repeat is no second member
    can_skip_assignment: bool = False  # JoinGroup v9+: a returning leader can be told not to assign


@dataclass(slots=True)
class Sync:
    member_id: str
    generation: int
    assignments: Mapping[str, bytes]  # by member id; from the leader only
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None


class Leaver(NamedTuple):
    member_id: str  # empty: whoever has the instance id
    instance_id: str | None = None


@dataclass(slots=True)
class OffsetCommit:
    commits: Mapping[TopicPartition, Commit]
    member_id: str = ""
    generation: int = ANY_GENERATION
    instance_id: str | None = None
    retention_ms: int | None = None


# -- answered ---------------------------------------------------------------------------------------------------


class NewMemberId(NamedTuple):
    """Join again under this id."""

    member_id: str


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader_id: str
    members: Sequence[JoinedMember]  # for the leader only
    skip_assignment: bool = False


class Synced(NamedTuple):
    protocol_type: str
    protocol: str
    assignment: bytes


class MemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    group: str
    state: GroupState
    protocol_type: str
    protocol: str
    members: Sequence[MemberDescription]
