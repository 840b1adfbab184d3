"""One connection that speaks the binary protocol: frames in, replies and pushes out.

    received frame -> begun (decoded, handler called) in order, one after another
                   -> answered whenever its handler is done, under its correlation id
    replies and pushes of one tick leave in one write

Bounds: requests under way and their bytes per connection, their bytes over all connections (Limits), subscriptions per
connection, and what waits to be written. While a client does not take what it gets, no fetch of it reads, nothing is
pushed to it, and answers that it did not take count as requests under way. Other requests go on, so that a client which
writes much before it reads does not wait for us while we wait for it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from penstock.doors.line import (
    binary_groups,
    binary_pipelines,
    binary_publish,
    binary_push,
    binary_queues,
    binary_read,
    binary_routers,
    binary_session,
    binary_steps,
    binary_topics,
    binary_views,
)
from penstock.doors.line.binary_api import HANDLERS, LATER, MALFORMED, Call, failure_of
from penstock.doors.line.binary_outlet import Outlet
from penstock.doors.line.text_subscriptions import keep_alive
from penstock.model.errors import InvalidRequest, LimitReached, UnsupportedVersion
from penstock.security.principal import ANONYMOUS, Principal
from penstock.wire.native.framing import Malformed, Receiver, decode_request, encode, split
from penstock.wire.native.messages import Failure, Hello, Message
from penstock.wire.receiver import Buffer

if TYPE_CHECKING:
    from penstock.doors.line.door import LineDoor

# Importing these modules is what registers their handlers.
HANDLER_MODULES = (
    binary_groups, binary_pipelines, binary_publish, binary_push, binary_queues, binary_read, binary_routers,
    binary_session, binary_steps, binary_topics, binary_views,
)  # fmt: skip

_log = logging.getLogger(__name__)

MAX_REQUESTS_UNDER_WAY = 1024
MAX_HELD_BYTES = 16 << 20
MAX_SUBSCRIPTIONS = 256
MAX_UNSENT_BYTES = 64 << 20  # replies and deliveries that were on their way when the client stopped reading
LAST_WORDS_S = 5.0  # for a refused client to take what it asked for before, and the reason why


class Subscription(Protocol):
    """What a connection knows of something that pushes to it."""

    def add_credit(self, credit: int) -> None: ...

    def room_changed(self, has_room: bool) -> None:
        """The client takes what it gets again, or has stopped to."""
        ...

    def close(self, *, lost: bool = False) -> None:
        """`lost`: the client did not leave, its connection broke."""
        ...


class BinaryConnection(asyncio.BufferedProtocol):
    def __init__(self, door: "LineDoor", transport: asyncio.Transport, first_bytes: bytes) -> None:
        self._door = door
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self.broker = door.broker
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        self.principal = Principal(ANONYMOUS.name, self._host)
        self.max_frame_bytes = door.max_request_bytes
        self.welcomed = False
        self.closed = False
        self.subscriptions: dict[int, Subscription] = {}
        self.outlet = Outlet(transport, self._room_changed, self._tick_over)
        self.turn = asyncio.Lock()  # held while a fetch reads: one answer at a time is in memory

        self._receiver = Receiver(door.max_request_bytes)
        self._preface_came = False
        self._frames: deque[memoryview] = deque()
        self._under_way = 0
        self._waiting: set[asyncio.Task[object]] = set()  # requests that change nothing and may wait for long
        self._beside: set[asyncio.Task[object]] = set()
        self._unfinished_bytes = 0  # memory set aside for a request that is still arriving
        self._answered_bytes = 0  # of requests answered in this tick
        self._unsent = 0  # answers that wait to be written
        self._reading = False
        self._draining = False
        self._last_words: bytearray | None = None  # of a connection that is to be closed
        self._closing: asyncio.TimerHandle | None = None
        self._worker: asyncio.Task[None] | None = None

        # A transport learns how its protocol is fed when it begins to read, so it begins anew once we are the protocol.
        transport.pause_reading()
        self._loop.call_soon(self._take_over, first_bytes)

    # -- the transport's side ---------------------------------------------------------------------------------

    def _take_over(self, first_bytes: bytes) -> None:
        rest = memoryview(first_bytes)
        while len(rest) and self._last_words is None:
            room = self._receiver.get_buffer()
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            rest = rest[size:]
            self.buffer_updated(size)
        self.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        receiver, frames = self._receiver, self._frames
        receiver.received(nbytes)
        new_bytes = 0
        try:
            if not self._preface_came:
                self._preface_came = receiver.preface()
                if not self._preface_came:
                    return
            while (frame := receiver.next_frame()) is not None:
                frames.append(frame)
                new_bytes += len(frame)
        except Malformed as error:
            self._refuse(0, error)
        unfinished_bytes = receiver.unfinished_bytes
        new_bytes += unfinished_bytes - self._unfinished_bytes
        self._unfinished_bytes = unfinished_bytes
        if new_bytes:
            self._door.limits.hold(self, new_bytes)
        if frames:
            self._door.listener.heard(self)
            self._go_on()
        if self._reading and self._is_full():
            self._pause()

    def eof_received(self) -> bool:
        return False  # a client that closed its side takes no replies any more

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._door.listener.gone(self)
        self._frames.clear()
        self.outlet.close()
        self._leave_all(lost=True)
        self._send_home()
        if self._closing is not None:
            self._closing.cancel()

    def pause_writing(self) -> None:
        self.outlet.pause()

    def resume_writing(self) -> None:
        self.outlet.resume()

    # -- the listener's side ----------------------------------------------------------------------------------

    def idle(self) -> bool:
        # A subscriber may be quiet for long; one that wants to know whether we are still there sends a Ping.
        busy = self._frames or self._under_way or self.outlet.waiting_bytes
        return not busy and (self._draining or not self.subscriptions)

    def stop_reading(self) -> None:
        self._draining = True
        self._pause()
        self._leave_all()

    def resume_reading(self) -> None:
        if not (self._draining or self._reading or self._transport.is_closing() or self._is_full()):
            self._reading = True
            self._transport.resume_reading()

    def abort(self) -> None:
        self._transport.abort()

    # -- subscriptions ----------------------------------------------------------------------------------------

    def check_new(self, subscription: int) -> None:
        """Whether a request with this correlation id may subscribe."""
        if subscription in self.subscriptions:
            raise InvalidRequest(f"{subscription} is the correlation id of a subscription already")
        if len(self.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise LimitReached(f"a connection has at most {MAX_SUBSCRIPTIONS} subscriptions")

    def add(self, correlation_id: int, subscription: Subscription) -> None:
        """Its client may be gone by now, or the server about to stop."""
        if self.closed or self._draining:
            subscription.close()
            return
        if not self.subscriptions:
            keep_alive(self._transport.get_extra_info("socket"))
        self.subscriptions[correlation_id] = subscription
        if not self.outlet.has_room:
            subscription.room_changed(False)

    def ended(self, subscription: int, error: BaseException) -> None:
        """Nothing more will be pushed under this id."""
        if self.subscriptions.pop(subscription, None) is not None:
            self.push(subscription, failure_of(error))

    def _send_home(self) -> None:
        """What was begun is carried through: cancelling it half-way could leave a fact recorded and not shown. Only
        those who wait are sent home, in the next tick: a task that never ran could not clean up after itself."""
        for task in self._waiting:
            self._loop.call_soon(task.cancel)

    def _leave_all(self, *, lost: bool = False) -> None:
        subscriptions, self.subscriptions = self.subscriptions, {}
        for subscription in subscriptions.values():
            subscription.close(lost=lost)

    # -- writing ----------------------------------------------------------------------------------------------

    def push(self, subscription: int, message: Message) -> None:
        self._send((encode(subscription, message),))

    def answered(self, call: Call, buffers: Sequence[Buffer]) -> None:
        self._under_way -= 1
        self._unsent += 1
        self._answered_bytes += call.size_bytes
        self._send(buffers)

    def _send(self, buffers: Sequence[Buffer]) -> None:
        self.outlet.send(buffers)
        if self.outlet.waiting_bytes > MAX_UNSENT_BYTES:
            _log.warning("line: closing the connection of %s: it does not read what it asked for", self._host)
            self.abort()

    def _room_changed(self, has_room: bool) -> None:
        for subscription in list(self.subscriptions.values()):
            subscription.room_changed(has_room)

    def _tick_over(self) -> None:
        """What this tick brought is written, or waits: go on with what waited for that."""
        if not self.outlet.waiting_bytes:
            self._unsent = 0
        if self._answered_bytes:
            self._door.limits.release(self, self._answered_bytes)
            self._answered_bytes = 0
        if not self._reading:
            self.resume_reading()
        self._go_on()
        if self._last_words is not None:
            self._say_last_words()
        if self.idle():
            self._door.listener.settled()

    # -- requests ---------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        limits = self._door.limits
        if limits.exhausted:
            limits.wait(self)
            return True
        # Of whole requests: one that is still arriving may be larger than all others together.
        held_bytes = limits.held_by(self) - self._unfinished_bytes
        under_way = self._under_way + self._unsent + len(self._frames)
        return under_way >= MAX_REQUESTS_UNDER_WAY or held_bytes >= MAX_HELD_BYTES or self.outlet.is_stuffed

    def _pause(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _go_on(self) -> None:
        if self._frames and self._worker is None and not self.outlet.is_stuffed and not self.closed:
            self._worker = self._loop.create_task(self._work())

    async def _work(self) -> None:
        """Begin one request after another, as long as there are any."""
        frames = self._frames
        try:
            while frames and not self.outlet.is_stuffed:
                await self._begin(frames.popleft())
        finally:
            self._worker = None

    async def _begin(self, frame: memoryview) -> None:
        call: Call | None = None
        try:
            kind, correlation_id, body = split(frame)
            call = Call(self, correlation_id, len(frame))
            self._under_way += 1
            served = HANDLERS.get(kind)
            if served is None:
                raise UnsupportedVersion(f"this server knows no request of kind {kind:#04x}")
            if not self.welcomed and kind != Hello.KIND:
                raise Malformed("the first request must be Hello")
            request = decode_request(kind, body)
            result = await served.handler(call, request)
        except Malformed as error:
            self._frames.clear()
            if call is None:
                self._refuse(0, error)
            else:
                self._refuse(call.correlation_id, error)
                call.reply(None)
        except Exception as error:
            assert call is not None
            call.fail(error)
        else:
            if result is None or isinstance(result, Message):
                call.reply(result)
            elif result is not LATER:
                tasks = self._waiting if served.waits else self._beside
                await self._set_aside(call, cast(Coroutine[Any, Any, object], result), tasks)

    async def _set_aside(
        self, call: Call, coroutine: Coroutine[Any, Any, object], tasks: set[asyncio.Task[object]]
    ) -> None:
        task = self._loop.create_task(coroutine)
        tasks.add(task)
        waits = tasks is self._waiting
        if waits and (self.closed or self._last_words is not None):
            self._loop.call_soon(task.cancel)

        def done(task: asyncio.Task[object]) -> None:
            tasks.discard(task)
            if task.cancelled():
                call.reply(None)
                return
            error = task.exception()
            if error is not None:
                call.fail(error)
                return
            result = task.result()
            if result is not LATER:
                call.reply(cast(Message | None, result))

        task.add_done_callback(done)
        if not waits:
            await asyncio.sleep(0)  # it begins before the next request does

    def _refuse(self, correlation_id: int, error: Malformed) -> None:
        """Nothing that follows could be understood: answer what was begun before, say what is wrong, and close."""
        if self._last_words is None:
            _log.warning("line: closing the connection of %s: %s", self._host, error)
            self._last_words = encode(correlation_id, Failure(MALFORMED, str(error)))
            self._closing = self._loop.call_later(LAST_WORDS_S, self.abort)
            self.stop_reading()
            self._send_home()
            self._send(())

    def _say_last_words(self) -> None:
        if not (self._under_way or self._frames or self.outlet.waiting_bytes or self._transport.is_closing()):
            assert self._last_words is not None
            self._transport.write(self._last_words)
            self._transport.close()
