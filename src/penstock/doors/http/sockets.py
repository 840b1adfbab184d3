"""A topic over WebSocket: pub/sub, log and queue, and publishing, all in JSON text messages.

    from the client                                      answered with
    {"type": "publish", "records": [...]}                {"type": "published", "offsets": [...]}
    {"type": "ack", "receipts": [...]}                   {"type": "settled", "results": [...]}
        and nack, reject, release, extend
    {"type": "ping"}                                     {"type": "pong"}

    from the server, unasked
    {"type": "records", "records": [...], "gap": n}      pub/sub and log
    {"type": "messages", "messages": [...]}              queue: each with its receipt and attempt
    {"type": "error", "problem": {...}}                  without an `id` it is the last message

An `id` in a request comes back in its answer. Answers may overtake each other; publishing keeps its order.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.broker.gather import Acks
from penstock.broker.queues import DEFAULT_VIEW, Outcome, Subscription
from penstock.broker.read import Messages, Reader
from penstock.doors.http.call import Call, encode, from_json, query_of
from penstock.doors.http.errors import HttpError, MalformedBody, problem_of
from penstock.doors.http.events import (
    CATCHING_UP,
    EARLY_S,
    WAIT_MS,
    StreamQuery,
    ends_of,
    limit_of,
    open_reader,
)
from penstock.doors.http.fetch import READING
from penstock.doors.http.inbox import Inbox
from penstock.doors.http.publish import OffsetInfo, Sequence63, identity
from penstock.doors.http.queues import MAX_LEASED, leased, receipt_of, results_of
from penstock.doors.http.records import Milliseconds, RecordIn, outgoing, records_out
from penstock.doors.http.routing import SOCKET, route
from penstock.doors.http.socket_server import SocketConnection
from penstock.model.errors import InvalidRequest, PenstockError

MAX_UNDER_WAY = 256  # requests of one socket that are not answered yet
ABNORMAL_CLOSURE = 1006  # RFC 6455 §7.4.1: no close frame came
POLICY_VIOLATION = 1008

RequestId = int | str | UnsetType


class SocketQuery(StreamQuery, kw_only=True, forbid_unknown_fields=True):
    """`view=none` only publishes. `queue` and those after it are for `view=queue`."""

    view: Literal["pubsub", "log", "queue", "none"] = "pubsub"  # type: ignore[assignment]
    queue: str = DEFAULT_VIEW
    credit: Annotated[int, Meta(ge=1, le=MAX_LEASED, description="messages that are not settled yet")] = 100
    lease_ms: Milliseconds | None = None


class Publish(msgspec.Struct, tag_field="type", tag="publish", forbid_unknown_fields=True, kw_only=True):
    records: list[RecordIn]
    id: RequestId = UNSET
    acks: Acks = Acks.ALL
    producer: str | None = None
    sequence: Sequence63 | None = None


class _Settle(msgspec.Struct, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    receipts: Annotated[list[str], Meta(max_length=MAX_LEASED)]
    id: RequestId = UNSET
    delay_ms: Milliseconds | None = None
    lease_ms: Milliseconds | None = None


class Ack(_Settle, tag="ack"):
    pass


class Nack(_Settle, tag="nack"):
    pass


class Reject(_Settle, tag="reject"):
    pass


class Release(_Settle, tag="release"):
    pass


class Extend(_Settle, tag="extend"):
    pass


class Ping(msgspec.Struct, tag_field="type", tag="ping", forbid_unknown_fields=True):
    id: RequestId = UNSET


Request = Publish | Ack | Nack | Reject | Release | Extend | Ping
OUTCOMES = {
    Ack: Outcome.ACK,
    Nack: Outcome.NACK,
    Reject: Outcome.REJECT,
    Release: Outcome.RELEASE,
    Extend: Outcome.EXTEND,
}


@route(SOCKET, "/v1/topics/{topic}/stream", READING, "WebSocket", query=SocketQuery, socket=True)
async def stream(call: Call, receive: Any, send: Any) -> None:
    """`view=pubsub`, `log` (from `start`), `queue` (with acknowledgements) or `none`; publishing goes with each."""
    query = query_of(call.scope["query_string"], SocketQuery)
    conversation = Conversation(call, query, receive, send)
    try:
        await conversation.begin()
        await conversation.listen()
    finally:
        conversation.end()


class Conversation:
    def __init__(self, call: Call, query: SocketQuery, receive: Any, send: Any) -> None:
        self._call = call
        self._connection: SocketConnection = call.connection  # type: ignore[assignment]
        self._query = query
        self._receive, self._send = receive, send
        self._inbox = Inbox()
        self._ends: list[Reader] = []  # what is closed in the end
        self._consumer: Subscription | None = None
        self._lost = False
        self._pump: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._left = False

    async def begin(self) -> None:
        """Subscribe before the handshake, so that what is wrong is told as a status."""
        call, query = self._call, self._query
        pump: Coroutine[Any, Any, None] | None = None
        if query.view == "queue":
            pump = await self._open_queue()
        elif query.view == "none":
            call.broker.observer.topic(call.principal, call["topic"])
        else:
            last_id = call.header(b"last-event-id") or query.last_event_id
            ends = await ends_of(call, call["topic"])
            reader, gap = await open_reader(call, query, last_id, ends)
            self._ends.append(reader)
            pump = self._read(reader, gap)
        await self._receive()  # websocket.connect
        await self._send({"type": "websocket.accept"})
        if pump is not None:
            self._pump = asyncio.create_task(self._guard(pump))

    async def _open_queue(self) -> Coroutine[Any, Any, None]:
        call, query, inbox = self._call, self._query, self._inbox
        queues = call.broker.queues
        if query.key or query.pattern or query.header or query.start:
            raise InvalidRequest("what a queue view takes is told when it is made")
        if query.queue == DEFAULT_VIEW:
            await queues.create(call.principal, call["topic"], DEFAULT_VIEW, or_existing=True)
        subscription = await queues.subscribe(
            call.principal,
            call["topic"],
            query.queue,
            inbox.deliver,
            query.credit,
            lease_ms=query.lease_ms,
            ended=inbox.ended,
        )
        self._consumer = subscription
        return self._hand_out()

    def end(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
        if self._consumer is not None:
            self._consumer.close(lost=self._lost)
        for each in self._ends:
            each.close()

    # -- to the client ----------------------------------------------------------------------------------------

    async def _guard(self, pump: Coroutine[Any, Any, None]) -> None:
        try:
            await pump
        except (PenstockError, HttpError) as error:
            await self._leave(error)

    async def _leave(self, error: Exception) -> None:
        """Say why, and close."""
        await self._say({"type": "error", "problem": problem_of(error)})
        if not self._left:
            self._left = True
            with contextlib.suppress(OSError):  # it has gone already
                await self._send({"type": "websocket.close", "code": POLICY_VIOLATION})

    async def _read(self, reader: Any, gap: int) -> None:
        positions = dict(reader.positions)
        while True:
            limit = limit_of(self._call, positions)
            taken = await reader.take(*limit, WAIT_MS)
            positions.update(taken.positions)
            gap += taken.gap
            for part in taken.parts:
                records = part.formed("json", _records)
                await self._send_text(f'{{"type":"records","gap":{gap},"records":{records}}}')
                gap = 0
            if gap:
                await self._say({"type": "records", "gap": gap, "records": []})
            elif not taken.parts:
                await asyncio.sleep(EARLY_S)
            gap = 0
            if limit is CATCHING_UP:
                await asyncio.sleep(0)  # neither taking nor sending need have waited for anything

    async def _hand_out(self) -> None:
        while deliveries := await self._inbox.take():
            await self._say({"type": "messages", "messages": [leased(delivery) for delivery in deliveries]})
        if self._inbox.error is not None:
            raise self._inbox.error

    async def _say(self, message: dict[str, Any]) -> None:
        await self._send_text(encode(message).decode())

    async def _send_text(self, text: str) -> None:
        if not self._left:
            with contextlib.suppress(OSError):  # the client has gone; listening ends too
                await self._send({"type": "websocket.send", "text": text})

    # -- from the client --------------------------------------------------------------------------------------

    async def listen(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._lost = message.get("code") == ABNORMAL_CLOSURE
                return
            text = message.get("text")
            body = message.get("bytes") or b"" if text is None else text.encode()
            await self._connection.room()
            while len(self._under_way) >= MAX_UNDER_WAY:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            await self._take(body)

    async def _take(self, body: bytes) -> None:
        try:
            request: Any = from_json(body, Request)  # type: ignore[arg-type]
        except MalformedBody as error:
            await self._leave(error)
            return
        echo = {} if request.id is UNSET else {"id": request.id}
        try:
            answer = await self._begin(request)
        except (PenstockError, HttpError) as error:
            await self._say({"type": "error", "problem": problem_of(error), **echo})
            return
        # Carried through even when the client goes: what was begun is not taken back half-way.
        limits, size = self._connection.house.limits, len(body)
        limits.hold(self._connection, size)
        task = asyncio.create_task(self._answer(answer, echo))
        self._under_way.add(task)

        def done(task: "asyncio.Task[None]") -> None:
            self._under_way.discard(task)
            if not self._connection.disconnected:  # then all that it held is forgotten
                limits.release(self._connection, size)

        task.add_done_callback(done)

    async def _answer(self, answer: Coroutine[Any, Any, dict[str, Any]], echo: dict[str, Any]) -> None:
        try:
            said = await answer
        except (PenstockError, HttpError) as error:
            said = {"type": "error", "problem": problem_of(error)}
        if not self._connection.disconnected:
            await self._say({**said, **echo})

    async def _begin(self, request: Any) -> Coroutine[Any, Any, dict[str, Any]]:
        """Fix the order now; what is returned waits for the rest."""
        if isinstance(request, Ping):
            return _pong()
        if isinstance(request, Publish):
            target = await self._call.broker.gatherer.target(self._call.principal, self._call["topic"])
            producer, sequence = identity(request.producer, request.sequence, None)
            messages = list(map(outgoing, request.records))
            return _published(target.publish(messages, acks=request.acks, producer=producer, sequence=sequence))
        if self._query.view != "queue":
            raise InvalidRequest("there is nothing to settle: ask for `view=queue`")
        receipts = [receipt_of(text) for text in request.receipts]
        settled = self._call.broker.queues.settle(
            self._call.principal,
            self._call["topic"],
            self._query.queue,
            OUTCOMES[type(request)],
            receipts,
            delay_ms=request.delay_ms,
            lease_ms=request.lease_ms,
        )
        return _settled(request.receipts, settled)


def _records(part: Messages) -> str:
    return encode(records_out(part)).decode()


async def _pong() -> dict[str, Any]:
    return {"type": "pong"}


async def _published(placed: "asyncio.Future[Any]") -> dict[str, Any]:
    return {"type": "published", "offsets": [OffsetInfo(*each) for each in await placed]}


async def _settled(receipts: list[str], settled: "asyncio.Future[Any]") -> dict[str, Any]:
    return {"type": "settled", "results": results_of(receipts, await settled)}
