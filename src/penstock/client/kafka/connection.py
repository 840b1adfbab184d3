"""One connection to one server: requests go out, answers come back in the same order. Versions are settled here.

frame    size int32 | header and body as wire.kafka lays them out
"""

import socket
import time
from collections import deque
from typing import NamedTuple

from penstock.client.kafka.errors import Disconnected, Refused, TimedOut, Unreachable, Unsupported
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.messages import Malformed, Struct, decode_response, encode_request, versions

RESPONSE_BYTES_MAX = 512 << 20
CLIENT_ID = "penstock"

# The newest version of a call that this client speaks, where newer ones would change the shape of what it sends:
# topic ids instead of names (Produce 13, Fetch 13, OffsetCommit 10), lists instead of single things.
NEWEST_SPOKEN = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.DELETE_TOPICS: 5,
}


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Due(NamedTuple):
    api: ApiKey
    version: int
    correlation_id: int


class Connection:
    def __init__(self, address: Address, timeout_s: float, hint: str = "") -> None:
        """Connect and ask for the versions the server speaks. `hint` ends the message when that fails."""
        self.address = address
        self._timeout_s = timeout_s
        self._next_correlation_id = 0
        self._due: deque[_Due] = deque()
        self._versions = {int(ApiKey.API_VERSIONS): (0, 0)}
        try:
            self._socket = socket.create_connection(address, timeout_s)
        except OSError as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else _reason(error)
            raise Unreachable(f"cannot reach {address}: {reason}{hint}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            answer = self.call(ApiKey.API_VERSIONS, Struct())
        except (Disconnected, TimedOut) as error:
            self.close()
            raise Unreachable(f"{address} does not answer like a Kafka door: {error}{hint}") from None
        if answer.error_code:
            self.close()
            raise Refused(answer.error_code, f"cannot use {address}")
        self._versions = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def close(self) -> None:
        self._socket.close()
        self._due.clear()

    def version(self, api: ApiKey) -> int:
        """The newest version that both sides speak."""
        theirs_least, theirs_most = self._versions.get(int(api), (0, -1))
        ours_least, ours_most = (0, 0) if api == ApiKey.API_VERSIONS else versions(api)
        version = min(theirs_most, NEWEST_SPOKEN.get(api, ours_most), ours_most)
        if version < max(theirs_least, ours_least):
            raise Unsupported(f"{self.address} does not support {api.name} in a version that this client speaks")
        return version

    def call(self, api: ApiKey, body: Struct, timeout_s: float | None = None) -> Struct:
        self.send(api, body)
        return self.receive(timeout_s)

    def send(self, api: ApiKey, body: Struct) -> None:
        version = self.version(api)
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(b"".join(encode_request(api, version, correlation_id, CLIENT_ID, body)))
        except OSError as error:
            raise self._broken(error) from None
        self._due.append(_Due(api, version, correlation_id))

    def receive(self, timeout_s: float | None = None) -> Struct:
        """The answer to the oldest request that has none yet."""
        due = self._due.popleft()
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        try:
            size = int.from_bytes(self._read(4, deadline), "big", signed=True)
            if not 4 <= size <= RESPONSE_BYTES_MAX:
                raise Malformed(f"an answer of {size} bytes")
            correlation_id, body = decode_response(due.api, due.version, self._read(size, deadline))
            if correlation_id != due.correlation_id:
                raise Malformed("an answer to another request")
        except OSError as error:
            raise self._broken(error) from None
        except Malformed as error:
            self.close()
            raise Disconnected(f"{self.address} sent something that is not Kafka's protocol: {error}") from None
        except BaseException:  # Ctrl-C in the middle of an answer: the rest of it must not be taken for the next one
            self.close()
            raise
        return body

    def _read(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            count = self._socket.recv_into(rest)
            if count == 0:
                raise ConnectionResetError("the server closed the connection")
            rest = rest[count:]
        return data

    def _broken(self, error: OSError) -> Disconnected | TimedOut:
        """What is still due on this connection will never be told apart from what comes next: give it up."""
        self.close()
        if isinstance(error, TimeoutError):
            return TimedOut(f"no answer from {self.address} in time")
        return Disconnected(f"the connection to {self.address} broke: {_reason(error)}")


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "this host name is not known"
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]
