"""Any order of events, with a ledger that is late, fails, and is read back after a crash: what always holds."""

from collections import deque
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.delivery.decision import Decision, Moment, Reply
from penstock.delivery.group import Group
from penstock.delivery.group_events import (
    GroupSettings,
    GroupState,
    Join,
    Joined,
    Leaver,
    NewMemberId,
    OffsetCommit,
    Sync,
    Synced,
)
from penstock.delivery.group_facts import read_key
from penstock.delivery.offsets import Commit, TopicPartition
from penstock.model.errors import PenstockError, StorageFailed
from penstock.testing.clock import ManualClock

SETTINGS = GroupSettings(
    initial_rebalance_delay_ms=100, max_size=4, offsets_retention_ms=10**12, offsets_retention_check_ms=10**12
)
TOPICS = ("orders", "payments")
INSTANCES = ("i0", "i1")
PROTOCOLS = (
    (("range", b"a"),),
    (("range", b"b"), ("sticky", b"a")),
    (("sticky", b"a"), ("range", b"a")),
)
offsets = st.integers(0, 1000)
picks = st.integers(0, 1000)


class GroupWorld(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.ledger: dict[bytes, bytes] = {}
        self.waiting: dict[int, Callable[[Any], None]] = {}  # per unanswered ticket: what its answer tells us
        self.unsettled: deque[tuple[Decision, Callable[[], None]]] = deque()
        self.offsets: dict[TopicPartition, int] = {}  # what a client may rely on
        self.ids: list[str] = []
        self.identity: dict[str, str] = {}
        self.tickets = 0
        self.start()

    def start(self) -> None:
        self.group = Group("readers", SETTINGS)
        for key, value in self.ledger.items():
            parsed = read_key(key)
            assert parsed is not None
            self.group.replay(parsed, value)
        self.group.resume(self.now)
        self.leaders: dict[int, set[str]] = {}
        self.protocols: dict[int, str] = {}
        self.ledger_is_behind = False

    @property
    def now(self) -> Moment:
        return Moment(self.clock.monotonic_ms(), self.clock.wall_ms())

    # -- the shell ----------------------------------------------------------------------------------------------

    def ticket(self, learn: Callable[[Any], None] = lambda result: None) -> int:
        self.tickets += 1
        self.waiting[self.tickets] = learn
        return self.tickets

    def decided(self, decision: Decision, then: Callable[[], None] = lambda: None) -> None:
        if decision.facts or self.unsettled:
            self.unsettled.append((decision, then))
        else:
            self.perform(decision, None)

    def perform(self, decision: Decision, error: PenstockError | None) -> None:
        for effect in decision.effects:
            assert isinstance(effect, Reply)
            learn = self.waiting.pop(effect.ticket)  # a second answer would find nobody waiting
            if error is None and not isinstance(effect.result, PenstockError):
                learn(effect.result)

    @precondition(lambda self: self.unsettled)
    @rule(count=st.integers(1, 4))
    def ledger_catches_up(self, count: int) -> None:
        for _ in range(min(count, len(self.unsettled))):
            decision, then = self.unsettled.popleft()
            for fact in decision.facts:
                self.ledger.pop(fact.key, None)
                if fact.value is not None:
                    self.ledger[fact.key] = fact.value
                if fact.key.startswith(b'["group'):
                    self.ledger_is_behind = False
            self.group.recorded(self.now, decision.facts)
            then()
            self.perform(decision, None)

    @precondition(lambda self: self.unsettled)
    @rule()
    def ledger_fails(self) -> None:
        """Everything not yet durable is lost, as a failed append takes the later ones with it."""
        lost, self.unsettled = self.unsettled, deque()
        for decision, _ in lost:
            self.perform(decision, StorageFailed("disk is full") if decision.facts else None)
            self.ledger_is_behind |= any(fact.key.startswith(b'["group') for fact in decision.facts)
        for decision, _ in lost:
            self.decided(self.group.unrecorded(self.now, decision.facts))

    @rule()
    def crash(self) -> None:
        self.unsettled.clear()
        self.waiting.clear()
        self.start()

    @rule(ms=st.sampled_from((1, 99, 100, 3_000, 6_000, 20_000, 300_000)))
    def time_passes(self, ms: int) -> None:
        end_ms = self.clock.monotonic_ms() + ms
        while (deadline_ms := self.group.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.clock.advance(max(0, deadline_ms - self.clock.monotonic_ms()))
            self.decided(self.group.tick(self.now))
            again_ms = self.group.next_deadline_ms()
            assert again_ms is None or again_ms > self.clock.monotonic_ms()
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    # -- the members --------------------------------------------------------------------------------------------

    def join(self, member_id: str, instance_id: str | None, protocols: Any, known_id: bool, skip: bool) -> None:
        new_id = f"m{self.tickets}"
        self.identity.setdefault(new_id, instance_id or new_id)
        ask = Join(member_id, new_id, instance_id, "c", "h", 6_000, 10_000, "consumer", protocols, known_id, skip)
        self.decided(self.group.join(self.now, self.ticket(self.was_joined), ask))

    def was_joined(self, result: Joined | NewMemberId) -> None:
        self.ids.append(result.member_id)
        if isinstance(result, Joined):
            assert self.protocols.setdefault(result.generation, result.protocol) == result.protocol
            if result.members:
                leaders = self.leaders.setdefault(result.generation, set())
                leaders.add(self.identity[result.member_id])
                assert len(leaders) == 1, "a generation has one leader"

    def pick(self, pick: int) -> tuple[str, str | None]:
        """Mostly someone who is in, sometimes someone who was."""
        ids = [m.member_id for m in self.group.roster] * 5 + self.ids[-5:]
        member_id = ids[pick % len(ids)] if ids else "stranger"
        identity = self.identity.get(member_id)
        return member_id, identity if identity in INSTANCES else None

    def pick_generation(self, pick: int) -> int:
        return self.group.generation - (1 if pick % 7 == 0 else 0)

    @rule(protocols=st.sampled_from(PROTOCOLS), known_id=st.booleans())
    def newcomer_joins(self, protocols: Any, known_id: bool) -> None:
        self.join("", None, protocols, known_id, False)

    @rule(instance=st.sampled_from(INSTANCES), protocols=st.sampled_from(PROTOCOLS), skip=st.booleans())
    def instance_starts(self, instance: str, protocols: Any, skip: bool) -> None:
        self.join("", instance, protocols, True, skip)

    @rule(who=picks, protocols=st.sampled_from(PROTOCOLS))
    def member_joins_again(self, who: int, protocols: Any) -> None:
        self.join(*self.pick(who), protocols, True, False)

    @rule(protocols=st.sampled_from(PROTOCOLS))
    def everyone_joins_again(self, protocols: Any) -> None:
        for member in list(self.group.roster):
            if member.member_id in self.group.roster:
                self.join(member.member_id, member.instance_id, protocols, True, False)

    @rule(who=picks, when=picks)
    def member_syncs(self, who: int, when: int) -> None:
        self.sync(*self.pick(who), self.pick_generation(when))

    @rule()
    def everyone_syncs(self) -> None:
        for member in list(self.group.roster):
            self.sync(member.member_id, member.instance_id, self.group.generation)

    def sync(self, member_id: str, instance_id: str | None, generation: int) -> None:
        def was_synced(result: Synced) -> None:
            assert result.assignment == b"of %d" % generation, "an assignment is of the generation that was asked for"

        ask = Sync(member_id, generation, {m.member_id: b"of %d" % generation for m in self.group.roster}, instance_id)
        self.decided(self.group.sync(self.now, self.ticket(was_synced), ask))

    @rule(who=picks, when=picks)
    def member_beats(self, who: int, when: int) -> None:
        member_id, instance_id = self.pick(who)
        generation = self.pick_generation(when)

        self.decided(self.group.heartbeat(self.now, self.ticket(), member_id, generation, instance_id))

    @rule(who=picks, by_name=st.booleans())
    def member_leaves(self, who: int, by_name: bool) -> None:
        member_id, instance_id = self.pick(who)
        leaver = Leaver("" if by_name and instance_id else member_id, instance_id)
        self.decided(self.group.leave(self.now, self.ticket(), [leaver]))

    # -- offsets ------------------------------------------------------------------------------------------------

    @rule(who=picks, when=picks, offset=offsets, topic=st.sampled_from(TOPICS), simple=st.booleans())
    def someone_commits(self, who: int, when: int, offset: int, topic: str, simple: bool) -> None:
        partition = TopicPartition(topic, 0)
        member_id, instance_id = ("", None) if simple else self.pick(who)
        generation = -1 if simple else self.pick_generation(when)

        def was_kept(results: dict[TopicPartition, PenstockError | None]) -> None:
            assert results == {partition: None}
            self.offsets[partition] = offset

        ask = OffsetCommit({partition: Commit(offset)}, member_id, generation, instance_id)
        self.decided(self.group.commit(self.now, self.ticket(was_kept), ask))

    @rule(topic=st.sampled_from(TOPICS))
    def offsets_are_deleted(self, topic: str) -> None:
        def were_deleted(results: dict[TopicPartition, PenstockError | None]) -> None:
            for partition, refused in results.items():
                if refused is None:
                    self.offsets.pop(partition, None)

        self.decided(self.group.delete_offsets(self.now, self.ticket(were_deleted), [TopicPartition(topic, 0)]))

    @rule(topic=st.sampled_from(TOPICS))
    def topic_is_deleted(self, topic: str) -> None:
        def is_gone() -> None:
            self.offsets.pop(TopicPartition(topic, 0), None)

        decision = self.group.forget_topic(topic)
        self.decided(decision, is_gone if decision.facts else lambda: None)

    @rule()
    def group_is_deleted(self) -> None:
        self.decided(self.group.delete(self.now, self.ticket(lambda _: self.offsets.clear())))

    # -- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def the_machine_is_sound(self) -> None:
        self.group.check()

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        parked = [t for m in self.group.roster for t in (m.join_ticket, m.sync_ticket) if t is not None]
        coming = [e.ticket for d, _ in self.unsettled for e in d.effects if isinstance(e, Reply)]
        assert sorted(self.waiting) == sorted(parked + coming)

    @invariant()
    def offsets_are_what_was_acknowledged(self) -> None:
        assert {p: kept.offset for p, kept in self.group.offsets.items()} == self.offsets

    @invariant()
    def a_replay_gives_the_same_group(self) -> None:
        replayed = Group("readers", SETTINGS)
        for key, value in self.ledger.items():
            parsed = read_key(key)
            assert parsed is not None
            replayed.replay(parsed, value)
        assert dict(replayed.offsets.items()) == dict(self.group.offsets.items())
        at_rest = self.group.state in (GroupState.STABLE, GroupState.EMPTY) and not self.group.is_blank
        if at_rest and not self.unsettled and not self.ledger_is_behind and self.group._on_record:
            assert replayed._snapshot() == self.group._snapshot()


GroupWorld.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestGroupWorld = GroupWorld.TestCase
