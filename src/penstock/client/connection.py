"""One connection to one server: requests out, replies and pushes in, each to whoever asked. No retries here.

A request is answered exactly once, through a callback: by a message of the protocol or by the error that stands for it;
when the connection breaks, by Disconnected. Pushes go to the callback of the subscription they belong to.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from penstock.client.address import DEFAULT_PORT, Address
from penstock.client.errors import Disconnected, ProtocolBroken, Unreachable, WrongDoor, error_of
from penstock.model.errors import PenstockError
from penstock.wire.native.framing import MAX_CORRELATION_ID, PREFACE, Malformed, Receiver, decode_reply, encode, split
from penstock.wire.native.messages import VERSION, Deliveries, Failure, Hello, Message, Ping, Records, Welcome

RECEIVED_FRAME_BYTES_MAX = 256 << 20
WRITTEN_BYTES_HIGH = 1 << 20  # more than this unsent, and publishing pauses

Answer = Any  # a message of the protocol, or a PenstockError
Answered = Callable[[Answer], None]

_PUSHES = (Records.KIND, Deliveries.KIND)
WANTED_DOOR = f"what is wanted is the line door's, which has port {DEFAULT_PORT} unless told otherwise"


class Connection(asyncio.BufferedProtocol):
    def __init__(self, address: Address, lost: Callable[["Connection", PenstockError], None]) -> None:
        self.address = address
        self.welcome: Welcome | None = None
        self.frames = 0  # received
        self.can_write = True
        self.writers: list[Callable[[], None]] = []  # told when the socket has room again
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._receiver = Receiver(RECEIVED_FRAME_BYTES_MAX)
        self._asked: dict[int, Answered] = {}
        self._pushed: dict[int, Answered] = {}
        self._last_id = 0
        self._heard = False  # since the watch last looked
        self._watch: asyncio.TimerHandle | None = None
        self._error: PenstockError | None = None
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._error is None

    @property
    def max_frame_bytes(self) -> int:
        """The largest frame that the server takes."""
        return self.welcome.max_frame_bytes if self.welcome is not None else RECEIVED_FRAME_BYTES_MAX

    # -- asking -------------------------------------------------------------------------------------------------

    def ask(self, message: Message, answered: Answered) -> int:
        """Send a request; its correlation id. `answered` is called once, later, whatever happens."""
        correlation_id = self._next_id()
        if self._transport is None or self._error is not None:
            error = self._error or Disconnected(f"not connected to {self.address}")
            self._loop.call_soon(answered, error)
            return correlation_id
        frame = encode(correlation_id, message)
        self._asked[correlation_id] = answered
        self._transport.write(frame)
        return correlation_id

    def tell(self, message: Message) -> None:
        """Send what has no reply."""
        if self._transport is not None and self._error is None:
            self._transport.write(encode(self._next_id(), message))

    def subscribe(self, message: Message, answered: Answered, pushed: Answered) -> int:
        """Ask; pushes under its correlation id, and the failure that ends the subscription, go to `pushed`."""
        correlation_id = self.ask(message, answered)
        self._pushed[correlation_id] = pushed
        return correlation_id

    def forget(self, correlation_id: int) -> None:
        """What is still pushed to this subscription is dropped."""
        self._pushed.pop(correlation_id, None)

    def request(self, message: Message) -> "asyncio.Future[Any]":
        """As `ask`, with a future."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def answered(answer: Answer) -> None:
            if future.done():
                return
            if isinstance(answer, PenstockError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.ask(message, answered)
        return future

    def _next_id(self) -> int:
        self._last_id = self._last_id % MAX_CORRELATION_ID + 1
        while self._last_id in self._asked or self._last_id in self._pushed:  # only ever after four billion requests
            self._last_id = self._last_id % MAX_CORRELATION_ID + 1
        return self._last_id

    # -- life ---------------------------------------------------------------------------------------------------

    def watch(self, keepalive_s: float) -> None:
        """Ping when nothing was heard for so long, and give up when nothing is heard for as long again."""
        self._heard = True
        self._look(keepalive_s, pinged=False)

    def _look(self, keepalive_s: float, pinged: bool) -> None:
        if self._error is not None:
            return
        if not self._heard:
            if pinged:
                self.abort(Disconnected(f"{self.address} was silent for {2 * keepalive_s:g} s"))
                return
            self.ask(Ping(), lambda _: None)
        pinged, self._heard = not self._heard, False
        self._watch = self._loop.call_later(keepalive_s, self._look, keepalive_s, pinged)

    def abort(self, error: PenstockError) -> None:
        """Break the connection now; all that is asked is answered with this error."""
        if self._transport is not None:
            self._transport.abort()
        self._end(error)

    def close(self) -> None:
        """Send what was written, then end. Answers are not waited for."""
        if self._transport is not None:
            self._transport.close()
        self._end(Disconnected(f"the connection to {self.address} was closed"))

    def _end(self, error: PenstockError) -> None:
        if self._error is not None:
            return
        self._error = error
        self.can_write = False
        if self._watch is not None:
            self._watch.cancel()
        self._pushed.clear()
        asked, self._asked = self._asked, {}
        # The owner first: answers may ask again, and must not ask here.
        self._lost(self, error)
        for answered in asked.values():
            answered(error)
        self.closed.set()

    # -- the transport's side -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are no relatives of asyncio's
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITTEN_BYTES_HIGH)
        transport.write(PREFACE)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "the server closed it" if exc is None else reason_of(exc)
        self._end(Disconnected(f"the connection to {self.address} broke: {reason}"))

    def pause_writing(self) -> None:
        self.can_write = False

    def resume_writing(self) -> None:
        if self._error is None:
            self.can_write = True
            for writer in list(self.writers):
                writer()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        receiver = self._receiver
        receiver.received(nbytes)
        self._heard = True
        try:
            while (frame := receiver.next_frame()) is not None and self._error is None:
                self._dispatch(frame)
        except Malformed as error:
            said = f"{self.address} does not speak Penstock's binary protocol: {error}"
            if self.welcome is not None:  # it does speak it: this is a broken connection like any other
                self.abort(Disconnected(said))
            elif bytes(receiver.waiting[:5]) == b"HTTP/":
                self.abort(ProtocolBroken(f"{self.address} is the address of an HTTP door; {WANTED_DOOR}"))
            else:
                self.abort(ProtocolBroken(said))

    def _dispatch(self, frame: memoryview) -> None:
        self.frames += 1
        kind, correlation_id, body = split(frame)
        answer: Answer = decode_reply(kind, body)
        if kind == Failure.KIND:
            answer = error_of(answer.code, answer.message, answer.retriable)
        if kind not in _PUSHES:
            answered = self._asked.pop(correlation_id, None)
            if answered is not None:
                answered(answer)
                return
        elif correlation_id in self._asked and correlation_id not in self._pushed:  # a Lease is answered as one pushes
            self._asked.pop(correlation_id)(answer)
            return
        pushed = self._pushed.get(correlation_id)
        if pushed is not None:
            pushed(answer)
        elif kind == Failure.KIND and correlation_id == 0:
            self.abort(answer)  # said of the connection as a whole


