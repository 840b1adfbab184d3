"""How a group comes to a generation, and what time and absence do to it.

A generation is made in two rounds. In the first every member joins and hands in the protocols it speaks; the group
picks one and tells everybody the new generation, and the leader everybody's metadata. In the second every member
syncs; the leader brings the assignment, which is a matter of the clients alone, and each member gets its part.

    state                 event                                     next
    --------------------  ----------------------------------------  ---------------------------------------------
    Empty                 a member joins                            PreparingRebalance, for the initial delay
                          deleted, or nothing left to remember      Dead
    PreparingRebalance    every member has joined, or time is up:
                            those who did not join are removed      CompletingRebalance, next generation
                            nobody is left                          Empty, next generation           (fact)
                            only static members that are away       PreparingRebalance, once more
    CompletingRebalance   the leader syncs                          Stable                           (fact)
                          join with other protocols, leave,
                          session lost, not synced in time          PreparingRebalance
    Stable                the leader joins again, a member joins
                          anew or with other protocols, leave,
                          session lost, not synced in time          PreparingRebalance
                          a static member returns, unchanged        Stable, under a new member id    (fact)
    Dead                                                            a group that nobody remembers; the shell drops it

Static members (those with an instance id) are not removed when they miss a rebalance, only when they lose their
session or are told to leave. Every deadline is found by `tick`, for which `next_deadline_ms` is a lower bound: a
heartbeat moves its member's deadline and nothing else.
"""

from collections.abc import Iterator, Sequence

from penstock.delivery.decision import Decision, Moment
from penstock.delivery.group_events import GroupSettings, GroupState, Joined, JoinedMember
from penstock.delivery.group_facts import GroupFact, group_fact
from penstock.delivery.roster import Member, Roster
from penstock.model.errors import PenstockError, RebalanceInProgress, UnknownMember

GENERATION_LIMIT = 1 << 31  # a generation is an int32 on the wire; after the last comes 0

EMPTY, PREPARING, COMPLETING, STABLE = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
)


