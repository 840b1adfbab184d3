"""The table of routes: who answers which method and path, and what each takes and gives, from which /v1/openapi.json is
made. A path is found by walking its segments, so the number of routes costs nothing.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

from penstock.doors.http.errors import MalformedRequest, MethodNotAllowed, NoSuchPath

if TYPE_CHECKING:
    from penstock.doors.http.call import Call, Reply

Handler = Callable[["Call"], Awaitable["Reply"]]
H = TypeVar("H", bound=Callable[..., Awaitable[object]])

JSON = "application/json"


class Route(NamedTuple):
    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    section: str  # under which heading it is documented
    summary: str
    detail: str = ""
    query: Any = None  # a Struct: the query parameters
    carried: tuple[tuple[str, str, str], ...] = ()  # (name, header or cookie, what it is for)
    body: Any = None  # a type: the JSON body
    optional_body: bool = False
    other_bodies: tuple[str, ...] = ()  # content types besides JSON
    reply: Any = None
    status: int = 200
    other_replies: tuple[str, ...] = ()
    reads: bool = False  # changes nothing: may be cancelled when its client goes
    stream: bool = False  # server-sent events
    socket: bool = False


ROUTES: list[Route] = []


def route(method: str, path: str, section: str, summary: str, **more: Any) -> Callable[[H], H]:
    def register(handler: H) -> H:
        detail = " ".join((handler.__doc__ or "").split())
        ROUTES.append(Route(method, path, handler, section, summary, detail, **more))
        return handler

    return register


class _Node:
    __slots__ = ("children", "methods", "parameter")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.methods: dict[str, tuple[Route, tuple[str, ...]]] = {}


class Tree:
    def __init__(self, routes: list[Route]) -> None:
        self._root = _Node()
        for one in routes:
            node, names = self._root, []
            for segment in one.path.split("/")[1:]:
                if segment.startswith("{"):
                    names.append(segment[1:-1])
                    if node.parameter is None:
                        node.parameter = _Node()
                    node = node.parameter
                else:
                    node = node.children.setdefault(segment, _Node())
            assert one.method not in node.methods, one
            node.methods[one.method] = (one, tuple(names))

    def find(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        try:
            path = raw_path.decode("ascii")
            segments = path[1:].split("/")
            if "%" in path:  # within a segment: an escaped slash does not part segments
                segments = [unquote_to_bytes(segment).decode() for segment in segments]
        except UnicodeDecodeError:
            raise MalformedRequest("the path is not UTF-8") from None
        node, values = self._root, []
        for segment in segments:
            child = node.children.get(segment)
            if child is None:
                child = node.parameter
                if child is None or not segment:
                    raise NoSuchPath(f"there is nothing at {path}; /docs lists what there is")
                values.append(segment)
            node = child
        found = node.methods.get(method)
        if found is None and method == "HEAD":
            found = node.methods.get("GET")
            if found is not None and found[0].stream:
                found = None
        if found is None:
            allowed = sorted(set(node.methods) - {SOCKET})
            if not allowed:
                raise NoSuchPath(f"there is nothing at {path}; /docs lists what there is")
            raise MethodNotAllowed(f"{path} takes {', '.join(allowed)}, not {method}", allowed)
        one, names = found
        return one, dict(zip(names, values, strict=True))


SOCKET = "WEBSOCKET"  # the method of routes that speak WebSocket
