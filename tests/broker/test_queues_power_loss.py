"""A crash at one system call after another of a queue view's life, by kill and by power loss.

One scripted life (publish, lease, ack, nack, reject, a step, a restart, the second attempts) is lived again and again,
and dies one call later each time. The next life finds what the disk holds, and whatever is there must agree with what
was answered: what is settled stays settled, what is dead or was made in a step is there once, the rest comes again.
"""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path

import pytest
from crash_house import CrashHouse, DyingFiles
from queue_house import soon, until

from penstock.broker.queues import Delivery, Outcome, Publication
from penstock.model.errors import PenstockError
from penstock.model.message import ONLY_FOR, Outgoing
from penstock.security.principal import ANONYMOUS
from penstock.testing.files import Crash, FaultyFiles
from thorough import crash_points

DEAD = "orders.queue.dead"
MESSAGES = 8


class Life:
    """What was answered, and what was merely asked for; messages are numbers."""

    def __init__(self, house: CrashHouse) -> None:
        self.house = house
        self.published: set[int] = set()
        self.asked: dict[str, set[int]] = {verb: set() for verb in ("ack", "step", "dead")}
        self.answered: dict[str, set[int]] = {verb: set() for verb in ("ack", "step", "dead")}

    async def live(self) -> None:
        house = self.house
        await house.open()
        await house.topics.create("out", 1, {})
        await house.create(max_attempts=2, retry_initial_ms=0, retry_jitter=0.0, lease_ms=60_000)
        for number in range(MESSAGES):
            await house.publish(b"%d" % number)
            self.published.add(number)
        first = {number_of(leased): leased for leased in await house.lease_all(6)}
        await self.settle("ack", Outcome.ACK, first[1])
        await self.settle("", Outcome.NACK, first[0])
        await self.settle("dead", Outcome.REJECT, first[3])
        await self.step(first[2])
        await asyncio.gather(self.settle("ack", Outcome.ACK, first[4]), self.step(first[5]))
        await house.restart()
        second = {number_of(leased): leased for leased in await house.lease_all(3)}
        assert second.keys() == {0, 6, 7}
        await self.settle("dead", Outcome.NACK, second[0])
        await self.step(second[7])
        await self.settle("ack", Outcome.ACK, second[6])
        await until(lambda: house.counts().processing == 0)
        await house.queues.stop()
        await house.topics.close()

    async def settle(self, verb: str, outcome: Outcome, leased: Delivery) -> None:
        if verb:
            self.asked[verb].add(number_of(leased))
        assert await self.house.settle(outcome, [leased]) == [None]
        if verb:
            self.answered[verb].add(number_of(leased))

    async def step(self, leased: Delivery) -> None:
        number = number_of(leased)
        self.asked["step"].add(number)
        publications = [Publication("out", (Outgoing(None, b"%d" % number),))]
        receipts = [leased.receipt]
        assert await soon(
            self.house.queues.step(ANONYMOUS, "orders", "queue", f"step {number}", receipts, publications)
        )
        self.answered["step"].add(number)

    async def check(self, house: CrashHouse) -> None:
        """What the next life finds, when it works off everything."""
        await house.open()
        if "orders" not in house.topics.by_name or not house.queues.views(ANONYMOUS):
            assert not self.published
            return
        came = Counter[int]()
        while True:
            leased = await house.lease(100, wait_ms=0)
            came.update(number_of(one) for one in leased)
            await house.ack(leased)
            counts = house.counts()
            if not leased and counts.pending == 0 and counts.processing == 0:
                break
            await asyncio.sleep(0.001)
        # Steps that were begun are finished beside all this, and count as processed from their beginning.
        await house.has_values("out", sum(not came[number] for number in self.asked["step"]))
        dead = await self.numbers(house, DEAD)
        out = await self.numbers(house, "out")
        assert max((*came.values(), *dead.values(), *out.values()), default=1) == 1, "nothing is there twice"
        for number in self.published:
            assert came[number] or dead[number] or out[number] or number in self.asked["ack"], f"{number} is lost"
        for number in self.answered["ack"]:
            assert not came[number] and not dead[number] and not out[number]
        for number in self.answered["step"]:
            assert (came[number], out[number]) == (0, 1)
        for number in self.answered["dead"]:
            assert (came[number], dead[number]) == (0, 1)
        for number in self.asked["step"]:
            assert came[number] + out[number] == 1, "settled and published, or neither"
        for number in self.asked["dead"]:
            assert came[number] + dead[number] == 1
        assert set(dead) <= self.asked["dead"]
        assert set(out) <= self.asked["step"]
        await house.restart()
        assert await house.lease(100) == []
        assert await self.numbers(house, DEAD) == dead
        assert await self.numbers(house, "out") == out

    @staticmethod
    async def numbers(house: CrashHouse, topic: str) -> Counter[int]:
        if topic not in house.topics.by_name:
            return Counter()
        return Counter(int(value or b"") for value in await house.values_of(topic))


