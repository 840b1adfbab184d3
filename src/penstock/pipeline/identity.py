"""Which topic a name stands for: an offset means something in one topic only, and a name may pass to another.

A topic that is deleted and made again has another id, and so has the one that takes a name in a swap. So offsets go
with the id of their topic, in checkpoints as in the ranges that tasks read. Ids are asked for before anything else is:
what was learnt of a name between two equal answers belongs to that topic. Offsets without an id, from people and from
older checkpoints, are taken to be of the topic there is.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.pipeline.errors import TopicReplaced
from penstock.pipeline.link import Link
from penstock.wire.native import messages as wire

if TYPE_CHECKING:
    from penstock.pipeline.planning import Range

Ids = dict[str, str]  # topic: its id


def described(link: Link, names: Iterable[str]) -> dict[str, wire.TopicDescription]:
    """Those that are there."""
    wanted = list(dict.fromkeys(names))
    asked: list[wire.Message] = [
        wire.DescribeTopics(wanted[start : start + wire.MAX_DESCRIBED], settings=False)
        for start in range(0, len(wanted), wire.MAX_DESCRIBED)
    ]
    return {topic.name: topic for reply in link.ask_all(asked) for topic in reply.topics}


def topic_ids(link: Link, names: Iterable[str]) -> Ids:
    return {name: topic.topic_id for name, topic in described(link, names).items()}


def replaced(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names that stand for another topic now. One that is gone is another matter."""
    return sorted(name for name, topic_id in before.items() if now.get(name, topic_id) != topic_id)


def replacement(topic: str, before: str, now: str) -> TopicReplaced:
    """The error of a query whose checkpoint is of another topic."""
    return TopicReplaced(
        f"topic {topic!r} is not the one that was read up to here: that had the id {before}, and what has its name now "
        f"has {now}. It was deleted and made again, or 'penstock pipeline compact' has put another in its place, and "
        "the offsets in the checkpoint mean other records there. Start the query with a new checkpoint: after a "
        "compaction with the group's name in the option group and startingOffsets=committed, for the compaction has "
        "moved the groups' offsets along; else with startingOffsets=earliest. Or set the option failOnDataLoss to "
        "false: then the query goes on in the new topic by itself, at its group's offsets if the option group is "
        "given, else at the earliest"
    )


def check_range(link: Link, part: "Range") -> None:
    """After the last byte was fetched by the topic's name: whether it was the planned topic's. One that is gone by now
    was there for as long as it was read.
    """
    if part.topic_id is None:
        return
    now = topic_ids(link, [part.topic]).get(part.topic, part.topic_id)
    if now != part.topic_id:
        raise TopicReplaced(
            f"topic {part.topic!r} was replaced by another while {part} was read: it had the id {part.topic_id}, and "
            f"what has its name now has {now}. What this task has read counts for nothing; start the query again"
        )
