"""A crash at one system call after another of transactions and a named step, by kill and by power loss.

One scripted life is lived again and again, and dies one call later each time. The next life finds what the disk holds,
and whatever is there must agree with what was answered: a commit is whole and is never lost, an abort shows nothing,
and a step that is repeated, as its driver would, is there once.
"""

import contextlib
import random
import shutil
from pathlib import Path

import pytest
from crash_house import DyingFiles
from queue_house import soon
from test_queues_power_loss import unless_dead
from transaction_house import TransactionHouse

from penstock.broker.transact import ProducerIdentity
from penstock.delivery.offsets import TopicPartition
from penstock.security.principal import ANONYMOUS
from penstock.storage.disk import DiskEngine
from penstock.storage.engine import Engine
from penstock.testing.files import FaultyFiles
from thorough import crash_points

PLACE = TopicPartition("t", 0)
PARTITIONS = 2


class DyingHouse(TransactionHouse):
    def __init__(self, data: Path, files: FaultyFiles) -> None:
        super().__init__("disk", data)
        self.files = files
        self.engines: list[DiskEngine] = []

    def _engine(self) -> Engine:
        self.engines.append(DiskEngine(self.data, self.clock, files=self.files))
        return self.engines[-1]

    async def bury(self) -> None:
        """Release what a dead process would not hold any more."""
        await self._stop()
        for engine in self.engines:
            engine._executor.shutdown()
            engine._committer.shutdown()
            engine._descriptors.close()
            engine._directory.unlock()


class Life:
    """What was asked for and what was answered: by the value that a transaction writes to every partition."""

    def __init__(self, house: DyingHouse) -> None:
        self.house = house
        self.asked: dict[bytes, bool] = {}
        self.answered: dict[bytes, bool] = {}
        self.created = False

    async def live(self) -> None:
        house = self.house
        await house.open()
        await house.topics.create("t", PARTITIONS, {})
        self.created = True
        who = await house.init()
        who = await self.transaction(who, b"1", commit=True, offset=1)
        who = await self.transaction(who, b"2", commit=False, offset=2)
        await self.first_protocol(b"3", b"4")
        await self.step(b"5")
        who = await self.transaction(who, b"6", commit=True, offset=6)
        await house.restart()
        await self.transaction(who, b"7", commit=True)
        await house.put(ProducerIdentity(*(await house.open_writer(1))[:2]), b"8")
        await house.transactions.stop()
        await house.coordinator.stop()
        await house.topics.close()

    async def transaction(
        self, who: ProducerIdentity, value: bytes, *, commit: bool, offset: int | None = None
    ) -> ProducerIdentity:
        house = self.house
        for partition in range(PARTITIONS):
            await house.put(who, value, partition=partition)
        if offset is not None:
            await house.commit_offset(who, offset)
        self.asked[value] = commit
        after = await house.end(who, commit)
        self.answered[value] = commit
        return after

    async def first_protocol(self, *values: bytes) -> None:
        """The epoch stays the same, so that a marker written twice would meet the next transaction."""
        house = self.house
        who = await house.init("y")
        for value in values:
            await house.add(who, *range(PARTITIONS), name="y")
            for partition in range(PARTITIONS):
                await house.put(who, value, partition=partition, name="y", implicit=False)
            self.asked[value] = value == values[0]
            await house.end(who, value == values[0], name="y", bump=False)
            self.answered[value] = value == values[0]

    async def step(self, value: bytes) -> bool:
        house = self.house
        writers = []
        for counts in (True, False):
            writer = await house.open_writer(0)
            if writer.done:
                return False
            for partition in range(PARTITIONS):
                written = value if counts else b"never"
                await house.put(ProducerIdentity(*writer[:2]), written, partition=partition)
            writers.append(writer.producer_id)
        self.asked[value] = True
        done = await house.commit_step(0, writers[:1], offsets={"steps": {PLACE: 5}})
        self.answered[value] = True
        return done

    async def check(self, house: DyingHouse) -> None:
        """What the next life finds, when everyone has gone and every time-out has come."""
        await house.open()
        if "t" not in house.topics.by_name:
            assert not self.created
            return
        for partition in range(PARTITIONS):
            await house.topics.open(house.topics.get("t"), partition)
        house.advance(900_000)
        for partition in range(PARTITIONS):
            await house.stable(partition=partition)
        found = [await house.committed(partition=partition) for partition in range(PARTITIONS)]
        assert found[0] == found[1], "a transaction is whole"
        assert len(set(found[0])) == len(found[0]), "nothing is there twice"
        assert set(found[0]) <= {value for value, commit in self.asked.items() if commit}
        assert set(found[0]) >= {value for value, commit in self.answered.items() if commit}
        await self.check_offsets(house, found[0])
        self.house = house
        if b"5" not in self.answered:
            assert await self.step(b"5") is (b"5" not in found[0]), "a repeat does nothing"
        assert [(await house.committed(partition=p)).count(b"5") for p in range(PARTITIONS)] == [1, 1]
        assert await house.offset("steps", stable=True) == 5
        await soon(house.transactions.forget_step(ANONYMOUS, "s"))

    async def check_offsets(self, house: DyingHouse, found: list[bytes]) -> None:
        newest = max([int(value) for value in found if value in (b"1", b"6")], default=None)
        assert await house.offset(stable=True) == newest, "offsets and records are committed together"
        assert await house.offset("steps", stable=True) == (5 if b"5" in found else None)


async def live_until(data: Path, crash_at: int) -> tuple[Life, DyingFiles]:
    (data / "topics").mkdir(parents=True)
    files = DyingFiles(str(data))
    files.crash_at = crash_at
    house = DyingHouse(data, files)
    life = Life(house)
    await unless_dead(files, life.live())
    await house.bury()
    return life, files


async def check(life: Life, data: Path) -> None:
    house = DyingHouse(data, FaultyFiles())
    try:
        await life.check(house)
    finally:
        with contextlib.suppress(AttributeError):
            await house.close()
        await house.bury()


async def calls_of_a_life(data: Path) -> int:
    life, files = await live_until(data, 0)
    assert life.answered == {b"1": True, b"2": False, b"3": True, b"4": False, b"5": True, b"6": True, b"7": True}
    await check(life, data)
    return files.calls


# Lives differ by a few calls, as their writes meet or miss each other: the last calls are tried in some of them only.


async def test_a_kill_at_any_call_breaks_no_answer(tmp_path: Path) -> None:
    calls = await calls_of_a_life(tmp_path / "whole")
    assert calls > 50
    for crash_at in crash_points(calls):
        data = tmp_path / str(crash_at)
        life, _ = await live_until(data, crash_at)
        await check(life, data)
        shutil.rmtree(data)


@pytest.mark.parametrize("seed", [None, 1])
async def test_a_power_loss_at_any_call_breaks_no_answer(tmp_path: Path, seed: int | None) -> None:
    calls = await calls_of_a_life(tmp_path / "whole")
    for crash_at in crash_points(calls, 1 if seed is None else 2):
        data, remains = tmp_path / str(crash_at), tmp_path / f"{crash_at}-remains"
        life, files = await live_until(data, crash_at)
        files.after_power_loss(str(remains), None if seed is None else random.Random(f"{seed}/{crash_at}"))
        await check(life, remains)
        shutil.rmtree(data)
        shutil.rmtree(remains)
