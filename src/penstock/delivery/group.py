"""A consumer group: its members (`Membership`), the offsets they have committed, and how long both are remembered.

    who may commit          in which state
    ----------------------  -----------------------------------------------------------------------------------
    a member, with its      Stable and PreparingRebalance; in CompletingRebalance it is told RebalanceInProgress,
    generation              for it no longer knows what it owns
    anybody, without one    Empty (consumers that assign themselves, administrators)
    a transaction           any; who names a member must be it, in its generation. Its offsets count from the moment it
                            commits (`PendingOffsets`)

    an offset expires       counted from
    ----------------------  -----------------------------------------------------------------------------------
    of a group in Empty     the later of its commit and the moment the group became empty
    of a group with         its commit, if no member subscribes to its topic; never, as long as one does or the
    members                 subscriptions cannot be read
    with its own retention  its commit, whatever the group does (OffsetCommit before v5)
    with one pending        never before that transaction has ended

A group that is Empty, keeps no offset and hears of nobody is forgotten after one more check interval.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from penstock.delivery.decision import Decision, Fact, Moment
from penstock.delivery.group_events import (
    ANY_GENERATION,
    GroupDescription,
    GroupSettings,
    GroupState,
    MemberDescription,
    OffsetCommit,
)
from penstock.delivery.group_facts import (
    GroupFact,
    GroupKey,
    OffsetFact,
    OffsetKey,
    PendingKey,
    group_fact,
    read_group,
    read_key,
)
from penstock.delivery.membership import Membership
from penstock.delivery.offsets import Commit, Offsets, TopicPartition
from penstock.delivery.pending_offsets import PendingOffsets
from penstock.delivery.rounds import COMPLETING, EMPTY, STABLE
from penstock.delivery.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.model.errors import (
    GroupNotEmpty,
    GroupSubscribed,
    LimitReached,
    OffsetMetadataTooLarge,
    PenstockError,
    RebalanceInProgress,
    UnknownMember,
)

Refusals = dict[TopicPartition, PenstockError | None]  # per partition None, or why not


class Group(Membership):
    def __init__(self, name: str, settings: GroupSettings) -> None:
        super().__init__(name, settings)
        self.offsets = Offsets(name)
        self.pending_offsets = PendingOffsets(name)
        self._on_record = False  # the ledger knows the group itself, not only offsets
        self._expiry_ms: int | None = None  # wall time; nothing expires before it

    # -- offsets ------------------------------------------------------------------------------------------------

    def commit(self, now: Moment, ticket: int, ask: OffsetCommit) -> Decision:
        """The reply is a dictionary: per partition None, or why its offset was not kept."""
        decision = Decision()
        try:
            self._check_committer(now, ask)
        except PenstockError as error:
            decision.reply(ticket, error)
            return decision
        results = self._measured(ask.commits)
        accepted = {partition: ask.commits[partition] for partition, refused in results.items() if refused is None}
        expires_ms = None if ask.retention_ms is None else now.wall_ms + ask.retention_ms
        decision.facts.extend(self.offsets.commit(accepted, now.wall_ms, expires_ms))
        decision.facts.extend(self.pending_offsets.overtake(accepted))
        decision.reply(ticket, results)
        return decision

    def _measured(self, commits: Mapping[TopicPartition, Commit]) -> Refusals:
        limit = self.settings.offset_metadata_max_bytes
        return {
            partition: None
            if len(commit.metadata.encode()) <= limit
            else OffsetMetadataTooLarge(f"the metadata of a committed offset may have {limit} bytes")
            for partition, commit in commits.items()
        }

    def _check_committer(self, now: Moment, ask: OffsetCommit) -> None:
        if ask.generation <= ANY_GENERATION and self.state is EMPTY:
            return
        if ask.generation <= ANY_GENERATION and not ask.member_id and ask.instance_id is None:
            raise UnknownMember(f"group {self.name!r} has members: only they may commit")
        member = self.check_member(ask.member_id, ask.instance_id, ask.generation)
        self._revive(now, member)
        if self.state is COMPLETING:
            raise RebalanceInProgress("the group rebalances: join again")

    # -- offsets of transactions --------------------------------------------------------------------------------

    def pend(self, now: Moment, ticket: int, ask: OffsetCommit, producer_id: int) -> Decision:
        """Take in offsets that count when the producer's transaction commits. Answered as `commit` is."""
        decision = Decision()
        try:
            named = ask.member_id or ask.instance_id is not None
            if ask.generation > ANY_GENERATION or (named and self.state is not EMPTY):
                self._revive(now, self.check_member(ask.member_id, ask.instance_id, ask.generation))
        except PenstockError as error:
            decision.reply(ticket, error)
            return decision
        results = self._measured(ask.commits)
        limit = self.settings.max_pending_offsets
        room = limit - len(self.pending_offsets)
        accepted: dict[TopicPartition, OffsetFact] = {}
        for partition, commit in ask.commits.items():
            if results[partition] is not None:
                continue
            room -= not self.pending_offsets.knows(producer_id, partition)
            if room < 0:
                results[partition] = LimitReached(f"a group keeps {limit} offsets of open transactions")
            else:
                accepted[partition] = OffsetFact(commit.offset, now.wall_ms, commit.leader_epoch, commit.metadata)
        decision.facts.extend(self.pending_offsets.pend(producer_id, accepted))
        decision.reply(ticket, results)
        return decision

    def end_pending(self, now: Moment, ticket: int, producer_id: int, *, commit: bool) -> Decision:
        """The producer's transaction has ended. Nothing is left to do when this is told again.

        The offsets come before what ends them: if a crash leaves only the first of these facts, the same call does the
        rest.
        """
        decision = Decision()
        if commit:
            taken, ended = self.pending_offsets.take(producer_id)
            decision.facts.extend(self.offsets.commit_all(taken, now.wall_ms))
            decision.facts.extend(ended)
        else:
            decision.facts.extend(self.pending_offsets.forget(producer_id))
        decision.reply(ticket, None)
        return decision

    # -- deleting -----------------------------------------------------------------------------------------------

    def delete_offsets(self, now: Moment, ticket: int, partitions: Collection[TopicPartition]) -> Decision:
        """The reply is a dictionary: per partition None, or why its offset stays."""
        decision = Decision()
        if self.state is not EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            decision.reply(ticket, GroupNotEmpty(f"group {self.name!r} has members, and what they read is not known"))
            return decision
        subscribed = self.roster.subscribed_topics(self.protocol_type)
        results: dict[TopicPartition, PenstockError | None] = {
            partition: None
            if subscribed is not None and partition.topic not in subscribed
            else GroupSubscribed(f"group {self.name!r} still reads topic {partition.topic!r}")
            for partition in partitions
        }
        deleted = {partition for partition, refused in results.items() if refused is None}
        decision.facts.extend(self._drop(deleted.__contains__))
        decision.reply(ticket, results)
        return decision

    def forget_topic(self, topic: str) -> Decision:
        """The topic is no more, and a later one of the same name begins anew."""
        decision = Decision()
        decision.facts.extend(self._drop(lambda partition: partition.topic == topic))
        return decision

    def reads(self, topic: str) -> bool:
        """Whether a member reads the topic, or may, or an open transaction is about to say how far it was read."""
        if self.state is not EMPTY:
            subscribed = self.roster.subscribed_topics(self.protocol_type)
            if subscribed is None or topic in subscribed:
                return True
        return any(partition.topic == topic for partition in self.pending_offsets.partitions())

    def replace_topic(self, now: Moment, ticket: int, topic: str, commits: Mapping[TopicPartition, Commit]) -> Decision:
        """The topic's name has another log now: of its offsets these are left. May be told again."""
        decision = Decision()
        decision.facts.extend(self._drop(lambda partition: partition.topic == topic and partition not in commits))
        decision.facts.extend(self.offsets.commit(commits, now.wall_ms, None))
        decision.reply(ticket, None)
        return decision

    def _drop(self, wanted: Callable[[TopicPartition], bool]) -> list[Fact]:
        return [*self.offsets.drop(wanted), *self.pending_offsets.drop(wanted)]

    def delete(self, now: Moment, ticket: int) -> Decision:
        decision = Decision()
        if self.state is not EMPTY:
            decision.reply(ticket, GroupNotEmpty(f"group {self.name!r} has members: stop them first"))
            return decision
        decision.facts.extend(self._drop(lambda _: True))
        self._forget(decision)
        decision.reply(ticket, None)
        return decision

    # -- time ---------------------------------------------------------------------------------------------------

    def tick(self, now: Moment) -> Decision:
        decision = super().tick(now)
        if self._expiry_ms is not None and self._expiry_ms <= now.wall_ms:
            self._expire(now, decision)
        self._arm_expiry(now)
        return decision

    def _expire(self, now: Moment, decision: Decision) -> None:
        """Look at everything that may have expired, and find when to look again."""
        check_ms = now.wall_ms + self.settings.offsets_retention_check_ms
        if self.state is EMPTY and not self.offsets:
            forget_ms = (self.empty_since_ms or 0) + self.settings.offsets_retention_check_ms
            held = self.pending or not self.pending_offsets.is_blank
            if self._on_record and not held and forget_ms <= now.wall_ms:
                self._forget(decision)
            self._expiry_ms = max(forget_ms, check_ms) if self._on_record else None
            return
        subscribed = self.roster.subscribed_topics(self.protocol_type)
        expiries = {p: self._expires_ms(p, kept, subscribed) for p, kept in self.offsets.items()}
        due = {p for p, at_ms in expiries.items() if at_ms is not None and at_ms <= now.wall_ms}
        expired = {partition for partition in due if not self.pending_offsets.holds(partition)}
        decision.facts.extend(self.offsets.drop(expired.__contains__))
        later = [at_ms for p, at_ms in expiries.items() if at_ms is not None and p not in due]
        self._expiry_ms = min([*later, check_ms] if due else later, default=None)

    def _expires_ms(self, at: TopicPartition, kept: OffsetFact, subscribed: frozenset[str] | None) -> int | None:
        if kept.expires_ms is not None:
            return kept.expires_ms
        if self.state is not EMPTY and (subscribed is None or at.topic in subscribed):
            return None
        since_ms = max(kept.committed_ms, self.empty_since_ms or 0)
        return since_ms + self.settings.offsets_retention_ms

    def _soonest_expiry_ms(self, kept: OffsetFact) -> int:
        own_ms = kept.committed_ms + self.settings.offsets_retention_ms
        return own_ms if kept.expires_ms is None else kept.expires_ms

    def _expire_by(self, wall_ms: int) -> None:
        self._expiry_ms = wall_ms if self._expiry_ms is None else min(self._expiry_ms, wall_ms)

    def _arm_expiry(self, now: Moment) -> None:
        if self._expiry_ms is not None:
            self._wake_by(now.monotonic_ms + max(0, self._expiry_ms - now.wall_ms))

    # -- remembering --------------------------------------------------------------------------------------------

    def _forget(self, decision: Decision) -> None:
        decision.facts.append(group_fact(self.name, None))
        self._in_flight += 1

    def recorded(self, now: Moment, facts: Sequence[Fact]) -> None:
        """What was decided is durable: from now on it is true."""
        check_ms = now.wall_ms + self.settings.offsets_retention_check_ms
        for fact in facts:
            key = read_key(fact.key)
            if isinstance(key, OffsetKey):
                kept = self.offsets.settle(key, fact.value, durable=True)
                self._expire_by(check_ms if kept is None else self._soonest_expiry_ms(kept))
            elif isinstance(key, PendingKey):
                self.pending_offsets.settle(key, durable=True)
            elif isinstance(key, GroupKey):
                self._in_flight -= 1
                self._on_record = fact.value is not None
                self._expire_by(check_ms)  # who reads what has changed, and with it what may expire
        self._arm_expiry(now)

    def unrecorded(self, now: Moment, facts: Sequence[Fact]) -> Decision:
        """What was decided could not be stored. An assignment that nobody was told of is made anew."""
        decision = Decision()
        for fact in facts:
            key = read_key(fact.key)
            if isinstance(key, OffsetKey):
                self.offsets.settle(key, fact.value, durable=False)
            elif isinstance(key, PendingKey):
                self.pending_offsets.settle(key, durable=False)
            elif isinstance(key, GroupKey):
                self._in_flight -= 1
                if self.state is STABLE:
                    self._rebalance(now, decision)
        return decision

    def replay(self, key: GroupKey | OffsetKey | PendingKey, value: bytes | None) -> None:
        """A recorded fact, at start-up."""
        if isinstance(key, OffsetKey):
            self.offsets.apply(key, value)
        elif isinstance(key, PendingKey):
            self.pending_offsets.apply(key, value)
        else:
            self._restore(GroupFact(0) if value is None else read_group(value))
            self._on_record = value is not None

    def resume(self, now: Moment) -> None:
        super().resume(now)
        self._expire_by(now.wall_ms + self.settings.offsets_retention_check_ms)
        self._arm_expiry(now)

    @property
    def is_blank(self) -> bool:
        """Nothing would be lost if the group were forgotten now."""
        offsets = not self.offsets.is_blank or not self.pending_offsets.is_blank
        remembered = self._on_record or self._in_flight or self.pending or offsets
        return self.state is EMPTY and not remembered

    def bury(self) -> None:
        """The shell forgets the group."""
        assert self.is_blank
        self.state = GroupState.DEAD

    # -- showing ------------------------------------------------------------------------------------------------

    def describe(self) -> GroupDescription:
        protocol = self.protocol if self.state is STABLE else None
        members = [
            MemberDescription(
                m.member_id, m.instance_id, m.client_id, m.client_host, m.metadata(protocol), m.assignment
            )
            for m in self.roster
        ]
        return GroupDescription(self.name, self.state, self.protocol_type, protocol or "", members)
