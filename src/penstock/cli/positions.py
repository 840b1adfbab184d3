"""How people say where to begin, and which offsets that means.

beginning, end    the first record that is kept; only what comes from now on
-N                the last N records of each partition
N                 offset N
2026-11-15T09:00  the first record at or after that time (local, unless it says otherwise: Z, +02:00)
@N                the same, in milliseconds since 1970; a number of 12 digits and more is one without the @
90s 5m 12h 7d     the same, so long ago
"""

import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import NamedTuple

import typer

from penstock.cli.terminal import CommandFailed
from penstock.client.groups import Place
from penstock.client.sync import SyncClient

FORMS = "beginning, end, an offset, -N for the last N, a time such as 2026-11-15T09:00, or 5m for five minutes ago"
_MS_PER_UNIT = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SMALLEST_TIME_MS = 10**11  # 1973: no offset that anyone would type is as large

Limits = Mapping[Place, tuple[int, int]]


class Kind(Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    LAST = "last"
    TIME = "time"


class Position(NamedTuple):
    kind: Kind
    number: int = 0  # the offset, how many of the last, or milliseconds since 1970


def parse_position(text: str, now_ms: int | None = None) -> Position:
    """Raises ValueError naming the forms that are understood."""
    word = text.strip().lower()
    if word in ("beginning", "earliest", "start"):
        return Position(Kind.BEGINNING)
    if word in ("end", "latest", "now"):
        return Position(Kind.END)
    if re.fullmatch(r"-\d{1,18}", word):
        return Position(Kind.LAST, int(word[1:]))
    if re.fullmatch(r"@\d{1,18}", word):
        return Position(Kind.TIME, int(word[1:]))
    if re.fullmatch(r"\d{1,18}", word):
        number = int(word)
        return Position(Kind.TIME if number >= _SMALLEST_TIME_MS else Kind.OFFSET, number)
    ago = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h|d|w)", word)
    if ago:
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return Position(Kind.TIME, now_ms - int(ago[1]) * _MS_PER_UNIT[ago[2]])
    try:
        return Position(Kind.TIME, int(datetime.fromisoformat(text.strip()).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a position: use {FORMS}") from None


def position_of(text: str, option: str) -> Position:
    """As an option gives it: anything that is no position is a usage error."""
    try:
        return parse_position(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def resolve(client: SyncClient, position: Position, places: Sequence[Place]) -> dict[Place, int]:
    """The offset in each partition that the position means."""
    if position.kind is Kind.TIME:
        return {place: bound.found for place, bound in client.bounds(places, position.number).items()}
    return pick(position, {place: (bound.start, bound.end) for place, bound in client.bounds(places).items()})


def pick(position: Position, limits: Limits) -> dict[Place, int]:
    """As `resolve`, for what needs no more than the bounds. An offset that no partition holds is refused."""
    if position.kind is Kind.OFFSET and not any(start <= position.number <= end for start, end in limits.values()):
        (topic, partition), (start, end) = next(iter(limits.items()))
        held = f"{topic}-{partition} holds {start} to {end - 1}" if end > start else f"{topic}-{partition} is empty"
        raise CommandFailed(f"there is no offset {position.number}: {held}, and the next record will be {end}")
    offsets = {}
    for place, (start, end) in limits.items():
        match position.kind:
            case Kind.BEGINNING:
                offset = start
            case Kind.LAST:
                offset = end - position.number
            case Kind.OFFSET:
                offset = position.number
            case _:
                offset = end
        offsets[place] = min(max(offset, start), end)
    return offsets
