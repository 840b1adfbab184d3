"""What all connections of the HTTP door share: its bounds in time, and who is there."""

import time
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from penstock.doors.http.deadlines import Deadlines
from penstock.doors.http.mbroker import Subscribers
from penstock.doors.http.streams import Streams
from penstock.doors.limits import Limits
from penstock.doors.listener import Listener

HEAD_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 60.0
STALL_TIMEOUT_S = 60.0


@dataclass(slots=True, eq=False)
class House:
    config: Config
    listener: Listener
    limits: Limits
    max_body_bytes: int
    state: ServerState = field(default_factory=ServerState)
    streams: Streams = field(default_factory=Streams)
    subscribers: Subscribers = field(default_factory=Subscribers)
    draining: bool = False
    heads: Deadlines[Any] = field(init=False)
    bodies: Deadlines[Any] = field(init=False)
    stalls: Deadlines[Any] = field(init=False)
    _second: int = 0

    def __post_init__(self) -> None:
        self.heads = Deadlines(HEAD_TIMEOUT_S, lambda connection: connection.head_overdue())
        self.bodies = Deadlines(BODY_TIMEOUT_S, lambda connection: connection.body_overdue())
        self.stalls = Deadlines(STALL_TIMEOUT_S, self._stalled)

    def default_headers(self) -> list[tuple[bytes, bytes]]:
        now_s = int(time.time())
        if now_s != self._second:
            self._second = now_s
            self.state.default_headers = [(b"date", formatdate(now_s, usegmt=True).encode())]
        return self.state.default_headers

    def writing_paused(self, connection: Any) -> None:
        """Its client does not read as fast as we write."""
        connection.unread_bytes = connection.transport.get_write_buffer_size()
        self.stalls.begin(connection)

    def _stalled(self, connection: Any) -> None:
        """Slow is fine; a client that took nothing at all in all that time is gone, or means harm."""
        if connection.transport.get_write_buffer_size() < connection.unread_bytes:
            self.writing_paused(connection)
        else:
            connection.abort()

    def stop(self) -> None:
        for timed in (self.heads, self.bodies, self.stalls, self.streams):
            timed.stop()
