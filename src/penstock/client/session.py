"""A connection that comes back. Everything that must survive a broken one is a member here, and is told of each change.

    resume(connection)   there is a connection: send what waits and what is in doubt
    suspend()            it broke; another is sought if anyone needs one
    fail(error)          none was found within the time: give up what waits

Seeking goes through the addresses in turn, with growing pauses of random length between rounds, for `timeout_s`.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.client.address import Address
from penstock.client.connection import Connection, connect
from penstock.client.errors import ClientClosed, Disconnected, Unreachable, WrongDoor
from penstock.model.errors import PenstockError, TimedOut
from penstock.wire.native.messages import Hello, Message

PAUSE_FIRST_S = 0.02
PAUSE_FACTOR = 2.0
PAUSE_CEILING_S = 2.0
CONNECT_TIMEOUT_S = 5.0
LEAST_CONNECT_S = 1.0  # also for the last attempt
FRAMES_OF_A_WELCOME = 1


class Member(Protocol):
    @property
    def needs_connection(self) -> bool: ...

    def resume(self, connection: Connection) -> None: ...

    def suspend(self) -> None: ...

    def fail(self, error: PenstockError) -> None: ...


def pause_s(attempt: int) -> float:
    """How long to wait before the next attempt: at random between half of a growing length and all of it."""
    longest_s = min(PAUSE_FIRST_S * PAUSE_FACTOR ** min(attempt, 20), PAUSE_CEILING_S)
    return longest_s * random.uniform(0.5, 1.0)


class Session:
    def __init__(
        self,
        addresses: Sequence[Address],
        hello: Hello,
        *,
        timeout_s: float,
        connect_timeout_s: float,
        keepalive_s: float,
    ) -> None:
        self.timeout_s = timeout_s
        self.connection: Connection | None = None
        self.reconnects = 0
        self._addresses = list(addresses)
        self._hello = hello
        self._seek_s = connect_timeout_s  # until there was a first connection
        self._keepalive_s = keepalive_s
        self._members: list[Member] = []
        self._seeking: asyncio.Task[Connection] | None = None
        self._closed = False
        self._vain = 0  # connections in a row that broke before they answered anything

    # -- members ------------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """From now on it is told; at once, if there is a connection."""
        if self._closed:
            raise ClientClosed("this client is closed")
        self._members.append(member)
        if self.connection is not None:
            member.resume(self.connection)
        else:
            self.wake()

    def discard(self, member: Member) -> None:
        if member in self._members:
            self._members.remove(member)

    def wake(self) -> None:
        """Seek a connection if there is none and anyone needs one."""
        idle = self.connection is None and self._seeking is None and not self._closed
        if idle and any(member.needs_connection for member in self._members):
            self._seek()

    # -- calls --------------------------------------------------------------------------------------------------

    async def ready(self) -> Connection:
        if self._closed:
            raise ClientClosed("this client is closed")
        if self.connection is not None:
            return self.connection
        return await asyncio.shield(self._seeking or self._seek())

    async def call(
        self, message: Message, *, done_if: type[PenstockError] | None = None, timeout_s: float | None = None
    ) -> Any:
        """The reply. Asked again when the connection breaks.

        Where the first time may have worked although its answer was lost, `done_if` names the error that says so; the
        result is None then.
        """
        loop = asyncio.get_running_loop()
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = loop.time() + timeout_s
        asked_before = False
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self.ready()
                    return await connection.request(message)
            except Disconnected:
                if self._closed:
                    raise ClientClosed("this client was closed before the answer came") from None
                asked_before = True
                if loop.time() >= deadline:
                    raise
            except TimeoutError:
                raise TimedOut(f"{type(message).__name__}: no answer within {timeout_s:g} s") from None
            except PenstockError as error:
                if asked_before and done_if is not None and isinstance(error, done_if):
                    return None
                raise

    # -- seeking ------------------------------------------------------------------------------------------------

    def _seek(self) -> "asyncio.Task[Connection]":
        self._seeking = asyncio.get_running_loop().create_task(self._find(), name="penstock-connect")
        self._seeking.add_done_callback(_retrieve)
        return self._seeking

    async def _find(self) -> Connection:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seek_s
        attempt = 0
        try:
            if self._vain:
                await asyncio.sleep(pause_s(self._vain))
            while True:
                address = self._addresses[0]
                try:
                    limit_s = min(CONNECT_TIMEOUT_S, self.timeout_s, max(deadline - loop.time(), LEAST_CONNECT_S))
                    connection = await connect(address, self._hello, limit_s, self._keepalive_s, self._lost)
                    if connection.is_open:
                        break
                    raise Unreachable(f"{address} closes its connections")
                except Unreachable as error:
                    self._addresses.append(self._addresses.pop(0))
                    attempt += 1
                    wait_s = pause_s(attempt // len(self._addresses)) if attempt % len(self._addresses) == 0 else 0.0
                    if loop.time() + wait_s >= deadline and attempt >= len(self._addresses):
                        raise _given_up(error, attempt, self._seek_s) from None
                await asyncio.sleep(wait_s)
        except PenstockError as error:
            self._seeking = None
            for member in list(self._members):
                member.fail(error)
            raise
        except BaseException:
            self._seeking = None
            raise
        self._seeking = None
        self.connection = connection
        self._seek_s = self.timeout_s
        for member in list(self._members):
            member.resume(connection)
        return connection

    def _lost(self, connection: Connection, error: PenstockError) -> None:
        if connection is not self.connection:
            return  # never welcomed
        self.connection = None
        self.reconnects += 1
        self._vain = self._vain + 1 if connection.frames <= FRAMES_OF_A_WELCOME else 0
        for member in list(self._members):
            member.suspend()
        self.wake()

    async def close(self) -> None:
        self._closed = True
        seeking, connection = self._seeking, self.connection
        if seeking is not None:
            seeking.cancel()
            await asyncio.gather(seeking, return_exceptions=True)
        closed = ClientClosed("this client was closed")
        for member in list(self._members):
            member.fail(closed)
        self._members.clear()
        if connection is not None:
            connection.close()


def _given_up(error: Unreachable, attempts: int, within_s: float) -> Unreachable:
    often = f"; tried {attempts} times within {within_s:g} s" if attempts > 1 else ""
    if isinstance(error, WrongDoor):
        return WrongDoor(f"{error}{often}")
    return Unreachable(
        f"{error}{often}; is the server running ('penstock serve'), and is this its line door's address?"
    )


def _retrieve(task: "asyncio.Task[Connection]") -> None:
    """A search that nobody waits for may fail in silence: the members were told."""
    if not task.cancelled():
        task.exception()
