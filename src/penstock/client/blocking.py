"""A connection without a loop, for worker processes: requests out, replies in, in the caller's own thread.

    with BlockingConnection("127.0.0.1:7070") as connection:
        topics = connection.request(ListTopics())

`send` and `receive` are the two halves of `request`: several sends, then their receives, and the server works ahead.
Nothing is retried and nothing reconnects: what breaks raises, and the connection is of no use from then on. Bytes are
awaited for at most `timeout_s`. One thread at a time. Pushes are not taken: whoever subscribes uses `penstock.Client`.
"""

import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from penstock.client.address import parse_addresses
from penstock.client.connection import RECEIVED_FRAME_BYTES_MAX, WANTED_DOOR, reason_of
from penstock.client.errors import ClientClosed, Disconnected, ProtocolBroken, Unreachable, WrongDoor, error_of
from penstock.model.errors import LimitReached, PenstockError, RecordTooLarge, TimedOut
from penstock.wire.native.framing import MAX_CORRELATION_ID, PREFACE, Malformed, Receiver, decode_reply, encode, split
from penstock.wire.native.messages import VERSION, Failure, Hello, Message, Welcome

TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0
RECEIVE_BUFFER_BYTES: Final = 4 << 20
IN_FLIGHT_MAX: Final = 1_000  # sent, and not yet received

_NO_SERVER = "is the server running ('penstock serve'), and is this its line door's address?"


