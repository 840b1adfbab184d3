"""WebSocket connections, counted and bounded as all others are."""

import asyncio
from typing import TYPE_CHECKING

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from penstock.doors.http.streams import bound_send_buffer
from penstock.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from penstock.doors.http.house import House

WRITE_BUFFER_BYTES = 256 << 10


class SocketConnection(WebSocketsSansIOProtocol):
    def __init__(self, house: "House") -> None:
        super().__init__(house.config, house.state, {"connection": self}, asyncio.get_running_loop())
        self.house = house
        self.principal: Principal = ANONYMOUS
        self.unread_bytes = 0  # what the client had not taken when we last looked
        self._draining = False
        self._room: asyncio.Future[None] | None = None

    # -- the transport's side ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.default_headers = self.house.default_headers()
        self.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        bound_send_buffer(self.transport)
        self.principal = Principal(ANONYMOUS.name, self.client[0] if self.client else "")
        if not self.house.listener.admit(self, transport):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.house.listener.gone(self)
        self.house.stalls.end(self)
        self.resume_reading()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.house.listener.heard(self)
        super().data_received(data)

    def pause_writing(self) -> None:
        self.house.writing_paused(self)
        super().pause_writing()

    def resume_writing(self) -> None:
        self.house.stalls.end(self)
        super().resume_writing()

    # -- the handler's side -----------------------------------------------------------------------------------

    async def room(self) -> None:
        """Wait while the requests of all doors fill their memory."""
        if self.house.limits.exhausted and not self.disconnected:
            self._room = asyncio.get_running_loop().create_future()
            self.house.limits.wait(self)
            await self._room

    # -- the listener's side ----------------------------------------------------------------------------------

    def idle(self) -> bool:
        return self._draining  # else it waits for our messages

    def stop_reading(self) -> None:
        self._draining = True
        self.shutdown()

    def resume_reading(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def abort(self) -> None:
        self.transport.abort()
