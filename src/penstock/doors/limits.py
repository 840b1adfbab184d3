"""The memory that requests may take, over all connections of all doors: a flood at one door cannot starve another.

A connection holds the bytes of its requests from the moment they arrive until they are answered, and of a request that
is still arriving the memory set aside for it. While all that is more than the bound, nobody is read from: answers give
room again. If none comes for STUCK_S, somebody holds memory without an end (a request that never arrives whole, an
answer that is not read, a wait for others): then the connection that holds the most is closed, so the rest goes on.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Protocol

_log = logging.getLogger(__name__)

STUCK_S = 5.0


class Connection(Protocol):
    """A connection as listeners and limits see it."""

    def idle(self) -> bool:
        """Whether every request received was answered."""
        ...

    def stop_reading(self) -> None: ...

    def resume_reading(self) -> None:
        """Called when the memory of requests under way has room again."""
        ...

    def abort(self) -> None: ...


@dataclass(slots=True)
class Limits:
    """Bounds over all connections of a server, and how much of them is used."""

    max_connections: int = 10_000
    max_held_bytes: int = 256 << 20
    stuck_s: float = STUCK_S
    connections: int = 0
    held_bytes: int = 0
    _held_by: dict[Connection, int] = field(default_factory=dict)
    _waiting: dict[Connection, None] = field(default_factory=dict)
    _releases: int = 0
    _watching: bool = False

    def hold(self, connection: Connection, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self._held_by[connection] = self._held_by.get(connection, 0) + size_bytes

    def release(self, connection: Connection, size_bytes: int) -> None:
        held = self._held_by.get(connection, 0) - size_bytes
        if held > 0:
            self._held_by[connection] = held
        else:
            self._held_by.pop(connection, None)
        self._give_back(size_bytes)

    def forget(self, connection: Connection) -> None:
        """The connection is gone, and all that it held."""
        self._waiting.pop(connection, None)
        self._give_back(self._held_by.pop(connection, 0))

    def held_by(self, connection: Connection) -> int:
        return self._held_by.get(connection, 0)

    @property
    def exhausted(self) -> bool:
        return self.held_bytes >= self.max_held_bytes

    def wait(self, connection: Connection) -> None:
        """Have this connection resumed when there is room; it has stopped reading."""
        self._waiting[connection] = None
        if not self._watching:
            self._watch()

    def _give_back(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        self._releases += 1
        if self._waiting and not self.exhausted:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.resume_reading()

    def _watch(self) -> None:
        self._watching = True
        asyncio.get_running_loop().call_later(self.stuck_s, self._look, self._releases)

    def _look(self, releases: int) -> None:
        self._watching = False
        if not self.exhausted:
            return
        if releases == self._releases and self._held_by:
            largest = max(self._held_by, key=self._held_by.__getitem__)
            _log.warning(
                "requests under way hold %d bytes (max_pending_bytes) and nothing moves: closing the connection that "
                "holds most of them, %d",
                self.held_bytes,
                self._held_by[largest],
            )
            largest.abort()
        self._watch()
