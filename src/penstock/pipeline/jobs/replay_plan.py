"""What a replay has to do, fixed when it begins: ranges of partitions, and how they are cut into steps.

Progress is one number from 0 to WHOLE. A step from x to y takes of each partition its records from the x-th to the y-th
part of its range: all partitions go on side by side, each in order, and one number says where all of them are.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

WHOLE: Final = 1 << 40


class Lane(NamedTuple):
    """A range of a partition's offsets."""

    topic: str
    partition: int
    start: int
    end: int  # behind the last

    def part(self, x: int, y: int) -> "Lane":
        length = self.end - self.start
        return self._replace(start=self.start + length * x // WHOLE, end=self.start + length * y // WHOLE)


class Plan(NamedTuple):
    source: str  # what is replayed, and which records of it: a run is of one thing
    lanes: tuple[Lane, ...]  # empty: there are no offsets to go by, so everything is one step

    @property
    def offsets(self) -> int:
        return sum(lane.end - lane.start for lane in self.lanes)

    def step(self, x: int, rows: int) -> int:
        """Where a step of about so many offsets ends that begins at x. It takes one at least."""
        total = self.offsets
        if total <= rows:
            return WHOLE
        return min(WHOLE, max(x + WHOLE * rows // total, x + -(-WHOLE // total)))

    def part(self, x: int, y: int) -> tuple[Lane, ...]:
        return tuple(lane.part(x, y) for lane in self.lanes)

    def note(self) -> dict[str, Any]:
        return {"source": self.source, "lanes": [list(lane) for lane in self.lanes]}

    @classmethod
    def of_note(cls, note: dict[str, Any]) -> "Plan":
        return cls(note["source"], tuple(Lane(*lane) for lane in note["lanes"]))


def ranges(lanes: Sequence[Lane]) -> dict[str, list[tuple[int, int]]]:
    """By topic, for each partition in order; those that have no lane are empty."""
    found: dict[str, list[tuple[int, int]]] = {}
    for lane in sorted(lanes):
        of_topic = found.setdefault(lane.topic, [])
        while len(of_topic) < lane.partition:
            of_topic.append((0, 0))
        of_topic.append((lane.start, lane.end))
    return found
