"""One Kafka connection: frames in, replies out, in order.

    received frame -> begun (decoded, handler called) in order, one after another
                   -> finished whenever its handler's awaitable is
                   -> replied in order

Bounds: requests under way and their bytes per connection, their bytes over all connections (Limits), the transport's
write buffer (a client that does not read is not read from). One fetch at a time is begun, since each may hold
MAX_POLL_BYTES of reply.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Coroutine
from functools import partial
from types import SimpleNamespace as Struct
from typing import TYPE_CHECKING, Any, cast

from penstock.doors.kafka.api import HANDLERS, Call, Later, Reply, Served
from penstock.doors.kafka.metadata import versions_reply
from penstock.doors.kafka.produce import UnansweredFailure
from penstock.model.errors import UnsupportedVersion
from penstock.security.principal import ANONYMOUS, Principal
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.framing import Receiver
from penstock.wire.kafka.messages import RequestHeader, decode_header, decode_request, encode_response
from penstock.wire.kafka.reader import Malformed

if TYPE_CHECKING:
    from penstock.doors.kafka.door import KafkaDoor

_log = logging.getLogger(__name__)

MAX_REQUESTS_UNDER_WAY = 256
MAX_HELD_BYTES = 16 << 20
WRITE_BUFFER_BYTES = 1 << 20
UNSUPPORTED_VERSION = 35


class Exchange:
    """One request until it is replied to."""

    __slots__ = ("header", "reply", "size_bytes", "task")

    def __init__(self, header: RequestHeader, size_bytes: int) -> None:
        self.header = header
        self.size_bytes = size_bytes
        self.reply: Any = _UNDER_WAY
        self.task: asyncio.Future[Reply] | None = None


_UNDER_WAY = object()


def _send_home(exchange: Exchange) -> None:
    """Cancel a fetch that waits, in the next tick: a task that never ran could not clean up after itself."""
    if exchange.task is not None and exchange.header.api_key == ApiKey.FETCH:
        asyncio.get_running_loop().call_soon(exchange.task.cancel)


class KafkaConnection(asyncio.BufferedProtocol):
    def __init__(self, door: "KafkaDoor") -> None:
        self._door = door
        self._serial = door.next_serial()
        self._loop = asyncio.get_running_loop()
        self._receiver = Receiver(door.max_request_bytes)
        self._transport: asyncio.Transport | None = None
        self._host = ""
        self._principal: Principal = ANONYMOUS
        self._frames: deque[memoryview] = deque()
        self._exchanges: deque[Exchange] = deque()
        self._unfinished_bytes = 0  # memory set aside for a request that is still arriving
        self._reading = True
        self._draining = False
        self._closed = False
        self._writable = True
        self._wake: asyncio.Future[None] | None = None
        self._worker: asyncio.Task[None] | None = None

    # -- the transport's side ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._door.listener.admit(self, transport):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        self._principal = Principal(ANONYMOUS.name, self._host)
        self._worker = self._loop.create_task(self._work())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        receiver = self._receiver
        receiver.received(nbytes)
        try:
            while (frame := receiver.next_frame()) is not None:
                self._frames.append(frame)
                self._door.limits.hold(self, len(frame))
        except Malformed as error:
            self._fail(error)
            return
        if receiver.unfinished_bytes != self._unfinished_bytes:
            self._door.limits.hold(self, receiver.unfinished_bytes - self._unfinished_bytes)
            self._unfinished_bytes = receiver.unfinished_bytes
        if self._frames:
            self._door.listener.heard(self)
            self._notify()
        if self._reading and self._is_full():
            self._pause()

    def eof_received(self) -> bool:
        return False  # a client that closed its side takes no replies any more

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.listener.gone(self)
        # What was begun is carried through: cancelling it half-way could leave a fact recorded and not shown. Only
        # readers, who change nothing and may wait for long, are sent home.
        for exchange in self._exchanges:
            _send_home(exchange)
        self._exchanges.clear()
        self._frames.clear()
        self._closed = True
        self._notify()

    def pause_writing(self) -> None:
        # A client that does not take its replies is not read from either: what it sends would only pile up here.
        self._writable = False
        self._pause()

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()
        self._notify()

    # -- the listener's side ----------------------------------------------------------------------------------

    def idle(self) -> bool:
        return not self._frames and not self._exchanges

    def stop_reading(self) -> None:
        self._draining = True
        self._pause()

    def resume_reading(self) -> None:
        if not self._draining and not self._reading and self._transport is not None and not self._is_full():
            self._reading = True
            self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- requests ---------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        if self._door.limits.exhausted:
            self._door.limits.wait(self)
            return True
        under_way = len(self._exchanges) + len(self._frames)
        return not self._writable or under_way >= MAX_REQUESTS_UNDER_WAY or self._held_bytes >= MAX_HELD_BYTES

    @property
    def _held_bytes(self) -> int:
        """Of whole requests. One that is still arriving may be larger than all others together."""
        return self._door.limits.held_by(self) - self._unfinished_bytes

    def _pause(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _work(self) -> None:
        """Begin one request after another. Runs as long as the connection."""
        try:
            while True:
                while not self._frames or not self._writable:
                    if self._closed:
                        return
                    self._wake = self._loop.create_future()
                    await self._wake
                await self._begin(self._frames.popleft())
                self._flush()
        except Malformed as error:
            self._fail(error)
        except UnsupportedVersion as error:
            self._fail(error)
        except UnansweredFailure:
            self.abort()
        except Exception:
            _log.exception("kafka: a request from %s failed; closing its connection", self._host)
            self.abort()

    async def _begin(self, frame: memoryview) -> None:
        header = decode_header(frame)
        exchange = Exchange(header, len(frame))
        self._exchanges.append(exchange)
        served = HANDLERS.get(header.api_key)
        if served is None or not served.min_version <= header.api_version <= served.max_version:
            exchange.reply = self._unsupported(header, served)
            return
        body = decode_request(header.api_key, header.api_version, frame, header.position)
        if served.alone:
            await self._others_finished(header.api_key)
        call = Call(
            header.api_key,
            header.api_version,
            header.client_id,
            self._host,
            self._principal,
            body,
            self._door.broker,
            self._door.advertised,
            self._door.sessions,
            self._serial,
        )
        result = await served.handler(call)
        if result is None or isinstance(result, Struct):
            exchange.reply = result
            return
        if isinstance(result, Later):
            result.when_settled(partial(self._replied, exchange))
            return
        task = exchange.task = self._task(result)
        task.add_done_callback(lambda task: self._finished(exchange, task))
        if self._closed:
            _send_home(exchange)

    def _task(self, result: Awaitable[Reply]) -> asyncio.Future[Reply]:
        """As asyncio.ensure_future, which takes several times as long to find out what it was given."""
        if isinstance(result, asyncio.Future):
            return result
        return self._loop.create_task(cast(Coroutine[Any, Any, Reply], result))

    async def _others_finished(self, api_key: int) -> None:
        for other in list(self._exchanges):
            if other.header.api_key == api_key and other.task is not None and not other.task.done():
                await asyncio.wait([other.task])

    def _unsupported(self, header: RequestHeader, served: Served | None) -> Reply:
        if header.api_key == ApiKey.API_VERSIONS:
            return versions_reply(UNSUPPORTED_VERSION)
        raise UnsupportedVersion(f"API {header.api_key} version {header.api_version} is not served here")

    def _finished(self, exchange: Exchange, task: "asyncio.Future[Reply]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("kafka: a request from %s failed; closing its connection", self._host, exc_info=error)
            self.abort()
            return
        exchange.task = None
        self._replied(exchange, task.result())

    def _replied(self, exchange: Exchange, reply: Reply) -> None:
        exchange.reply = reply
        self._flush()

    def _flush(self) -> None:
        """Write the replies whose turn it is."""
        transport, exchanges = self._transport, self._exchanges
        if transport is None or transport.is_closing():
            return
        while exchanges and exchanges[0].reply is not _UNDER_WAY and self._writable:
            exchange = exchanges.popleft()
            header = exchange.header
            if exchange.reply is not None:
                version = header.api_version
                if header.api_key == ApiKey.API_VERSIONS and exchange.reply.error_code == UNSUPPORTED_VERSION:
                    version = 0
                transport.writelines(encode_response(header.api_key, version, header.correlation_id, exchange.reply))
            self._door.limits.release(self, exchange.size_bytes)
        if not self._reading:
            self.resume_reading()
        if not exchanges and not self._frames:
            self._door.listener.settled()

    def _fail(self, error: Exception) -> None:
        _log.warning("kafka: closing the connection of %s: %s", self._host, error)
        self.abort()
