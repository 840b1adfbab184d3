"""Offsets as Spark keeps them in its checkpoints: `{"orders": {"0": 120, "1": 98, "id": "9f3c..."}}`, the next to read
of each partition, and the id of the topic that they are offsets of (see `identity`). Older checkpoints have no ids.

Spark compares them as text, so the same offsets are always written in the same order.
"""

from collections.abc import Mapping
from typing import Any, Final

Partition = tuple[str, int]
Ends = dict[Partition, int]

Json = dict[str, dict[str, int | str]]

ID: Final = "id"  # among the partitions' numbers


def to_json(ends: Mapping[Partition, int], ids: Mapping[str, str]) -> Json:
    """Ids of topics that have no offsets are left out."""
    written: Json = {}
    for topic, partition in sorted(ends):
        written.setdefault(topic, {})[str(partition)] = ends[topic, partition]
    for topic, of_topic in written.items():
        if topic in ids:
            of_topic[ID] = ids[topic]
    return written


def from_json(written: Mapping[str, Mapping[str, Any]]) -> Ends:
    return {
        (topic, int(partition)): int(end)
        for topic, ends in written.items()
        for partition, end in ends.items()
        if partition != ID
    }


def ids_from_json(written: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {topic: str(ends[ID]) for topic, ends in written.items() if ID in ends}


def is_ours(written: object) -> bool:
    """Whether these are offsets of this source: another source's may stand in the same checkpoint."""
    return isinstance(written, dict) and all(
        isinstance(ends, dict)
        and all(
            isinstance(end, str) if part == ID else part.isdigit() and isinstance(end, int)
            for part, end in ends.items()
        )
        for ends in written.values()
    )
