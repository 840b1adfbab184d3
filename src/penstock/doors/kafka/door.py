"""The Kafka door: a listener whose connections speak Kafka's protocol to the broker."""

from penstock.broker.broker import Broker
from penstock.doors.kafka import (
    configs,
    fetch,
    group_admin,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
    topics,
    transaction_admin,
    transactions,
)
from penstock.doors.kafka.api import Advertised
from penstock.doors.kafka.connection import KafkaConnection
from penstock.doors.kafka.sessions import FetchSessions
from penstock.doors.limits import Limits
from penstock.doors.listener import Listener

# Importing these modules is what registers their handlers.
HANDLER_MODULES = (
    configs,
    fetch,
    group_admin,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
    topics,
    transaction_admin,
    transactions,
)


class KafkaDoor:
    name = "kafka"

    def __init__(
        self,
        broker: Broker,
        host: str,
        port: int,
        *,
        limits: Limits,
        max_request_bytes: int,
        max_silence_s: float = 600.0,
        advertised_host: str | None = None,
        advertised_port: int | None = None,
    ) -> None:
        self.broker = broker
        self.limits = limits
        self.max_request_bytes = max_request_bytes
        self.sessions = FetchSessions()
        self._connections = 0
        self.listener = Listener(
            self.name, host, port, limits, lambda: KafkaConnection(self), max_silence_s=max_silence_s
        )
        self._advertised_host = advertised_host
        self._advertised_port = advertised_port
        self.advertised = Advertised(broker.node_id, host, port)

    def next_serial(self) -> int:
        """The number of the next connection, so that an older one is known for what it is."""
        self._connections += 1
        return self._connections

    async def open(self) -> str:
        await self.listener.open()
        host, port = self.listener.host, self.listener.port
        self.advertised = Advertised(
            self.broker.node_id, self._advertised_host or _reachable(host), self._advertised_port or port
        )
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def drain(self, timeout_s: float) -> None:
        await self.listener.drain(timeout_s)

    async def close(self) -> None:
        await self.listener.close()


def _reachable(host: str) -> str:
    """A wildcard address is no address to connect to; without better advice, this machine's loopback is."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
