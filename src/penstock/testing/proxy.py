"""A proxy between a client and a server that loses things on purpose, and remembers what was said.

A lost request never reached the server; a lost reply did its work, but the client cannot know. Either way the client
sees its connection cut, as when a cable is pulled, and has to try again: this is where a message is lost or stored
twice if anyone on the path is careless.

    with Proxy() as proxy, Server(kafka_advertised=proxy.address) as server:
        proxy.upstream = server.kafka
        proxy.lose_replies(PRODUCE, every=3)

Clients follow the server's advertised address, so that has to be the proxy's. Each frame on a Kafka connection is

    i32 size | i16 api key | i16 api version | i32 correlation id | ...        client to server
    i32 size | i32 correlation id | ...                                        server to client

`Proxy(native=True)` stands before the line door and speaks the binary protocol, whose frames begin alike both ways:

    8 bytes of preface, once, then   u32 size | u8 kind | u32 correlation id | ...
"""

import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType

PRODUCE = 0
FETCH = 1
NATIVE_PREFACE_BYTES = 8
MAX_FRAME_BYTES = 256 * 1024 * 1024
CONNECT_TIMEOUT_S = 10.0


@dataclass
class Rule:
    """Every n-th frame of one API, or of one kind of request, is lost, until `limit` of them were."""

    api_key: int
    every: int
    limit: int
    seen: int = 0
    lost: int = 0

    def strikes(self, api_key: int) -> bool:
        if api_key != self.api_key or self.lost >= self.limit:
            return False
        self.seen += 1
        if self.seen % self.every:
            return False
        self.lost += 1
        return True


@dataclass(eq=False)
class _Link:
    """One client connection with its twin to the server."""

    client: socket.socket
    server: socket.socket
    frames: list[bytes] = field(default_factory=list)
    asked: dict[int, int] = field(default_factory=dict)  # correlation id -> api key, while unanswered

    def cut(self) -> None:
        for end in (self.client, self.server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the other side was quicker


class Proxy:
    """Listens at `address` from the start; set `upstream` before the first client comes."""

    def __init__(self, upstream: str = "", *, record: bool = False, native: bool = False) -> None:
        self.upstream = upstream
        self._native = native
        self.requests: Counter[int] = Counter()  # by api key, as seen from clients
        self.recordings: list[list[bytes]] = []  # the request frames of each connection, when recording
        self._record = record
        self._request_rules: list[Rule] = []
        self._reply_rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True, name="proxy-accept").start()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"{host}:{port}"

    def lose_requests(self, api_key: int, *, every: int, limit: int = 1_000_000) -> Rule:
        """Cut the connection instead of handing every n-th such request to the server."""
        return self._add(self._request_rules, Rule(api_key, every, limit))

    def lose_replies(self, api_key: int, *, every: int, limit: int = 1_000_000) -> Rule:
        """Cut the connection instead of handing every n-th such reply to the client."""
        return self._add(self._reply_rules, Rule(api_key, every, limit))

    def behave(self) -> None:
        """Lose nothing from now on."""
        with self._lock:
            self._request_rules.clear()
            self._reply_rules.clear()

    def cut(self) -> None:
        """Cut every connection that is open now."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    def close(self) -> None:
        self._closed = True
        # A blocked accept() is woken by shutdown, not by close.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside: one thread accepts, two serve each connection -------------------------------------------------------

    def _add(self, rules: list[Rule], rule: Rule) -> Rule:
        with self._lock:
            rules.append(rule)
        return rule

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self.upstream.rpartition(":")
            try:
                server = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
            except OSError:
                client.close()  # the server is down: so are we
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(client, server)
            with self._lock:
                self._links.add(link)
                if self._record:
                    self.recordings.append(link.frames)
            threads = [
                threading.Thread(target=self._carry_requests, args=(link,), daemon=True, name="proxy-requests"),
                threading.Thread(target=self._carry_replies, args=(link,), daemon=True, name="proxy-replies"),
            ]
            for thread in threads:
                thread.start()
            threading.Thread(target=self._bury, args=(link, threads), daemon=True, name="proxy-end").start()

    def _carry_requests(self, link: _Link) -> None:
        try:
            if self._native:
                link.server.sendall(_read_exactly(link.client, NATIVE_PREFACE_BYTES))
            while frame := _read_frame(link.client):
                if self._native:
                    api_key, correlation_id = struct.unpack_from(">BI", frame, 4)
                else:
                    api_key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
                with self._lock:
                    self.requests[api_key] += 1
                    link.asked[correlation_id] = api_key
                    if self._record:
                        link.frames.append(frame)
                    lost = sum(rule.strikes(api_key) for rule in self._request_rules) > 0
                if lost:
                    return
                link.server.sendall(frame)
        except OSError:
            return
        finally:
            link.cut()

    def _carry_replies(self, link: _Link) -> None:
        try:
            while frame := _read_frame(link.server):
                (correlation_id,) = struct.unpack_from(*((">I", frame, 5) if self._native else (">i", frame, 4)))
                with self._lock:
                    api_key = link.asked.pop(correlation_id, -1)
                    lost = sum(rule.strikes(api_key) for rule in self._reply_rules) > 0
                if lost:
                    return
                link.client.sendall(frame)
        except OSError:
            return
        finally:
            link.cut()

    def _bury(self, link: _Link, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join()
        link.client.close()
        link.server.close()
        with self._lock:
            self._links.discard(link)


def _read_frame(source: socket.socket) -> bytes:
    """One whole frame with its size field, or nothing when the peer is done or talks nonsense."""
    head = _read_exactly(source, 4)
    if len(head) < 4:
        return b""
    (size,) = struct.unpack(">i", head)
    if not 4 <= size <= MAX_FRAME_BYTES:
        return b""
    body = _read_exactly(source, size)
    return head + body if len(body) == size else b""


def _read_exactly(source: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = source.recv(min(size - len(parts), 1 << 18))
        if not part:
            break
        parts += part
    return bytes(parts)
