"""Words and options of a text command as values, and errors as words. What makes no sense raises InvalidRequest."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from penstock.broker.read import Match
from penstock.model.errors import InvalidRequest, PenstockError
from penstock.wire.line import replies

MAX_OFFSET = (1 << 63) - 1
MAX_PARTITION = (1 << 31) - 1
YES = {b"yes": True, b"true": True, b"on": True, b"1": True, b"no": False, b"false": False, b"off": False, b"0": False}

Options = Mapping[str, bytes]


class Position(NamedTuple):
    """`partition:offset`, or an offset alone."""

    partition: int | None
    offset: int


def error_code(error: PenstockError) -> str:
    """The error's name as one word: UnknownTopic is unknown-topic."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", type(error).__name__).lower()


def error_reply(error: PenstockError) -> bytes:
    return replies.error(error_code(error), str(error))


def whole(name: str, text: str | bytes, low: int = 0, high: int = MAX_OFFSET) -> int:
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high:
        return int(text)
    raise InvalidRequest(f"{name} must be a whole number from {low} to {high}, not {text[:32]!r}")


def optional_whole(options: Options, name: str, default: int, low: int = 0, high: int = MAX_OFFSET) -> int:
    value = options.get(name)
    return default if value is None else whole(name, value, low, high)


def yes(options: Options, name: str) -> bool:
    value = options.get(name, b"no")
    if value.lower() not in YES:
        raise InvalidRequest(f"{name} must be yes or no")
    return YES[value.lower()]


def text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} must be UTF-8") from None


def one_of(options: Options, name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = text(name, options.get(name, default.encode()))
    if value not in allowed:
        raise InvalidRequest(f"{name} must be {', '.join(allowed[:-1])} or {allowed[-1]}")
    return value


def position(word: str) -> Position:
    before, colon, after = word.rpartition(":")
    offset = whole("an offset", after)
    return Position(whole("a partition", before, 0, MAX_PARTITION) if colon else None, offset)


def headers(options: Options) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name[len("header.") :], value) for name, value in options.items() if name.startswith("header."))


def matches(options: Options) -> tuple[Match, ...]:
    """The filter that key=, pattern= and header.x= make together."""
    wanted = {name: text(name, value or b"") for name, value in headers(options)}
    key, pattern = options.get("key"), options.get("pattern")
    if key is None and pattern is None and not wanted:
        return ()
    return (
        Match(
            key=None if key is None else text("key", key),
            pattern=None if pattern is None else text("pattern", pattern),
            headers=wanted,
        ),
    )
