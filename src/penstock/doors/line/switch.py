"""A connection that has said nothing yet. Its first byte decides who goes on with it.

    0xF0        the binary protocol's preface: BinaryConnection
    any other   a line of text: TextConnection

Both are made with what was received so far, take the listener's place of this one, and become the transport's protocol
right after: `connection_made` is not called on them.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from penstock.doors.line.binary import BinaryConnection
from penstock.doors.line.text import TextConnection

if TYPE_CHECKING:
    from penstock.doors.line.door import LineDoor

BINARY_FIRST_BYTE = 0xF0  # never begins a line of text that is UTF-8 and a command


class NewConnection(asyncio.Protocol):
    def __init__(self, door: "LineDoor") -> None:
        self._door = door
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._door.listener.admit(self, transport):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        speaks = BinaryConnection if data[0] == BINARY_FIRST_BYTE else TextConnection
        chosen = speaks(self._door, self._transport, data)
        self._door.listener.replace(self, chosen)
        self._transport.set_protocol(chosen)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.listener.gone(self)

    # -- the listener's side ----------------------------------------------------------------------------------

    def idle(self) -> bool:
        return True

    def stop_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
