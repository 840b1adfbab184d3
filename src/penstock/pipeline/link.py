"""A connection that is sought again when it breaks: what planners and readers ask the server through.

A server that is away for a moment, because it is restarted, must not end a query that ran for weeks; one that was never
there must be told at once. So the first connection is sought for `first_s`, and one that was lost for `timeout_s`.
Everything that is asked through here may be asked again.
"""

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from penstock.client.blocking import BlockingConnection
from penstock.client.errors import Disconnected, Unreachable, WrongDoor
from penstock.client.session import pause_s
from penstock.model.errors import PenstockError, StorageFailed, TimedOut
from penstock.wire.native.messages import Message

FIRST_S: Final = 5.0
ANSWER_S: Final = 30.0
ASKED_AT_ONCE: Final = 200

_BROKEN = (Disconnected, TimedOut, Unreachable)


class Link:
    def __init__(
        self, server: str, *, timeout_s: float, first_s: float = FIRST_S, client: str = "penstock-spark"
    ) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._first_s = min(first_s, timeout_s)
        self._client = client
        self._connection: BlockingConnection | None = None
        self._met = False  # there was a connection before

    def connection(self) -> BlockingConnection:
        """The one there is, or a new one. Raises Unreachable when none was found within the time."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        within_s = self._timeout_s if self._met else self._first_s
        deadline = time.monotonic() + within_s
        attempt = 0
        while True:
            try:
                self._connection = BlockingConnection(self._server, timeout_s=ANSWER_S, client=self._client)
            except WrongDoor:
                if attempt:  # the first may be a server that is about to stop
                    raise
                refusal = None
            except Unreachable as error:
                refusal = error
            else:
                self._met = True
                return self._connection
            attempt += 1
            wait_s = pause_s(attempt)
            if refusal is not None and time.monotonic() + wait_s >= deadline:
                raise Unreachable(f"{refusal} Tried for {within_s:g} s.") from None
            time.sleep(wait_s)

    def ask(self, message: Message) -> Any:
        return self.ask_all([message])[0]

    def ask_all(self, messages: Sequence[Message]) -> list[Any]:
        """The replies, in order; all are asked before the first is awaited. The first failure raises."""
        deadline = time.monotonic() + self._timeout_s
        attempt = 0
        while True:
            connection = self.connection()
            try:
                return list(_asked(connection, messages))
            except (*_BROKEN, StorageFailed) as error:
                attempt += 1
                wait_s = pause_s(attempt)
                if time.monotonic() + wait_s >= deadline:
                    raise
                if not isinstance(error, StorageFailed):
                    connection.close()
            except PenstockError:
                connection.close()  # what else was asked is of no interest any more
                raise
            time.sleep(wait_s)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _asked(connection: BlockingConnection, messages: Sequence[Message]) -> Iterable[Any]:
    for start in range(0, len(messages), ASKED_AT_ONCE):
        sent = [connection.send(message) for message in messages[start : start + ASKED_AT_ONCE]]
        for one in sent:
            yield connection.receive(one)
