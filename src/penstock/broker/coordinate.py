"""The verbs of consumer groups: the shell around the group machines.

Each verb is a plain call: it asks the machine at once, so calls take effect in the order they are made, and returns a
future that resolves when the machine answers and everything it decided until then is durable. Nobody is told, and
nobody can fetch, what a crash could take back.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from penstock.broker.alarms import Alarms
from penstock.delivery.decision import Decision, Effect, Moment, Reply
from penstock.delivery.group import Group
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
from penstock.delivery.group_facts import OffsetFact, read_key
from penstock.delivery.offsets import Commit, TopicPartition
from penstock.model.clock import Clock
from penstock.model.errors import (
    InvalidGroup,
    LimitReached,
    NotAllowed,
    PenstockError,
    StorageFailed,
    UnknownGroup,
    UnknownMember,
)
from penstock.security.acl import AllowAll, Authorizer, Operation, Resource
from penstock.security.principal import Principal

__all__ = [
    "ANY_GENERATION",
    "Commit",
    "Coordinator",
    "GroupDescription",
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
    "Sync",
    "Synced",
    "TopicPartition",
]

GROUP_NAME_MAX_CHARS = 32_767  # what a string of Kafka's protocol can hold
CLUSTER = "cluster"

Refusals = dict[TopicPartition, PenstockError | None]  # per partition None, or why not


class Ledger(Protocol):
    """Where facts are kept (see log/ledger.py)."""

    def record(self, key: bytes, value: bytes | None) -> asyncio.Future[None]: ...

    def replay(self) -> AsyncIterator[tuple[bytes, bytes | None]]: ...


@dataclass(slots=True, eq=False)
class _Turn:
    """Something to be done once some facts are durable; turns of a group are taken in order."""

    settle: Callable[[PenstockError | None], None]
    missing: int = 0  # facts not yet durable
    error: PenstockError | None = None


@dataclass(slots=True, eq=False)
class _Hosted:
    group: Group
    turns: deque[_Turn] = field(default_factory=deque)


class Coordinator:
    def __init__(
        self, ledger: Ledger, clock: Clock, settings: GroupSettings | None = None, authorizer: Authorizer | None = None
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._settings = settings or GroupSettings()
        self._authorizer = authorizer or AllowAll()
        self._groups: dict[str, _Hosted] = {}
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # tickets not answered yet
        self._tickets = 0
        self._stopping = False
        self.alarms = Alarms(clock, self._ring)

    async def start(self) -> None:
        """Replay what is known of every group; sessions begin anew."""
        async for key, value in self._ledger.replay():
            parsed = read_key(key)
            if parsed is not None:
                self._host(parsed.group).group.replay(parsed, value)
        for hosted in list(self._groups.values()):
            hosted.group.resume(self._now)
            self._rest(hosted)

    def release(self) -> None:
        """The server is about to stop: whoever waits for others is told to look for its coordinator again."""
        self._stopping = True
        for future in self._waiting.values():
            _answer(future, _stopping())
        self._waiting.clear()

    async def stop(self) -> None:
        self.release()
        self.alarms.stop()

    # -- members ------------------------------------------------------------------------------------------------

    def join(self, principal: Principal, name: str, ask: Join) -> asyncio.Future[Joined | NewMemberId]:
        """Resolves when the next generation begins. A new member's id is given here."""
        self._check(principal, Operation.READ, _named(name))
        ask.new_member_id = f"{ask.instance_id or ask.client_id}-{uuid.uuid4()}"
        hosted = self._groups.get(name) or (None if ask.member_id else self._admit(name))
        if hosted is None:
            raise UnknownMember(f"there is no group {name!r}: join without a member id")
        return self._ask(hosted, lambda ticket: hosted.group.join(self._now, ticket, ask))

    def sync(self, principal: Principal, name: str, ask: Sync) -> asyncio.Future[Synced]:
        """Resolves when the leader has brought the assignment."""
        hosted = self._of_member(principal, name)
        return self._ask(hosted, lambda ticket: hosted.group.sync(self._now, ticket, ask))

    def heartbeat(
        self, principal: Principal, name: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> asyncio.Future[None]:
        hosted = self._of_member(principal, name)
        return self._ask(
            hosted, lambda ticket: hosted.group.heartbeat(self._now, ticket, member_id, generation, instance_id)
        )

    def leave(
        self, principal: Principal, name: str, leavers: Sequence[Leaver]
    ) -> asyncio.Future[list[PenstockError | None]]:
        """Resolves to a result per leaver: None, or why it could not leave."""
        hosted = self._of_member(principal, name)
        return self._ask(hosted, lambda ticket: hosted.group.leave(self._now, ticket, leavers))

    def _of_member(self, principal: Principal, name: str) -> _Hosted:
        self._check(principal, Operation.READ, _named(name))
        hosted = self._groups.get(name)
        if hosted is None:
            raise UnknownMember(f"there is no group {name!r}: join again")
        return hosted

    # -- offsets ------------------------------------------------------------------------------------------------

    def commit(self, principal: Principal, name: str, ask: OffsetCommit) -> asyncio.Future[Refusals]:
        """Resolves when the offsets are durable. UnknownGroup when a member commits to a group that is not there."""
        self._check(principal, Operation.READ, name)
        refused = self._refused(principal, Operation.READ, ask.commits)
        ask.commits = {partition: commit for partition, commit in ask.commits.items() if partition not in refused}
        hosted = self._groups.get(name) or (self._admit(name) if ask.generation <= ANY_GENERATION else None)
        if hosted is None:
            raise UnknownGroup(f"there is no group {name!r}")
        return self._ask(hosted, lambda ticket: _with(hosted.group.commit(self._now, ticket, ask), refused))

    def committed(
        self, principal: Principal, name: str, partitions: Collection[TopicPartition] | None = None
    ) -> asyncio.Future[dict[TopicPartition, OffsetFact | PenstockError | None]]:
        """The committed offset of these partitions, or of all that have one; None where there is none."""
        self._check(principal, Operation.DESCRIBE, name)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        refused = self._refused(principal, Operation.DESCRIBE, partitions or ())
        hosted = self._groups.get(name)

        def read(_: PenstockError | None = None) -> None:
            offsets = {} if hosted is None else dict(hosted.group.offsets.items())
            if partitions is None:
                hidden = self._refused(principal, Operation.DESCRIBE, offsets)
                _answer(answer, {p: kept for p, kept in offsets.items() if p not in hidden})
            else:
                _answer(answer, {p: refused.get(p) or offsets.get(p) for p in partitions})

        if hosted is None or not hosted.turns:
            read()
        else:  # a commit made before this call shows in its result
            hosted.turns.append(_Turn(read))
        return answer

    def delete_offsets(
        self, principal: Principal, name: str, partitions: Collection[TopicPartition]
    ) -> asyncio.Future[Refusals]:
        self._check(principal, Operation.DELETE, name)
        hosted = self._get(name)
        refused = self._refused(principal, Operation.READ, partitions)
        wanted = [partition for partition in partitions if partition not in refused]
        return self._ask(hosted, lambda ticket: _with(hosted.group.delete_offsets(self._now, ticket, wanted), refused))

    async def forget_topic(self, topic: str) -> None:
        """A topic was deleted: its offsets mean nothing any more. Returns when that is durable."""
        await self._forget(lambda hosted: hosted.group.forget_topic(topic))

    async def keep_only_topics(self, topics: Collection[str]) -> None:
        """At start: a topic's deletion may have been durable and that of its offsets not yet."""
        known = {p.topic for hosted in self._groups.values() for p, _ in hosted.group.offsets.items()}
        for topic in known.difference(topics):
            await self.forget_topic(topic)

    async def _forget(self, event: Callable[[_Hosted], Decision]) -> None:
        futures = []
        for hosted in list(self._groups.values()):
            decision = event(hosted)
            if decision.facts:
                ticket, future = self._ticket()
                decision.reply(ticket, None)
                futures.append(future)
                self._perform(hosted, decision)
        await asyncio.gather(*futures)

    def _refused(
        self, principal: Principal, operation: Operation, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, PenstockError]:
        topics = {partition.topic for partition in partitions}
        hidden = {t for t in topics if not self._authorizer.allows(principal, operation, Resource.TOPIC, t)}
        return {p: NotAllowed(f"topic {p.topic!r} is not yours") for p in partitions if p.topic in hidden}

    # -- administration -----------------------------------------------------------------------------------------

    def describe(self, principal: Principal, name: str) -> GroupDescription:
        self._check(principal, Operation.DESCRIBE, name)
        return self._get(name).group.describe()

    def groups(self, principal: Principal) -> Iterator[Group]:
        """Every group that the principal may see."""
        sees_all = self._authorizer.allows(principal, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER)
        for name, hosted in self._groups.items():
            if sees_all or self._authorizer.allows(principal, Operation.DESCRIBE, Resource.GROUP, name):
                yield hosted.group

    def delete(self, principal: Principal, name: str) -> asyncio.Future[None]:
        self._check(principal, Operation.DELETE, name)
        hosted = self._get(name)
        return self._ask(hosted, lambda ticket: hosted.group.delete(self._now, ticket))

    def check_may_find(self, principal: Principal, name: str) -> None:
        """Whether the principal may know who coordinates the group."""
        self._check(principal, Operation.DESCRIBE, name)

    def _check(self, principal: Principal, operation: Operation, name: str) -> None:
        self._authorizer.check(principal, operation, Resource.GROUP, name)

    # -- hosting ------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.wall_ms())

    def _get(self, name: str) -> _Hosted:
        hosted = self._groups.get(name)
        if hosted is None:
            raise UnknownGroup(f"there is no group {name!r}")
        return hosted

    def _admit(self, name: str) -> _Hosted:
        if len(self._groups) >= self._settings.max_groups:
            raise LimitReached(f"the server keeps at most {self._settings.max_groups} groups (max_groups)")
        if len(name) > GROUP_NAME_MAX_CHARS:
            raise InvalidGroup(f"a group's name may have {GROUP_NAME_MAX_CHARS} characters")
        return self._host(name)

    def _host(self, name: str) -> _Hosted:
        hosted = self._groups.get(name)
        if hosted is None:
            hosted = self._groups[name] = _Hosted(Group(name, self._settings))
        return hosted

    def _rest(self, hosted: _Hosted) -> None:
        """After each event: forget a group of which nothing is left, else be woken when it wants to be."""
        group = hosted.group
        if group.is_blank and not hosted.turns:
            if self._groups.get(group.name) is hosted:
                group.bury()
                del self._groups[group.name]
            self.alarms.set(group.name, None)
        else:
            self.alarms.set(group.name, group.next_deadline_ms())

    def _ring(self, name: str) -> None:
        hosted = self._groups.get(name)
        if hosted is not None:
            self._perform(hosted, hosted.group.tick(self._now))

    # -- obeying decisions --------------------------------------------------------------------------------------

    def _ticket(self) -> tuple[int, asyncio.Future[Any]]:
        self._tickets += 1
        future = self._waiting[self._tickets] = asyncio.get_running_loop().create_future()
        return self._tickets, future

    def _ask(self, hosted: _Hosted, event: Callable[[int], Decision]) -> asyncio.Future[Any]:
        ticket, future = self._ticket()
        self._perform(hosted, event(ticket))
        if self._stopping and self._waiting.pop(ticket, None) is not None:
            _answer(future, _stopping())
        return future

    def _perform(self, hosted: _Hosted, decision: Decision) -> None:
        if decision.facts or hosted.turns:
            turn = _Turn(partial(self._settle, hosted, decision))
            hosted.turns.append(turn)
            # Facts of one tick may share a future.
            for future in {self._ledger.record(fact.key, fact.value) for fact in decision.facts}:
                turn.missing += 1
                future.add_done_callback(partial(self._landed, hosted, turn))
        else:
            self._run(decision.effects, None)
        self._rest(hosted)

    def _landed(self, hosted: _Hosted, turn: _Turn, future: asyncio.Future[None]) -> None:
        turn.missing -= 1
        turn.error = turn.error or _failure(future)
        while hosted.turns and hosted.turns[0].missing == 0:
            first = hosted.turns.popleft()
            first.settle(first.error)
        self._rest(hosted)

    def _settle(self, hosted: _Hosted, decision: Decision, error: PenstockError | None) -> None:
        if error is None:
            hosted.group.recorded(self._now, decision.facts)
            self._run(decision.effects, None)
        else:
            self._run(decision.effects, error)
            self._perform(hosted, hosted.group.unrecorded(self._now, decision.facts))

    def _run(self, effects: Sequence[Effect], error: PenstockError | None) -> None:
        for effect in effects:
            assert isinstance(effect, Reply)
            future = self._waiting.pop(effect.ticket, None)
            if future is not None:
                _answer(future, error or effect.result)


def _answer(future: asyncio.Future[Any], result: object) -> None:
    if future.done():  # whoever asked has gone
        return
    if isinstance(result, PenstockError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _failure(future: asyncio.Future[None]) -> PenstockError | None:
    if future.cancelled():
        return _stopping()
    error = future.exception()
    if error is None or isinstance(error, PenstockError):
        return error
    return StorageFailed(f"the group's facts could not be stored: {error}")


def _stopping() -> StorageFailed:
    return StorageFailed("the server is stopping")


def _with(decision: Decision, refused: dict[TopicPartition, PenstockError]) -> Decision:
    """Add what was refused before the machine was asked to what it answers."""
    for effect in decision.effects:
        if isinstance(effect, Reply) and isinstance(effect.result, dict):
            effect.result.update(refused)
    return decision


def _named(name: str) -> str:
    if not name:
        raise InvalidGroup("a group that is joined must have a name")
    return name