async def connect(
    address: Address,
    hello: Hello,
    timeout_s: float,
    keepalive_s: float,
    lost: Callable[[Connection, PenstockError], None],
) -> Connection:
    """A connection that has been welcomed. Raises Unreachable, or what the server has against us."""
    loop = asyncio.get_running_loop()
    connection: Connection | None = None
    try:
        async with asyncio.timeout(timeout_s):
            transport, connection = await loop.create_connection(
                lambda: Connection(address, lost), address.host, address.port
            )
            raw_socket = transport.get_extra_info("socket")
            if raw_socket is not None:
                raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            welcome = await connection.request(hello)
    except (OSError, Disconnected, TimeoutError) as error:
        if connection is not None:
            connection.abort(Disconnected(f"{address} did not answer"))
        if isinstance(error, Disconnected) and connection is not None and not connection.frames:
            # So a Kafka door does, and a server that is about to stop.
            raise WrongDoor(
                f"{address} closes the connection instead of answering: it is probably the address of another door, "
                f"such as the one for Kafka clients; {WANTED_DOOR}"
            ) from None
        reason = "no answer in time" if isinstance(error, TimeoutError) else reason_of(error)
        raise Unreachable(f"cannot reach {address}: {reason}") from None
    except BaseException:
        if connection is not None:
            connection.abort(Disconnected("given up"))
        raise
    if not isinstance(welcome, Welcome) or welcome.version > VERSION:
        connection.abort(Disconnected("not welcomed"))
        raise ProtocolBroken(f"{address} does not speak version {VERSION} of Penstock's binary protocol")
    connection.welcome = welcome
    connection.watch(keepalive_s)
    return connection


def reason_of(error: BaseException) -> str:
    """Why a socket failed, in words that fit after a colon."""
    if isinstance(error, socket.gaierror):
        return "this host name is not known"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]
