"""A Kafka door in the test's own loop, over an engine in memory or on disk; and bare connections to a real server."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from kafka_wire import Wire
from native_wire import NativeWire

from penstock.app import Server
from penstock.config.kinds import Listen, Storage
from penstock.config.settings import Settings
from penstock.doors.kafka.door import KafkaDoor
from penstock.testing.server import Server as ServerProcess


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        data=str(tmp_path / "data"),
        storage=Storage("memory", persistent=False),
        kafka=Listen("127.0.0.1", 0),
        line=None,
        udp=None,
        http=None,
    )


@pytest.fixture
async def kafka_door(settings: Settings) -> AsyncIterator[KafkaDoor]:
    server = Server(settings)
    await server.start()
    door = server.doors[0]
    assert isinstance(door, KafkaDoor)
    yield door
    await server.stop()


@pytest.fixture
async def wire(kafka_door: KafkaDoor) -> AsyncIterator[Wire]:
    opened = await Wire.open(kafka_door.listener.port)
    yield opened
    await opened.close()


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client of the shared server's HTTP door."""
    with httpx.Client(base_url=server.http, timeout=30) as client:
        yield client


@pytest.fixture
async def native(server: ServerProcess) -> AsyncIterator[NativeWire]:
    """A connection of the binary protocol to the server that all tests share."""
    opened = await NativeWire.open(server.line)
    yield opened
    await opened.close()
