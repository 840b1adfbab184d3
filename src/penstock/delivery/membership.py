"""What members ask of a group: to join, to be given an assignment, to be thought alive, to leave.

Each event answers its ticket, now or later, once. A refusal changes nothing.
"""

from collections.abc import Mapping, Sequence

from penstock.delivery.decision import Decision, Moment
from penstock.delivery.group_events import (
    Join,
    Leaver,
    NewMemberId,
    Sync,
    Synced,
)
from penstock.delivery.roster import Member
from penstock.delivery.rounds import COMPLETING, PREPARING, STABLE, Rounds
from penstock.delivery.subscription import same_subscription
from penstock.model.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidSessionTimeout,
    PenstockError,
    RebalanceInProgress,
)


class Membership(Rounds):
    # -- joining ------------------------------------------------------------------------------------------------

    def join(self, now: Moment, ticket: int, ask: Join) -> Decision:
        decision = Decision()
        try:
            self._join(now, ticket, ask, decision)
        except PenstockError as error:
            decision.reply(ticket, error)
        return decision

    def _join(self, now: Moment, ticket: int, ask: Join, decision: Decision) -> None:
        settings, roster = self.settings, self.roster
        if not settings.min_session_timeout_ms <= ask.session_timeout_ms <= settings.max_session_timeout_ms:
            raise InvalidSessionTimeout(
                f"session time-out {ask.session_timeout_ms} ms is not within "
                f"{settings.min_session_timeout_ms} and {settings.max_session_timeout_ms} ms"
            )
        returning = roster.of_instance(ask.instance_id) if not ask.member_id else None
        self._check_room(ask, returning)
        if ask.member_id and ask.member_id not in self.pending:
            returning = roster.get(ask.member_id, ask.instance_id)
        self._check_protocols(ask, returning)

        if ask.member_id and returning is not None:
            self._rejoin(now, ticket, ask, returning, decision)
        elif returning is not None:
            self._return(now, ticket, ask, returning, decision)
        elif ask.requires_known_id and not ask.member_id and ask.instance_id is None:
            self.pending[ask.new_member_id] = now.monotonic_ms + ask.session_timeout_ms
            self._wake_by(self.pending[ask.new_member_id])
            self._newcomers = True
            decision.reply(ticket, NewMemberId(ask.new_member_id))
        else:
            self._welcome(now, ticket, ask, decision)

    def _check_room(self, ask: Join, returning: Member | None) -> None:
        """In a rebalance those who have joined count, so that the quick push out the lost; else all members do."""
        limit = self.settings.max_size
        known = returning is not None or ask.member_id in self.roster
        taken = len(self.roster)
        if self.state is PREPARING:
            member = returning or (self.roster.get(ask.member_id) if known else None)
            known = member is not None and member.join_ticket is not None
            taken = self.roster.waiting_joins
        if not known and taken >= limit:
            self.pending.pop(ask.member_id, None)
            raise GroupFull(f"group {self.name!r} has {limit} members, the most a group may have")
        if ask.requires_known_id and not ask.member_id and len(self.pending) >= limit:
            raise GroupFull(f"group {self.name!r} has handed out {limit} member ids that were not used yet")

    def _check_protocols(self, ask: Join, returning: Member | None) -> None:
        if not ask.protocol_type or not ask.protocols:
            raise InconsistentProtocol("a member must name its protocol type and at least one protocol")
        if len(self.roster) == 0 or (len(self.roster) == 1 and returning is not None):
            return
        if ask.protocol_type != self.protocol_type:
            raise InconsistentProtocol(
                f"group {self.name!r} is of protocol type {self.protocol_type!r}, not {ask.protocol_type!r}"
            )
        if not self.roster.supports(ask.protocols, without=returning):
            names = ", ".join(name for name, _ in ask.protocols)
            raise InconsistentProtocol(f"no protocol of ({names}) is spoken by every member of group {self.name!r}")

    def _welcome(self, now: Moment, ticket: int, ask: Join, decision: Decision) -> None:
        """Someone new."""
        self.pending.pop(ask.member_id, None)
        member = Member(
            ask.member_id or ask.new_member_id,
            ask.instance_id,
            ask.client_id,
            ask.client_host,
            ask.session_timeout_ms,
            ask.rebalance_timeout_ms,
            ask.protocols,
            deadline_ms=now.monotonic_ms + self.settings.new_member_join_timeout_ms,
        )
        if len(self.roster) == 0:
            self.protocol_type = ask.protocol_type
        self.roster.add(member)
        self.roster.park_join(member, ticket)
        self._wake_by(member.deadline_ms)
        self._newcomers = True
        self._rebalance(now, decision)

    def _rejoin(self, now: Moment, ticket: int, ask: Join, member: Member, decision: Decision) -> None:
        """A member that knows who it is."""
        unchanged = member.protocols == ask.protocols
        is_leader = member.member_id == self.roster.leader_id
        if unchanged and (self.state is COMPLETING or (self.state is STABLE and not is_leader)):
            # It missed the answer of the first round, or it asks without need: what it should know is known.
            self._revive(now, member)
            decision.reply(ticket, self._joined(member))
            return
        self._update(now, ask, member)
        self._park(ticket, member, decision)
        self._rebalance(now, decision)

    def _return(self, now: Moment, ticket: int, ask: Join, member: Member, decision: Decision) -> None:
        """A static member that was restarted: it gets a new id, and the old one is fenced."""
        roster = self.roster
        former_id, former_leader_id = member.member_id, roster.leader_id
        wants_the_same = same_subscription(
            member.metadata(self.protocol), dict(ask.protocols).get(self.protocol or "", b"")
        )
        self._dismiss(member, FencedInstance(f"instance {member.instance_id!r} has joined again"), decision)
        roster.rename(member, ask.new_member_id)
        if former_id in self._unsynced:
            self._unsynced.remove(former_id)
            self._unsynced.add(member.member_id)
        self._update(now, ask, member)
        if self.state is STABLE and wants_the_same and roster.vote() == self.protocol:
            self._remember(decision)
            joined = self._joined(member)
            if ask.can_skip_assignment:
                joined = joined._replace(skip_assignment=bool(joined.members))
            else:  # or a returning leader would assign anew what nobody asks for
                joined = joined._replace(leader_id=former_leader_id or "", members=())
            decision.reply(ticket, joined)
            return
        self._park(ticket, member, decision)
        self._rebalance(now, decision)

    def _update(self, now: Moment, ask: Join, member: Member) -> None:
        if len(self.roster) == 1:
            self.protocol_type = ask.protocol_type
        self.roster.teach(member, ask.protocols)
        member.client_id, member.client_host = ask.client_id, ask.client_host
        member.session_timeout_ms, member.rebalance_timeout_ms = ask.session_timeout_ms, ask.rebalance_timeout_ms
        self._revive(now, member)

    def _park(self, ticket: int, member: Member, decision: Decision) -> None:
        superseded = self.roster.park_join(member, ticket)
        if superseded is not None:
            decision.reply(superseded, RebalanceInProgress("the same member has asked to join again"))

    # -- syncing ------------------------------------------------------------------------------------------------

    def sync(self, now: Moment, ticket: int, ask: Sync) -> Decision:
        decision = Decision()
        try:
            self._sync(now, ticket, ask, decision)
        except PenstockError as error:
            decision.reply(ticket, error)
        return decision

    def _sync(self, now: Moment, ticket: int, ask: Sync, decision: Decision) -> None:
        member = self.check_member(ask.member_id, ask.instance_id, ask.generation)
        if ask.protocol_type is not None and ask.protocol_type != self.protocol_type:
            raise InconsistentProtocol(f"the group's protocol type is {self.protocol_type!r}")
        if ask.protocol is not None and self.state is not PREPARING and ask.protocol != self.protocol:
            raise InconsistentProtocol(f"the group's protocol is {self.protocol!r}")
        self._revive(now, member)
        if self.state is PREPARING:
            raise RebalanceInProgress("the group rebalances: join again")
        self._unsynced.discard(member.member_id)
        self._answer_sync(now, member, RebalanceInProgress("the same member has asked to sync again"), decision)
        member.sync_ticket = ticket
        if self.state is STABLE:
            self._answer_sync(now, member, self._synced(member), decision)
        elif member.member_id == self.roster.leader_id:
            self._assign(now, ask.assignments, decision)

    def _assign(self, now: Moment, assignments: Mapping[str, bytes], decision: Decision) -> None:
        for member in self.roster:
            member.assignment = assignments.get(member.member_id, b"")
        self.state = STABLE
        self._remember(decision)
        for member in self.roster:
            self._answer_sync(now, member, self._synced(member), decision)

    def _synced(self, member: Member) -> Synced:
        return Synced(self.protocol_type, self.protocol or "", member.assignment)

    # -- staying and leaving ------------------------------------------------------------------------------------

    def heartbeat(self, now: Moment, ticket: int, member_id: str, generation: int, instance_id: str | None) -> Decision:
        decision = Decision()
        result: PenstockError | None = None
        try:
            self._revive(now, self.check_member(member_id, instance_id, generation))
            if self.state is PREPARING:
                result = RebalanceInProgress("the group rebalances: join again")
        except PenstockError as error:
            result = error
        decision.reply(ticket, result)
        return decision

    def check_member(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        member = self.roster.get(member_id, instance_id)
        if generation != self.generation:
            raise IllegalGeneration(f"the group's generation is {self.generation}, not {generation}: join again")
        return member

    def leave(self, now: Moment, ticket: int, leavers: Sequence[Leaver]) -> Decision:
        """The reply is a list: per leaver None, or why it could not leave."""
        decision = Decision()
        former_size = len(self.roster)
        results = [self._leave(leaver, decision) for leaver in leavers]
        self._shrunk(now, decision, former_size)
        decision.reply(ticket, results)
        return decision

    def _leave(self, leaver: Leaver, decision: Decision) -> PenstockError | None:
        if self.pending.pop(leaver.member_id, None) is not None:
            return None
        try:
            member = self.roster.of_instance(leaver.instance_id) if not leaver.member_id else None
            self._remove(member or self.roster.get(leaver.member_id, leaver.instance_id), decision)
        except PenstockError as error:
            return error
        return None
