"""A topic as server-sent events: the pub/sub view and the log view.

An event's data is a record as JSON. Its id tells how far the reader has come: `<partition>:<offset>`, joined by commas
where a topic has several partitions. There, the id stands with the last event of what was written at once. A client
that comes back with `Last-Event-ID` goes on after it, in the log.

What has been formatted for one stream is written to every other that wants the same, byte for byte.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.broker.read import Messages, Overflow, Reader, Start
from penstock.doors.http.call import Call, Reply, encode
from penstock.doors.http.errors import HttpError, MalformedRequest, problem_of
from penstock.doors.http.fetch import READING, matches_of
from penstock.doors.http.records import RecordOut, record_out
from penstock.doors.http.routing import route
from penstock.doors.http.streams import EventStream, framed
from penstock.model.errors import InvalidRequest, PenstockError

# Taken at once: events, bytes. At the end of a topic what is new is opened and formatted once for all, however much it
# is; who catches up works for itself alone, and leaves others time in between.
AT_THE_END = (100_000, 2 << 20)
CATCHING_UP = (2_000, 128 << 10)
END_EVENTS = 20_000  # who is closer than this is at the end
MAX_BEHIND = 1_000_000
WAIT_MS = 3_600_000
EARLY_S = 0.05  # a take that found nothing before its time was told that the server stops

Behind = Annotated[int, Meta(ge=1, le=MAX_BEHIND, description="how many records a pub/sub view may fall behind")]

_VECTOR = re.compile(r"[0-9]{1,9}:-?[0-9]{1,18}(,[0-9]{1,9}:-?[0-9]{1,18})*")


class StreamQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`start` is for the log: `earliest`, `latest`, a time as `@<ms since 1970>`, or offsets as `<partition>:<offset>`
    joined by commas. `last_event_id` is for clients that cannot set the header."""

    view: Literal["pubsub", "log"] = "pubsub"
    start: str | None = None
    key: str | None = None
    pattern: str | None = None
    header: list[str] = []
    max_behind: Behind = 10_000
    overflow: Overflow = Overflow.DROP_OLDEST
    last_event_id: str | None = None


@route(
    "GET",
    "/v1/topics/{topic}/events",
    READING,
    "Server-sent events",
    query=StreamQuery,
    carried=(("Last-Event-ID", "header", "the id of the last event that was seen: go on after it"),),
    reply=RecordOut,
    stream=True,
    reads=True,
)
async def events(call: Call) -> Reply | None:
    """`view=pubsub`: everything from now on; who reads too slowly is told `event: gap` with how many it missed.
    `view=log`: everything from `start` on. An `event: error` carries a problem and is the last one."""
    query = call.query(StreamQuery)
    last_id = call.header(b"last-event-id") or query.last_event_id
    ends = await ends_of(call, call["topic"])
    reader, gap = await open_reader(call, query, last_id, ends)
    try:
        stream = EventStream(call.connection)
        stream.begin()
        try:
            await _pump(call, stream, reader, gap)
        except (PenstockError, HttpError) as error:
            stream.write(b"event: error\ndata: %b\n\n" % encode(problem_of(error)))
        finally:
            stream.end()
    finally:
        reader.close()
    return None


async def _pump(call: Call, stream: EventStream, reader: Reader, gap: int) -> None:
    positions = dict(reader.positions)
    stream.write(b"id: %b\n\n" % vector(positions))
    while not stream.closed:
        limit = limit_of(call, positions)
        taken = await reader.take(*limit, WAIT_MS)
        positions.update(taken.positions)
        gap += taken.gap
        if gap:
            stream.write(b'event: gap\ndata: {"dropped":%d}\n\n' % gap)
        elif not taken.parts:
            await asyncio.sleep(EARLY_S)
        gap = 0
        if len(positions) > 1:
            if taken.parts:
                events = b"".join([part.formed("sse-bare", without_ids) for part in taken.parts])
                stream.write(events[:-1] + b"id: %b\n\n" % vector(positions))
        elif taken.parts:
            name, form = FRAMED if stream.chunked else PLAIN
            # One write, however many batches: with many subscribers of single messages it is most of what they cost.
            stream.write_framed(b"".join([part.formed(name, form) for part in taken.parts]))
        await stream.written()
        if limit is CATCHING_UP:
            await asyncio.sleep(0)  # neither taking nor writing need have waited for anything


