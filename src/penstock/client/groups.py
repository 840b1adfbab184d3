"""Consumer groups and what they have read: one call, one request, and what the answers leave open."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock.client.session import Session
from penstock.model.errors import UnknownGroup, UnknownPartition, UnknownTopic
from penstock.wire.native import messages as wire

CONSUMERS = "consumer"  # the kind of group whose assignments can be read

Place = tuple[str, int]  # topic, partition


class Bounds(NamedTuple):
    """A partition's first offset, the one after the last that can be read (before any transaction that is open), and
    the first at or after the time that was asked for."""

    start: int
    end: int
    found: int


def stable_end(answer: wire.Offsets) -> int:
    """Where reading what is committed ends now; servers without transactions tell nothing but the end."""
    return answer.stable if answer.stable >= 0 else answer.end


class GroupListing(NamedTuple):
    name: str
    state: str
    protocol_type: str


class Member(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: dict[str, list[int]] | None  # partitions by topic; None if it is not of the consumers' kind


class GroupOffset(NamedTuple):
    """One partition that a group has committed an offset of, or that one of its members reads."""

    topic: str
    partition: int
    committed: int | None
    end: int | None  # None when the partition is gone
    member: str | None  # who reads it now

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else max(self.end - self.committed, 0)


class Group(NamedTuple):
    name: str
    state: str
    protocol_type: str
    protocol: str
    members: list[Member]
    offsets: list[GroupOffset]


class Groups:
    """Mixed into the client. Repeating any of these after a lost answer is safe."""

    _session: Session

    # -- offsets ------------------------------------------------------------------------------------------------

    async def offsets(self, topic: str, partition: int = 0, timestamp_ms: int | None = None) -> Bounds:
        answer = await self._session.call(wire.ListOffsets(topic, partition, timestamp_ms))
        return Bounds(answer.start, stable_end(answer), answer.found)

    async def bounds(self, places: Iterable[Place], timestamp_ms: int | None = None) -> dict[Place, Bounds]:
        """As `offsets`, for many partitions at once."""
        places = list(places)
        found = await asyncio.gather(*(self.offsets(*place, timestamp_ms) for place in places))
        return dict(zip(places, found, strict=True))

    async def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        """The next offset to read, by topic and partition. A group that has members is refused."""
        await self._session.call(wire.Commit(group, [(*place, offset) for place, offset in offsets.items()]))

    async def committed(self, group: str, topic: str | None = None) -> dict[Place, int]:
        answer = await self._session.call(wire.Committed(group, topic))
        return {(name, partition): offset for name, partition, offset in answer.offsets}

    async def delete_offsets(self, group: str, places: Iterable[Place]) -> None:
        """Forget what the group committed for these partitions, which no member may read."""
        await self._session.call(wire.DeleteOffsets(group, list(places)), done_if=UnknownGroup)

    # -- groups -------------------------------------------------------------------------------------------------

    async def groups(self) -> list[GroupListing]:
        answer = await self._session.call(wire.ListGroups())
        return [GroupListing(one.name, one.state, one.protocol_type) for one in answer.groups]

    async def group(self, name: str) -> Group:
        """Its members, what they read, and how far behind they are. Raises UnknownGroup."""
        answer: wire.GroupDescription = await self._session.call(wire.DescribeGroup(name))
        members = sorted(_member(one, answer.protocol_type) for one in answer.members)
        readers: dict[Place, str] = {
            (topic, partition): member.member_id
            for member in members
            for topic, partitions in (member.assignment or {}).items()
            for partition in partitions
        }
        committed = {(one.topic, one.partition): one.committed for one in answer.offsets}
        ends = {(one.topic, one.partition): one.end for one in answer.offsets}
        fresh = [place for place in readers if place not in ends]
        ends.update(zip(fresh, await asyncio.gather(*map(self._end, fresh)), strict=True))
        offsets = [GroupOffset(*place, committed.get(place), ends[place], readers.get(place)) for place in sorted(ends)]
        return Group(name, answer.state, answer.protocol_type, answer.protocol, members, offsets)

    async def _end(self, place: Place) -> int | None:
        try:
            return (await self.offsets(*place)).end
        except (UnknownTopic, UnknownPartition):
            return None

    async def delete_group(self, name: str) -> None:
        """A group without members, and all that it committed."""
        await self._session.call(wire.DeleteGroup(name), done_if=UnknownGroup)


def _member(info: wire.MemberInfo, protocol_type: str) -> Member:
    assignment = _assignment(info.assignment) if protocol_type == CONSUMERS else None
    return Member(info.member_id, info.instance_id, info.client_id, info.host, assignment)


def _assignment(written: bytes) -> dict[str, list[int]] | None:
    """Consumers write their assignments in Kafka's way. Another client wrote it, so it may be anything."""
    from penstock.wire.kafka.messages import decode_assignment  # takes a moment, and only this needs it

    try:
        decoded: Any = decode_assignment(written)
    except ValueError:
        return None
    return {part.topic: list(part.partitions) for part in decoded.assigned_partitions}
