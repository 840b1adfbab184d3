"""What is known of dead letters, in numbers, and how it is shown: in a terminal, as JSON, as a page."""

from dataclasses import dataclass, field
from typing import Any

from rich.console import RenderableType


@dataclass(frozen=True)
class Count:
    """Letters that have all of this in common."""

    letters: str  # the dead-letter topic
    reason: str
    origin_topic: str
    origin_view: str  # empty: no view buried them
    count: int
    first_ms: int  # of their deaths
    last_ms: int
    bytes: int


@dataclass(frozen=True)
class Sample:
    letters: str
    partition: int
    offset: int
    reason: str
    origin_topic: str
    origin_view: str
    attempts: int
    died_ms: int
    key: str  # as text, cut
    value: str


@dataclass(frozen=True)
class Report:
    made_ms: int
    topics: list[str]
    counts: list[Count]  # most first
    left_out: int = 0  # letters in counts beyond the bound
    width_ms: int = 0  # of one bucket of `times`
    times: list[tuple[int, str, int]] = field(default_factory=list)  # bucket, reason, letters
    samples: list[Sample] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(count.count for count in self.counts) + self.left_out

    def as_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def table(self) -> RenderableType:
        raise NotImplementedError

    def html(self) -> str:
        raise NotImplementedError
