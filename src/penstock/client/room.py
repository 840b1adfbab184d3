"""Room for what is on its way: taken before a message goes in, given back when it is acknowledged or has failed.

Whoever finds no room waits in turn, so that back-pressure changes no order. What is larger than all the room there is
goes in when nothing else is there.
"""

import asyncio
from collections import deque

from penstock.client.errors import ClientClosed


class Room:
    __slots__ = ("_closed", "_emptied", "_waiting", "max_bytes", "taken_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.taken_bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._emptied: list[asyncio.Future[None]] = []
        self._closed = False

    def take(self, size_bytes: int) -> bool:
        """Take it if it is there and nobody waits for it."""
        if self._waiting or not self._fits(size_bytes):
            return False
        self.taken_bytes += size_bytes
        return True

    async def wait(self, size_bytes: int) -> None:
        """Wait, in turn, until there is room, and take it."""
        if self._closed:
            raise ClientClosed("this client is closed")
        if self.take(size_bytes):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, size_bytes))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._waiting = deque(entry for entry in self._waiting if entry[0] is not waiter)
                self._let_in()
            elif waiter.exception() is None:
                self.give_back(size_bytes)  # it was given room, and does not use it
            raise

    def give_back(self, size_bytes: int) -> None:
        self.taken_bytes -= size_bytes
        if self._waiting:
            self._let_in()
        if self.taken_bytes == 0 and self._emptied:
            emptied, self._emptied = self._emptied, []
            for waiter in emptied:
                if not waiter.done():
                    waiter.set_result(None)

    async def emptied(self) -> None:
        """Return when all of it was given back."""
        if self.taken_bytes:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._emptied.append(waiter)
            await waiter

    def close(self) -> None:
        """Nobody comes in any more."""
        self._closed = True
        while self._waiting:
            waiter, _ = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(ClientClosed("this client was closed"))

    def _fits(self, size_bytes: int) -> bool:
        return self.taken_bytes == 0 or self.taken_bytes + size_bytes <= self.max_bytes

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            waiter, size_bytes = self._waiting.popleft()
            if not waiter.done():
                self.taken_bytes += size_bytes
                waiter.set_result(None)
