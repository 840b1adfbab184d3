"""The verbs of consumer groups: the shell around the group machines.

Each verb is a plain call: it asks the machine at once, so calls take effect in the order they are made, and returns a
future that resolves when the machine answers and everything it decided until then is durable. Nobody is told, and
nobody can fetch, what a crash could take back.
"""

import asyncio
import uuid
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.broker.group_hosting import GroupHost
from penstock.broker.hosting import Hosted, Ledger, answer
from penstock.delivery.decision import Decision, Moment, Reply
from penstock.delivery.group import Group, Refusals
from penstock.delivery.group_events import (
    ANY_GENERATION,
    GroupDescription,
    GroupSettings,
    GroupState,
    Join,
    Joined,
    JoinedMember,
    Leaver,
    MemberDescription,
    NewMemberId,
    OffsetCommit,
    Sync,
    Synced,
)
from penstock.delivery.group_facts import OffsetFact
from penstock.delivery.offsets import Commit, TopicPartition
from penstock.log.swap import Swap
from penstock.model.clock import Clock
from penstock.model.errors import (
    GroupSubscribed,
    IllegalGeneration,
    InvalidGroup,
    NotAllowed,
    PenstockError,
    UnknownGroup,
    UnknownMember,
    UnstableOffset,
)
from penstock.security.acl import AllowAll, Authorizer, Operation, Resource
from penstock.security.principal import Principal

__all__ = [
    "ANY_GENERATION",
    "Commit",
    "Coordinator",
    "GroupDescription",
    "GroupListing",
    "GroupSettings",
    "GroupState",
    "Join",
    "Joined",
    "JoinedMember",
    "Leaver",
    "MemberDescription",
    "NewMemberId",
    "OffsetCommit",
    "OffsetFact",
    "Refusals",
    "Sync",
    "Synced",
    "TopicPartition",
]

CLUSTER = "cluster"


class GroupListing(NamedTuple):
    group: str
    state: GroupState
    protocol_type: str


