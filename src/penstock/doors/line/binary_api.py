"""How a handler of the binary protocol meets its connection: what it is called with, and how it answers.

A handler is awaited before the next request of the connection is begun, so what it does before it returns happens in
the order of the requests. It returns

    a message      the reply
    None           there is no reply
    LATER          the handler saw to it that `call.reply` or `call.fail` is called, once
    a coroutine    goes on beside later requests and returns the reply
"""

import logging
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.broker.broker import Broker
from penstock.model import errors
from penstock.model.errors import PenstockError
from penstock.security.principal import Principal
from penstock.wire.native.framing import encode
from penstock.wire.native.messages import Failure, Message
from penstock.wire.receiver import Buffer

if TYPE_CHECKING:
    from penstock.doors.line.binary import BinaryConnection

_log = logging.getLogger(__name__)

LATER: Final = object()
MALFORMED: Final = "malformed"
INTERNAL_ERROR: Final = "internal-error"

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Call:
    """One request until it is answered."""

    __slots__ = ("broker", "connection", "correlation_id", "principal", "size_bytes")

    def __init__(self, connection: "BinaryConnection", correlation_id: int, size_bytes: int) -> None:
        self.connection = connection
        self.correlation_id = correlation_id
        self.size_bytes = size_bytes
        self.broker: Broker = connection.broker
        self.principal: Principal = connection.principal

    def reply(self, message: Message | None) -> None:
        self.connection.answered(self, () if message is None else (encode(self.correlation_id, message),))

    def reply_buffers(self, buffers: list[Buffer]) -> None:
        self.connection.answered(self, buffers)

    def fail(self, error: BaseException) -> None:
        self.reply(failure_of(error))


Handler = Callable[[Call, Any], Awaitable[object]]


class Served(NamedTuple):
    handler: Handler
    waits: bool  # changes nothing and may wait for long: sent home when its client is gone


HANDLERS: dict[int, Served] = {}

_Handler = TypeVar("_Handler", bound=Callable[..., Coroutine[Any, Any, object]])


def handles(*kinds: type[Message], waits: bool = False) -> Callable[[_Handler], _Handler]:
    """Register a handler for requests of these classes."""

    def register(handler: _Handler) -> _Handler:
        for kind in kinds:
            assert kind.KIND not in HANDLERS, f"{kind.__name__} has two handlers"
            HANDLERS[kind.KIND] = Served(handler, waits)
        return handler

    return register


# -- errors in this protocol's terms ------------------------------------------------------------------------


def _code_of(noun: type[PenstockError]) -> str:
    return _HUMP.sub("-", noun.__name__).lower()


CODES: Final = {
    noun: _code_of(noun)
    for noun in vars(errors).values()
    if isinstance(noun, type) and issubclass(noun, PenstockError) and noun is not PenstockError
}


def error_code(error: PenstockError) -> str:
    """The name of the error's own class, or of the nearest one above it."""
    return next((CODES[noun] for noun in type(error).__mro__ if noun in CODES), INTERNAL_ERROR)


def failure_of(error: BaseException) -> Failure:
    if isinstance(error, PenstockError):
        return Failure(error_code(error), str(error), error.retriable)
    _log.error("line: a request failed for a reason that is not its client's", exc_info=error)
    return Failure(INTERNAL_ERROR, "the server failed; its log tells why")
