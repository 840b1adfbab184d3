"""How a handler meets the door: what it is called with, and where it says which versions it serves."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace as Struct
from typing import Any, NamedTuple

from penstock.broker.broker import Broker
from penstock.doors.kafka.sessions import FetchSessions
from penstock.security.principal import Principal
from penstock.wire.kafka.api import ApiKey


class Advertised(NamedTuple):
    """Who we are to a client of this listener."""

    node_id: int
    host: str
    port: int


@dataclass(slots=True)
class Call:
    """One request: what was asked, by whom, and who can answer."""

    api_key: int
    version: int
    client_id: str | None
    client_host: str
    principal: Principal
    body: Any  # a Struct decoded by the request's table
    broker: Broker
    advertised: Advertised
    sessions: FetchSessions
    via: int = 0  # the serial number of the connection: of two, the higher is the younger


Reply = Struct | None  # None: the client asked for no answer


class Later:
    """A reply that something other than a coroutine will give. It is told at once, without a turn of the loop."""

    __slots__ = ("_tell",)

    def __init__(self) -> None:
        self._tell: Callable[[Reply], None] | None = None

    def when_settled(self, tell: Callable[[Reply], None]) -> None:
        """To be called in the tick in which the handler returned this."""
        self._tell = tell

    def settle(self, reply: Reply) -> None:
        """To be called in a later tick."""
        assert self._tell is not None
        self._tell(reply)


Handler = Callable[[Call], Awaitable[Reply | Later | Awaitable[Reply]]]


class Served(NamedTuple):
    """A handler with the versions it serves, and the lowest version that clients are told of."""

    min_version: int
    max_version: int
    handler: Handler
    advertised_min: int
    alone: bool  # begun only when no other request of its kind is under way on the connection


HANDLERS: dict[int, Served] = {}


def handles(
    api_key: ApiKey, min_version: int, max_version: int, *, advertise_from: int | None = None, alone: bool = False
) -> Callable[[Handler], Handler]:
    """Register a handler.

    What it does before it returns happens in the order of the connection's requests. When it returns an awaitable, or
    something to be settled later, later requests are begun meanwhile; its reply still takes its turn.
    """

    def register(handler: Handler) -> Handler:
        assert api_key not in HANDLERS, f"{api_key!r} has two handlers"
        first = min_version if advertise_from is None else advertise_from
        HANDLERS[api_key] = Served(min_version, max_version, handler, first, alone)
        return handler

    return register
