"""Who reads what in a group: range and round-robin, exactly as every Kafka client does them.

Whichever member the group elects does the assignment, so a group of different clients works only if all agree.
"""

from collections.abc import Iterable, Mapping, Sequence

from penstock.wire.kafka import messages
from penstock.wire.kafka.messages import Struct

Assignment = dict[str, list[int]]


def encode_assignment(assignment: Mapping[str, Sequence[int]]) -> bytes:
    parts = [Struct(topic=topic, partitions=list(partitions)) for topic, partitions in assignment.items()]
    return messages.encode_assignment(Struct(assigned_partitions=parts))


def decode_assignment(data: bytes) -> Assignment:
    """Partitions by topic. Another client wrote it: raises Malformed, which is a ValueError."""
    return {part.topic: list(part.partitions) for part in messages.decode_assignment(data).assigned_partitions}


def assign_range(subscriptions: Mapping[str, Sequence[str]], partitions: Mapping[str, int]) -> dict[str, Assignment]:
    """Topic by topic, each member gets one run of neighbours; the first members get one more where it does not fit."""
    result: dict[str, Assignment] = {member: {} for member in subscriptions}
    for topic in _topics(subscriptions, partitions):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        each, more = divmod(partitions[topic], len(members))
        start = 0
        for position, member in enumerate(members):
            stop = start + each + (position < more)
            if stop > start:
                result[member][topic] = list(range(start, stop))
            start = stop
    return result


def assign_round_robin(
    subscriptions: Mapping[str, Sequence[str]], partitions: Mapping[str, int]
) -> dict[str, Assignment]:
    """All partitions of all topics are dealt out like cards, skipping members that do not read the topic."""
    result: dict[str, Assignment] = {member: {} for member in subscriptions}
    members = sorted(subscriptions)
    turn = 0
    for topic in _topics(subscriptions, partitions):
        for partition in range(partitions[topic]):
            while topic not in subscriptions[members[turn % len(members)]]:
                turn += 1
            result[members[turn % len(members)]].setdefault(topic, []).append(partition)
            turn += 1
    return result


def _topics(subscriptions: Mapping[str, Sequence[str]], partitions: Mapping[str, int]) -> Iterable[str]:
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    return sorted(topic for topic in wanted if partitions.get(topic))


# By the name that members agree on, in our order of preference.
ASSIGNORS = {"range": assign_range, "roundrobin": assign_round_robin}
