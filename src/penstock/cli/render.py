"""How records are written out: for people, as JSON lines, raw; and how JSON lines are read back.

JSON has no bytes: what is UTF-8 stands as text under its name, anything else as base64 under `<name>_base64`.
"""

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from penstock.client.message import Message
from penstock.model.record import Headers

Renderer = Callable[[Message], bytes]

_DIM, _CYAN, _YELLOW, _RESET = "\x1b[2m", "\x1b[36m", "\x1b[33m", "\x1b[0m"
HEX_BYTES_SHOWN = 64
# A record must not be able to drive the terminal of who reads it: control characters are shown, not sent.
_VISIBLE = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\t\n"}


def raw(key_separator: bytes | None, delimiter: bytes) -> Renderer:
    """Values as they are, each followed by the delimiter; with a separator, the key before it."""

    def render(message: Message) -> bytes:
        record = message.record
        value = record.value or b""
        if key_separator is not None:
            return b"".join((record.key or b"", key_separator, value, delimiter))
        return value + delimiter

    return render


def json_line(message: Message) -> bytes:
    record = message.record
    line: dict[str, object] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "time": _time(record.timestamp_ms, utc=True),
    }
    _put(line, "key", record.key)
    _put(line, "value", record.value)
    headers = []
    for name, content in record.headers:
        header: dict[str, object] = {"name": name}
        _put(header, "value", content)
        headers.append(header)
    line["headers"] = headers
    return msgspec.json.encode(line) + b"\n"


def _put(target: dict[str, object], name: str, content: bytes | None) -> None:
    try:
        target[name] = None if content is None else content.decode()
    except UnicodeDecodeError:
        target[f"{name}_base64"] = base64.b64encode(content or b"").decode()


def pretty(colour: bool) -> Renderer:
    """Two lines per record: where, when, key and headers; then the value."""
    dim, cyan, yellow, reset = (_DIM, _CYAN, _YELLOW, _RESET) if colour else ("", "", "", "")

    def render(message: Message) -> bytes:
        record = message.record
        parts = [f"{dim}{message.topic}-{message.partition} @{record.offset}  {_time(record.timestamp_ms)}{reset}"]
        if record.key is not None:
            parts.append(f"{cyan}{visible(record.key)}{reset}")
        parts += [f"{yellow}{name.translate(_VISIBLE)}={visible(content)}{reset}" for name, content in record.headers]
        return f"{'  '.join(parts)}\n{visible(record.value)}\n".encode()

    return render


def visible(content: bytes | None) -> str:
    if content is None:
        return "(null)"
    try:
        return content.decode().translate(_VISIBLE)
    except UnicodeDecodeError:
        more = "…" if len(content) > HEX_BYTES_SHOWN else ""
        return f"({len(content)} bytes) {content[:HEX_BYTES_SHOWN].hex(' ')}{more}"


def _time(timestamp_ms: int, utc: bool = False) -> str | None:
    if timestamp_ms < 0:
        return None if utc else "no time"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None if utc else f"@{timestamp_ms}"
    return moment.isoformat(timespec="milliseconds") if utc else moment.astimezone().isoformat(" ", "milliseconds")


# -- and back -----------------------------------------------------------------------------------------------


class Parsed(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    timestamp_ms: int | None


def parse_json_line(line: bytes) -> Parsed:
    """What `json_line` writes, or what a person writes: a value may be any JSON. Raises ValueError."""
    try:
        content = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(content, dict) or not ("value" in content or "value_base64" in content):
        raise ValueError('not an object with a "value"')
    raw_headers = content.get("headers") or []
    if isinstance(raw_headers, dict):
        raw_headers = [{"name": name, "value": value} for name, value in raw_headers.items()]
    if not isinstance(raw_headers, list) or not all(isinstance(one, dict) and "name" in one for one in raw_headers):
        raise ValueError('"headers" is neither a table nor a list of {"name", "value"}')
    headers = tuple((str(one["name"]), _get(one, "value")) for one in raw_headers)
    return Parsed(
        _get(content, "key"),
        _get(content, "value"),
        headers,
        _number(content, "partition"),
        _number(content, "timestamp_ms"),
    )


def _get(source: dict[str, object], name: str) -> bytes | None:
    encoded = source.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(str(encoded), validate=True)
        except binascii.Error as error:
            raise ValueError(f'"{name}_base64" is not base64: {error}') from None
    content = source.get(name)
    if content is None:
        return None
    return content.encode() if isinstance(content, str) else msgspec.json.encode(content)


def _number(source: dict[str, object], name: str) -> int | None:
    number = source.get(name)
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise ValueError(f'"{name}" is not a number')
    return number
