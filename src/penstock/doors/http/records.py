"""Records as JSON, in and out.

    JSON                     stored as
    "text"                   its UTF-8 bytes
    {"base64": "..."}        those bytes: an object with this one field and no other
    null                     no value (a tombstone in a compacted topic)
    any other JSON value     its JSON text, with the header `content-type: application/json`

Read back, a value is the JSON value again where that header says so, else a string where the bytes are UTF-8, else
{"base64": "..."}. Keys and header values are strings, {"base64": "..."} or null.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.doors.http.errors import MalformedBody
from penstock.model.message import DELAY_MS, DELIVER_AT_MS, PRIORITY, TTL_MS, Incoming, Outgoing
from penstock.model.record import Headers, Record

CONTENT_TYPE = "content-type"
JSON_VALUE = (CONTENT_TYPE, b"application/json")

_QUOTE = ord('"')
_BRACE = ord("{")
_I64_MAX = (1 << 63) - 1


class Base64(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are not text."""

    base64: bytes


Text = str | Base64 | None
HeaderFields = dict[str, Text] | list[tuple[str, Text]]

Priority = Annotated[
    int, Meta(ge=0, le=9, description="0 to 9; queue views with priorities hand out higher ones first")
]
Milliseconds = Annotated[int, Meta(ge=0, le=_I64_MAX)]
Partition = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]


class RecordIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One record to be published."""

    value: msgspec.Raw
    key: Text = None
    headers: HeaderFields | None = None
    timestamp_ms: Milliseconds | None = None
    partition: Partition | None = None
    delay_ms: Milliseconds | None = None
    deliver_at_ms: Milliseconds | None = None
    priority: Priority | None = None
    ttl_ms: Milliseconds | None = None


class RecordOut(msgspec.Struct, omit_defaults=True):
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: Any
    topic: str | UnsetType = UNSET


class Steering(msgspec.Struct, kw_only=True):
    """How a record is to be delivered; becomes headers."""

    delay_ms: Milliseconds | None = None
    deliver_at_ms: Milliseconds | None = None
    priority: Priority | None = None
    ttl_ms: Milliseconds | None = None


_text = msgspec.json.Decoder(str).decode
_object = msgspec.json.Decoder(Base64).decode


def bytes_of(text: Text) -> bytes | None:
    if text is None:
        return None
    return text.encode() if isinstance(text, str) else text.base64


def value_of(raw: msgspec.Raw, *, base64: bool = True) -> tuple[bytes | None, bool]:
    """What a JSON value is stored as, and whether that is JSON text. `base64`: whether such objects mean bytes."""
    text = bytes(raw)
    first = text[0]
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise MalformedBody(f"a value is not UTF-8: {error.reason} at its byte {error.start}") from None
    if first == _QUOTE:
        return (text[1:-1] if b"\\" not in text else _text(text).encode()), False
    if text == b"null":
        return None, False
    if base64 and first == _BRACE and b'"base64"' in text:
        try:
            return _object(text).base64, False
        except msgspec.ValidationError as error:
            if str(error).startswith("Invalid base64"):
                raise MalformedBody(f"a value's base64 is malformed: {error}") from None
    return text, True


def headers_of(fields: HeaderFields | None, steering: RecordIn | Steering, is_json: bool = False) -> Headers:
    headers: list[tuple[str, bytes | None]] = []
    if fields:
        pairs = fields.items() if isinstance(fields, dict) else fields
        headers.extend((name, bytes_of(value)) for name, value in pairs)
    if is_json and all(name.lower() != CONTENT_TYPE for name, _ in headers):
        headers.append(JSON_VALUE)
    if steering.delay_ms is not None:
        headers.append((DELAY_MS, b"%d" % steering.delay_ms))
    if steering.deliver_at_ms is not None:
        headers.append((DELIVER_AT_MS, b"%d" % steering.deliver_at_ms))
    if steering.priority is not None:
        headers.append((PRIORITY, b"%d" % steering.priority))
    if steering.ttl_ms is not None:
        headers.append((TTL_MS, b"%d" % steering.ttl_ms))
    return tuple(headers)


def outgoing(record: RecordIn) -> Outgoing:
    value, is_json = value_of(record.value)
    key = record.key
    timestamp_ms, partition = record.timestamp_ms, record.partition
    return Outgoing(
        key.encode() if isinstance(key, str) else bytes_of(key),
        value,
        headers_of(record.headers, record, is_json),
        -1 if timestamp_ms is None else timestamp_ms,
        -1 if partition is None else partition,
    )


# -- out ----------------------------------------------------------------------------------------------------


def text_of(content: bytes | None) -> Text:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return Base64(content)


def json_of(record: Record) -> Any:
    """The value as JSON."""
    value = record.value
    if record.headers and JSON_VALUE in record.headers and value:
        try:
            value.decode()
            checked = msgspec.json.decode(value, type=msgspec.Raw)
            if b"\n" in value or b"\r" in value:  # an event's data is one line
                return msgspec.Raw(msgspec.json.format(checked, indent=-1))
            return checked
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # another door's claim
    return text_of(value)


def header_fields(headers: Headers) -> HeaderFields:
    fields = {name: text_of(value) for name, value in headers}
    return fields if len(fields) == len(headers) else [(name, text_of(value)) for name, value in headers]


def record_out(partition: int, record: Record, topic: str | UnsetType = UNSET) -> RecordOut:
    return RecordOut(
        partition,
        record.offset,
        record.timestamp_ms,
        text_of(record.key),
        json_of(record),
        header_fields(record.headers) if record.headers else {},
        topic,
    )


def records_out(messages: Iterable[Incoming]) -> list[RecordOut]:
    return [record_out(partition, record) for _, partition, record in messages]


# -- what the calls share -----------------------------------------------------------------------------------

Acks = Literal["none", "leader", "all"]


class PartitionOffset(msgspec.Struct, forbid_unknown_fields=True):
    partition: Partition
    offset: Annotated[int, Meta(ge=0, le=_I64_MAX)]
