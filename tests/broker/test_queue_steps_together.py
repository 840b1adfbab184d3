"""Steps of a queue that publish to several partitions: nobody ever sees half of one, and each happens once."""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from crash_house import CrashHouse, DyingFiles
from queue_house import QueueHouse, soon, until
from transactional import Writer

from penstock.broker import view_steps
from penstock.broker.queues import Delivery, Publication
from penstock.broker.view_steps import NAME_PREFIX
from penstock.model.errors import PenstockError, StorageFailed
from penstock.model.message import Outgoing
from penstock.security.principal import ANONYMOUS
from penstock.testing.clock import ManualClock
from penstock.testing.files import Crash, FaultyFiles
from thorough import crash_points

WITHIN_S = 30
PARTS = 4  # of each step: two partitions of `out`, and `log`, twice


def publications(number: int) -> list[Publication]:
    """To three partitions, with two messages in one of them."""
    value = b"%d" % number
    return [
        Publication("out", (Outgoing(None, value, partition=0), Outgoing(None, value, partition=1))),
        Publication("log", (Outgoing(None, value), Outgoing(None, value))),
    ]


def number_of(leased: Delivery) -> int:
    return int(leased.record.value or b"")


async def take_step(house: QueueHouse, leased: Delivery) -> bool:
    number = number_of(leased)
    return await soon(
        house.queues.step(ANONYMOUS, "orders", "queue", f"step {number}", [leased.receipt], publications(number))
    )


async def prepare(house: QueueHouse) -> None:
    await house.topics.create("out", 2, {})
    await house.topics.create("log", 1, {})
    await house.create(lease_ms=60_000)


async def seen(house: QueueHouse) -> Counter[int]:
    """How many parts of each step are committed, at one moment."""
    places = [(topic, index) for topic, count in (("out", 2), ("log", 1)) for index in range(count)]
    partitions = [await house.topics.open(house.topics.get(topic), index) for topic, index in places]
    ends = [partition.stable_end for partition in partitions]
    found = Counter[int]()
    for partition, end in zip(partitions, ends, strict=True):
        offset = partition.start_offset
        while offset < end:
            records, offset = await partition.records(offset, 1 << 20)
            found.update(int(record.value or b"") for record in records if record.offset < end)
    return found


def names(house: QueueHouse) -> list[str]:
    assert house.transactions is not None
    return house.transactions.step_names(NAME_PREFIX)


