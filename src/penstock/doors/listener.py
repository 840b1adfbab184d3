"""Sockets: listening, counting connections, closing silent ones, draining."""

import asyncio
import logging
import socket
from collections.abc import Callable

from penstock.doors.limits import Connection, Limits

_log = logging.getLogger(__name__)

BACKLOG = 1024


class Listener:
    """One listening address with its open connections."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        limits: Limits,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        max_silence_s: float = 600.0,
    ) -> None:
        self.name = name
        self.host, self.port = host, port
        self.limits = limits
        self._make_protocol = make_protocol
        self._max_silence_s = max_silence_s
        self._server: asyncio.Server | None = None
        # With the time each was last heard of, longest silent first, so that one timer finds the silent ones.
        self.connections: dict[Connection, float] = {}
        self._silence_timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._refusing = False

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make_protocol, self.host, self.port, backlog=BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]

    def admit(self, connection: Connection, transport: asyncio.BaseTransport) -> bool:
        """Count a new connection in, or turn it away."""
        if self.limits.connections >= self.limits.max_connections:
            if not self._refusing:  # once per flood, not once per connection
                _log.warning(
                    "%s: %d connections are open (max_connections); refusing more", self.name, self.limits.connections
                )
            self._refusing = True
            return False
        self._refusing = False
        self.limits.connections += 1
        self.connections[connection] = asyncio.get_running_loop().time()
        if self._silence_timer is None:
            self._watch_silence()
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return True

    def heard(self, connection: Connection) -> None:
        """The connection said something."""
        if self.connections.pop(connection, None) is not None:
            self.connections[connection] = asyncio.get_running_loop().time()

    def _watch_silence(self) -> None:
        """Close what was silent for too long, then sleep until the next one could have been."""
        loop = asyncio.get_running_loop()
        self._silence_timer = None
        while self.connections:
            connection, heard = next(iter(self.connections.items()))
            if heard + self._max_silence_s > loop.time():
                self._silence_timer = loop.call_at(heard + self._max_silence_s, self._watch_silence)
                return
            if connection.idle():
                del self.connections[connection]
                self._left(connection)
                connection.abort()
            else:
                self.heard(connection)  # it waits for our answer

    def gone(self, connection: Connection) -> None:
        if self.connections.pop(connection, None) is not None:
            self._left(connection)

    def replace(self, connection: Connection, by: Connection) -> None:
        """The same socket in other hands."""
        if self.connections.pop(connection, None) is not None:
            self.connections[by] = asyncio.get_running_loop().time()

    def _left(self, connection: Connection) -> None:
        self.limits.connections -= 1
        self.limits.forget(connection)
        self._changed.set()

    def settled(self) -> None:
        """A connection answered everything it was asked; a drain may be waiting for that."""
        self._changed.set()

    async def drain(self, timeout_s: float) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.stop_reading()
        try:
            async with asyncio.timeout(timeout_s):
                while not all(connection.idle() for connection in self.connections):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            busy = sum(not connection.idle() for connection in self.connections)
            _log.warning("%s: %d connections still had requests under way after %g s", self.name, busy, timeout_s)

    async def close(self) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        for connection in list(self.connections):
            connection.abort()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
