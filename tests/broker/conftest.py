"""Queue houses over each engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from queue_house import QueueHouse

from penstock.testing.clock import ManualClock


@pytest.fixture(params=["memory", "disk"])
async def queue_house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[QueueHouse]:
    house = await QueueHouse(request.param, tmp_path / "life0", ManualClock()).open()
    yield house
    await house.close()


@pytest.fixture
async def disk_queues(tmp_path: Path) -> AsyncIterator[QueueHouse]:
    house = await QueueHouse("disk", tmp_path / "life0", ManualClock()).open()
    yield house
    await house.close()
