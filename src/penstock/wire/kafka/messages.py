"""Whole Kafka messages: header and body together, each looked up by API number and version.

    frame     int32 length | header | body
    request   int16 api_key | int16 api_version | int32 correlation_id | nullable string client_id (never compact)
              | tagged fields, if the body is flexible (header version 2)
    response  int32 correlation_id | tagged fields, if the body is flexible (header version 1)

ApiVersions answers with header version 0 always, so that a client that knows less can read it. Functions that take a
`buf` expect a frame without its length; those that encode return whole frames, length included.
"""

from functools import cache
from typing import NamedTuple

from penstock.wire.kafka import schema
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.plan import Buffer, Plan, Struct
from penstock.wire.kafka.reader import Malformed, decode_body, read_request_header, read_response_header, skip_tags
from penstock.wire.kafka.writer import encode, encode_frame, encode_response_frame

__all__ = [
    "Buffer",
    "Malformed",
    "RequestHeader",
    "Struct",
    "UnknownMessage",
    "decode_assignment",
    "decode_header",
    "decode_request",
    "decode_response",
    "decode_subscription",
    "encode_assignment",
    "encode_request",
    "encode_response",
    "encode_subscription",
    "versions",
]


class UnknownMessage(LookupError):
    """No table knows this API number in this version."""


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    position: int  # of the body


# Filled as messages are first met; at most one entry per API and version in the tables. Key: api_key << 16 | version.
_request_plans: dict[int, Plan] = {}
_response_plans: dict[int, tuple[Plan, bool]] = {}  # and whether the header has tagged fields


def _plan(kind: str, api_key: int, version: int) -> Plan:
    message = schema.messages().get((kind, api_key))
    if message is None or version not in message.versions:
        raise UnknownMessage(f"there is no {kind} {api_key} of version {version}")
    return schema.compile_plan(message, version)


def request_plan(api_key: int, version: int) -> Plan:
    plan = _request_plans.get(api_key << 16 | version)
    if plan is None:
        plan = _plan("request", api_key, version)
        _request_plans[api_key << 16 | version] = plan
    return plan


def response_plan(api_key: int, version: int) -> tuple[Plan, bool]:
    found = _response_plans.get(api_key << 16 | version)
    if found is None:
        plan = _plan("response", api_key, version)
        found = (plan, plan.flexible and api_key != ApiKey.API_VERSIONS)
        _response_plans[api_key << 16 | version] = found
    return found


def versions(api_key: int) -> tuple[int, int]:
    """The oldest and newest version that the tables know."""
    message = schema.messages().get(("request", api_key))
    if message is None:
        raise UnknownMessage(f"there is no request {api_key}")
    return message.versions.first, message.versions.last


# -- requests -----------------------------------------------------------------------------------------------


def decode_header(buf: Buffer) -> RequestHeader:
    """The request's header. An API or version unknown to the tables is no error yet, so that the caller can answer as
    the protocol asks; the position is then the end of the client id."""
    api_key, api_version, correlation_id, client_id, position = read_request_header(buf)
    try:
        flexible = request_plan(api_key, api_version).flexible
    except UnknownMessage:
        flexible = False
    if flexible:
        position = skip_tags(buf, position)
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def decode_request(api_key: int, version: int, buf: Buffer, position: int = 0) -> Struct:
    """The request's body, which starts at `position`."""
    return decode_body(request_plan(api_key, version), buf, position)


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, struct: Struct
) -> list[Buffer]:
    plan = request_plan(api_key, version)
    raw_id = b"" if client_id is None else client_id.encode()
    header = (
        api_key.to_bytes(2, "big")
        + version.to_bytes(2, "big")
        + correlation_id.to_bytes(4, "big", signed=True)
        + (-1 if client_id is None else len(raw_id)).to_bytes(2, "big", signed=True)
        + raw_id
        + (b"\x00" if plan.flexible else b"")
    )
    return encode_frame(plan, header, struct)


# -- responses ----------------------------------------------------------------------------------------------


def encode_response(api_key: int, version: int, correlation_id: int, struct: Struct) -> list[Buffer]:
    """The framed response. Record data in it is passed on by reference: send it before its memory is used again."""
    plan, tagged_header = response_plan(api_key, version)
    return encode_response_frame(plan, correlation_id, tagged_header, struct)


def decode_response(api_key: int, version: int, buf: Buffer) -> tuple[int, Struct]:
    """The correlation id and the body."""
    plan, tagged_header = response_plan(api_key, version)
    correlation_id, position = read_response_header(buf, tagged_header)
    return correlation_id, decode_body(plan, buf, position)


# -- what classic group members tell each other -------------------------------------------------------------
#
#   int16 version | consumer_subscription or consumer_assignment of that version
#
# A version newer than ours is read as our newest: Kafka promises that later versions only add at the end.


@cache
def _known_data_plan(name: str, version: int) -> Plan:
    return schema.compile_plan(schema.messages()["data", name], version)


def _data_plan(name: str, version: int) -> Plan:
    return _known_data_plan(name, min(version, schema.messages()["data", name].versions.last))


def _decode_data(name: str, buf: Buffer) -> Struct:
    version = int.from_bytes(buf[:2], "big", signed=True)
    if len(buf) < 2 or version < 0:
        raise Malformed(f"{name}: no version")
    return decode_body(_data_plan(name, version), buf, 2)


def _encode_data(name: str, version: int, struct: Struct) -> bytes:
    return version.to_bytes(2, "big") + b"".join(encode(_data_plan(name, version), struct))


def decode_subscription(buf: Buffer) -> Struct:
    """What a member of a consumer group puts into its JoinGroup metadata."""
    return _decode_data("consumer_subscription", buf)


def encode_subscription(struct: Struct, version: int = 1) -> bytes:
    return _encode_data("consumer_subscription", version, struct)


def decode_assignment(buf: Buffer) -> Struct:
    """What the leader of a consumer group assigns to a member. No bytes at all is an assignment of nothing."""
    if not len(buf):
        return Struct(assigned_partitions=[], user_data=None)
    return _decode_data("consumer_assignment", buf)


def encode_assignment(struct: Struct, version: int = 1) -> bytes:
    return _encode_data("consumer_assignment", version, struct)
