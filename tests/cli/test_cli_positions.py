"""Where to begin: what people may write, and which offsets it means."""

from datetime import UTC, datetime

import pytest

from penstock.cli.positions import Kind, Position, parse_position, pick
from penstock.cli.terminal import CommandFailed

NOW_MS = 1_800_000_000_000
LIMITS = {("t", 0): (10, 20), ("t", 1): (0, 0), ("t", 2): (0, 100)}


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Position(Kind.BEGINNING)),
        ("Earliest", Position(Kind.BEGINNING)),
        ("end", Position(Kind.END)),
        ("latest", Position(Kind.END)),
        ("0", Position(Kind.OFFSET, 0)),
        ("42", Position(Kind.OFFSET, 42)),
        ("-5", Position(Kind.LAST, 5)),
        ("@42", Position(Kind.TIME, 42)),
        ("1794733987916", Position(Kind.TIME, 1794733987916)),
        ("5m", Position(Kind.TIME, NOW_MS - 300_000)),
        ("7d", Position(Kind.TIME, NOW_MS - 7 * 86_400_000)),
        ("2026-11-15T09:00:00Z", Position(Kind.TIME, 1794733200000)),
        ("2026-11-15T10:00:00.5+01:00", Position(Kind.TIME, 1794733200500)),
    ],
)
def test_a_position_has_many_forms(text: str, position: Position) -> None:
    assert parse_position(text, NOW_MS) == position


def test_a_time_without_a_zone_is_local() -> None:
    moment = datetime(2026, 11, 15, 9, 0).astimezone()
    assert parse_position("2026-11-15 09:00").number == int(moment.astimezone(UTC).timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "soon", "--5", "5 parsecs", "2026-13-01", "@", "1.5"])
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a position: use beginning, end, an offset"):
        parse_position(text)


@pytest.mark.parametrize(
    ("position", "offsets"),
    [
        (Position(Kind.BEGINNING), (10, 0, 0)),
        (Position(Kind.END), (20, 0, 100)),
        (Position(Kind.LAST, 15), (10, 0, 85)),
        (Position(Kind.LAST, 0), (20, 0, 100)),
        (Position(Kind.OFFSET, 15), (15, 0, 15)),
        (Position(Kind.OFFSET, 50), (20, 0, 50)),
        (Position(Kind.OFFSET, 0), (10, 0, 0)),
    ],
)
def test_a_position_means_an_offset_that_every_partition_has(position: Position, offsets: tuple[int, ...]) -> None:
    assert tuple(pick(position, LIMITS).values()) == offsets


def test_an_offset_that_nobody_holds_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        CommandFailed, match="there is no offset 101: t-0 holds 10 to 19, and the next record will be 20"
    ):
        pick(Position(Kind.OFFSET, 101), LIMITS)
    with pytest.raises(CommandFailed, match="t-0 is empty, and the next record will be 0"):
        pick(Position(Kind.OFFSET, 1), {("t", 0): (0, 0)})
