"""The subscriptions of one text connection, by the address they were made with."""

import socket
from typing import NamedTuple, Protocol

from penstock.broker.queues import DEFAULT_VIEW
from penstock.model.errors import InvalidRequest, LimitReached, PenstockError

MAX_SUBSCRIPTIONS = 100
KINDS = ("pubsub", "log", "queue")


class Address(NamedTuple):
    topic: str
    kind: str
    view: str = DEFAULT_VIEW

    def __str__(self) -> str:
        named = self.kind == "queue" and self.view != DEFAULT_VIEW
        return f"{self.topic}/queue/{self.view}" if named else f"{self.topic}/{self.kind}"


def address_of(word: str, view: str | None = None) -> Address:
    """`<topic>/<kind>`, or `<topic>/queue/<view>`."""
    topic, *rest = word.split("/")
    if not rest or rest[0] not in KINDS or len(rest) > (2 if rest[0] == "queue" else 1):
        raise InvalidRequest(f"say {topic}/pubsub, {topic}/log, {topic}/queue or {topic}/queue/<view>")
    if rest[0] != "queue" and view is not None:
        raise InvalidRequest("only queues have views with names")
    if len(rest) == 2 and view not in (None, rest[1]):
        raise InvalidRequest("two different views are named")
    return Address(topic, rest[0], view or (rest[1] if len(rest) == 2 else DEFAULT_VIEW))


class Outlet(Protocol):
    """Where deliveries go."""

    def write(self, data: bytes) -> None: ...

    async def drained(self) -> None:
        """Returns when the other side has read enough of what it was sent."""
        ...

    def subscribed(self) -> None:
        """The other side will be silent from now on, and be sent what comes."""
        ...

    def ended(self, address: Address, error: PenstockError) -> None:
        """A subscription came to an end that its subscriber did not ask for."""
        ...

    def broken(self, error: BaseException) -> None:
        """Something went wrong that is nobody's fault but ours."""
        ...


class Subscription(Protocol):
    address: Address

    def start(self) -> None:
        """Deliver from here on: the subscriber knows that it is subscribed."""
        ...

    def close(self, *, lost: bool = False) -> None:
        """`lost`: the other side did not take its leave, it was gone."""
        ...


class Subscriptions:
    def __init__(self) -> None:
        self._by_address: dict[Address, Subscription] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._by_address)

    def check_new(self, address: Address) -> None:
        if address in self._by_address:
            raise InvalidRequest(f"this connection is subscribed to {address} already")
        if len(self._by_address) >= MAX_SUBSCRIPTIONS:
            raise LimitReached(f"a connection may have {MAX_SUBSCRIPTIONS} subscriptions")

    def add(self, subscription: Subscription) -> None:
        if self._closed:  # the connection went away while this was being made
            subscription.close()
        else:
            self._by_address[subscription.address] = subscription

    def remove(self, address: Address) -> bool:
        subscription = self._by_address.pop(address, None)
        if subscription is not None:
            subscription.close()
        return subscription is not None

    def close(self, *, lost: bool = False) -> None:
        self._closed = True
        while self._by_address:
            self._by_address.popitem()[1].close(lost=lost)


def keep_alive(sock: socket.socket | None) -> None:
    """Have TCP find out that a silent subscriber's machine is gone, in about two minutes and not in two hours."""
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
