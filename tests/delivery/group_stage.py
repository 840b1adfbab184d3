"""A stage for groups: plays the shell around one machine, with a ledger in a dictionary and a clock set by hand."""

import struct
from collections.abc import Mapping

from penstock.delivery.decision import Decision, Fact, Moment, Reply
from penstock.delivery.group import Group
from penstock.delivery.group_events import GroupSettings, Join, Joined, Leaver, NewMemberId, OffsetCommit, Sync
from penstock.delivery.group_facts import read_key
from penstock.delivery.offsets import Commit, TopicPartition
from penstock.model.errors import PenstockError
from penstock.testing.clock import ManualClock

WAITING = object()


def subscription(*topics: str, tail: bytes = b"\xff\xff\xff\xff") -> bytes:
    names = b"".join(struct.pack(">h", len(t.encode())) + t.encode() for t in topics)
    return struct.pack(">hi", 1, len(topics)) + names + tail


RANGE = (("range", subscription("orders")),)


class Stage:
    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.clock = ManualClock()
        self.group = Group("readers", self.settings)
        self.ledger: dict[bytes, bytes | None] = {}
        self.answers: dict[int, object] = {}
        self.tickets = 0
        self.ids = 0

    @property
    def now(self) -> Moment:
        return Moment(self.clock.monotonic_ms(), self.clock.wall_ms())

    # -- the shell ----------------------------------------------------------------------------------------------

    def ticket(self) -> int:
        self.tickets += 1
        self.answers[self.tickets] = WAITING
        return self.tickets

    def settle(self, decision: Decision, error: PenstockError | None = None) -> None:
        if decision.facts and error is None:
            self.write(decision.facts)
            self.group.recorded(self.now, decision.facts)
        elif decision.facts:
            again = self.group.unrecorded(self.now, decision.facts)
            assert not again.facts
            self.perform(again, None)
        self.perform(decision, error if decision.facts else None)
        self.group.check()

    def write(self, facts: list[Fact]) -> None:
        for fact in facts:
            self.ledger.pop(fact.key, None)
            if fact.value is not None:
                self.ledger[fact.key] = fact.value

    def perform(self, decision: Decision, error: PenstockError | None) -> None:
        for effect in decision.effects:
            assert isinstance(effect, Reply)
            assert self.answers[effect.ticket] is WAITING, "every ticket is answered once"
            self.answers[effect.ticket] = error or effect.result

    def restart(self) -> None:
        """The process is gone, and everyone's connection with it; the ledger is read back."""
        self.group = Group("readers", self.settings)
        for key, value in self.ledger.items():
            parsed = read_key(key)
            assert parsed is not None
            self.group.replay(parsed, value)
        self.group.resume(self.now)
        self.group.check()

    def advance(self, ms: int) -> None:
        """Let time pass, waking the machine whenever it asked for it."""
        end_ms = self.clock.monotonic_ms() + ms
        while (deadline_ms := self.group.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.clock.advance(max(0, deadline_ms - self.clock.monotonic_ms()))
            self.settle(self.group.tick(self.now))
            again_ms = self.group.next_deadline_ms()
            assert again_ms is None or again_ms > self.clock.monotonic_ms(), "a tick must move the deadline on"
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    # -- the members --------------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        instance_id: str | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        protocol_type: str = "consumer",
        requires_known_id: bool = False,
        can_skip_assignment: bool = False,
    ) -> int:
        self.ids += 1
        ask = Join(
            member_id, f"m{self.ids}", instance_id, "client", "/127.0.0.1", session_ms, rebalance_ms,
            protocol_type, protocols, requires_known_id, can_skip_assignment,
        )  # fmt: skip
        ticket = self.ticket()
        self.settle(self.group.join(self.now, ticket, ask))
        return ticket

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        instance_id: str | None = None,
        error: PenstockError | None = None,
    ) -> int:
        ticket = self.ticket()
        self.settle(
            self.group.sync(self.now, ticket, Sync(member_id, generation, assignments or {}, instance_id)), error
        )
        return ticket

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> object:
        ticket = self.ticket()
        self.settle(self.group.heartbeat(self.now, ticket, member_id, generation, instance_id))
        return self.answers[ticket]

    def leave(self, *leavers: str | tuple[str, str]) -> object:
        ticket = self.ticket()
        parsed = [Leaver(who) if isinstance(who, str) else Leaver(*who) for who in leavers]
        self.settle(self.group.leave(self.now, ticket, parsed))
        return self.answers[ticket]

    def commit(
        self,
        offset: int,
        topic: str = "orders",
        member_id: str = "",
        generation: int = -1,
        metadata: str = "",
        retention_ms: int | None = None,
        instance_id: str | None = None,
        error: PenstockError | None = None,
    ) -> object:
        ticket = self.ticket()
        commits = {TopicPartition(topic, 0): Commit(offset, 3, metadata)}
        ask = OffsetCommit(commits, member_id, generation, instance_id, retention_ms)
        self.settle(self.group.commit(self.now, ticket, ask), error)
        result = self.answers[ticket]
        return result[TopicPartition(topic, 0)] if isinstance(result, dict) else result

    def committed(self, topic: str = "orders") -> int | None:
        kept = self.group.offsets.get(TopicPartition(topic, 0))
        return None if kept is None else kept.offset

    # -- whole scenes -------------------------------------------------------------------------------------------

    def joined(self, ticket: int) -> Joined:
        answer = self.answers[ticket]
        assert isinstance(answer, Joined), answer
        return answer

    def new_id(self, ticket: int) -> str:
        answer = self.answers[ticket]
        assert isinstance(answer, NewMemberId), answer
        return answer.member_id

    def stable(self, count: int = 2, instances: bool = False) -> list[str]:
        """A stable group of so many members, the first of them its leader."""
        ids: list[str] = []
        for index in range(count):
            ticket = self.join(instance_id=f"i{index}" if instances else None)
            again = [self.join(member_id=m, instance_id=self._instance(m)) for m in ids]
            ids.append(self.joined(ticket).member_id)
            assert all(self.joined(t).generation == self.group.generation for t in again)
        assignments = {m: f"part of {m}".encode() for m in ids}
        for member_id in reversed(ids):
            self.sync(member_id, self.group.generation, assignments, self._instance(member_id))
        return ids

    def _instance(self, member_id: str) -> str | None:
        return next((m.instance_id for m in self.group.roster if m.member_id == member_id), None)