class BlockingConnection:
    """A connection that has been welcomed. Raises Unreachable with every address and its reason, or what the server
    has against us.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        timeout_s: float = TIMEOUT_S,
        client: str = "penstock-worker",
        user: str | None = None,
        secret: str | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self._asked: set[int] = set()
        self._answers: dict[int, Any] = {}  # received while another was awaited
        self._last_id = 0
        self._error: PenstockError | None = None
        self._receiver = Receiver(RECEIVED_FRAME_BYTES_MAX)
        hello = Hello(VERSION, client, user, secret)
        refusals: list[Unreachable] = []
        for address in parse_addresses(server):
            self.address = address
            try:
                self.welcome = self._connect(hello)
            except Unreachable as refusal:
                refusals.append(refusal)
            else:
                return
        raise _given_up(refusals)

    @property
    def max_frame_bytes(self) -> int:
        """The largest frame that the server takes."""
        return self.welcome.max_frame_bytes

    @property
    def is_open(self) -> bool:
        return self._error is None

    # -- asking -------------------------------------------------------------------------------------------------

    def request(self, message: Message, *, timeout_s: float | None = None) -> Any:
        """The reply. A failure raises the error it stands for; the connection is still good then."""
        return self.receive(self.send(message), timeout_s=timeout_s)

    def send(self, message: Message) -> int:
        """Send a request; `receive` takes its reply, by the number returned here."""
        if len(self._asked) >= IN_FLIGHT_MAX:
            raise LimitReached(f"{IN_FLIGHT_MAX} requests are under way on one connection; receive some first")
        correlation_id = self._write(message)
        self._asked.add(correlation_id)
        return correlation_id

    def tell(self, message: Message) -> None:
        """Send what has no reply; if there is one all the same, it is dropped."""
        self._write(message)

    def receive(self, correlation_id: int, *, timeout_s: float | None = None) -> Any:
        """The reply to what was sent under this number, once."""
        if correlation_id not in self._asked:
            raise ValueError(f"nothing was sent under the number {correlation_id}, or its reply was taken before")
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        while correlation_id not in self._answers:
            self._read(deadline, timeout_s)
        self._asked.discard(correlation_id)
        answer = self._answers.pop(correlation_id)
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    # -- life ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._error is None:
            self._break(ClientClosed(f"the connection to {self.address} was closed here"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, hello: Hello) -> Welcome:
        within_s = min(CONNECT_TIMEOUT_S, self.timeout_s)
        try:
            self._socket = socket.create_connection(self.address, within_s)
        except OSError as error:
            raise Unreachable(f"cannot reach {self.address}: {_connect_reason(error)}") from None
        self._error = None
        self._receiver = Receiver(RECEIVED_FRAME_BYTES_MAX)
        self._asked.clear()
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            hello_id = self._write(hello, ahead=PREFACE)
            self._asked.add(hello_id)
            welcome = self.receive(hello_id, timeout_s=within_s)
        except Disconnected:
            # So a Kafka door does, and a server that is about to stop.
            raise WrongDoor(
                f"{self.address} closes the connection instead of answering: it is probably the address of another "
                f"door, such as the one for Kafka clients; {WANTED_DOOR}"
            ) from None
        except TimedOut:
            raise Unreachable(f"cannot reach {self.address}: no answer in time") from None
        except BaseException:
            self._break(ClientClosed(f"{self.address} did not welcome this client"))
            raise
        if not isinstance(welcome, Welcome) or welcome.version > VERSION:
            self.close()
            raise ProtocolBroken(f"{self.address} does not speak version {VERSION} of Penstock's binary protocol")
        return welcome

    def _break(self, error: PenstockError) -> None:
        """It is of no use any more: from now on every call raises this."""
        if self._error is None:
            self._error = error
            self._socket.close()
            self._answers.clear()

    # -- bytes --------------------------------------------------------------------------------------------------

    def _write(self, message: Message, *, ahead: bytes = b"") -> int:
        correlation_id = self._last_id % MAX_CORRELATION_ID + 1
        frame = encode(correlation_id, message)
        if hasattr(self, "welcome") and len(frame) > self.max_frame_bytes:
            raise RecordTooLarge(
                f"{type(message).__name__} of {len(frame)} bytes; {self.address} takes {self.max_frame_bytes} at most"
            )
        self._last_id = correlation_id
        self._put(ahead + frame if ahead else frame)
        return correlation_id

    def _put(self, data: bytes | bytearray) -> None:
        if self._error is not None:
            raise self._error
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(data)
        except TimeoutError:
            raise self._silent(self.timeout_s) from None
        except OSError as error:
            raise self._lost(reason_of(error)) from None

    def _read(self, deadline: float, timeout_s: float) -> None:
        """Take what comes next, until the deadline."""
        if self._error is not None:
            raise self._error
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise self._silent(timeout_s)
        try:
            self._socket.settimeout(left_s)
            size = self._socket.recv_into(self._receiver.get_buffer())
        except TimeoutError:
            raise self._silent(timeout_s) from None
        except OSError as error:
            raise self._lost(reason_of(error)) from None
        if size == 0:
            raise self._lost("the server closed it")
        self._receiver.received(size)
        try:
            while (frame := self._receiver.next_frame()) is not None:
                self._take(frame)
        except Malformed as error:
            raise self._malformed(error) from None

    def _take(self, frame: memoryview) -> None:
        kind, correlation_id, body = split(frame)
        if correlation_id in self._asked:
            answer = decode_reply(kind, body)
            if kind == Failure.KIND:
                answer = error_of(answer.code, answer.message, answer.retriable)
            self._answers[correlation_id] = answer
        elif kind == Failure.KIND and correlation_id == 0:  # said of the connection as a whole
            failure = decode_reply(kind, body)
            self._break(error_of(failure.code, failure.message, failure.retriable))

    # -- how it breaks ------------------------------------------------------------------------------------------

    def _lost(self, reason: str) -> PenstockError:
        self._break(Disconnected(f"the connection to {self.address} broke: {reason}"))
        assert self._error is not None
        return self._error

    def _silent(self, timeout_s: float) -> PenstockError:
        """A reply that comes later would be of no use to anybody, so the connection is given up with it."""
        self._break(TimedOut(f"{self.address} was silent for {timeout_s:g} s"))
        assert self._error is not None
        return self._error

    def _malformed(self, error: Malformed) -> PenstockError:
        said = f"{self.address} does not speak Penstock's binary protocol: {error}"
        if bytes(self._receiver.waiting[:5]) == b"HTTP/":
            said = f"{self.address} is the address of an HTTP door; {WANTED_DOOR}"
        self._break(ProtocolBroken(said))
        assert self._error is not None
        return self._error


def _connect_reason(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else reason_of(error)


def _given_up(refusals: Sequence[Unreachable]) -> Unreachable:
    if len(refusals) == 1 and isinstance(refusals[0], WrongDoor):
        return refusals[0]
    return Unreachable(f"{'; '.join(map(str, refusals))}; {_NO_SERVER}")
