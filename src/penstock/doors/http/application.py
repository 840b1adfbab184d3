"""The ASGI application: finds who answers, and turns whatever goes wrong into a problem."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, cast

from penstock.broker.broker import Broker
from penstock.doors.http.call import Call, Reply, encode
from penstock.doors.http.errors import PROBLEM, HttpError, InternalError, Stopping, problem_of
from penstock.doors.http.routing import ROUTES, SOCKET, Tree
from penstock.doors.http.server import HttpConnection
from penstock.model.errors import NotAllowed, PenstockError

_log = logging.getLogger(__name__)

SAFE_METHODS = ("GET", "HEAD")


class Application:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._tree = Tree(ROUTES)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._answer(scope)
        elif scope["type"] == "websocket":
            await self._converse(scope, receive, send)

    async def _answer(self, scope: Any) -> None:
        connection: HttpConnection = scope["state"]["connection"]
        cycle = connection.cycle
        assert cycle is not None
        answer: Reply | None
        try:
            if scope["method"] not in SAFE_METHODS:
                check_origin(scope["headers"])
            route, parameters = self._tree.find(scope["method"], scope["raw_path"])
            call = Call(self.broker, connection, scope, parameters, connection.take_body())
            if route.reads:
                connection.read_only()
            answer = await route.handler(call)
        except (PenstockError, HttpError) as error:
            answer = refusal(error)
        except asyncio.CancelledError:
            answer = refusal(Stopping("the server is stopping"))  # or the client is gone, and nobody reads this
        except Exception:
            _log.exception("http: %s %s failed", scope["method"], scope["path"])
            answer = refusal(InternalError("the server failed at this; its log tells more"))
        if answer is None or cycle.response_started:
            return  # a stream, which has been through all its life
        if connection.flow.write_paused and not cycle.disconnected:
            await connection.flow.drain()
        cycle.respond(answer)

    async def _converse(self, scope: Any, receive: Any, send: Any) -> None:
        connection = scope["state"]["connection"]
        try:
            check_origin(scope["headers"])
            route, parameters = self._tree.find(SOCKET, scope["raw_path"])
            call = Call(self.broker, cast(Any, connection), scope, parameters, b"")
            await cast(Any, route.handler)(call, receive, send)
        except (PenstockError, HttpError) as error:  # before the handshake; later ones the handler tells itself
            answer = refusal(error)
            headers = [(b"content-type", PROBLEM.encode())]
            await send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": answer.body})


def check_origin(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """A browser tells whose page it acts for. A page from elsewhere has no business with a broker on its reader's own
    machine, and could otherwise write to it, and over a WebSocket read it, without the reader knowing."""
    origin = host = None
    for name, value in headers:
        if name == b"origin":
            origin = value
        elif name == b"host":
            host = value
    if origin is not None and (host is None or origin.partition(b"://")[2].lower() != host.lower()):
        raise NotAllowed(f"a page of {origin.decode('latin-1')[:200]} may not use this server")


def refusal(error: Exception) -> Reply:
    problem = problem_of(error)
    headers = error.headers if isinstance(error, HttpError) else ()
    if problem.status == 503 and problem.retriable:
        headers = (*headers, (b"retry-after", b"1"))
    return Reply(encode(problem), PROBLEM, problem.status, headers)