def limit_of(call: Call, positions: Mapping[int, int]) -> tuple[int, int]:
    """How much a reader that stands here takes next."""
    topic = call.broker.topics.by_name.get(call["topic"])
    if topic is None:
        return CATCHING_UP
    behind = sum(p.stable_end - positions.get(index, 0) for index, p in enumerate(topic.partitions) if p is not None)
    return AT_THE_END if behind < END_EVENTS else CATCHING_UP


# -- formatting, once for all who read the same -------------------------------------------------------------


def framed_with_ids(messages: Messages) -> bytes:
    return framed(messages.formed("sse", with_ids))


def with_ids(messages: Messages) -> bytes:
    return b"".join(
        [
            b"id: %d:%d\ndata: %b\n\n" % (partition, record.offset, encode(record_out(partition, record)))
            for _, partition, record in messages
        ]
    )


FRAMED, PLAIN = ("sse-framed", framed_with_ids), ("sse", with_ids)


def without_ids(messages: Messages) -> bytes:
    return b"".join([b"data: %b\n\n" % encode(record_out(partition, record)) for _, partition, record in messages])


# -- where to begin -----------------------------------------------------------------------------------------


async def ends_of(call: Call, topic: str) -> dict[int, tuple[int, int]]:
    """Of every partition, where it starts and where what is committed ends."""
    observer = call.broker.observer
    found: dict[int, tuple[int, int]] = {}
    for index in range(observer.topic(call.principal, topic).partition_count):
        partition = await observer.partition(call.principal, topic, index)
        found[index] = (partition.start_offset, partition.stable_end)
    return found


async def open_reader(
    call: Call, query: StreamQuery, last_id: str | None, ends: Mapping[int, tuple[int, int]]
) -> tuple[Reader, int]:
    """A reader, and how many records are gone that it would have gone on with."""
    readers, topic = call.broker.readers, call["topic"]
    matches = matches_of(query.key, query.pattern, query.header)
    gap = 0
    if last_id:
        # An id names every partition that there was; others are newer, and new to this client from their beginning.
        positions = {index: start for index, (start, _) in ends.items()}
        for index, offset in offsets_of(last_id).items():
            start, end = ends.get(index, (0, -1))
            if not 0 <= offset + 1 <= end:
                raise MalformedRequest(f"the last event id {last_id!r} is not one of this topic's")
            positions[index] = max(start, offset + 1)
            gap += positions[index] - (offset + 1)
    elif query.view == "pubsub":
        if query.start not in (None, "latest"):
            raise InvalidRequest("a pub/sub view begins now; ask for `view=log` to begin elsewhere")
        reader = await readers.pubsub(
            call.principal, topic, matches=matches, max_behind=query.max_behind, overflow=query.overflow
        )
        return reader, 0
    else:
        positions = await start_of(call, topic, query.start, ends)
    reader = await readers.log(call.principal, topic, Start(offsets=positions), matches=matches)
    return reader, gap


async def start_of(call: Call, topic: str, start: str | None, ends: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    if start is None or start == "earliest":
        return {index: low for index, (low, _) in ends.items()}
    if start == "latest":
        return {index: high for index, (_, high) in ends.items()}
    if start.startswith("@") and start[1:].isascii() and start[1:].isdigit() and len(start) < 19:
        positions = {}
        for index, (_, high) in ends.items():
            found = await call.broker.observer.offset_at(call.principal, topic, index, int(start[1:]))
            positions[index] = high if found is None else found.offset
        return positions
    return {**{index: low for index, (low, _) in ends.items()}, **offsets_of(start)}


def vector(positions: Mapping[int, int]) -> bytes:
    return b",".join([b"%d:%d" % (index, offset - 1) for index, offset in positions.items()])


def offsets_of(text: str) -> dict[int, int]:
    if not _VECTOR.fullmatch(text):
        raise MalformedRequest(f"{text[:100]!r} is not `<partition>:<offset>`, joined by commas")
    pairs = (pair.split(":") for pair in text.split(","))
    return {int(index): int(offset) for index, offset in pairs}
