"""HTTP/1.1 connections: uvicorn's parser and answers, and the bounds that it leaves to others.

    a head       at most MAX_HEAD_BYTES, whole within HEAD_TIMEOUT_S
    a body       at most max_body_bytes, refused before it is read where its length is told; whole within
                 BODY_TIMEOUT_S; its bytes are held in the server's limits until it is answered
    an answer    a client that takes nothing of it for STALL_TIMEOUT_S is cut off
    silence      the listener closes connections that ask for nothing

A request is begun when it has arrived whole, so nobody waits inside a handler for a body. Who only reads is sent home
when its client goes or the server drains; who changes something is carried through.
"""

import asyncio
from collections import deque
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.doors.http.cycle import Cycle, farewell
from penstock.doors.http.errors import BodyTooLarge, HeadTooLarge, HttpError, MalformedRequest, RequestTimedOut
from penstock.doors.http.house import BODY_TIMEOUT_S, HEAD_TIMEOUT_S, House
from penstock.doors.http.socket_server import SocketConnection
from penstock.security.principal import ANONYMOUS, Principal

MAX_HEAD_BYTES = 64 << 10
MAX_FRAMING = 8  # bytes on the wire for one of a body: chunks of a single byte take six
WRITE_BUFFER_BYTES = 256 << 10
MAX_PIPELINED = 64  # requests that arrived and wait for their turn; beyond it nothing is read
LINGER_S = 1.0  # a client that still sends when it is refused would get a reset instead of the answer

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(HttpToolsProtocol):
    def __init__(self, house: House) -> None:
        super().__init__(house.config, house.state, {}, asyncio.get_running_loop())
        self.house = house
        self.ws_protocol_class = SocketConnection
        self.principal: Principal = ANONYMOUS
        self.unread_bytes = 0  # what the client had not taken when we last looked
        self.cycle: Cycle | None = None  # type: ignore[assignment]  # the one being answered
        self._arriving: Cycle | None = None
        self._waiting: deque[Cycle] = deque()
        self._in_head = True
        self._head_bytes = 0
        self._chunk_bytes = 0
        self._field_bytes = 0
        self._body_bytes = 0
        self._framed_bytes = 0
        self._length: int | None = None
        self._refusal: HttpError | None = None
        self._draining = False

    # -- the transport's side ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if not self.house.listener.admit(self, transport):
            transport.abort()
            self.transport = transport
            return
        super().connection_made(transport)
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self.principal = Principal(ANONYMOUS.name, self.client[0] if self.client else "")
        self.house.heads.begin(self)

    def connection_lost(self, exc: Exception | None) -> None:
        house = self.house
        house.listener.gone(self)
        for deadlines in (house.heads, house.bodies, house.stalls):
            deadlines.end(self)
        self._waiting.clear()
        self._arriving = None
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._send_home(cycle)
        if self.flow is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self._draining:
            return
        self._chunk_bytes = len(data)
        arriving = self._arriving
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.scope["method"] == "CONNECT":
                self._refuse(MalformedRequest("this server is not a proxy"))
            elif self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._refuse(MalformedRequest(f"this is not HTTP/1.1: {error}"))
            return
        if self._in_head:
            self._head_bytes += len(data)
            self.house.heads.begin(self)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_large_head()
        elif self._arriving is not None:
            self.house.bodies.begin(self)
            self._breathe()
            if self._arriving is arriving:
                self._framed_bytes += len(data)
                if self._framed_bytes > MAX_FRAMING * self._body_bytes + MAX_HEAD_BYTES:
                    self._refuse_large_head()  # an endless trailer, or frames of nothing

    def pause_writing(self) -> None:
        self.house.writing_paused(self)
        super().pause_writing()

    def resume_writing(self) -> None:
        self.house.stalls.end(self)
        super().resume_writing()

    # -- the parser's side ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._field_bytes = 0
        self._body_bytes = 0
        self._framed_bytes = 0
        self._length = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer, which nobody reads
        super().on_header(name, value)
        self._field_bytes += len(name) + len(value)
        if len(name) == 14 and name.lower() == b"content-length":
            self._length = int(value)

    def on_headers_complete(self) -> None:
        house = self.house
        self._in_head = False
        house.heads.end(self)
        house.listener.heard(self)
        parser, scope = self.parser, self.scope
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version = parser.get_http_version()
        if parser.should_upgrade():
            return  # the parser ends here, see data_received
        url = httptools.parse_url(self.url)
        scope["raw_path"] = url.path
        path = url.path.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["query_string"] = url.query or b""
        scope["state"]["connection"] = self
        self._arriving = Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=house.default_headers(),
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if self._field_bytes + len(self.url) > MAX_HEAD_BYTES:
            self._refuse_large_head()
        elif self._length is not None and self._length > house.max_body_bytes:
            self._refuse_large_body()
        elif self.expect_100_continue and self.cycle is None:
            self.transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        arriving = self._arriving
        if arriving is None or self._refusal is not None:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self.house.max_body_bytes:
            self._refuse_large_body()
            return
        arriving.body += body
        arriving.held_bytes += len(body)
        self.house.limits.hold(self, len(body))

    def on_message_complete(self) -> None:
        arriving, self._arriving = self._arriving, None
        self._in_head = False  # until the next one begins: silence between requests is the listener's matter
        self._head_bytes = -self._chunk_bytes  # the chunk that ends a request is not the head of the next
        self.house.bodies.end(self)
        if arriving is None or self._refusal is not None:
            return
        arriving.more_body = False
        arriving.message_event.set()
        if self.cycle is None:
            self._begin(arriving)
        else:
            self._waiting.append(arriving)
            if len(self._waiting) >= MAX_PIPELINED:
                self.flow.pause_reading()

    # -- requests ---------------------------------------------------------------------------------------------

    def _begin(self, cycle: Cycle) -> None:
        self.cycle = cycle
        cycle.task = task = self.loop.create_task(cycle.run_asgi(self.app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_response_complete(self) -> None:
        cycle, self.cycle = self.cycle, None
        house = self.house
        if cycle is not None and cycle.held_bytes:
            house.limits.release(self, cycle.held_bytes)
        if self.transport.is_closing():
            house.listener.settled()
            return
        if self._waiting:
            self._begin(self._waiting.popleft())
        elif self._refusal is not None:
            self._write_refusal(self._refusal)
        elif self._draining:
            self.transport.close()
        if not self._draining and len(self._waiting) < MAX_PIPELINED:
            self.flow.resume_reading()
        if self.cycle is None:
            house.listener.settled()

    def _send_home(self, cycle: Cycle) -> None:
        """Cancel who only reads, in the next tick: a task that never ran could not clean up after itself."""
        if cycle.reader and cycle.task is not None:
            self.loop.call_soon(cycle.task.cancel)

    def read_only(self) -> None:
        """The request being answered changes nothing: it ends with its client, and when the server drains."""
        if self.cycle is not None:
            self.cycle.reader = True
            if self._draining or self.transport.is_closing():
                self._send_home(self.cycle)

    def take_body(self) -> bytes:
        assert self.cycle is not None
        body, self.cycle.body = bytes(self.cycle.body), bytearray()
        return body

    def _breathe(self) -> None:
        """While the requests of all doors fill their memory, none is read from."""
        if self.house.limits.exhausted:
            self.flow.pause_reading()
            self.house.limits.wait(self)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """RFC 9110 §7.8: a server may answer as if nobody had asked to upgrade. The parser must not see it, though."""
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(self._head_without(b"upgrade", b"connection") + rest)

    def _head_without(self, *names: bytes) -> bytes:
        lines = [self.scope["method"].encode(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name not in names:
                lines += [name, b": ", value, b"\r\n"]
        return b"".join([*lines, b"\r\n"])

    # -- refusing ---------------------------------------------------------------------------------------------

    def head_overdue(self) -> None:
        if self._head_bytes:
            self._refuse(RequestTimedOut(f"the head of the request did not arrive within {HEAD_TIMEOUT_S:g} s"))
        else:
            self.transport.close()  # it never asked for anything

    def body_overdue(self) -> None:
        self._refuse(RequestTimedOut(f"the body of the request did not arrive within {BODY_TIMEOUT_S:g} s"))

    def _refuse_large_head(self) -> None:
        self._refuse(HeadTooLarge(f"the head of a request may have {MAX_HEAD_BYTES} bytes"))

    def _refuse_large_body(self) -> None:
        bound = self.house.max_body_bytes
        self._refuse(BodyTooLarge(f"the body of a request may have {bound} bytes (max_body_bytes)"))

    def _refuse(self, error: HttpError) -> None:
        """Answer what came before, then say what is wrong, and close: what follows cannot be understood."""
        if self._refusal is not None:
            return
        self._refusal = error
        self._arriving = None
        house = self.house
        house.heads.end(self)
        house.bodies.end(self)
        if self.cycle is None and not self.transport.is_closing():
            self._write_refusal(error)

    def _write_refusal(self, error: HttpError) -> None:
        """And give the client a moment to read it before what it still sends is refused."""
        self.transport.write(farewell(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.house.writing_paused(self)
        self.loop.call_later(LINGER_S, self.transport.close)

    # -- the listener's side ----------------------------------------------------------------------------------

    def idle(self) -> bool:
        return self.cycle is None and not self._waiting

    def stop_reading(self) -> None:
        self._draining = True
        self._arriving = None
        if self.idle():
            self.transport.close()
            return
        self.flow.pause_reading()
        for cycle in (self.cycle, *self._waiting):
            if cycle is not None:
                cycle.keep_alive = False
        self._waiting.clear()
        if self.cycle is not None:
            self._send_home(self.cycle)

    def resume_reading(self) -> None:
        if not self._draining and not self.transport.is_closing():
            self.flow.resume_reading()
            self._breathe()

    def abort(self) -> None:
        self.transport.abort()

    def handle_websocket_upgrade(self) -> None:
        if not self.idle():
            self._refuse(MalformedRequest("a WebSocket handshake must wait for the answers to earlier requests"))
            return
        self.house.listener.gone(self)
        self.house.heads.end(self)
        self.connections.discard(self)
        protocol = SocketConnection(self.house)
        protocol.connection_made(self.transport)
        protocol.data_received(self._head_without())
        self.transport.set_protocol(protocol)
