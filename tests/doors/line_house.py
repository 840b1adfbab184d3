"""A line door in the test's own loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.app import Server
from penstock.config.kinds import Listen, Storage
from penstock.config.settings import Settings
from penstock.doors.line.door import LineDoor


@asynccontextmanager
async def line_server(data: Path, **changes: Any) -> AsyncIterator[tuple[Server, LineDoor]]:
    doors: dict[str, Any] = {"kafka": None, "http": None, "udp": None, "line": Listen("127.0.0.1", 0)}
    settings = Settings(data=str(data), storage=Storage("memory", persistent=False), **{**doors, **changes})
    server = Server(settings)
    await server.start()
    (door,) = (door for door in server.doors if isinstance(door, LineDoor))
    try:
        yield server, door
    finally:
        await server.stop()
