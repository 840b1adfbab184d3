"""Compaction and retention beside transactions, and a partition against a model of itself."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_house import all_records, batch_of, keyed, put
from transactional_log import as_kafka_client, batch_in, committed, end, send

from penstock.log import compaction
from penstock.log.housekeeper import Housekeeper
from penstock.log.partition import Partition
from penstock.log.topics import Engines, Topics
from penstock.log.transactions import Aborted
from penstock.model.batch import check_batch, encode_batch, walk
from penstock.model.errors import StorageFull
from penstock.model.record import Record
from penstock.storage.disk import DiskEngine
from penstock.testing.clock import ManualClock
from penstock.testing.files import FaultyFiles

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


async def opened(house, settings: dict[str, str]) -> Partition:
    return await house.topics.open(await house.topics.create("orders", 1, settings), 0)


async def reopened(house) -> Partition:
    await house.topics.close()
    await house.open()
    return await house.topics.open(house.topics.get("orders"), 0)


async def write(partition: Partition, producer: tuple[int, int, int], key: bytes, value: bytes) -> None:
    batch = batch_in(producer, value, key=key)
    await partition.append(check_batch(batch), batch).durable


async def compact(partition: Partition) -> None:
    await partition.engine.roll(partition.stream)
    await compaction.compact(partition, partition.clock.wall_ms())


async def markers(partition: Partition) -> list[int]:
    found = await partition.engine.read(partition.stream, 0, 1 << 20, partition.durable_end)
    return [h.base_offset for buffer in found.buffers for h in walk(buffer) if h.is_control]


async def test_what_was_aborted_replaces_nothing_and_goes(house) -> None:
    partition = await opened(house, COMPACT)
    await put(partition, keyed((b"k", b"good")))
    await write(partition, (7, 0, 0), b"k", b"aborted")
    await end(partition, 7, 0, False)
    await put(partition, keyed((b"other", b"x")))
    await compact(partition)
    assert await committed(partition) == [b"good", b"x"]
    stored = await partition.engine.read(partition.stream, 0, 1 << 20, partition.durable_end)
    assert b"aborted" not in b"".join(stored.buffers)
    assert partition.transactions.aborted_within(0, 4) == []


async def test_nothing_is_compacted_from_an_open_transaction_on(house) -> None:
    partition = await opened(house, COMPACT)
    await put(partition, keyed((b"k", b"1")))
    await partition.engine.roll(partition.stream)
    await write(partition, (7, 0, 0), b"k", b"2")
    await put(partition, keyed((b"k", b"3")))
    await compact(partition)
    await end(partition, 7, 0, False)
    assert await committed(partition) == [b"1", b"3"]
    await compact(partition)
    await put(partition, keyed((b"end", b"e")))
    await compact(partition)
    assert await committed(partition) == [b"3", b"e"]


async def test_a_marker_stays_while_its_records_do_and_then_for_its_time(disk_house) -> None:
    partition = await opened(disk_house, {**COMPACT, "delete.retention.ms": "1000"})
    await write(partition, (7, 0, 0), b"k", b"1")
    await end(partition, 7, 0, True)
    await put(partition, keyed((b"last", b"l")))
    await compact(partition)
    assert await markers(partition) == [1]
    await put(partition, keyed((b"k", b"2"), (b"last", b"l2")))
    await compact(partition)
    assert await markers(partition) == [1]
    disk_house.clock.advance(999)
    await compact(partition)
    assert await markers(partition) == [1]
    partition = await reopened(disk_house)
    assert not partition.transactions.open
    disk_house.clock.advance(1)
    await put(partition, keyed((b"more", b"m")))
    await compact(partition)
    assert await markers(partition) == []
    assert await committed(partition) == [b"2", b"l2", b"m"]


async def test_a_log_without_its_checkpoint_tells_the_same_after_compaction(disk_house) -> None:
    partition = await opened(disk_house, {**COMPACT, "delete.retention.ms": "0"})
    for number in range(4):
        await write(partition, (7, 0, number), b"k%d" % (number % 2), b"%d" % number)
        await end(partition, 7, 0, number != 2)
    await partition.engine.roll(partition.stream)
    await write(partition, (8, 0, 0), b"open", b"o")
    for _ in range(2):
        await compact(partition)
        disk_house.clock.advance(1)
    await disk_house.topics.close()
    for path in Path(disk_house.data).rglob("checkpoint"):
        path.unlink()
    await disk_house.open()
    partition = await disk_house.topics.open(disk_house.topics.get("orders"), 0)
    assert list(partition.transactions.open) == [8]
    assert await committed(partition) == [b"0", b"3"]


async def test_a_read_that_compaction_overtakes_leaves_out_what_was_aborted(house) -> None:
    partition = await opened(house, COMPACT)
    await write(partition, (7, 0, 0), b"k", b"no")
    await end(partition, 7, 0, False)
    await put(partition, keyed((b"k", b"yes")))
    engine_read = partition.engine.read

    async def overtaken(*args):
        found = await engine_read(*args)
        partition.engine.read = engine_read  # type: ignore[method-assign]
        await compact(partition)
        return found

    partition.engine.read = overtaken  # type: ignore[method-assign]
    found = await partition.read_committed(0, 1000)
    assert b"no" not in b"".join(bytes(buffer) for buffer in found.buffers)
    assert [r.value for r in await all_records(partition)] == [b"yes"]


async def test_retention_waits_for_open_transactions(house) -> None:
    partition = await opened(house, {"retention.ms": "1000", "segment.bytes": "1024"})
    keeper = Housekeeper(house.clock, 86_400_000)
    now_ms = house.clock.wall_ms()
    await put(partition, batch_of(b"x" * 600, time_ms=now_ms))
    batch = batch_in((7, 0, 0), b"y" * 600, time_ms=now_ms)
    await partition.append(check_batch(batch), batch).durable
    await put(partition, batch_of(b"z" * 600, time_ms=now_ms))
    for _ in range(3):
        house.clock.advance(5000)
        await keeper.tidy(partition, house.clock.wall_ms())
    assert partition.start_offset <= 1
    await end(partition, 7, 0, False)
    assert partition.transactions.aborted_within(0, 9) == [Aborted(7, 1, 3)]
    for _ in range(3):
        house.clock.advance(5000)
        await keeper.tidy(partition, house.clock.wall_ms())
    assert partition.start_offset == 4
    assert partition.transactions.aborted_count == 0


# -- a model ------------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    offset: int
    key: bytes
    value: bytes
    transaction: int  # its number in the model, -1: none


class Model:
    """What a partition should hold, told without any of its cleverness."""

    def __init__(self) -> None:
        self.records: list[Stored] = []
        self.outcome: dict[int, bool | None] = {-1: True}  # of each transaction; None: open
        self.running: dict[int, int] = {}  # producer -> transaction
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.end = self.start = 0
        self.compacted_end = 0

    def stable_end(self, start: int = 0) -> int:
        """As open transactions make it that have a record from `start` on."""
        open_offsets = [r.offset for r in self.records if self.outcome[r.transaction] is None and r.offset >= start]
        return max(self.start, min([*open_offsets, self.end]))

    def check(self, read: list[Record], stable_end: int) -> None:
        # An open transaction of which every record was deleted may be forgotten with its checkpoint.
        assert stable_end in (self.stable_end(), self.stable_end(self.start))
        found = [r for r in self.records if self.outcome[r.transaction] and self.start <= r.offset < stable_end]
        expected = {r.offset: r for r in found}
        for record in read:
            assert (record.key, record.value) == expected[record.offset][1:3]
        offsets = {record.offset for record in read}
        newest = {r.key: r.offset for r in expected.values()}
        for r in expected.values():
            assert r.offset in offsets or (r.offset < self.compacted_end and newest[r.key] > r.offset), r


class Bench:
    """A partition on files that may fail, beside its model."""

    def __init__(self, root: Path) -> None:
        self.root, self.lives = root, 0
        self.clock, self.model, self.files = ManualClock(), Model(), FaultyFiles()

    async def start(self) -> None:
        self.files = FaultyFiles()
        engine = DiskEngine(self.root / str(self.lives), self.clock, files=self.files)
        self.topics = Topics(Engines(engine, engine), self.clock)
        await self.topics.start()
        if "orders" not in self.topics.by_name:
            await self.topics.create("orders", 1, {"cleanup.policy": "compact", "delete.retention.ms": "10"})
        self.partition = await self.topics.open(self.topics.get("orders"), 0)

    async def write(self, producer: int, keys: list[int], fails: bool) -> None:
        model = self.model
        epoch, sequence = model.epochs.get(producer, 0), model.sequences.get(producer, 0)
        values = [b"%d-%d-%d" % (model.end, producer, i) for i in range(len(keys))]
        records = [Record(i, 1000, b"%d" % key, value) for i, (key, value) in enumerate(zip(keys, values, strict=True))]
        batch = encode_batch(
            records,
            producer_id=producer or -1,
            producer_epoch=epoch if producer else -1,
            base_sequence=sequence if producer else -1,
            attributes=0x10 if producer else 0,
        )
        if fails:
            await self.fail(lambda: self.partition.append(check_batch(batch), batch).durable)
            return
        await self.partition.append(check_batch(batch), batch).durable
        if producer and producer not in model.running:
            model.running[producer] = len(model.outcome)
            model.outcome[len(model.outcome)] = None
        model.sequences[producer] = sequence + len(keys)
        transaction = model.running.get(producer, -1)
        for key, value in zip(keys, values, strict=True):
            model.records.append(Stored(model.end, b"%d" % key, value, transaction))
            model.end += 1

    async def finish(self, producer: int, commit: bool, bump: bool, fails: bool) -> None:
        model = self.model
        if bump:
            model.epochs[producer] = model.epochs.get(producer, 0) + 1
            model.sequences[producer] = 0
        epoch = model.epochs.get(producer, 0)
        if fails:
            await self.fail(lambda: self.partition.end_transaction(producer, epoch, commit).durable)
        if not fails or bump:  # whoever bumped must try again, for its producer goes on in the new epoch
            await self.partition.end_transaction(producer, epoch, commit).durable
            model.end += 1
            if producer in model.running:
                model.outcome[model.running.pop(producer)] = commit

    async def fail(self, attempt) -> None:
        self.files.free_bytes = 0
        with pytest.raises(StorageFull):
            await attempt()
        self.files.free_bytes = None

    async def compact(self) -> None:
        self.clock.advance(6)
        await compact(self.partition)
        self.model.compacted_end = max(self.model.compacted_end, self.partition.stable_end)

    async def trim(self, share: int) -> None:
        self.model.start = max(self.model.start, self.model.end * share // 10)
        await self.partition.trim(self.model.start)

    async def crash(self, keep_checkpoint: bool) -> None:
        """Go on with what the disk holds now; what was acknowledged is there."""
        old, self.lives = self.root / str(self.lives), self.lives + 1
        shutil.copytree(old, self.root / str(self.lives))
        if not keep_checkpoint:
            for path in (self.root / str(self.lives)).rglob("checkpoint"):
                path.unlink()
        await self.topics.close()
        await self.start()

    async def check(self) -> None:
        partition, model = self.partition, self.model
        assert (partition.start_offset, partition.durable_end) == (model.start, model.end)
        assert set(partition.transactions.open) <= set(model.running)
        read = await all_records(partition)
        model.check(read, partition.stable_end)
        values = [record.value for record in read]
        assert await as_kafka_client(partition) == values
        stepwise, offset = [], partition.start_offset
        while offset < partition.stable_end:
            records, offset = await partition.records(offset, 1)
            stepwise += records
        assert stepwise == read


producers = st.integers(1, 3)
steps = st.one_of(
    st.tuples(st.just("write"), producers, st.lists(st.integers(0, 4), min_size=1, max_size=3), st.booleans()),
    st.tuples(st.just("write"), st.just(0), st.lists(st.integers(0, 4), min_size=1, max_size=3), st.just(False)),
    st.tuples(st.just("finish"), producers, st.booleans(), st.booleans(), st.booleans()),
    st.tuples(st.just("compact")),
    st.tuples(st.just("trim"), st.integers(0, 10)),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("crash"), st.booleans()),
)


async def live(plan: list[tuple]) -> None:
    with tempfile.TemporaryDirectory() as root:
        bench = Bench(Path(root))
        await bench.start()
        try:
            for name, *arguments in plan:
                if name == "checkpoint":
                    await bench.partition.checkpoint()
                else:
                    await getattr(bench, name)(*arguments)
                await bench.check()
            for producer in sorted(bench.model.running):
                await bench.finish(producer, producer % 2 == 0, False, False)
            await bench.check()
            assert bench.partition.stable_end == bench.partition.durable_end
        finally:
            bench.files.heal()
            await bench.topics.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=25))
def test_a_partition_is_what_its_model_says(plan: list[tuple]) -> None:
    asyncio.run(live(plan))


async def test_a_producer_that_trims_its_own_transaction(house) -> None:
    partition = await opened(house, {})
    await send(partition, (7, 0, 0), b"a")
    await partition.trim(1)
    assert partition.stable_end == 1
    await send(partition, (7, 0, 1), b"b")
    await end(partition, 7, 0, True)
    assert await committed(partition) == [b"b"]
