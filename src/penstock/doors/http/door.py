"""The HTTP door: a listener whose connections speak HTTP/1.1 to the broker."""

import asyncio
import logging

from uvicorn import Config

from penstock.broker.broker import Broker
from penstock.doors.http import (
    events,
    fetch,
    groups,
    health,
    mbroker,
    openapi,
    page,
    pipelines,
    publish,
    queues,
    routers,
    sockets,
    topics,
)
from penstock.doors.http.application import Application
from penstock.doors.http.house import House
from penstock.doors.http.server import HttpConnection
from penstock.doors.limits import Limits
from penstock.doors.listener import Listener

# Importing these modules is what registers their routes.
ROUTE_MODULES = (
    health, openapi, page, topics, publish, fetch, events, sockets, groups, queues, routers, pipelines, mbroker,
)  # fmt: skip


class HttpDoor:
    name = "http"

    def __init__(
        self, broker: Broker, host: str, port: int, *, limits: Limits, max_body_bytes: int, max_silence_s: float = 600.0
    ) -> None:
        self.listener = Listener(self.name, host, port, limits, self._connection, max_silence_s=max_silence_s)
        config = Config(
            Application(broker),
            http=HttpConnection,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=logging.ERROR,  # what clients do wrong they are told, and nobody else
            access_log=False,
            proxy_headers=False,
            ws_max_size=max_body_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=None,  # a timer for each idle connection; the system finds out those that are lost
        )
        config.load()
        self.house = House(config, self.listener, limits, max_body_bytes)

    def _connection(self) -> asyncio.BaseProtocol:
        return HttpConnection(self.house)

    async def open(self) -> str:
        await self.listener.open()
        host, port = self.listener.host, self.listener.port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def drain(self, timeout_s: float) -> None:
        self.house.draining = True
        await self.listener.drain(timeout_s)

    async def close(self) -> None:
        self.house.stop()
        await self.listener.close()
