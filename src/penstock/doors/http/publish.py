"""Publishing: one record or many, as JSON, lines of JSON, plain bytes, or ready-made record batches."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.broker.gather import Acks
from penstock.doors.http.call import Call, Reply, from_json
from penstock.doors.http.errors import MalformedBody
from penstock.doors.http.records import (
    HeaderFields,
    Milliseconds,
    Partition,
    Priority,
    RecordIn,
    Text,
    headers_of,
    outgoing,
)
from penstock.doors.http.routing import JSON, route
from penstock.model.batch import BatchHeader, check_batch
from penstock.model.errors import InvalidRequest
from penstock.model.message import Outgoing, Placed

PUBLISHING = "Publishing"

BYTES = "application/octet-stream"
BATCH = "application/vnd.penstock.batch"
LINES = "application/x-ndjson"

Sequence63 = Annotated[int, Meta(ge=0, le=(1 << 62) - 1)]
MAX_NAME_CHARS = 1024
IDEMPOTENCY_KEY = ("Idempotency-Key", "header", "a repeat under the same key stores nothing")


class PublishQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`key`, `header` (as `name:value`) and those after it tell of a body that is one value."""

    acks: Acks = Acks.ALL
    producer: str | None = None
    sequence: Sequence63 | None = None
    partition: Partition | None = None
    key: str | None = None
    header: list[str] = []
    timestamp_ms: Milliseconds | None = None
    delay_ms: Milliseconds | None = None
    deliver_at_ms: Milliseconds | None = None
    priority: Priority | None = None
    ttl_ms: Milliseconds | None = None