class Coordinator:
    def __init__(
        self, ledger: Ledger, clock: Clock, settings: GroupSettings | None = None, authorizer: Authorizer | None = None
    ) -> None:
        self._host = GroupHost(ledger, clock, settings or GroupSettings())
        self._authorizer = authorizer or AllowAll()

    async def start(self) -> None:
        """Replay what is known of every group; sessions begin anew."""
        await self._host.load()

    def release(self) -> None:
        """The server is about to stop: whoever waits for others is told to look for its coordinator again."""
        self._host.release()

    async def stop(self) -> None:
        self._host.release()
        self._host.alarms.stop()

    def run_due(self) -> None:
        """Let happen what time brings. A timer does this; a test with a clock of its own may."""
        self._host.alarms.run_due()

    # -- members ------------------------------------------------------------------------------------------------

    def join(self, principal: Principal, name: str, ask: Join) -> asyncio.Future[Joined | NewMemberId]:
        """Resolves when the next generation begins. A new member's id is given here."""
        self._check(principal, Operation.READ, _named(name))
        ask.new_member_id = f"{ask.instance_id or ask.client_id}-{uuid.uuid4()}"
        hosted = self._host.groups.get(name) if ask.member_id else self._host.admit(name)
        if hosted is None:
            raise UnknownMember(f"there is no group {name!r}: join without a member id")
        return self._host.ask(hosted, lambda ticket: hosted.machine.join(self._host.now, ticket, ask))

    def sync(self, principal: Principal, name: str, ask: Sync) -> asyncio.Future[Synced]:
        """Resolves when the leader has brought the assignment."""
        hosted = self._of_member(principal, name)
        return self._host.ask(hosted, lambda ticket: hosted.machine.sync(self._host.now, ticket, ask))

    def heartbeat(
        self, principal: Principal, name: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> asyncio.Future[None]:
        hosted = self._of_member(principal, name)
        return self._host.ask(
            hosted, lambda ticket: hosted.machine.heartbeat(self._host.now, ticket, member_id, generation, instance_id)
        )

    def leave(
        self, principal: Principal, name: str, leavers: Sequence[Leaver]
    ) -> asyncio.Future[list[PenstockError | None]]:
        """Resolves to a result per leaver: None, or why it could not leave."""
        hosted = self._of_member(principal, name)
        return self._host.ask(hosted, lambda ticket: hosted.machine.leave(self._host.now, ticket, leavers))

    def _of_member(self, principal: Principal, name: str) -> Hosted[Group]:
        self._check(principal, Operation.READ, _named(name))
        hosted = self._host.groups.get(name)
        if hosted is None:
            raise UnknownMember(f"there is no group {name!r}: join again")
        return hosted

    # -- offsets ------------------------------------------------------------------------------------------------

    def commit(self, principal: Principal, name: str, ask: OffsetCommit) -> asyncio.Future[Refusals]:
        """Resolves when the offsets are durable. UnknownGroup when a member commits to a group that is not there."""
        self._check(principal, Operation.READ, name)
        refused = self._refused(principal, Operation.READ, ask.commits)
        ask.commits = {partition: commit for partition, commit in ask.commits.items() if partition not in refused}
        hosted = self._host.admit(name) if ask.generation <= ANY_GENERATION else self._get(name)
        return self._host.ask(hosted, lambda ticket: _with(hosted.machine.commit(self._host.now, ticket, ask), refused))

    def pend(self, principal: Principal, name: str, ask: OffsetCommit, producer_id: int) -> asyncio.Future[Refusals]:
        """Offsets of a transaction: durable when this resolves, and shown when the transaction has committed."""
        self._check(principal, Operation.READ, name)
        refused = self._refused(principal, Operation.READ, ask.commits)
        ask.commits = {partition: commit for partition, commit in ask.commits.items() if partition not in refused}
        hosted = self._host.groups.get(name)
        if hosted is None:
            if ask.generation > ANY_GENERATION:
                raise IllegalGeneration(f"there is no group {name!r}: join again")
            hosted = self._host.admit(name)
        machine = hosted.machine
        return self._host.ask(
            hosted, lambda ticket: _with(machine.pend(self._host.now, ticket, ask, producer_id), refused)
        )

    def end_pending(self, name: str, producer_id: int, commit: bool) -> asyncio.Future[None]:
        """A transaction has ended: its offsets count from now on, or never did. May be told again."""
        hosted = self._host.groups.get(name)
        if hosted is None:
            nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            nothing.set_result(None)
            return nothing
        machine = hosted.machine
        return self._host.ask(
            hosted, lambda ticket: machine.end_pending(self._host.now, ticket, producer_id, commit=commit)
        )

    def committed(
        self,
        principal: Principal,
        name: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        stable: bool = False,
    ) -> asyncio.Future[dict[TopicPartition, OffsetFact | PenstockError | None]]:
        """The committed offset of these partitions, or of all that have one; None where there is none.

        Whoever wants a stable answer is told UnstableOffset where a transaction has yet to decide.
        """
        self._check(principal, Operation.DESCRIBE, name)
        found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        refused = self._refused(principal, Operation.DESCRIBE, partitions or ())
        hosted = self._host.groups.get(name)

        def read() -> None:
            offsets: dict[TopicPartition, OffsetFact | PenstockError | None] = {}
            if hosted is not None:
                offsets.update(hosted.machine.offsets.items())
                if stable:
                    pending = hosted.machine.pending_offsets
                    offsets.update({p: _unstable(p) for p in pending.partitions() if pending.holds(p)})
            if partitions is None:
                hidden = self._refused(principal, Operation.DESCRIBE, offsets)
                answer(found, {p: kept for p, kept in offsets.items() if p not in hidden})
            else:
                answer(found, {p: refused.get(p) or offsets.get(p) for p in partitions})

        if hosted is None:
            read()
        else:  # a commit made before this call shows in its result
            self._host.when_durable(hosted, read)
        return found

    def delete_offsets(
        self, principal: Principal, name: str, partitions: Collection[TopicPartition]
    ) -> asyncio.Future[Refusals]:
        self._check(principal, Operation.DELETE, name)
        hosted = self._get(name)
        refused = self._refused(principal, Operation.READ, partitions)
        wanted = [partition for partition in partitions if partition not in refused]
        return self._host.ask(
            hosted, lambda ticket: _with(hosted.machine.delete_offsets(self._host.now, ticket, wanted), refused)
        )

    async def forget_topic(self, topic: str) -> None:
        """A topic was deleted: its offsets mean nothing any more. Returns when that is durable."""
        forgotten = []
        for hosted in list(self._host.groups.values()):
            decision = hosted.machine.forget_topic(topic)
            if decision.facts:
                ticket, future = self._host.ticket()
                decision.reply(ticket, None)
                self._host.perform(hosted, decision)
                forgotten.append(future)
        await asyncio.gather(*forgotten)

    def check_unread(self, topic: str) -> None:
        """Raise GroupSubscribed if a group's members read this topic, so that its offsets are theirs to move."""
        for name, hosted in self._host.groups.items():
            if hosted.machine.reads(topic):
                raise GroupSubscribed(f"group {name!r} reads topic {topic!r}: stop its members first")

    def check_room(self, names: Collection[str]) -> None:
        """Raise what speaks against giving these groups offsets: there may be no room for those that are new."""
        self._host.check_room(names)

    async def follow_swap(self, swap: Swap) -> None:
        """Two topics have exchanged their names: of the one groups have the given offsets and no others, of the other
        none. Returns when that is durable; may be told again."""
        await self.forget_topic(swap.other)
        commits: dict[str, dict[TopicPartition, Commit]] = {name: {} for name in self._host.groups}
        for name, partition, offset in swap.offsets:
            commits.setdefault(name, {})[TopicPartition(swap.name, partition)] = Commit(offset)
        replaced = []
        for name, ours in commits.items():
            hosted = self._host.admit(name) if ours else self._host.groups.get(name)
            if hosted is not None and (ours or hosted.machine.offsets.of_topic(swap.name)):
                event = partial(_replace, hosted.machine, self._host.now, swap.name, ours)
                replaced.append(self._host.ask(hosted, event))
        await asyncio.gather(*replaced)

    async def keep_only_topics(self, topics: Collection[str]) -> None:
        """At start: a topic's deletion may have been durable and that of its offsets not yet."""
        known: set[str] = set()
        for hosted in self._host.groups.values():
            known.update(partition.topic for partition in hosted.machine.offsets.known())
            known.update(partition.topic for partition in hosted.machine.pending_offsets.partitions())
        for topic in known.difference(topics):
            await self.forget_topic(topic)

    def _refused(
        self, principal: Principal, operation: Operation, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, PenstockError]:
        topics = {partition.topic for partition in partitions}
        hidden = {t for t in topics if not self._authorizer.allows(principal, operation, Resource.TOPIC, t)}
        return {p: NotAllowed(f"topic {p.topic!r} is not yours") for p in partitions if p.topic in hidden}

    # -- administration -----------------------------------------------------------------------------------------

    def describe(self, principal: Principal, name: str) -> GroupDescription:
        self._check(principal, Operation.DESCRIBE, name)
        return self._get(name).machine.describe()

    def groups(self, principal: Principal) -> Iterator[GroupListing]:
        """Every group that the principal may see."""
        sees_all = self._authorizer.allows(principal, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER)
        for name, hosted in self._host.groups.items():
            if sees_all or self._authorizer.allows(principal, Operation.DESCRIBE, Resource.GROUP, name):
                yield GroupListing(name, hosted.machine.state, hosted.machine.protocol_type)

    def delete(self, principal: Principal, name: str) -> asyncio.Future[None]:
        self._check(principal, Operation.DELETE, name)
        hosted = self._get(name)
        return self._host.ask(hosted, lambda ticket: hosted.machine.delete(self._host.now, ticket))

    def check_may_find(self, principal: Principal, name: str) -> None:
        """Whether the principal may know who coordinates the group."""
        self._check(principal, Operation.DESCRIBE, name)

    def _check(self, principal: Principal, operation: Operation, name: str) -> None:
        self._authorizer.check(principal, operation, Resource.GROUP, name)

    def _get(self, name: str) -> Hosted[Group]:
        hosted = self._host.groups.get(name)
        if hosted is None:
            raise UnknownGroup(f"there is no group {name!r}")
        return hosted


def _with(decision: Decision, refused: dict[TopicPartition, PenstockError]) -> Decision:
    """Add what was refused before the machine was asked to what it answers."""
    for effect in decision.effects:
        if isinstance(effect, Reply) and isinstance(effect.result, dict):
            effect.result.update(refused)
    return decision


def _unstable(partition: TopicPartition) -> UnstableOffset:
    return UnstableOffset(f"a transaction has yet to decide on the offset of {partition.topic}-{partition.partition}")


def _named(name: str) -> str:
    if not name:
        raise InvalidGroup("a group that is joined must have a name")
    return name


def _replace(group: Group, now: Moment, topic: str, commits: dict[TopicPartition, Commit], ticket: int) -> Decision:
    return group.replace_topic(now, ticket, topic, commits)
