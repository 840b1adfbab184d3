"""Two topics exchange their names: at once, durably, only if nothing was added, and with the offsets of groups."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from broker_house import BrokerHouse
from crash_house import DyingFiles

from penstock.broker.coordinate import Commit, Coordinator, OffsetCommit, OffsetFact, TopicPartition
from penstock.log import topics as catalogue
from penstock.log.swap import MAX_SWAP_FACT_BYTES, Swap
from penstock.model.batch import encode_batch, read_header
from penstock.model.errors import (
    Conflict,
    InvalidRequest,
    LimitReached,
    NotAllowed,
    PenstockError,
    StorageFailed,
    StorageFull,
    UnknownTopic,
    UnknownTopicId,
)
from penstock.model.ids import INTERNAL_PREFIX
from penstock.model.message import Outgoing
from penstock.model.record import Record
from penstock.security.principal import ANONYMOUS
from penstock.storage.disk import DiskEngine
from penstock.storage.disk.files import Files
from penstock.testing.files import Crash, FaultyFiles

WITHIN_S = 30
TRANSACTIONAL = 1 << 4
NO_ID = "00000000-0000-0000-0000-000000000000"
OLD = [b"a", b"b", b"a"]
NEW = [b"a", b"b"]


class SwapHouse(BrokerHouse):
    """Topics and groups."""

    async def open(self) -> "SwapHouse":
        await super().open()
        self.coordinator = Coordinator(await self.topics.open_ledger(f"{INTERNAL_PREFIX}groups"), self.clock)
        await self.coordinator.start()
        self.topics.swapped = self.coordinator.follow_swap
        await self.topics.finish_swaps()
        await self.topics.sweep()
        return self

    async def fill(self) -> None:
        """`orders`, which two groups read, and what was made of it."""
        await self.create("orders", 2)
        await self.create("orders-small")
        await self.publish("orders", *OLD, partition=1)
        await self.publish("orders-small", *NEW)
        for group in ("billing", "mail"):
            await self.commit(group, "orders", 1, 2)
        await self.commit("mail", "orders-small", 0, 1)

    async def publish(self, topic: str, *values: bytes, partition: int = 0) -> None:  # type: ignore[override]
        await self.send(topic, [Outgoing(None, value, partition=partition) for value in values])

    async def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        place = TopicPartition(topic, partition)
        await self.coordinator.commit(ANONYMOUS, group, OffsetCommit({place: Commit(offset)}))

    async def committed(self, group: str) -> dict[tuple[str, int], int]:
        found = await self.coordinator.committed(ANONYMOUS, group)
        return {tuple(at): kept.offset for at, kept in found.items() if isinstance(kept, OffsetFact)}  # type: ignore[misc]

    async def swap(self, *, ends: tuple[int, ...] = (0, 3)) -> None:
        await self.administrator.swap_topics(ANONYMOUS, "orders", "orders-small", ends, [("billing", 0, 1)])

    async def is_swapped(self) -> bool:
        """All of it, or nothing."""
        orders, other = self.topics.get("orders"), self.topics.get("orders-small")
        offsets = await self.committed("billing"), await self.committed("mail")
        if orders.partition_count == 1:
            assert (await self.values("orders"), other.partition_count) == (NEW, 2)
            assert await self.values("orders-small", 1) == OLD
            assert offsets == ({("orders", 0): 1}, {})
            return True
        assert (await self.values("orders", 1), await self.values("orders-small")) == (OLD, NEW)
        assert other.partition_count == 1
        assert offsets == ({("orders", 1): 2}, {("orders", 1): 2, ("orders-small", 0): 1})
        return False


@pytest.fixture(params=["memory", "disk"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> SwapHouse:
    opened = await SwapHouse(request.param, tmp_path).open()
    await opened.fill()
    return opened


async def test_names_logs_and_offsets_change_together(house: SwapHouse) -> None:
    ids = {house.topics.get(name).id for name in ("orders", "orders-small")}
    count = house.topics.partition_count
    await house.swap()
    assert await house.is_swapped()
    assert ids.isdisjoint({house.topics.get(name).id for name in ("orders", "orders-small")})
    assert house.topics.partition_count == count
    for old in ids:
        with pytest.raises(UnknownTopicId):
            house.topics.get_by_id(old)
    await house.publish("orders", b"c")
    assert await house.values("orders") == [*NEW, b"c"]
    assert (await house.partition("orders")).topic == "orders"
    await house.close()


async def test_the_swap_outlives_the_server_and_so_do_later_changes(tmp_path: Path) -> None:
    house = await SwapHouse("disk", tmp_path).open()
    await house.fill()
    await house.swap()
    await house.publish("orders", b"c")
    await house.commit("billing", "orders", 0, 2)
    await house.topics.alter("orders", {"retention.ms": "60000"})
    await house.topics.add_partitions("orders", 3)
    await house.close()
    await house.open()
    orders = house.topics.get("orders")
    assert (orders.partition_count, orders.settings.overrides) == (3, {"retention.ms": "60000"})
    assert await house.values("orders") == [*NEW, b"c"]
    assert await house.committed("billing") == {("orders", 0): 2}, "not once more"
    await house.topics.delete("orders-small")
    await house.administrator.create_topic(ANONYMOUS, "orders-small", 1)
    assert await house.values("orders-small") == []
    assert await house.values("orders") == [*NEW, b"c"]
    await house.close()
    await house.open()
    assert await house.values("orders") == [*NEW, b"c"]
    await house.topics.delete("orders")
    await house.close()
    await house.open()
    assert list((tmp_path / "topics").glob("orders*/*")) == []
    await house.close()


async def test_swapped_back_everything_is_as_it_was(house: SwapHouse) -> None:
    await house.swap()
    await house.administrator.swap_topics(ANONYMOUS, "orders", "orders-small", [2])
    assert await house.values("orders", 1) == OLD
    assert await house.committed("billing") == {}
    await house.close()


async def test_a_topic_that_has_grown_is_not_swapped(house: SwapHouse) -> None:
    for ends in ((0, 2), (0, 4), (1, 3)):
        with pytest.raises(Conflict):
            await house.swap(ends=ends)
    with pytest.raises(InvalidRequest, match="2 partitions"):
        await house.swap(ends=(3,))
    with pytest.raises(Conflict, match="id"):
        await house.administrator.swap_topics(ANONYMOUS, "orders", "orders-small", [0, 3], [], NO_ID)
    assert not await house.is_swapped()
    await house.publish("orders", b"d", partition=1)
    with pytest.raises(Conflict, match="ends at 4"):
        await house.swap()
    await house.close()


async def test_what_cannot_be_swapped(house: SwapHouse) -> None:
    swap = house.administrator.swap_topics
    for name, other, error in (
        ("orders", "orders", InvalidRequest),
        ("orders", "nothing", UnknownTopic),
        ("orders", f"{INTERNAL_PREFIX}groups", NotAllowed),
    ):
        with pytest.raises(error):
            await swap(ANONYMOUS, name, other, [0, 3])
    for offset in (("billing", 1, 0), ("billing", -1, 0), ("billing", 0, -1), ("", 0, 0)):
        with pytest.raises(InvalidRequest, match="offset"):
            await swap(ANONYMOUS, "orders", "orders-small", [0, 3], [offset])
    with pytest.raises(LimitReached, match="offsets"):
        await swap(ANONYMOUS, "orders", "orders-small", [0, 3], [("x" * MAX_SWAP_FACT_BYTES, 0, 0)])
    assert not await house.is_swapped()
    await house.close()


async def test_an_open_transaction_is_waited_for(house: SwapHouse) -> None:
    partition = await house.partition("orders")
    batch = encode_batch(
        [Record(0, 1000, None, b"t")], producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
    )
    await partition.append(read_header(batch), batch).durable
    with pytest.raises(Conflict, match="transaction"):
        await house.swap(ends=(1, 3))
    await partition.end_transaction(7, 0, False).durable
    await house.swap(ends=(2, 3))
    await house.close()


async def test_writers_and_readers_of_the_old_log_are_sent_away(house: SwapHouse) -> None:
    old = await house.partition("orders", 1)
    target = await house.gatherer.target(ANONYMOUS, "orders")
    woken = asyncio.Event()
    old.watch(lambda partition, _: woken.set() if partition.closed else None)
    swapping = asyncio.ensure_future(house.swap())
    await asyncio.wait_for(woken.wait(), WITHIN_S)
    with pytest.raises(UnknownTopic):  # also while it is being recorded
        await target.publish([Outgoing(None, b"late", partition=1)])
    await swapping
    with pytest.raises(UnknownTopic):
        await target.publish([Outgoing(None, b"late", partition=1)])
    assert await house.is_swapped()
    await house.close()


async def test_a_writer_who_goes_on_loses_nothing(house: SwapHouse) -> None:
    """Whatever was acknowledged before the swap was counted in its ends, whatever came after is in the new log."""
    acknowledged: list[bytes] = []
    swapped = asyncio.Event()

    async def write() -> None:
        number = 0
        while not (swapped.is_set() and len(acknowledged) >= 20):
            value = b"w%d" % number
            number += 1
            try:
                target = await house.gatherer.target(ANONYMOUS, "orders")
                await target.publish([Outgoing(None, value, partition=0)])
                acknowledged.append(value)
            except UnknownTopic:
                pass  # not stored: while the names change, nobody takes it
            await asyncio.sleep(0.002)

    writing = asyncio.ensure_future(write())
    partition = await house.partition("orders")
    async with asyncio.timeout(WITHIN_S):
        while True:
            await asyncio.sleep(0)
            try:
                await house.swap(ends=(partition.durable_end, 3))
                break
            except Conflict:
                continue
    swapped.set()
    await asyncio.wait_for(writing, WITHIN_S)
    old = await house.values("orders-small")
    new = (await house.values("orders"))[len(NEW) :]
    assert [*old, *new] == acknowledged
    await house.close()


async def test_a_swap_that_cannot_be_recorded_has_not_happened(tmp_path: Path) -> None:
    files = FaultyFiles()
    house = await SwapHouse("disk", tmp_path, files=files).open()
    await house.fill()
    files.free_bytes = 0
    with pytest.raises(StorageFull):
        await house.swap()
    files.heal()
    assert not await house.is_swapped()
    await house.publish("orders", b"c")
    with pytest.raises(Conflict):
        await house.swap()
    await house.administrator.swap_topics(ANONYMOUS, "orders", "orders-small", [1, 3])
    assert await house.values("orders") == NEW
    await house.close()


async def test_a_swap_that_is_recorded_waits_until_the_offsets_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "RETRY_AFTER_S", 0.001)
    house = await SwapHouse("memory", tmp_path).open()
    await house.fill()
    tries = 0

    async def follow(swap: Swap) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise StorageFailed("not now")
        await house.coordinator.follow_swap(swap)

    house.topics.swapped = follow
    await house.swap()
    assert tries == 2
    assert await house.is_swapped()
    await house.close()


# -- crashes ------------------------------------------------------------------------------------------------


class CrashingHouse(SwapHouse):
    def __init__(self, data: Path, files: Files) -> None:
        super().__init__("disk", data, files=files)
        self.engines: list[DiskEngine] = []

    def _engine(self) -> DiskEngine:
        self.engines.append(DiskEngine(self.data, self.clock, files=self.files))
        return self.engines[-1]

    async def bury(self) -> None:
        """Release what a dead process would not hold any more."""
        unbroken = list(self.topics._unbroken) if hasattr(self, "topics") else []
        for task in unbroken:
            task.cancel()
        await asyncio.gather(*unbroken, return_exceptions=True)
        for engine in self.engines:
            engine._executor.shutdown()
            engine._committer.shutdown()
            engine._descriptors.close()
            engine._directory.unlock()


async def filled(data: Path) -> None:
    house = await SwapHouse("disk", data).open()
    await house.fill()
    await house.close()


async def swapped_until(data: Path, crash_at: int) -> tuple[bool, DyingFiles]:
    """Open, swap, and die at this call; whether the swap was answered."""
    files = DyingFiles(str(data))
    files.crash_at = crash_at
    house = CrashingHouse(data, files)
    answered = False

    async def live() -> None:
        nonlocal answered
        await house.open()
        await house.swap()
        answered = True

    living, dying = asyncio.ensure_future(live()), asyncio.ensure_future(files.died.wait())
    try:
        await asyncio.wait([living, dying], return_when=asyncio.FIRST_COMPLETED, timeout=WITHIN_S)
        if dying.done():
            await asyncio.wait([living], timeout=0.03)
            living.cancel()
        await living
    except (Crash, PenstockError, asyncio.CancelledError):
        assert files.crashed
    finally:
        dying.cancel()
        await house.bury()
    return answered, files


async def found(data: Path) -> bool:
    house = await SwapHouse("disk", data).open()
    try:
        return await house.is_swapped()
    finally:
        await house.close()


@pytest.mark.parametrize("loss", ["kill", "power", "power with chance"])
async def test_a_crash_at_any_call_leaves_all_or_nothing(tmp_path: Path, loss: str) -> None:
    begin = tmp_path / "begin"
    await filled(begin)
    shutil.copytree(begin, tmp_path / "whole")
    answered, files = await swapped_until(tmp_path / "whole", 0)
    assert answered
    outcomes = set()
    for crash_at in range(1, files.calls + 1):
        data = tmp_path / str(crash_at)
        shutil.copytree(begin, data)
        answered, dead = await swapped_until(data, crash_at)
        remains = data
        if loss != "kill":
            remains = tmp_path / f"{crash_at}-remains"
            dead.after_power_loss(str(remains), random.Random(crash_at) if "chance" in loss else None)
        is_swapped = await found(remains)
        assert is_swapped or not answered
        outcomes.add(is_swapped)
        assert await found(remains) == is_swapped, "for good"
        shutil.rmtree(data)
        shutil.rmtree(remains, ignore_errors=True)
    assert outcomes == {True, False}
