"""What leaves a binary connection: all of one tick in one write, and whether its client takes what it gets."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from penstock.wire.receiver import Buffer

WRITE_BUFFER_BYTES = 1 << 20
STUFFED_BYTES = 8 << 20


class Outlet:
    """`room_changed` is told when there is room again or none any more, `flushed` after every tick's write."""

    def __init__(
        self, transport: asyncio.Transport, room_changed: Callable[[bool], None], flushed: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._tell_room = room_changed
        self._tell_flushed = flushed
        self._buffers: list[Buffer] = []
        self.waiting_bytes = 0  # not yet given to the transport
        self._is_due = False  # to be flushed at the end of this tick
        self._writable = True
        self._had_room = True
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)

    @property
    def has_room(self) -> bool:
        """Whether the client takes what it gets: only then more is fetched or pushed."""
        return self._writable and self.waiting_bytes < WRITE_BUFFER_BYTES

    @property
    def is_stuffed(self) -> bool:
        """Whether so much waits that nothing that adds to it should be begun."""
        return self.waiting_bytes >= STUFFED_BYTES

    async def room(self) -> None:
        """Wait until there is room, or nobody to write to."""
        while not (self.has_room or self._closed):
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Write these at the end of the tick; with none of them, only tell then."""
        if self._closed:
            return
        self._buffers += buffers
        for buffer in buffers:
            self.waiting_bytes += len(buffer)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush_tick)
        if self._had_room and not self.has_room:
            self._look()

    def pause(self) -> None:
        """The transport has more than enough."""
        self._writable = False
        self._look()

    def resume(self) -> None:
        self._writable = True
        self._flush()

    def close(self) -> None:
        """Nobody is there to write to any more."""
        self._closed = True
        self._buffers.clear()
        while self._waiters:
            _wake(self._waiters.popleft())

    def _flush_tick(self) -> None:
        self._is_due = False
        self._flush()

    def _flush(self) -> None:
        if self._closed:
            return
        if self._writable and self._buffers and not self._transport.is_closing():
            buffers, self._buffers, self.waiting_bytes = self._buffers, [], 0
            if len(buffers) == 1:
                self._transport.write(buffers[0])
            else:
                self._transport.writelines(buffers)
        self._look()
        self._tell_flushed()

    def _look(self) -> None:
        has_room = self.has_room
        if has_room != self._had_room:
            self._had_room = has_room
            self._tell_room(has_room)
        while has_room and self._waiters:
            _wake(self._waiters.popleft())


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
