"""One request as a handler sees it, and what a handler answers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from penstock.broker.broker import Broker
from penstock.doors.http.errors import MalformedBody, MalformedRequest, UnsupportedMediaType
from penstock.doors.http.routing import JSON
from penstock.model.errors import InvalidRequest
from penstock.security.principal import Principal

if TYPE_CHECKING:
    from penstock.doors.http.server import HttpConnection

T = TypeVar("T")

Header = tuple[bytes, bytes]

MAX_QUERY_FIELDS = 100

encode = msgspec.json.Encoder().encode
_decoders: dict[Any, "msgspec.json.Decoder[Any]"] = {}
_lists: dict[Any, frozenset[str]] = {}


class Reply:
    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self, body: bytes, content_type: str = JSON, status: int = 200, headers: Sequence[Header] = ()
    ) -> None:
        self.body = body
        self.content_type = content_type
        self.status = status
        self.headers = headers


def reply(content: object, status: int = 200, headers: Sequence[Header] = ()) -> Reply:
    return Reply(encode(content), JSON, status, headers)


def nothing(headers: Sequence[Header] = ()) -> Reply:
    return Reply(b"", "", 204, headers)


class Call:
    """What is asked, by whom. Everything that can be malformed is read through the methods here."""

    __slots__ = ("body", "broker", "connection", "parameters", "scope")

    def __init__(
        self, broker: Broker, connection: "HttpConnection", scope: Any, parameters: dict[str, str], body: bytes
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.scope = scope
        self.parameters = parameters
        self.body = body

    @property
    def principal(self) -> Principal:
        return self.connection.principal

    def __getitem__(self, name: str) -> str:
        """A part of the path."""
        return self.parameters[name]

    def whole(self, name: str) -> int:
        """A part of the path that is a number."""
        text = self.parameters[name]
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            raise InvalidRequest(f"{name} in the path is a whole number, not {text!r}")
        return int(text)

    def header(self, name: bytes) -> str | None:
        for each, value in self.scope["headers"]:
            if each == name:
                return str(value, "latin-1")
        return None

    def cookie(self, name: str) -> str | None:
        """RFC 6265 §4.2.1: pairs between semicolons; a value may stand in quotes."""
        for pair in (self.header(b"cookie") or "").split(";"):
            found, _, value = pair.partition("=")
            if found.strip() == name:
                return value.strip().strip('"')
        return None

    def query(self, kind: type[T]) -> T:
        return query_of(self.scope["query_string"], kind)

    @property
    def media_type(self) -> str:
        """The content type without its parameters; JSON when nothing is said."""
        text = self.header(b"content-type")
        return text.partition(";")[0].strip().lower() if text else JSON

    def json(self, kind: type[T], default: T | None = None) -> T:
        """The body. `default` is for an empty one."""
        if not self.body and default is not None:
            return default
        media_type = self.media_type
        # What curl says when it is told nothing: clearly not a form, so it is taken for what it looks like.
        if media_type not in (JSON, "application/x-www-form-urlencoded", "text/json") and not media_type.endswith(
            "+json"
        ):
            raise UnsupportedMediaType(f"the body is {media_type}; this path takes {JSON}")
        return from_json(self.body, kind)

    def accepts(self, media_type: str) -> bool:
        accepted = self.header(b"accept")
        return accepted is not None and media_type in accepted


def from_json(body: bytes, kind: type[T]) -> T:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return cast(T, decoder.decode(body))
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not UTF-8: {error.reason} within a string") from None
    except msgspec.DecodeError as error:  # says at which byte, or in which field
        raise MalformedBody(str(error)) from None
    except RecursionError:
        raise MalformedBody("the body is nested too deeply") from None


def query_of(query_string: bytes, kind: type[T]) -> T:
    if not query_string:
        fields: dict[str, Any] = {}
    else:
        fields = _fields(query_string, kind)
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        text = str(error).replace("`$.", "`").replace("Object contains unknown field", "there is no parameter")
        raise MalformedRequest(f"in the query: {text.replace('Object missing required field', 'missing')}") from None


def _fields(query_string: bytes, kind: Any) -> dict[str, Any]:
    lists = _lists.get(kind)
    if lists is None:
        lists = _lists[kind] = frozenset(
            f.name for f in msgspec.structs.fields(kind) if str(f.type).startswith(("list", "tuple"))
        )
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=False,
            errors="strict",
            max_num_fields=MAX_QUERY_FIELDS,
        )
    except ValueError as error:  # UnicodeDecodeError is one
        raise MalformedRequest(f"the query cannot be read: {error}") from None
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in lists:
            fields.setdefault(name, []).append(value)
        elif name in fields:
            raise MalformedRequest(f"in the query: `{name}` is given twice")
        else:
            fields[name] = value
    return fields