@pytest.fixture(params=["memory", "disk"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[QueueHouse]:
    opened = QueueHouse(request.param, tmp_path / "data", ManualClock())
    opened.with_transactions = True
    await opened.open()
    await prepare(opened)
    yield opened
    await opened.close()


async def test_a_step_is_seen_whole_or_not_at_all(house: QueueHouse) -> None:
    await house.publish(*(b"%d" % number for number in range(20)))
    leased = await house.lease_all(20)
    over = asyncio.Event()
    half: list[Counter[int]] = []

    async def watch() -> None:
        while not over.is_set():
            now = await seen(house)
            if any(count != PARTS for count in now.values()):
                half.append(now)
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    assert all(await asyncio.gather(*(take_step(house, one) for one in leased)))
    over.set()
    await watching
    assert half == []
    assert await seen(house) == dict.fromkeys(range(20), PARTS)
    await until(lambda: names(house) == [])
    assert house.counts().processed == 20


async def test_a_repeated_step_does_nothing(house: QueueHouse) -> None:
    await house.publish(b"1")
    (one,) = await house.lease_all(1)
    assert await take_step(house, one) is True
    assert await take_step(house, one) is False
    await until(lambda: names(house) == [])
    assert await take_step(house, one) is False
    assert await seen(house) == {1: PARTS}


async def test_a_step_of_one_batch_needs_no_transaction(house: QueueHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    assert house.transactions is not None
    monkeypatch.setattr(house.transactions, "open_writer", None)
    await house.publish(b"1", b"2")
    first, second = await house.lease_all(2)
    single = [Publication("log", (Outgoing(None, b"1"), Outgoing(None, b"1")))]
    assert await soon(house.queues.step(ANONYMOUS, "orders", "queue", "one", [first.receipt], single))
    one = [Publication("out", (Outgoing(b"key", b"1"),))]
    assert await soon(house.queues.step(ANONYMOUS, "orders", "queue", "two", [second.receipt], one))


async def test_a_step_that_cannot_be_committed_is_tried_again(
    house: QueueHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_steps, "RETRY_AFTER_S", 0.001)
    assert house.transactions is not None
    commit, tries = house.transactions.commit_step, 0

    def fail_at_first(*arguments: object) -> object:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise StorageFailed("not now")
        return commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(house.transactions, "commit_step", fail_at_first)
    await house.publish(b"1")
    assert await take_step(house, (await house.lease_all(1))[0])
    assert tries == 3
    assert await seen(house) == {1: PARTS}


async def test_topics_that_are_gone_do_not_hold_it_up(house: QueueHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is settled, so what can be published is."""
    monkeypatch.setattr(view_steps, "RETRY_AFTER_S", 0.001)
    house.administrator.auto_create_topics = False
    assert house.transactions is not None
    open_writer = house.transactions.open_writer

    def too_early(*arguments: object) -> object:
        raise StorageFailed("not now")

    monkeypatch.setattr(house.transactions, "open_writer", too_early)
    await house.publish(b"1")
    stepping = asyncio.ensure_future(take_step(house, (await house.lease_all(1))[0]))
    await asyncio.sleep(0.01)
    await house.topics.delete("out")
    monkeypatch.setattr(house.transactions, "open_writer", open_writer)
    assert await stepping
    assert await house.values_of("log") == [b"1", b"1"]


async def test_what_nobody_owns_is_aborted_in_a_topic_that_changed_its_name(tmp_path: Path) -> None:
    house = QueueHouse("disk", tmp_path / "data", ManualClock())
    house.with_transactions = True
    await house.open()
    for name in ("a", "b"):
        await house.topics.create(name, 1, {})
    await house.administrator.swap_topics(ANONYMOUS, "a", "b", [0])
    await Writer(await house.topics.open(house.topics.get("a"), 0), 10**9).write(b"orphan")
    await house.restart()
    partition = await house.topics.open(house.topics.get("a"), 0)
    await until(lambda: partition.stable_end == 2)
    assert await house.values_of("a") == []
    await house.close()


# -- crashes ------------------------------------------------------------------------------------------------


class Life:
    """Two steps at once and one after, with what was answered."""

    def __init__(self) -> None:
        self.published: set[int] = set()
        self.asked: set[int] = set()
        self.answered: set[int] = set()

    async def live(self, house: CrashHouse) -> None:
        await house.open()
        leased = {number_of(one): one for one in await house.lease_all(3)}
        await asyncio.gather(self.step(house, leased[0]), self.step(house, leased[1]))
        await self.step(house, leased[2])
        await house.stop()
        await house.topics.close()

    async def step(self, house: CrashHouse, leased: Delivery) -> None:
        self.asked.add(number_of(leased))
        assert await take_step(house, leased)
        self.answered.add(number_of(leased))

    async def check(self, house: CrashHouse) -> None:
        await house.open()
        free = {number_of(one) for one in await house.lease(10)}
        expected = {number: PARTS for number in range(3) if number not in free}
        async with asyncio.timeout(WITHIN_S):
            while True:
                now = await seen(house)
                assert all(count == PARTS for count in now.values()), "half of a step"
                if now == expected and not names(house):
                    break
                await asyncio.sleep(0.002)
        assert not free & self.answered
        await house.restart()
        assert await seen(house) == expected
        assert names(house) == []


def crash_house(data: Path, files: FaultyFiles) -> CrashHouse:
    house = CrashHouse(data, files)
    house.with_transactions = True
    return house


async def begin(data: Path) -> None:
    house = QueueHouse("disk", data, ManualClock())
    house.with_transactions = True
    await house.open()
    await prepare(house)
    await house.publish(b"0", b"1", b"2")
    await house.close()


async def live_until(data: Path, crash_at: int) -> tuple[Life, DyingFiles]:
    files = DyingFiles(str(data))
    files.crash_at = crash_at
    house, life = crash_house(data, files), Life()
    living, dying = asyncio.ensure_future(life.live(house)), asyncio.ensure_future(files.died.wait())
    try:
        await asyncio.wait([living, dying], return_when=asyncio.FIRST_COMPLETED, timeout=WITHIN_S)
        if dying.done():
            await asyncio.wait([living], timeout=0.02)
            living.cancel()
        await living
    except (Crash, PenstockError, asyncio.CancelledError):
        assert files.crashed
    finally:
        dying.cancel()
        await house.bury()
    return life, files


async def check(life: Life, data: Path) -> None:
    house = crash_house(data, FaultyFiles())
    try:
        await life.check(house)
    finally:
        await house.close()
        await house.bury()


LOSSES = ["kill", "power", "power with chance"]


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_crash_at_any_call_leaves_no_half(tmp_path: Path, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_steps, "RETRY_AFTER_S", 0.005)
    start = tmp_path / "begin"
    await begin(start)
    shutil.copytree(start, tmp_path / "whole")
    life, files = await live_until(tmp_path / "whole", 0)
    assert life.answered == {0, 1, 2}
    await check(life, tmp_path / "whole")
    for crash_at in crash_points(files.calls, LOSSES.index(loss)):
        data = tmp_path / str(crash_at)
        shutil.copytree(start, data)
        life, dead = await live_until(data, crash_at)
        remains = data
        if loss != "kill":
            remains = tmp_path / f"{crash_at}-remains"
            dead.after_power_loss(str(remains), random.Random(crash_at) if "chance" in loss else None)
        await check(life, remains)
        shutil.rmtree(data)
        shutil.rmtree(remains, ignore_errors=True)
