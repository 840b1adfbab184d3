"""A stream of server-sent events: one answer that goes on until its client or the server goes.

What is written is shared between streams where it is the same, and a stream whose client does not read is waited for,
so what piles up is bounded by the transport's buffer. One timer keeps all idle streams alive.
"""

import asyncio
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.doors.http.call import Header

if TYPE_CHECKING:
    from penstock.doors.http.server import HttpConnection

EVENTS = "text/event-stream"
# The system would buffer megabytes for each client that does not read, and a gap would be noticed that much later.
SEND_BUFFER_BYTES = 256 << 10
KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": still here\n\n"
RETRY = b"retry: 1000\n\n"


class Streams:
    """All streams of a door."""

    def __init__(self) -> None:
        self._open: dict[EventStream, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: "EventStream") -> None:
        self._open[stream] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._keep_alive)

    def remove(self, stream: "EventStream") -> None:
        self._open.pop(stream, None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _keep_alive(self) -> None:
        self._timer = None
        for stream in self._open:
            stream.keep_alive()
        if self._open:
            self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._keep_alive)


class EventStream:
    """`begin`, then `write`, then `end` whatever happens."""

    __slots__ = ("_chunked", "_connection", "_cycle", "_quiet", "_transport")

    def __init__(self, connection: "HttpConnection") -> None:
        cycle = connection.cycle
        assert cycle is not None
        self._connection = connection
        self._cycle = cycle
        self._transport = connection.transport
        self._chunked = cycle.scope["http_version"] == "1.1"
        self._quiet = False

    def begin(self, headers: Iterable[Header] = ()) -> None:
        cycle = self._cycle
        cycle.response_started = True
        cycle.keep_alive = False
        lines = [b"HTTP/1.1 200 OK\r\n"]
        lines += [b"%s: %s\r\n" % header for header in cycle.default_headers]
        lines.append(b"content-type: text/event-stream; charset=utf-8\r\n")
        # No proxy in between may keep events back, or keep them.
        lines.append(b"cache-control: no-store\r\nx-accel-buffering: no\r\n")
        lines.append(b"connection: close\r\n")
        lines += [b"%s: %s\r\n" % header for header in headers]
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        bound_send_buffer(self._transport)
        self._transport.write(b"".join(lines))
        self.write(RETRY)
        self._connection.house.streams.add(self)

    @property
    def closed(self) -> bool:
        return self._cycle.disconnected or self._transport.is_closing()

    @property
    def chunked(self) -> bool:
        return self._chunked

    def write(self, events: bytes) -> None:
        self.write_framed(framed(events) if self._chunked else events)

    def write_framed(self, chunk: bytes) -> None:
        """Bytes that are framed as this stream wants them, and so may be shared."""
        self._quiet = False
        if not self.closed:
            self._transport.write(chunk)

    async def written(self) -> None:
        """Wait while the client does not read."""
        flow = self._connection.flow
        while flow.write_paused and not self.closed:
            await flow.drain()

    def keep_alive(self) -> None:
        if self._quiet and not self._connection.flow.write_paused:
            self.write(KEEP_ALIVE)
        self._quiet = True

    def end(self) -> None:
        self._connection.house.streams.remove(self)
        cycle = self._cycle
        if not cycle.response_complete:
            cycle.response_complete = True
            if not self.closed:
                if self._chunked:
                    self._transport.write(b"0\r\n\r\n")
                self._transport.close()
            self._connection.on_response_complete()


def bound_send_buffer(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def framed(events: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(events), events)
