"""Partitions over each engine, with time in the test's hand."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.log.topics import Engines, Topics
from penstock.storage.disk import DiskEngine
from penstock.storage.engine import Engine
from penstock.storage.memory import MemoryEngine
from penstock.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class House:
    """Topics over one engine that can be closed and opened again."""

    def __init__(self, kind: str, data: Path, clock: ManualClock) -> None:
        self.kind, self.data, self.clock = kind, data, clock

    def engine(self) -> Engine:
        return DiskEngine(self.data, self.clock) if self.kind == "disk" else MemoryEngine(self.clock)

    async def open(self) -> Topics:
        engine = self.engine()
        self.topics = Topics(Engines(engine, engine), self.clock)
        await self.topics.start()
        return self.topics


@pytest.fixture(params=["memory", "disk"])
async def house(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[House]:
    opened = House(request.param, tmp_path / "data", clock)
    await opened.open()
    yield opened
    await opened.topics.close()


@pytest.fixture
async def disk_house(tmp_path: Path, clock: ManualClock) -> AsyncIterator[House]:
    opened = House("disk", tmp_path / "data", clock)
    await opened.open()
    yield opened
    await opened.topics.close()
