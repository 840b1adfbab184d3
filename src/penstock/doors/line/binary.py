"""One connection that speaks the binary protocol."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.doors.line.door import LineDoor


class BinaryConnection(asyncio.Protocol):
    def __init__(self, door: "LineDoor", transport: asyncio.Transport, first_bytes: bytes) -> None:
        self._door, self._transport = door, transport
        transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.listener.gone(self)

    def idle(self) -> bool:
        return True

    def stop_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        self._transport.abort()
