"""The dead-letters job: what died, why, where it came from and when; and back with what is chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.pipeline.jobs.dead_letter_report import Report
from penstock.pipeline.jobs.job import OnProgress, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which letters; what is not given does not matter. Times are those of death."""

    reason: str | None = None  # a pattern with * and ?, on the reason
    origin_topic: str | None = None  # a pattern, too
    origin_view: str | None = None  # `<topic>/<view>`, a pattern
    since_ms: int | None = None  # at or after
    until_ms: int | None = None  # before


@dataclass(frozen=True, kw_only=True)
class DeadLetterOptions:
    server: str
    topics: Sequence[str] = ()  # none: every topic that a queue view buries in, and every *.dead and *.quarantine
    select: Selection = Selection()
    samples: int = 5  # letters shown of each reason and origin


@dataclass(frozen=True, kw_only=True)
class RedriveOptions:
    server: str
    topics: Sequence[str] = ()
    select: Selection = Selection()
    limit: int | None = None
    dry_run: bool = False  # tell what would be redriven (what was before counts too)


@dataclass(frozen=True)
class Redriven:
    letters: str  # the dead-letter topic
    origin: str  # `<topic>/<view>`, or the topic alone for what no view buried
    count: int


@dataclass(frozen=True)
class RedriveResult:
    redriven: list[Redriven]
    dry_run: bool = False

    @property
    def count(self) -> int:
        return sum(each.count for each in self.redriven)


def run(spark: "SparkSession", options: DeadLetterOptions, *, on_progress: OnProgress = silent) -> Report:
    """`Report` shows itself: `.table()` for rich, `.as_dict()` for JSON, `.html()` for a page."""
    raise NotImplementedError


def redrive(spark: "SparkSession", options: RedriveOptions, *, on_progress: OnProgress = silent) -> RedriveResult:
    raise NotImplementedError
