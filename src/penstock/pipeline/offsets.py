"""Offsets as Spark keeps them in its checkpoints: `{"orders": {"0": 120, "1": 98}}`, the next to read of each.

Spark compares them as text, so the same offsets are always written in the same order.
"""

from collections.abc import Mapping

Partition = tuple[str, int]
Ends = dict[Partition, int]

Json = dict[str, dict[str, int]]


def to_json(ends: Mapping[Partition, int]) -> Json:
    written: Json = {}
    for topic, partition in sorted(ends):
        written.setdefault(topic, {})[str(partition)] = ends[topic, partition]
    return written


def from_json(written: Mapping[str, Mapping[str, int]]) -> Ends:
    return {(topic, int(partition)): end for topic, ends in written.items() for partition, end in ends.items()}


def is_ours(written: object) -> bool:
    """Whether these are offsets of this source: another source's may stand in the same checkpoint."""
    return isinstance(written, dict) and all(
        isinstance(ends, dict) and all(part.isdigit() and isinstance(end, int) for part, end in ends.items())
        for ends in written.values()
    )
