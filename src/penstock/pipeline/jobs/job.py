"""What the jobs share: how they tell how far they are, and how they talk with the broker from the driver."""

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """Where a job stands. `total` is None where nobody knows."""

    stage: str  # for people: "reading", "writing", "catching up", ...
    done: int  # rows
    total: int | None = None


OnProgress = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """For those who do not want to know."""
