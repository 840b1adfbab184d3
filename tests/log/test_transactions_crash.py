"""A crash at one system call after another of a partition's life with transactions, by kill and by power loss.

One scripted life (two producers that commit and abort, a checkpoint, compaction, a restart) is lived again and again,
and dies one call later each time. The next life finds what the disk holds, aborts what it finds open, and must agree
with what was answered: what was committed is there, all of each transaction or nothing, and what was aborted never is.
"""

import asyncio
import contextlib
import random
import shutil
from pathlib import Path

import pytest
from log_house import all_records
from transactional_log import as_kafka_client, batch_in

from penstock.log import compaction
from penstock.log.partition import Partition
from penstock.log.topics import Engines, Topics
from penstock.model.batch import check_batch
from penstock.model.errors import PenstockError
from penstock.storage.disk import DiskEngine
from penstock.testing.clock import ManualClock
from penstock.testing.files import Crash, FaultyFiles, PowerLossFiles
from thorough import crash_points

SETTINGS = {"cleanup.policy": "compact", "delete.retention.ms": "0", "segment.bytes": "1024"}
ROUNDS = 4


class DyingFiles(PowerLossFiles):
    """Tells when it died."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._loop = asyncio.get_running_loop()
        self.died = asyncio.Event()

    def _before(self, method: str) -> bool:
        dies = super()._before(method)
        if dies:
            self._loop.call_soon_threadsafe(self.died.set)
        return dies


class Life:
    """Transactions are numbers; each writes two records under keys of its own."""

    def __init__(self, data: Path, files: FaultyFiles) -> None:
        self.data, self.files, self.clock = data, files, ManualClock()
        self.engines: list[DiskEngine] = []
        self.asked: dict[int, bool] = {}
        self.answered: dict[int, bool] = {}
        self.sequences = {7: 0, 8: 0}

    async def open(self) -> Partition | None:
        self.engines.append(DiskEngine(self.data, self.clock, files=self.files))
        self.topics = Topics(Engines(self.engines[-1], self.engines[-1]), self.clock)
        await self.topics.start()
        known = "orders" in self.topics.by_name
        return await self.topics.open(self.topics.get("orders"), 0) if known else None

    async def live(self) -> None:
        await self.open()
        partition = await self.topics.open(await self.topics.create("orders", 1, SETTINGS), 0)
        for round_ in range(ROUNDS):
            seven, eight = 2 * round_, 2 * round_ + 1
            await self.write(partition, 7, seven)
            await self.write(partition, 8, eight)
            await self.write(partition, 7, seven)
            await self.end(partition, 8, eight, round_ % 2 == 0)
            await self.end(partition, 7, seven, round_ != 2)
            if round_ == 1:
                await partition.checkpoint()
            elif round_ == 2:
                await self.topics.close()
                opened = await self.open()
                assert opened is not None
                partition = opened
            self.clock.advance(1)
            await partition.engine.roll(partition.stream)
            await compaction.compact(partition, self.clock.wall_ms())
        await self.topics.close()

    async def write(self, partition: Partition, producer: int, number: int) -> None:
        sequence = self.sequences[producer]
        batch = batch_in((producer, 0, sequence), b"%d" % number, key=b"%d-%d" % (number, sequence))
        await partition.append(check_batch(batch), batch).durable
        self.sequences[producer] += 1

    async def end(self, partition: Partition, producer: int, number: int, commit: bool) -> None:
        self.asked[number] = commit
        await partition.end_transaction(producer, 0, commit).durable
        self.answered[number] = commit

    async def check(self) -> None:
        """What the next life finds."""
        partition = await self.open()
        if partition is None:
            assert not self.asked
            return
        assert not set(partition.transactions.open) - {7, 8}
        for producer in list(partition.transactions.open):
            await partition.end_transaction(producer, 0, False).durable
        assert partition.stable_end == partition.durable_end
        found = [int(record.value or b"") for record in await all_records(partition)]
        assert [int(value or b"") for value in await as_kafka_client(partition)] == found
        written = {number: 2 if number % 2 == 0 else 1 for number in range(2 * ROUNDS)}
        for number in found:
            assert found.count(number) == written[number], f"transaction {number} is torn"
            assert self.asked[number], f"transaction {number} was aborted and is read"
        for number, commit in self.answered.items():
            assert (number in found) == commit

    async def bury(self) -> None:
        """Release what a dead process would not hold any more."""
        for engine in self.engines:
            engine._executor.shutdown()
            engine._committer.shutdown()
            engine._descriptors.close()
            engine._directory.unlock()


async def live_until(data: Path, crash_at: int) -> Life:
    (data / "topics").mkdir(parents=True)
    files = DyingFiles(str(data))
    files.crash_at = crash_at
    life = Life(data, files)
    living = asyncio.ensure_future(life.live())
    dying = asyncio.ensure_future(files.died.wait())
    try:
        await asyncio.wait([living, dying], return_when=asyncio.FIRST_COMPLETED, timeout=30)
        if dying.done():
            await asyncio.wait([living], timeout=0.03)
            living.cancel()
        await living
    except (Crash, PenstockError, asyncio.CancelledError):
        assert files.crashed
    finally:
        dying.cancel()
        await life.bury()
    return life


async def check(life: Life, data: Path) -> None:
    after = Life(data, FaultyFiles())
    after.asked, after.answered = life.asked, life.answered
    try:
        await after.check()
        await after.topics.close()
    finally:
        with contextlib.suppress(AttributeError):
            await after.bury()


async def calls_of_a_life(data: Path) -> int:
    life = await live_until(data, 0)
    assert set(life.answered) == set(range(2 * ROUNDS))
    await check(life, data)
    return life.files.calls


async def test_a_kill_at_any_call_tears_no_transaction(tmp_path: Path) -> None:
    calls = await calls_of_a_life(tmp_path / "whole")
    assert calls > 50
    for crash_at in crash_points(calls):
        data = tmp_path / str(crash_at)
        life = await live_until(data, crash_at)
        await check(life, data)
        shutil.rmtree(data)


@pytest.mark.parametrize("seed", [None, 1])
async def test_a_power_loss_at_any_call_tears_no_transaction(tmp_path: Path, seed: int | None) -> None:
    calls = await calls_of_a_life(tmp_path / "whole")
    for crash_at in crash_points(calls, 1 if seed is None else 2):
        data, remains = tmp_path / str(crash_at), tmp_path / f"{crash_at}-remains"
        life = await live_until(data, crash_at)
        assert isinstance(life.files, DyingFiles)
        life.files.after_power_loss(str(remains), None if seed is None else random.Random(f"{seed}/{crash_at}"))
        await check(life, remains)
        shutil.rmtree(data)
        shutil.rmtree(remains)
