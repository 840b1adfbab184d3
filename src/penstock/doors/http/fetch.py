"""Pulling records: from a partition by offset, or from a topic as a group, from its committed offsets on."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.broker.fetch import MAX_POLL_BYTES, Interest, Want
from penstock.broker.read import Match, Start, Taken
from penstock.doors.http.call import Call, Reply, encode
from penstock.doors.http.publish import BATCH
from penstock.doors.http.records import PartitionOffset, RecordOut, records_out
from penstock.doors.http.routing import route
from penstock.model.errors import InvalidRequest, UnknownPartition
from penstock.model.message import Incoming
from penstock.security.principal import Principal

READING = "Reading"

MAX_WAIT_MS = 60_000
MAX_RECORDS = 10_000
STEP_BYTES = 128 << 10

RecordLimit = Annotated[int, Meta(ge=1, le=MAX_RECORDS)]
ByteLimit = Annotated[int, Meta(ge=1, le=MAX_POLL_BYTES)]
Wait = Annotated[int, Meta(ge=0, le=MAX_WAIT_MS, description="how long to wait for the first record")]
Reset = Literal["earliest", "latest"]


class FetchQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`offset` is a number, `earliest` or `latest`."""

    offset: str = "earliest"
    max_records: RecordLimit = 500
    max_bytes: ByteLimit = 1 << 20
    wait_ms: Wait = 0


class ConsumeQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`reset`: where a partition begins of which the group committed nothing, or nothing that is still there."""

    group: str | None = None
    reset: Reset = "earliest"
    partition: list[int] = []
    max_records: RecordLimit = 500
    max_bytes: ByteLimit = 1 << 20
    wait_ms: Wait = 0
    key: str | None = None
    pattern: str | None = None
    header: list[str] = []


class Consumption(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    topic: str
    group: str
    reset: Reset = "earliest"
    partitions: list[int] = []
    max_records: RecordLimit = 500
    max_bytes: ByteLimit = 1 << 20
    wait_ms: Wait = 0


class Fetched(msgspec.Struct):
    """`next`: the offsets to go on from; a group commits these when it has processed the records."""

    topic: str
    records: list[RecordOut]
    next: list[PartitionOffset]


@route(
    "GET",
    "/v1/topics/{topic}/partitions/{partition}/records",
    READING,
    "Fetch from a partition",
    query=FetchQuery,
    reply=Fetched,
    other_replies=(BATCH,),
    reads=True,
)
async def fetch(call: Call) -> Reply:
    """What is there from an offset on; with `wait_ms` a long poll. With `Accept: application/vnd.penstock.batch` the
    stored record batches as they are; `Penstock-Next-Offset` tells where to go on."""
    query = call.query(FetchQuery)
    name, index = call["topic"], call.whole("partition")
    partition = await call.broker.observer.partition(call.principal, name, index)
    if query.offset == "earliest":
        offset = partition.start_offset
    elif query.offset == "latest":
        offset = partition.stable_end
    elif query.offset.isascii() and query.offset.isdigit() and len(query.offset) < 19:
        offset = int(query.offset)
    else:
        raise InvalidRequest(f"`offset` is a whole number, `earliest` or `latest`, not {query.offset!r}")
    if call.accepts(BATCH):
        return await _fetch_batches(call, name, index, offset, query)
    taken = await take(call, name, {index: offset}, [index], (), query.max_records, query.max_bytes, query.wait_ms)
    return _fetched(name, taken, {index: offset})


async def _fetch_batches(call: Call, name: str, index: int, offset: int, query: FetchQuery) -> Reply:
    fetcher, interest = call.broker.fetcher, Interest()
    want = Want(0, name, index, offset, query.max_bytes)
    interest.add(want)
    try:
        results = await fetcher.read(call.principal, interest, query.max_bytes)
        if not results and query.wait_ms:
            await fetcher.wait(interest, 1, query.wait_ms)
            results = await fetcher.read(call.principal, interest, query.max_bytes)
    finally:
        interest.close()
    body, next_offset = b"", want.offset
    for got in results:
        if got.error is not None:
            raise got.error
        if got.found is not None:
            body, next_offset = b"".join(got.found.buffers), got.found.next_offset
    return Reply(body, BATCH, headers=[(b"penstock-next-offset", b"%d" % next_offset)])


@route(
    "GET",
    "/v1/topics/{topic}/records",
    READING,
    "Consume a topic",
    query=ConsumeQuery,
    reply=Fetched,
    reads=True,
)
async def consume_topic(call: Call) -> Reply:
    """From the offsets that the group committed; nothing is committed by reading. Without a group from one end of the
    topic. `key`, `pattern` and `header` (as `name:value`) pass only records that match."""
    query = call.query(ConsumeQuery)
    ask = Consumption(
        topic=call["topic"],
        group=query.group or "",
        reset=query.reset,
        partitions=query.partition,
        max_records=query.max_records,
        max_bytes=query.max_bytes,
        wait_ms=query.wait_ms,
    )
    return await _consume(call, ask, matches_of(query.key, query.pattern, query.header))


@route("POST", "/v1/consume", READING, "Consume", body=Consumption, reply=Fetched, reads=True)
async def consume(call: Call) -> Reply:
    """As consuming a topic by a group, with everything in the body."""
    ask = call.json(Consumption)
    if not ask.group:
        raise InvalidRequest("`group` must have a name")
    return await _consume(call, ask, ())


async def _consume(call: Call, ask: Consumption, matches: Sequence[Match]) -> Reply:
    start = await positions(call, ask)
    taken = await take(call, ask.topic, start, list(start), matches, ask.max_records, ask.max_bytes, ask.wait_ms)
    return _fetched(ask.topic, taken, start)


async def positions(call: Call, ask: Consumption) -> dict[int, int]:
    """Where a group goes on, partition by partition."""
    broker, principal = call.broker, call.principal
    topic = broker.observer.topic(principal, ask.topic)
    wanted = sorted(set(ask.partitions)) or list(range(topic.partition_count))
    committed = await _committed(call, principal, ask) if ask.group else {}
    start: dict[int, int] = {}
    for index in wanted:
        if not 0 <= index < topic.partition_count:
            raise UnknownPartition(f"topic {ask.topic!r} has {topic.partition_count} partitions, none is {index}")
        partition = await broker.observer.partition(principal, ask.topic, index)
        offset = committed.get(index, -1)
        if not partition.start_offset <= offset <= partition.durable_end:
            offset = partition.start_offset if ask.reset == "earliest" else partition.stable_end
        start[index] = offset
    return start


async def _committed(call: Call, principal: Principal, ask: Consumption) -> dict[int, int]:
    found = await call.broker.coordinator.committed(principal, ask.group)
    offsets: dict[int, int] = {}
    for at, kept in found.items():
        if at.topic == ask.topic and kept is not None and not isinstance(kept, Exception):
            offsets[at.partition] = kept.offset
    return offsets


async def take(
    call: Call,
    topic: str,
    start: dict[int, int],
    partitions: list[int],
    matches: Sequence[Match],
    max_records: int,
    max_bytes: int,
    wait_ms: int,
) -> Taken:
    """Step by step, so that no more is opened than is asked for, and others have their turn."""
    reader = await call.broker.readers.log(
        call.principal, topic, Start(offsets=start), partitions=partitions, matches=matches
    )
    try:
        taken = await reader.take(max_records, min(max_bytes, STEP_BYTES), wait_ms)
        messages, gap, positions = list(taken.messages), taken.gap, dict(taken.positions)
        left_bytes = max_bytes - size_of(taken.messages)
        while taken.messages and len(messages) < max_records and left_bytes > 0:
            taken = await reader.take(max_records - len(messages), min(left_bytes, STEP_BYTES), 0)
            if size_of(taken.messages) > left_bytes:
                break  # one comes however little is allowed; here that would be too much
            left_bytes -= size_of(taken.messages)
            messages += taken.messages
            gap += taken.gap
            positions.update(taken.positions)
        return Taken(messages, gap, positions)
    finally:
        reader.close()


def size_of(messages: Sequence[Incoming]) -> int:
    return sum(len(record.value or b"") + len(record.key or b"") for _, _, record in messages)


def _fetched(topic: str, taken: Taken, start: dict[int, int]) -> Reply:
    after = {**start, **taken.positions}
    next_offsets = [PartitionOffset(index, offset) for index, offset in after.items()]
    return Reply(encode(Fetched(topic, records_out(taken.messages), next_offsets)))


def matches_of(key: str | None, pattern: str | None, headers: Sequence[str]) -> Sequence[Match]:
    """A filter as a query tells it."""
    wanted: dict[str, str] = {}
    for text in headers:
        name, colon, value = text.partition(":")
        if not colon:
            raise InvalidRequest(f"a header to match is `name:value`, not {text!r}")
        wanted[name] = value
    if key is None and pattern is None and not wanted:
        return ()
    return (Match(key=key, pattern=pattern, headers=wanted),)