def number_of(leased: Delivery) -> int:
    return int(leased.record.value or b"")


async def unless_dead(files: DyingFiles, life: Awaitable[None]) -> None:
    """Live until the end, or until the files died and everybody had a moment to notice."""
    living = asyncio.ensure_future(life)
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


async def live_until(data: Path, crash_at: int) -> tuple[Life, DyingFiles]:
    (data / "topics").mkdir(parents=True)
    files = DyingFiles(str(data))
    files.crash_at = crash_at
    house = CrashHouse(data, files)
    life = Life(house)
    await unless_dead(files, life.live())
    await house.bury()
    return life, files


async def calls_of_a_life(data: Path) -> int:
    life, files = await live_until(data, 0)
    assert life.answered == {"ack": {1, 4, 6}, "step": {2, 5, 7}, "dead": {0, 3}}
    await check(life, data)
    return files.calls


async def check(life: Life, data: Path) -> None:
    house = CrashHouse(data, FaultyFiles())
    try:
        await life.check(house)
    finally:
        await house.close()
        await house.bury()


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


# -- redriving ---------------------------------------------------------------------------------------------------------


class Redriven:
    """All die, and all are brought back. In the end each was processed once, however the way was cut short."""

    def __init__(self, house: CrashHouse) -> None:
        self.house = house
        self.published: set[int] = set()
        self.acked: set[int] = set()

    async def live(self) -> None:
        house = self.house
        await house.open()
        await house.create(retry_initial_ms=0)
        for number in range(3):
            await house.publish(b"%d" % number)
            self.published.add(number)
        await house.settle(Outcome.REJECT, await house.lease_all(3))
        await until(lambda: house.counts().processing == 0)
        assert await soon(house.queues.redrive(ANONYMOUS, "orders", "queue")) == 3
        (one,) = await house.lease_all(1)
        await house.ack([one])
        self.acked.add(number_of(one))
        await house.queues.stop()
        await house.topics.close()

    async def check(self, house: CrashHouse) -> None:
        await house.open()
        if "orders" not in house.topics.by_name or not house.queues.views(ANONYMOUS):
            assert not self.published
            return
        came = Counter(self.acked)
        for _ in range(3):  # what had not died yet is rejected and redriven with the others
            while leased := await house.lease(100):
                again = [one for one in leased if any(name == ONLY_FOR for name, _ in one.record.headers)]
                await house.settle(Outcome.REJECT, [one for one in leased if one not in again])
                await house.ack(again)
                came.update(number_of(one) for one in again)
            await until(lambda: house.counts().processing == 0)
            await soon(house.queues.redrive(ANONYMOUS, "orders", "queue"))
        assert {number: came[number] for number in self.published} == dict.fromkeys(self.published, 1)
        assert house.counts().pending == 0


async def test_a_redrive_that_is_cut_short_brings_each_letter_back_once(tmp_path: Path) -> None:
    crash_at, crashed = 0, True
    while crashed:
        crash_at += 1
        data, remains = tmp_path / str(crash_at), tmp_path / f"{crash_at}-remains"
        (data / "topics").mkdir(parents=True)
        files = DyingFiles(str(data))
        files.crash_at = crash_at
        house = CrashHouse(data, files)
        life = Redriven(house)
        await unless_dead(files, life.live())
        await house.bury()
        crashed = files.crashed
        files.after_power_loss(str(remains), random.Random(crash_at))
        house = CrashHouse(remains, FaultyFiles())
        try:
            await life.check(house)
        finally:
            await house.close()
            await house.bury()
        shutil.rmtree(data)
        shutil.rmtree(remains)
    assert crash_at > 50
