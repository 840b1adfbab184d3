"""What is remembered of a consumer group, as keys and values of a compacted topic.

    key                                      value
    ["group", group]                         GroupFact: the last generation that got an assignment, or emptiness
    ["offset", group, topic, partition]      OffsetFact: one committed offset
    ["pending", group, producer id,          OffsetFact: one that counts when the producer's transaction commits
        topic, partition]

All are JSON, so that a person who reads the internal topic understands it; bytes in it are base64.
"""

from typing import NamedTuple

import msgspec

from penstock.delivery.decision import Fact

NO_LEADER_EPOCH = -1


class GroupKey(NamedTuple):
    group: str


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class PendingKey(NamedTuple):
    group: str
    producer_id: int
    topic: str
    partition: int


class OffsetFact(msgspec.Struct, frozen=True, omit_defaults=True):
    offset: int
    committed_ms: int  # wall time
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    expires_ms: int | None = None  # wall time, when the client asked for its own retention (OffsetCommit before v5)


class MemberFact(msgspec.Struct, frozen=True, omit_defaults=True):
    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    instance_id: str | None = None


class GroupFact(msgspec.Struct, frozen=True, omit_defaults=True):
    generation: int
    protocol_type: str = ""
    protocol: str | None = None
    leader_id: str | None = None
    empty_since_ms: int | None = None  # wall time
    members: tuple[MemberFact, ...] = ()


_encode = msgspec.json.Encoder().encode
_decode_key = msgspec.json.Decoder(list[str | int]).decode
_decode_offset = msgspec.json.Decoder(OffsetFact).decode
_decode_group = msgspec.json.Decoder(GroupFact).decode


def group_fact(group: str, value: GroupFact | None) -> Fact:
    return Fact(_encode(("group", group)), None if value is None else _encode(value))


def offset_fact(group: str, topic: str, partition: int, value: OffsetFact | None) -> Fact:
    return Fact(_encode(("offset", group, topic, partition)), None if value is None else _encode(value))


def pending_fact(group: str, producer_id: int, topic: str, partition: int, value: OffsetFact | None) -> Fact:
    return Fact(_encode(("pending", group, producer_id, topic, partition)), None if value is None else _encode(value))


def read_key(key: bytes) -> GroupKey | OffsetKey | PendingKey | None:
    """None when the key is of a kind that this version does not know: a newer one wrote it, and it is kept."""
    match _decode_key(key):
        case ["group", str(group)]:
            return GroupKey(group)
        case ["offset", str(group), str(topic), int(partition)]:
            return OffsetKey(group, topic, partition)
        case ["pending", str(group), int(producer_id), str(topic), int(partition)]:
            return PendingKey(group, producer_id, topic, partition)
    return None


def read_offset(value: bytes) -> OffsetFact:
    return _decode_offset(value)


def read_group(value: bytes) -> GroupFact:
    return _decode_group(value)
