"""A peer is a server under measurement: it starts, answers a protocol, and can be weighed while it runs.

Every peer keeps its data across `stop`/`kill` and `start`, so that restarts can be timed, until `close`.
"""

from pathlib import Path
from typing import Protocol


class Server(Protocol):
    name: str

    @property
    def data(self) -> Path: ...
    def version(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...
    def rss_bytes(self) -> int: ...
    def cpu_seconds(self) -> float: ...


class Peer(Server, Protocol):
    """A server that speaks Kafka's protocol."""

    @property
    def kafka(self) -> str: ...


class QueuePeer(Server, Protocol):
    """A server that keeps queues."""

    client: str  # which of the clients in bench.clients.worker

    @property
    def address(self) -> str: ...
