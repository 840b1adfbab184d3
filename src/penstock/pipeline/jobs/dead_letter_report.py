"""What is known of dead letters, in numbers, and how it is shown in a terminal and as JSON; the page is
dead_letter_page.py's.

Everything here is bounded by what the report asks Spark for, never by how many letters there are.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

SHOWN_CHARS: Final = 200  # of a sample's key and value
WIDTHS_MS: Final = tuple(
    unit * count
    for unit, counts in (
        (1_000, (1, 5, 15, 30)),
        (60_000, (1, 5, 15, 30)),
        (3_600_000, (1, 3, 6, 12)),
        (86_400_000, (1, 7, 30, 90, 365)),
    )
    for count in counts
)
MAX_BUCKETS: Final = 60


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
    bytes: int  # of keys and values

    @property
    def origin(self) -> str:
        return self.origin_view or self.origin_topic


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
    times: list[tuple[int, str, int]] = field(default_factory=list)  # bucket's begin in ms, reason, letters
    samples: list[Sample] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(count.count for count in self.counts) + self.left_out

    def by_reason(self) -> list[tuple[str, int]]:
        return self._by(lambda count: count.reason)

    def by_origin(self) -> list[tuple[str, int]]:
        return self._by(lambda count: count.origin)

    def by_topic(self) -> list[tuple[str, int]]:
        return self._by(lambda count: count.letters)

    def _by(self, name_of: Callable[[Count], str]) -> list[tuple[str, int]]:
        counted: Counter[str] = Counter()
        for count in self.counts:
            counted[name_of(count)] += count.count
        return sorted(counted.items(), key=lambda item: (-item[1], item[0]))

    def as_dict(self) -> dict[str, Any]:
        return {
            "made_ms": self.made_ms,
            "topics": self.topics,
            "total": self.total,
            "by_reason": dict(self.by_reason()),
            "by_origin": dict(self.by_origin()),
            "counts": [asdict(count) for count in self.counts],
            "left_out": self.left_out,
            "times": {
                "width_ms": self.width_ms,
                "buckets": [{"from_ms": at, "reason": reason, "count": count} for at, reason, count in self.times],
            },
            "samples": [asdict(sample) for sample in self.samples],
        }

    def table(self) -> RenderableType:
        if not self.total:
            where = ", ".join(self.topics) or "any topic: there is no dead-letter topic"
            return Text(f"No dead letters in {where}.")
        shown = Table(title=f"{self.total:,} dead letters", title_justify="left", expand=False)
        for name in ("reason", "origin", "dead letters in"):
            shown.add_column(name, overflow="fold")
        for name in ("letters", "bytes", "first", "last"):
            shown.add_column(name, justify="right")
        for count in self.counts:
            shown.add_row(
                _shown(count.reason),
                _shown(count.origin),
                _shown(count.letters),
                f"{count.count:,}",
                f"{count.bytes:,}",
                when(count.first_ms),
                when(count.last_ms),
            )
        parts: list[RenderableType] = [shown]
        if self.left_out:
            parts.append(Text(f"and {self.left_out:,} letters of further reasons and origins"))
        if self.samples:
            samples = Table(title="Samples", title_justify="left", expand=False)
            for name in ("letter", "reason", "origin", "died", "attempts", "key", "value"):
                samples.add_column(name, overflow="fold")
            for sample in self.samples:
                samples.add_row(
                    _shown(f"{sample.letters}-{sample.partition}@{sample.offset}"),
                    _shown(sample.reason),
                    _shown(sample.origin_view or sample.origin_topic),
                    when(sample.died_ms),
                    str(sample.attempts),
                    _shown(sample.key),
                    _shown(sample.value),
                )
            parts.append(samples)
        return Group(*parts)

    def html(self) -> str:
        from penstock.pipeline.jobs.dead_letter_page import page

        return page(self)


def _shown(text: str) -> Text:
    """A letter must not steer the terminal that it is shown in."""
    return Text("".join(char if char.isprintable() else "\ufffd" for char in text))


def when(time_ms: int) -> str:
    """To the second, in UTC; what is no time anybody can name is shown as it is."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def bucket_width(first_ms: int, last_ms: int) -> int:
    """The narrowest round width with which no more than MAX_BUCKETS are needed."""
    span = max(0, last_ms - first_ms)
    for width in WIDTHS_MS:
        if last_ms // width - first_ms // width < MAX_BUCKETS:
            return width
    return WIDTHS_MS[-1] * (span // (WIDTHS_MS[-1] * (MAX_BUCKETS - 1)) + 1)