class Publication(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One record, or `records`. `producer` and `sequence`: see idempotence."""

    records: list[RecordIn] | UnsetType = UNSET
    value: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    key: Text = None
    headers: HeaderFields | None = None
    timestamp_ms: Milliseconds | None = None
    partition: Partition | None = None
    delay_ms: Milliseconds | None = None
    deliver_at_ms: Milliseconds | None = None
    priority: Priority | None = None
    ttl_ms: Milliseconds | None = None
    producer: str | None = None
    sequence: Sequence63 | None = None
    acks: Acks | None = None

    def messages(self) -> list[Outgoing]:
        if self.records is not UNSET:
            if bytes(self.value):
                raise MalformedBody("give `value` for one record or `records` for many, not both")
            return list(map(outgoing, self.records))
        if not bytes(self.value):
            raise MalformedBody("Object missing required field `value` (or `records`)")
        return [outgoing(self)]  # type: ignore[arg-type]  # it has all of a record's fields


class Production(Publication, kw_only=True, forbid_unknown_fields=True):
    topic: str


class OffsetInfo(msgspec.Struct):
    partition: int
    offset: int


class Published(msgspec.Struct):
    """Where each record went, in the order of the request. With `acks=none`, nobody knows yet: -1."""

    topic: str
    offsets: list[OffsetInfo]


@route(
    "POST",
    "/v1/topics/{topic}/records",
    PUBLISHING,
    "Publish records",
    query=PublishQuery,
    carried=(IDEMPOTENCY_KEY,),
    body=Publication,
    other_bodies=(LINES, BYTES, BATCH),
    reply=Published,
)
async def publish(call: Call) -> Reply:
    """Answered when the records are as durable as the topic promises. A repeat under the same `Idempotency-Key`, or
    under the same `producer` and `sequence`, stores nothing and is answered with the first one's offsets."""
    query = call.query(PublishQuery) if call.scope["query_string"] else _PLAIN
    media_type = call.media_type
    if media_type == BATCH:
        return await publish_batches(call, query)
    producer, sequence, acks = query.producer, query.sequence, query.acks
    if media_type == BYTES:
        messages = [_one_value(call.body, query)]
    elif media_type == LINES:
        messages = _lines(call.body)
    else:
        body = call.json(Publication)
        messages = body.messages()
        producer, sequence = body.producer or producer, sequence if body.sequence is None else body.sequence
        acks = body.acks or acks
    if query.partition is not None and media_type != BYTES:
        messages = [m if m.partition >= 0 else m._replace(partition=query.partition) for m in messages]
    return await send(call, call["topic"], messages, acks, producer, sequence)


@route("POST", "/v1/produce", PUBLISHING, "Produce", carried=(IDEMPOTENCY_KEY,), body=Production, reply=Published)
async def produce(call: Call) -> Reply:
    """As publishing to a topic, with the topic in the body."""
    body = call.json(Production)
    return await send(call, body.topic, body.messages(), body.acks or Acks.ALL, body.producer, body.sequence)


async def send(
    call: Call, topic: str, messages: Sequence[Outgoing], acks: Acks, producer: str | None, sequence: int | None
) -> Reply:
    producer, number = identity(producer, sequence, call.header(b"idempotency-key"))
    target = await call.broker.gatherer.target(call.principal, topic)
    placed = await target.publish(messages, acks=acks, producer=producer, sequence=number) if messages else []
    return published(topic, placed, acks)


def identity(producer: str | None, sequence: int | None, key: str | None) -> tuple[str | None, int]:
    """Who publishes under which number. An idempotency key is a producer that publishes once."""
    if (producer is None) != (sequence is None):
        raise InvalidRequest("`producer` and `sequence` belong together: give both or neither")
    if producer is None or sequence is None:
        if key is None:
            return None, 0
        producer, sequence = f"http:{key}", 0
    elif key is not None:
        raise InvalidRequest("give an Idempotency-Key, or `producer` and `sequence`, not both")
    if not 0 < len(producer) <= MAX_NAME_CHARS:
        raise InvalidRequest(f"the name of a producer has 1 to {MAX_NAME_CHARS} characters")
    return producer, sequence


def published(topic: str, placed: Sequence[Placed], acks: Acks = Acks.ALL) -> Reply:
    # A topic's name needs no escapes; by hand this takes a third of what a Struct for each would.
    offsets = b",".join([b'{"partition":%d,"offset":%d}' % place for place in placed])
    body = b'{"topic":"%s","offsets":[%s]}' % (topic.encode(), offsets)
    return Reply(body, JSON, 202 if acks is Acks.NONE else 200)


# -- other bodies -------------------------------------------------------------------------------------------


def _one_value(body: bytes, query: PublishQuery) -> Outgoing:
    fields: list[tuple[str, Text]] = []
    for text in query.header:
        name, colon, value = text.partition(":")
        if not colon:
            raise InvalidRequest(f"a header in the query is `name:value`, not {text!r}")
        fields.append((name, value))
    return Outgoing(
        None if query.key is None else query.key.encode(),
        body,
        headers_of(fields, query),  # type: ignore[arg-type]  # it has what steers a record
        -1 if query.timestamp_ms is None else query.timestamp_ms,
        -1 if query.partition is None else query.partition,
    )


def _lines(body: bytes) -> list[Outgoing]:
    try:
        return list(map(outgoing, _line_decoder.decode_lines(body)))
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not UTF-8: {error.reason} within a string") from None
    except msgspec.DecodeError as error:
        raise MalformedBody(_where(body, str(error))) from None


def _where(body: bytes, reason: str) -> str:
    """Which line it is; only looked for when one is wrong."""
    for number, line in enumerate(body.splitlines(), 1):
        if line.strip():
            try:
                from_json(line, RecordIn)
            except MalformedBody as error:
                return f"line {number}: {error}"
    return reason


async def publish_batches(call: Call, query: PublishQuery) -> Reply:
    """Kafka's record batches of format 2, back to back, into one partition, stored as they are."""
    if query.producer is not None or call.header(b"idempotency-key") is not None:
        raise InvalidRequest("a record batch carries the identity of its producer within")
    name, broker = call["topic"], call.broker
    topic = await broker.administrator.topic_on_first_use(call.principal, name)
    broker.publisher.check(call.principal, topic)
    index = query.partition
    if index is None:
        if topic.partition_count > 1:
            raise InvalidRequest(f"topic {name!r} has {topic.partition_count} partitions: say which in the query")
        index = 0
    body = bytearray(call.body)
    view = memoryview(body)
    headers: list[BatchHeader] = []
    position = 0
    while position < len(body) or not headers:  # all are looked at before one is stored
        headers.append(check_batch(body, position))
        position = headers[-1].end_position
    appended = [
        (await broker.publisher.publish(topic, index, view[h.position : h.end_position]), h.last_offset_delta)
        for h in headers
    ]
    if query.acks is not Acks.NONE:
        await asyncio.gather(*(each.durable for each, _ in appended))
    placed = [Placed(index, each.base_offset + delta) for each, last in appended for delta in range(last + 1)]
    return published(name, placed, query.acks)


_PLAIN = PublishQuery()
_line_decoder = msgspec.json.Decoder(RecordIn)
