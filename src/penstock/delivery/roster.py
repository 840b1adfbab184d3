"""The members of one group: who they are, who leads, and what they can agree on.

A roster knows nothing of time or states; the group does. Members keep the order in which they first joined. A static
member is also known by its instance id, which outlives its member ids: each (re)start of the instance gets a new one,
and the former is fenced.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.delivery.group_facts import MemberFact
from penstock.delivery.subscription import CONSUMER_PROTOCOL_TYPE, all_subscribed_topics
from penstock.model.errors import FencedInstance, UnknownMember

# A protocol a member can speak: its name, and what the member tells the leader when it is chosen.
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols  # the preferred one first
    assignment: bytes = b""
    deadline_ms: int = 0  # monotonic; a sign of life moves it
    join_ticket: int | None = None  # a join that waits for the others
    sync_ticket: int | None = None  # a sync that waits for the leader's assignment
    is_new: bool = True  # has never been told a generation

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def spoken(self) -> set[str]:
        return {name for name, _ in self.protocols}

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def fact(self) -> MemberFact:
        return MemberFact(
            self.member_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.protocols,
            self.assignment,
            self.instance_id,
        )

    @classmethod
    def from_fact(cls, fact: MemberFact) -> "Member":
        return cls(
            fact.member_id,
            fact.instance_id,
            fact.client_id,
            fact.client_host,
            fact.session_timeout_ms,
            fact.rebalance_timeout_ms,
            fact.protocols,
            fact.assignment,
            is_new=False,
        )


class Roster:
    def __init__(self) -> None:
        self.leader_id: str | None = None
        self.waiting_joins = 0  # members whose join is parked: counted, for a rebalance asks after each join
        self._members: dict[str, Member] = {}
        self._by_instance: dict[str, str] = {}
        self._speakers: Counter[str] = Counter()  # how many members speak a protocol

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    @property
    def all_joined(self) -> bool:
        return self.waiting_joins == len(self._members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The group waits as long as its most patient member allows."""
        return max((m.rebalance_timeout_ms for m in self), default=0)

    # -- who ----------------------------------------------------------------------------------------------------

    def of_instance(self, instance_id: str | None) -> Member | None:
        member_id = None if instance_id is None else self._by_instance.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def get(self, member_id: str, instance_id: str | None = None) -> Member:
        """The member that calls itself so, or UnknownMember; FencedInstance when its instance has a newer id."""
        if instance_id is not None:
            known = self.of_instance(instance_id)
            if known is None:
                raise UnknownMember(f"no member has the instance id {instance_id!r}: join again")
            if known.member_id != member_id:
                raise FencedInstance(f"instance {instance_id!r} has joined again under another member id")
            return known
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMember(f"{member_id!r} is no member: join again")
        return member

    def add(self, member: Member) -> None:
        self._members[member.member_id] = member
        self._speakers.update(member.spoken)
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: Member) -> None:
        assert member.join_ticket is None and member.sync_ticket is None, "answer a member before removing it"
        del self._members[member.member_id]
        self._unlearn(member)
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._members), None)

    def rename(self, member: Member, member_id: str) -> None:
        """A static member came back: same place, same leadership, new id."""
        assert member.instance_id is not None
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        renamed = {member_id if m is member else m.member_id: m for m in self}
        member.member_id = member_id
        self._members = renamed
        self._by_instance[member.instance_id] = member_id

    # -- waiting ------------------------------------------------------------------------------------------------

    def park_join(self, member: Member, ticket: int) -> int | None:
        """Let the join wait. Returns the ticket of an older join of this member that it takes the place of."""
        older, member.join_ticket = member.join_ticket, ticket
        self.waiting_joins += older is None
        return older

    def take_join(self, member: Member) -> int | None:
        """The parked join's ticket, to be answered now."""
        ticket, member.join_ticket = member.join_ticket, None
        self.waiting_joins -= ticket is not None
        return ticket

    def elect(self) -> bool:
        """Make sure that the leader is one who has joined this round; False when nobody has."""
        leader = None if self.leader_id is None else self._members.get(self.leader_id)
        if leader is None or leader.join_ticket is None:
            self.leader_id = next((m.member_id for m in self if m.join_ticket is not None), self.leader_id)
        return self.waiting_joins > 0

    # -- agreeing -----------------------------------------------------------------------------------------------

    def teach(self, member: Member, protocols: Protocols) -> None:
        self._unlearn(member)
        member.protocols = protocols
        self._speakers.update(member.spoken)

    def _unlearn(self, member: Member) -> None:
        self._speakers -= Counter(member.spoken)  # drops what nobody speaks any more

    def supports(self, protocols: Protocols, without: Member | None = None) -> bool:
        """Whether one of these protocols is spoken by every member (not counting the one that is being replaced)."""
        others = len(self) - (without is not None)
        excluded = set() if without is None else without.spoken
        return any(self._speakers[name] - (name in excluded) == others for name, _ in protocols)

    def vote(self) -> str:
        """The protocol all speak that most members like best; a draw goes to the one the eldest member prefers."""
        common = {name for name, speakers in self._speakers.items() if speakers == len(self)}
        votes = Counter(next(name for name, _ in m.protocols if name in common) for m in self)
        eldest = next(iter(self))
        return max((name for name, _ in eldest.protocols if name in common), key=lambda name: votes[name])

    def subscribed_topics(self, protocol_type: str) -> frozenset[str] | None:
        """Every topic that a member reads; None when that cannot be told."""
        if protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None if len(self) else frozenset()
        return all_subscribed_topics(self._metadatas())

    def _metadatas(self) -> Iterable[bytes]:
        return (metadata for member in self for _, metadata in member.protocols)

    def check(self) -> None:
        assert all(key == m.member_id for key, m in self._members.items())
        assert self._by_instance == {m.instance_id: m.member_id for m in self if m.instance_id is not None}
        assert self._speakers == Counter(name for m in self for name in m.spoken)
        assert self.waiting_joins == sum(m.join_ticket is not None for m in self)
        assert (self.leader_id in self._members) if self._members else (self.leader_id is None)
