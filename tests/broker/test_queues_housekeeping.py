"""Random lives of a queue view beside a busy housekeeper: its ledger is compacted, its topic drops what is settled."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from queue_house import QUEUES_LEDGER, QueueHouse
from test_queues_lives import SETTINGS, Life

import penstock.log.topics
from penstock.broker.queues import QueueSettings
from penstock.log.housekeeper import Housekeeper
from penstock.security.principal import ANONYMOUS
from penstock.testing.clock import ManualClock

SMALL = "1024"


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[QueueHouse]:
    small = {**penstock.log.topics._INTERNAL_SETTINGS, "segment.bytes": SMALL, "delete.retention.ms": "1000"}
    monkeypatch.setattr(penstock.log.topics, "_INTERNAL_SETTINGS", small)
    house = await QueueHouse("disk", tmp_path / "life0", ManualClock()).open()
    yield house
    await house.close()


class TidyLife(Life):
    async def time(self) -> None:
        await super().time()
        await self.tidy()

    async def tidy(self) -> None:
        house = self.house
        housekeeper = Housekeeper(house.clock, 86_400_000)
        for topic in list(house.topics.by_name.values()):
            for partition in topic.partitions:
                if partition is not None:
                    housekeeper.adopt(partition)
                    await housekeeper.tidy(partition, house.clock.wall_ms())
        await housekeeper.stop()

    def ledger_bytes(self) -> int:
        (partition,) = self.house.topics.get(QUEUES_LEDGER).partitions
        assert partition is not None
        return sum(span.size_bytes for span in partition.spans())


@pytest.mark.parametrize("settings", range(len(SETTINGS)))
@pytest.mark.parametrize("seed", range(5))
async def test_what_the_housekeeper_removes_is_missed_by_nobody(house: QueueHouse, seed: int, settings: int) -> None:
    await house.topics.create("orders", 2, {"cleanup.policy": "settled", "segment.bytes": SMALL})
    await house.queues.create(ANONYMOUS, "orders", "queue", QueueSettings(**SETTINGS[settings]))
    life = TidyLife(house, seed)
    await life.live(120)
    await life.end()
    for _ in range(3):
        house.advance(100_000)
        await life.tidy()
    assert life.ledger_bytes() < 40_000
    assert any(
        partition is not None and partition.start_offset > 0 for partition in house.topics.get("orders").partitions
    )
    await house.crash()
    assert await house.lease() == []
