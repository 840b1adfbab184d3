"""Dead letters as Spark sees them: records of dead-letter topics, with what their headers tell in columns.

A letter is whatever lies in such a topic. What its headers do not tell, or tell in a way that cannot be read, is empty.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.model.message import (
    DEAD_ATTEMPTS,
    DEAD_LAST_FAILURE_MS,
    DEAD_OFFSET,
    DEAD_PARTITION,
    DEAD_REASON,
    DEAD_TOPIC,
    DEAD_VIEW,
    ONLY_FOR,
)
from penstock.model.record import Headers
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.jobs.desk import Desk

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

UNTOLD: Final = "unknown"  # the reason of a letter that tells none
REASON_CHARS: Final = 200
DEAD_PREFIX: Final = "penstock-dead-"
SUFFIXES: Final = (".dead", ".quarantine")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which letters; what is not given does not matter. Times are those of death."""

    reason: str | None = None  # a pattern with * and ?, on the reason
    origin_topic: str | None = None  # a pattern, too
    origin_view: str | None = None  # `<topic>/<view>`, a pattern
    since_ms: int | None = None  # at or after
    until_ms: int | None = None  # before

    def __post_init__(self) -> None:
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise InvalidOption(
                f"since ({self.since_ms} ms) is not before until ({self.until_ms} ms): nothing is chosen"
            )


EVERYTHING: Final = Selection()


@dataclass(frozen=True)
class Letter:
    """What the headers of a letter tell."""

    reason: str
    origin_topic: str
    origin_view: str
    died_ms: int

    @classmethod
    def read(cls, headers: Headers, timestamp_ms: int) -> "Letter":
        told = {name: value.decode(errors="replace") for name, value in headers if value is not None}
        died = told.get(DEAD_LAST_FAILURE_MS, "")
        return cls(
            told.get(DEAD_REASON, UNTOLD)[:REASON_CHARS],
            told.get(DEAD_TOPIC, ""),
            told.get(DEAD_VIEW, ""),
            int(died) if _DIGITS.fullmatch(died) else timestamp_ms,
        )

    def is_chosen(self, by: Selection) -> bool:
        return (
            _fits(by.reason, self.reason)
            and _fits(by.origin_topic, self.origin_topic)
            and _fits(by.origin_view, self.origin_view)
            and (by.since_ms is None or self.died_ms >= by.since_ms)
            and (by.until_ms is None or self.died_ms < by.until_ms)
        )


_DIGITS: Final = re.compile(r"[0-9]{1,18}")


def alive(headers: Headers) -> Headers:
    """As they were before the record died, or was redriven."""
    return tuple(header for header in headers if not header[0].startswith(DEAD_PREFIX) and header[0] != ONLY_FOR)


def letter_topics(desk: Desk) -> list[str]:
    """Every topic that a queue view buries in, and those whose name tells."""
    chosen = {view.settings.get("dead_letter") for view in desk.views()}
    return sorted(name for name in desk.names() if name in chosen or name.endswith(SUFFIXES))


def letters(records: "DataFrame") -> "DataFrame":
    """What the headers tell, in columns beside those of the records. Says the same as `Letter`."""
    from pyspark.sql import functions as f

    def digits(name: str) -> "Column":
        told = _told(name)
        return f.when(told.rlike("^[0-9]{1,18}$"), told.cast("bigint"))

    return records.withColumns(
        {
            "reason": f.substring(f.coalesce(_told(DEAD_REASON), f.lit(UNTOLD)), 1, REASON_CHARS),
            "origin_topic": f.coalesce(_told(DEAD_TOPIC), f.lit("")),
            "origin_view": f.coalesce(_told(DEAD_VIEW), f.lit("")),
            "origin_partition": digits(DEAD_PARTITION),
            "origin_offset": digits(DEAD_OFFSET),
            "attempts": f.coalesce(digits(DEAD_ATTEMPTS), f.lit(0)),
            "died_ms": f.coalesce(digits(DEAD_LAST_FAILURE_MS), f.unix_millis("timestamp")),
        }
    )


def chosen(found: "DataFrame", by: Selection) -> "DataFrame":
    from pyspark.sql import functions as f

    for name, pattern in (("reason", by.reason), ("origin_topic", by.origin_topic), ("origin_view", by.origin_view)):
        if pattern is not None:
            found = found.where(f.col(name).rlike(rf"(?s)\A{_regex(pattern)}\z"))
    if by.since_ms is not None:
        found = found.where(f.col("died_ms") >= by.since_ms)
    if by.until_ms is not None:
        found = found.where(f.col("died_ms") < by.until_ms)
    return found


def _told(name: str) -> "Column":
    """The last header of this name, as text. Bytes that are no UTF-8 are replaced."""
    from pyspark.sql import functions as f

    said = f.filter("headers", lambda header: (header["key"] == name) & header["value"].isNotNull())
    return f.make_valid_utf8(f.try_element_at(said, f.lit(-1))["value"].cast("string"))


def _regex(pattern: str) -> str:
    """Of a pattern with * and ?; the same for Python and for Java."""
    return "".join({"*": ".*", "?": "."}.get(char) or _literal(char) for char in pattern)


def _literal(char: str) -> str:
    return char if char.isalnum() or char in "_- /" else rf"\x{ord(char):02x}" if ord(char) < 128 else char


def _fits(pattern: str | None, told: str) -> bool:
    return pattern is None or re.fullmatch(_regex(pattern), told, re.DOTALL) is not None