class Rounds:
    def __init__(self, name: str, settings: GroupSettings) -> None:
        self.name = name
        self.settings = settings
        self.state = EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.roster = Roster()
        self.empty_since_ms: int | None = None  # wall time
        self.pending: dict[str, int] = {}  # ids handed out, not used yet: deadline
        self._phase_deadline_ms: int | None = None  # of the round under way
        self._gathering_until_ms: int | None = None  # the initial delay is not stretched beyond this
        self._awaits_ids = False  # the round waits for members that were given an id and have not used it
        self._newcomers = False  # someone arrived since the initial delay was last (re)started
        self._unsynced: set[str] = set()  # were told this generation and have not synced
        self._in_flight = 0  # facts about the group itself that are decided and not yet durable
        self._wake_ms: int | None = None  # no deadline is before this

    # -- rebalancing --------------------------------------------------------------------------------------------

    def _rebalance(self, now: Moment, decision: Decision) -> None:
        """Begin the first round unless it is under way, and end it if nobody is missing."""
        if self.state is not PREPARING:
            self._prepare(now, decision)
        self._complete_if_all_joined(now, decision)

    def _prepare(self, now: Moment, decision: Decision) -> None:
        for member in self.roster:
            self._answer_sync(now, member, RebalanceInProgress("the group rebalances: join again"), decision)
        window_ms = self.roster.rebalance_timeout_ms
        delay_ms = self.settings.initial_rebalance_delay_ms if self.state is EMPTY else 0
        self._gathering_until_ms = now.monotonic_ms + max(window_ms, delay_ms) if delay_ms else None
        # Nobody is kept from working by an id that is never used, except those who work already.
        self._awaits_ids = self.state is not EMPTY
        self._newcomers = False
        self._unsynced.clear()
        self.state = PREPARING
        self._begin_phase(now, delay_ms or window_ms)

    def _begin_phase(self, now: Moment, length_ms: int) -> None:
        self._phase_deadline_ms = now.monotonic_ms + length_ms
        self._wake_by(self._phase_deadline_ms)

    def _complete_if_all_joined(self, now: Moment, decision: Decision) -> None:
        if self.state is not PREPARING:
            return
        others_may_come = self._gathering_until_ms is not None or (self._awaits_ids and bool(self.pending))
        if len(self.roster) == 0 or (self.roster.all_joined and not others_may_come):
            self._begin_generation(now, decision)

    def _first_round_is_over(self, now: Moment, decision: Decision) -> None:
        if self._gathering_until_ms is not None and self._newcomers and now.monotonic_ms < self._gathering_until_ms:
            self._newcomers = False
            left_ms = self._gathering_until_ms - now.monotonic_ms
            self._begin_phase(now, min(self.settings.initial_rebalance_delay_ms, left_ms))
            return
        for member in [m for m in self.roster if m.join_ticket is None and not m.is_static]:
            self._remove(member, decision)
        if len(self.roster) and not self.roster.elect():
            self._begin_phase(now, self.roster.rebalance_timeout_ms)
            return
        self._begin_generation(now, decision)

    def _begin_generation(self, now: Moment, decision: Decision) -> None:
        self.generation = (self.generation + 1) % GENERATION_LIMIT
        self._gathering_until_ms = self._phase_deadline_ms = None
        if len(self.roster) == 0:
            self.state = EMPTY
            self.protocol = None
            self.empty_since_ms = now.wall_ms
            self._remember(decision)
            return
        self.roster.elect()
        self.empty_since_ms = None
        self.protocol = self.roster.vote()
        self.state = COMPLETING
        self._unsynced = {m.member_id for m in self.roster}
        self._begin_phase(now, self.roster.rebalance_timeout_ms)
        for member in self.roster:
            member.assignment = b""
            member.is_new = False
            self._revive(now, member)
            ticket = self.roster.take_join(member)
            if ticket is not None:
                decision.reply(ticket, self._joined(member))

    def _joined(self, member: Member) -> Joined:
        assert self.protocol is not None and self.roster.leader_id is not None
        members: Sequence[JoinedMember] = ()
        if member.member_id == self.roster.leader_id:
            members = [JoinedMember(m.member_id, m.instance_id, m.metadata(self.protocol)) for m in self.roster]
        return Joined(
            member.member_id, self.generation, self.protocol_type, self.protocol, self.roster.leader_id, members
        )

    def _answer_sync(self, now: Moment, member: Member, result: object, decision: Decision) -> None:
        if member.sync_ticket is not None:
            decision.reply(member.sync_ticket, result)
            member.sync_ticket = None
            self._revive(now, member)

    # -- coming and going ---------------------------------------------------------------------------------------

    def _revive(self, now: Moment, member: Member) -> None:
        if not member.is_new:
            member.deadline_ms = now.monotonic_ms + member.session_timeout_ms
            self._wake_by(member.deadline_ms)

    def _remove(self, member: Member, decision: Decision) -> None:
        self._dismiss(member, UnknownMember("the member was removed from its group: join again"), decision)
        self._unsynced.discard(member.member_id)
        self.roster.remove(member)

    def _dismiss(self, member: Member, error: PenstockError, decision: Decision) -> None:
        """Answer whatever of this member is parked."""
        for ticket in (self.roster.take_join(member), member.sync_ticket):
            if ticket is not None:
                decision.reply(ticket, error)
        member.sync_ticket = None

    def _shrunk(self, now: Moment, decision: Decision, former_size: int) -> None:
        """Someone has gone: a member, or an id that was handed out and will not be used."""
        if len(self.roster) < former_size and self.state in (COMPLETING, STABLE):
            self._prepare(now, decision)
        self._complete_if_all_joined(now, decision)

    # -- time ---------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Nothing happens by itself before this (monotonic); `tick` then finds what does."""
        return self._wake_ms

    def _wake_by(self, deadline_ms: int) -> None:
        if self._wake_ms is None or deadline_ms < self._wake_ms:
            self._wake_ms = deadline_ms

    def tick(self, now: Moment) -> Decision:
        decision = Decision()
        if self._wake_ms is not None and self._wake_ms <= now.monotonic_ms:
            self._remove_the_lost(now, decision)
            self._end_phase(now, decision)
            self._wake_ms = min(self._deadlines(), default=None)
        return decision

    def _remove_the_lost(self, now: Moment, decision: Decision) -> None:
        former_size = len(self.roster)
        for member_id in [m for m, deadline_ms in self.pending.items() if deadline_ms <= now.monotonic_ms]:
            del self.pending[member_id]
        for member in [m for m in self.roster if self._can_be_lost(m) and m.deadline_ms <= now.monotonic_ms]:
            self._remove(member, decision)
        self._shrunk(now, decision, former_size)

    def _can_be_lost(self, member: Member) -> bool:
        """Whoever waits for our answer is not expected to give a sign of life, unless it was never given an id."""
        return member.is_new or (member.join_ticket is None and member.sync_ticket is None)

    def _end_phase(self, now: Moment, decision: Decision) -> None:
        if self._phase_deadline_ms is None or self._phase_deadline_ms > now.monotonic_ms:
            return
        if self.state is PREPARING:
            self._first_round_is_over(now, decision)
            return
        self._phase_deadline_ms = None
        former_size = len(self.roster)
        for member in [m for m in self.roster if m.member_id in self._unsynced]:
            self._remove(member, decision)
        self._shrunk(now, decision, former_size)

    def _deadlines(self) -> Iterator[int]:
        yield from self.pending.values()
        yield from (m.deadline_ms for m in self.roster if self._can_be_lost(m))
        if self._phase_deadline_ms is not None:
            yield self._phase_deadline_ms

    # -- remembering --------------------------------------------------------------------------------------------

    def _snapshot(self) -> GroupFact:
        return GroupFact(
            self.generation,
            self.protocol_type,
            self.protocol,
            self.roster.leader_id,
            self.empty_since_ms,
            tuple(member.fact() for member in self.roster),
        )

    def _remember(self, decision: Decision) -> None:
        decision.facts.append(group_fact(self.name, self._snapshot()))
        self._in_flight += 1

    def _restore(self, fact: GroupFact) -> None:
        self.generation = fact.generation
        self.protocol_type = fact.protocol_type
        self.protocol = fact.protocol
        self.empty_since_ms = fact.empty_since_ms
        self.roster = Roster()
        for member in fact.members:
            self.roster.add(Member.from_fact(member))
        self.roster.leader_id = fact.leader_id
        self.state = STABLE if fact.members else EMPTY

    def resume(self, now: Moment) -> None:
        """All facts have been replayed: every session begins anew, as if each member had just been heard of."""
        for member in self.roster:
            self._revive(now, member)

    def check(self) -> None:
        """What holds between any two events."""
        self.roster.check()
        members = list(self.roster)
        assert (self.state is EMPTY) == (not members), "a group is empty exactly when nobody is in it"
        assert not self._unsynced - {m.member_id for m in members}
        assert self.pending.keys().isdisjoint(m.member_id for m in members)
        assert self.state is PREPARING or not self.roster.waiting_joins, "joins wait in the first round only"
        assert self.state is COMPLETING or all(m.sync_ticket is None for m in members), "syncs wait in the second only"
        assert self.state is not PREPARING or self._phase_deadline_ms is not None, "no round lasts for ever"
        if self.state in (COMPLETING, STABLE):
            assert all(self.protocol in m.spoken and not m.is_new for m in members)
        soonest_ms = min(self._deadlines(), default=None)
        assert soonest_ms is None or (self._wake_ms is not None and self._wake_ms <= soonest_ms)
