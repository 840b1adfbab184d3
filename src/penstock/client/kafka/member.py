"""Taking part in a consumer group by the classic protocol: join, sync, heartbeat, commit, leave.

    outside --join--> joining --(leader: assign)--sync--> stable --heartbeat--> stable
       ^                 ^                                  |
       |                 +---- rebalance, fenced, lost -----+
       +-- leave --------------------------------------------+

There is no thread: whoever holds the member calls `keep_up()` between polls, at least once per session time-out. It
returns True when the assignment has changed and reading has to begin anew from the committed offsets.
"""

import time
from collections.abc import Mapping, Sequence

from penstock.client.kafka.assignment import ASSIGNORS, Assignment, decode_assignment, encode_assignment
from penstock.client.kafka.cluster import Cluster, TopicPartition
from penstock.client.kafka.errors import ClientError, Disconnected, Refused, TimedOut, check
from penstock.client.kafka.groups import CONSUMER, commit_offsets
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.messages import Malformed, Struct, decode_subscription, encode_subscription

SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 60_000
HEARTBEAT_INTERVAL_S = 3.0
ANSWER_MARGIN_S = 10.0

ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
MEMBER_ID_REQUIRED = 79
# What tells a member that it has to join again.
_REJOIN = frozenset({ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS})


class GroupMember:
    def __init__(self, cluster: Cluster, group_id: str, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self.group_id = group_id
        self._topics = list(topics)
        self.member_id = ""
        self.generation = -1
        self.assignment: Assignment = {}
        self._joined = False
        self._next_heartbeat_s = 0.0

    @property
    def partitions(self) -> list[TopicPartition]:
        return [(topic, index) for topic, indexes in sorted(self.assignment.items()) for index in indexes]

    def keep_up(self) -> bool:
        """Heartbeat when it is time, join when it is needed; True when reading has to begin anew."""
        if self._joined and time.monotonic() < self._next_heartbeat_s:
            return False
        if self._joined and self._heartbeat():
            return False
        self._cluster.retry(self._join)
        return True

    def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """False when the group has moved on: the partitions may be another's, who will read these records again."""
        if not self._joined:
            return False
        try:
            commit_offsets(self._cluster, self.group_id, offsets, generation=self.generation, member_id=self.member_id)
        except Refused as error:
            if error.code not in _REJOIN:
                raise
            self._lose(error.code)
            return False
        return True

    def leave(self) -> None:
        """Tell the group, so that it need not wait for the session to time out. The best that can be done at an end."""
        if not self._joined:
            return
        self._joined = False
        request = Struct(
            group_id=self.group_id,
            member_id=self.member_id,
            members=[Struct(member_id=self.member_id, reason="closed")],
        )
        try:
            self._cluster.coordinator(self.group_id).call(ApiKey.LEAVE_GROUP, request)
        except ClientError:
            return  # the session's time-out will tell it

    def _heartbeat(self) -> bool:
        self._next_heartbeat_s = time.monotonic() + HEARTBEAT_INTERVAL_S
        request = Struct(group_id=self.group_id, generation_id=self.generation, member_id=self.member_id)
        try:
            answer = self._cluster.coordinator(self.group_id).call(ApiKey.HEARTBEAT, request)
            check(answer.error_code, f"heartbeat of group {self.group_id!r}")
        except (Disconnected, TimedOut):
            self._cluster.forget()  # the session may well outlive a broken connection: the next beat will tell
        except Refused as error:
            if error.code in _REJOIN:
                self._lose(error.code)
                return False
            if not error.retriable:
                raise
            self._cluster.forget()
        return True

    def _lose(self, code: int) -> None:
        self._joined = False
        if code == UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def _join(self) -> None:
        """One round of join and sync, repeated inside while the group is still moving."""
        while not self._joined:
            answer = self._ask_to_join()
            if answer.error_code == MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
                continue
            if answer.error_code in _REJOIN:
                self._lose(answer.error_code)
                continue
            check(answer.error_code, f"cannot join group {self.group_id!r}")
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self._sync(answer)
        self._next_heartbeat_s = time.monotonic() + HEARTBEAT_INTERVAL_S

    def _ask_to_join(self) -> Struct:
        subscription = encode_subscription(Struct(topics=self._topics, owned_partitions=[]))
        request = Struct(
            group_id=self.group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            protocol_type=CONSUMER,
            protocols=[Struct(name=name, metadata=subscription) for name in ASSIGNORS],
        )
        timeout_s = REBALANCE_TIMEOUT_MS / 1000 + ANSWER_MARGIN_S
        return self._cluster.coordinator(self.group_id).call(ApiKey.JOIN_GROUP, request, timeout_s)

    def _sync(self, joined: Struct) -> None:
        assignments = []
        if joined.leader == self.member_id and not getattr(joined, "skip_assignment", False):
            assignments = self._assign(joined)
        request = Struct(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type=CONSUMER,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        timeout_s = REBALANCE_TIMEOUT_MS / 1000 + ANSWER_MARGIN_S
        answer = self._cluster.coordinator(self.group_id).call(ApiKey.SYNC_GROUP, request, timeout_s)
        if answer.error_code in _REJOIN:
            self._lose(answer.error_code)
            return
        check(answer.error_code, f"cannot join group {self.group_id!r}")
        try:
            self.assignment = decode_assignment(answer.assignment)
        except Malformed as error:
            raise ClientError(
                f"the leader of group {self.group_id!r} assigned what is no assignment: {error}"
            ) from None
        self._joined = True

    def _assign(self, joined: Struct) -> list[Struct]:
        subscriptions = {member.member_id: _subscribed(member.metadata) for member in joined.members}
        topics = {topic for wanted in subscriptions.values() for topic in wanted}
        known = self._cluster.metadata(sorted(topics))
        partitions = {name: len(topic.partitions) for name, topic in known.items()}
        shares = ASSIGNORS[joined.protocol_name](subscriptions, partitions)
        return [Struct(member_id=member, assignment=encode_assignment(share)) for member, share in shares.items()]


def _subscribed(metadata: bytes) -> list[str]:
    """What another client says it reads; one that cannot be understood gets nothing rather than stops the group."""
    try:
        return list(decode_subscription(metadata).topics)
    except Malformed:
        return []
