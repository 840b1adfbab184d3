"""Transactions in one partition: what is committed is read, what is not is not, whatever happens in between."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from log_house import all_records, batch_of, put
from transactional_log import batch_in, committed, end, send

from penstock.log import producers as producers_module
from penstock.log import transactions as transactions_module
from penstock.log.partition import Partition
from penstock.log.topics import Engines, Topics
from penstock.log.transactions import Aborted
from penstock.model.batch import check_batch
from penstock.model.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    LimitReached,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StorageFull,
)
from penstock.storage.disk import DiskEngine
from penstock.storage.engine import Checkpoint
from penstock.testing.clock import ManualClock
from penstock.testing.files import FaultyFiles


async def opened(house, **settings: str) -> Partition:
    topic = await house.topics.create("orders", 1, {k.replace("_", "."): v for k, v in settings.items()})
    return await house.topics.open(topic, 0)


async def reopened(house) -> Partition:
    await house.topics.close()
    await house.open()
    return await house.topics.open(house.topics.get("orders"), 0)


async def test_what_is_open_is_not_read_and_what_is_committed_is(house) -> None:
    partition = await opened(house)
    await put(partition, batch_of(b"plain"))
    await send(partition, (7, 0, 0), b"a", b"b")
    await put(partition, batch_of(b"behind"))
    assert (partition.stable_end, partition.durable_end) == (1, 4)
    assert await committed(partition) == [b"plain"]
    assert partition.transactions.open[7][:2] == (0, 1)

    await end(partition, 7, 0, True)
    assert (partition.stable_end, partition.durable_end) == (5, 5)
    assert await committed(partition) == [b"plain", b"a", b"b", b"behind"]
    assert not partition.transactions.open
    assert partition.transactions.aborted_within(0, 5) == []


async def test_what_is_aborted_is_never_read(house) -> None:
    partition = await opened(house)
    await send(partition, (7, 0, 0), b"a")
    await send(partition, (8, 0, 0), b"x")
    await send(partition, (7, 0, 1), b"b")
    await end(partition, 8, 0, True)
    assert partition.stable_end == 0
    await end(partition, 7, 0, False)
    await send(partition, (7, 0, 2), b"c")
    await end(partition, 7, 0, True)
    assert await committed(partition) == [b"x", b"c"]
    assert partition.transactions.aborted_within(0, 7) == [Aborted(7, 0, 4)]
    assert partition.transactions.aborted_within(5, 7) == []


async def test_a_reader_behind_the_stable_end_waits(house) -> None:
    partition = await opened(house)
    await send(partition, (7, 0, 0), b"a", b"b")
    assert (await partition.read(2, 100, stable=True)).size_bytes == 0
    assert (await partition.read_committed(0, 100)).next_offset == 0
    with pytest.raises(OffsetOutOfRange):
        await partition.read(3, 100, stable=True)


async def test_where_nothing_is_left_the_reader_goes_on(house) -> None:
    partition = await opened(house)
    for sequence in range(50):
        await send(partition, (7, 0, sequence), b"no")
    await end(partition, 7, 0, False)
    found = await partition.read_committed(0, 1)
    assert (list(found.buffers), found.next_offset) == ([], 51)
    await put(partition, batch_of(b"yes"))
    await put(partition, batch_of(b"later"))
    records, offset = await partition.records(3, 1)
    assert ([r.value for r in records], offset) == ([b"yes"], 52)


async def test_batches_without_transactions_are_not_looked_at(house) -> None:
    partition = await opened(house)
    await put(partition, batch_of(b"a"))
    await put(partition, batch_of(b"b"))
    plain = await partition.read(0, 1000)
    assert [bytes(b) for b in (await partition.read_committed(0, 1000)).buffers] == [bytes(b) for b in plain.buffers]
    assert not partition.transactions.touch(0, 2)


async def test_readers_of_what_is_stable_wake_only_when_it_moves(house) -> None:
    partition = await opened(house)
    seen: list[int] = []
    everything: list[int] = []
    partition.watch(lambda _, size: seen.append(size), stable=True)
    partition.watch(lambda _, size: everything.append(size))
    await send(partition, (7, 0, 0), b"a")
    await put(partition, batch_of(b"behind"))
    assert (len(seen), len(everything)) == (0, 2)
    await end(partition, 7, 0, True)
    assert seen == [sum(everything)]
    await put(partition, batch_of(b"plain"))
    assert seen[1:] == everything[3:]


async def test_times_are_those_of_committed_records(house) -> None:
    partition = await opened(house)
    await put(partition, batch_of(b"a", time_ms=1000))
    batch = batch_in((7, 0, 0), b"no", time_ms=5000)
    await partition.append(check_batch(batch), batch).durable
    assert await partition.find_time(2000) is None
    assert await partition.find_time(2000, committed=False) == (1, 5000)
    assert await partition.find_newest(committed=False) == (1, 5000)
    await end(partition, 7, 0, False)
    await put(partition, batch_of(b"b", time_ms=6000))
    assert await partition.find_time(2000) == (3, 6000)
    assert await partition.find_newest() == (3, 6000)


# -- producers ----------------------------------------------------------------------------------------------


async def test_a_marker_of_the_same_epoch_lets_sequences_go_on(house) -> None:
    partition = await opened(house)
    await send(partition, (7, 3, 0), b"a")
    await end(partition, 7, 3, True)
    with pytest.raises(OutOfOrderSequence):
        await send(partition, (7, 3, 0), b"other", b"length")
    assert await send(partition, (7, 3, 0), b"a") == 0  # a repeat
    assert not partition.transactions.open
    await send(partition, (7, 3, 1), b"b")
    await end(partition, 7, 3, True)
    assert await committed(partition) == [b"a", b"b"]


@pytest.mark.parametrize("again", [False, True])
async def test_a_marker_of_a_newer_epoch_fences_older_ones(disk_house, again: bool) -> None:
    partition = await opened(disk_house)
    await send(partition, (7, 3, 0), b"a")
    await end(partition, 7, 4, False)
    if again:
        partition = await reopened(disk_house)
    with pytest.raises(InvalidProducerEpoch):
        await send(partition, (7, 3, 1), b"late")
    with pytest.raises(InvalidProducerEpoch):
        await end(partition, 7, 3, True)
    with pytest.raises(OutOfOrderSequence):
        await send(partition, (7, 4, 1), b"gap")
    await send(partition, (7, 4, 0), b"b")
    await end(partition, 7, 5, True)
    assert await committed(partition) == [b"b"]


async def test_a_marker_without_a_transaction_is_a_fence(house) -> None:
    partition = await opened(house)
    await end(partition, 7, 4, False)
    with pytest.raises(InvalidProducerEpoch):
        await send(partition, (7, 3, 5), b"late")
    assert await committed(partition) == []
    assert partition.transactions.aborted_count == 0
    assert partition.stable_end == 1


async def test_one_producer_has_one_transaction_at_a_time(house) -> None:
    partition = await opened(house)
    await send(partition, (7, 0, 0), b"a")
    with pytest.raises(InvalidTransactionState):
        await put(partition, batch_of(b"plain", producer=(7, 0, 1)))
    with pytest.raises(InvalidTransactionState):
        await send(partition, (7, 1, 0), b"newer epoch")
    await send(partition, (7, 0, 1), b"b")
    await end(partition, 7, 0, True)
    assert await committed(partition) == [b"a", b"b"]


async def test_a_producer_with_an_open_transaction_is_not_forgotten(house, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers_module, "MAX_PRODUCERS_PER_PARTITION", 3)
    partition = await opened(house)
    await send(partition, (7, 2, 0), b"a")
    for producer in range(20, 30):
        await put(partition, batch_of(b"x", producer=(producer, 0, 0)))
    partition.producers.expire(house.clock.wall_ms() + 1)
    assert list(partition.producers.active()) == [7]
    with pytest.raises(InvalidProducerEpoch):
        await send(partition, (7, 1, 1), b"older")
    await end(partition, 7, 2, True)
    partition.producers.expire(house.clock.wall_ms() + 1)
    assert not partition.producers.active()


async def test_bounds_are_told_before_anything_is_stored(house, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await opened(house)
    monkeypatch.setattr(transactions_module, "MAX_OPEN_TRANSACTIONS", 1)
    await send(partition, (7, 0, 0), b"a")
    with pytest.raises(LimitReached):
        await send(partition, (8, 0, 0), b"b")
    await end(partition, 7, 0, False)
    monkeypatch.setattr(transactions_module, "MAX_ABORTED_TRANSACTIONS", 1)
    with pytest.raises(LimitReached):
        await send(partition, (8, 0, 0), b"b")
    await partition.trim(partition.durable_end)
    await send(partition, (8, 0, 0), b"b")


# -- restarts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_transactions_are_known_again_after_a_restart(disk_house, checkpoint: bool) -> None:
    partition = await opened(disk_house)
    await send(partition, (7, 0, 0), b"a")
    await send(partition, (8, 0, 0), b"b")
    await end(partition, 7, 0, False)
    await put(partition, batch_of(b"plain"))
    if checkpoint:
        await partition.checkpoint()
    partition = await reopened(disk_house)
    assert (partition.stable_end, partition.durable_end) == (1, 4)
    assert partition.transactions.aborted_within(0, 4) == [Aborted(7, 0, 2)]
    assert {p: t[:2] for p, t in partition.transactions.open.items()} == {8: (0, 1)}
    await end(partition, 8, 0, True)
    assert await committed(partition) == [b"b", b"plain"]
    partition = await reopened(disk_house)
    assert await committed(partition) == [b"b", b"plain"]


async def test_deleting_records_of_an_open_transaction(house) -> None:
    partition = await opened(house)
    await send(partition, (7, 0, 0), b"a", b"b")
    await send(partition, (7, 0, 2), b"c")
    await partition.trim(2)
    assert partition.stable_end == 2
    await partition.trim(3)
    assert (partition.stable_end, partition.durable_end) == (3, 3)
    await send(partition, (7, 0, 3), b"d")
    assert (partition.stable_end, partition.durable_end) == (3, 4)
    await end(partition, 7, 0, False)
    assert await committed(partition) == []
    await partition.trim(5)
    assert partition.transactions.aborted_count == 0


async def test_a_read_that_a_deletion_overtakes_is_not_answered_with_what_was_aborted(house) -> None:
    partition = await opened(house)
    await send(partition, (7, 0, 0), b"no")
    await end(partition, 7, 0, False)
    await put(partition, batch_of(b"yes"))
    engine_read = partition.engine.read

    async def overtaken(*args):
        found = await engine_read(*args)
        partition.engine.read = engine_read  # type: ignore[method-assign]
        await partition.trim(2)
        return found

    partition.engine.read = overtaken  # type: ignore[method-assign]
    with pytest.raises(OffsetOutOfRange):
        await partition.read_committed(0, 1000)
    assert [r.value for r in await all_records(partition)] == [b"yes"]


# -- failed writes ------------------------------------------------------------------------------------------


@pytest.fixture
async def faulty(tmp_path: Path, clock: ManualClock):
    files = FaultyFiles()
    engine = DiskEngine(tmp_path / "data", clock, files=files)
    topics = Topics(Engines(engine, engine), clock)
    await topics.start()
    partition = await topics.open(await topics.create("orders", 1, {}), 0)
    yield partition, files
    files.heal()
    await topics.close()


async def test_a_first_batch_that_failed_opens_nothing(faulty) -> None:
    partition, files = faulty
    await put(partition, batch_of(b"safe"))
    files.free_bytes = 0
    with pytest.raises(StorageFull):
        await send(partition, (7, 0, 0), b"a")
    assert not partition.transactions.open
    assert partition.stable_end == partition.durable_end == partition.end_offset == 1
    files.free_bytes = None
    await put(partition, batch_of(b"plain"))
    assert partition.stable_end == 2
    await send(partition, (7, 0, 0), b"a")
    assert partition.transactions.open[7].first_offset == 2


async def test_a_marker_that_failed_leaves_the_transaction_open(faulty) -> None:
    partition, files = faulty
    await send(partition, (7, 0, 0), b"a")
    files.free_bytes = 0
    marker = partition.end_transaction(7, 0, True)
    behind = batch_in((7, 0, 1), b"b")
    second = partition.append(check_batch(behind), behind)
    assert partition.transactions.open[7].first_offset == 2
    for appended in (marker, second):
        with pytest.raises(StorageFull):
            await appended.durable
    assert partition.transactions.open[7].first_offset == 0
    assert partition.stable_end == 0
    files.free_bytes = None
    await end(partition, 7, 0, True)
    assert await committed(partition) == [b"a"]
    assert (partition.stable_end, partition.transactions.first_open) == (2, transactions_module.NEVER)


async def test_a_failed_bump_is_tried_again(faulty) -> None:
    partition, files = faulty
    await send(partition, (7, 0, 0), b"a")
    files.free_bytes = 0
    with pytest.raises(StorageFull):
        await end(partition, 7, 1, False)
    files.free_bytes = None
    with pytest.raises(InvalidProducerEpoch):
        await send(partition, (7, 0, 1), b"late")
    await end(partition, 7, 1, False)
    await send(partition, (7, 1, 0), b"b")
    await end(partition, 7, 2, True)
    assert await committed(partition) == [b"b"]


async def test_a_commit_and_an_abort_of_one_tick(faulty) -> None:
    partition, _ = faulty
    await send(partition, (7, 0, 0), b"a")
    await send(partition, (8, 0, 0), b"b")
    ends = [partition.end_transaction(8, 0, True), partition.end_transaction(7, 0, False)]
    assert partition.stable_end == 0
    await asyncio.gather(*(e.durable for e in ends))
    assert await committed(partition) == [b"b"]


async def test_what_was_deleted_behind_a_checkpoint_holds_nobody_up(disk_house) -> None:
    partition = await opened(disk_house)
    await send(partition, (7, 0, 0), b"a")
    await send(partition, (8, 0, 0), b"b")
    await partition.checkpoint()
    await send(partition, (7, 0, 1), b"c")
    await end(partition, 7, 0, True)
    await partition.trim(4)
    await disk_house.topics.engines.disk.close()  # as a crash leaves it: no other checkpoint is written
    await disk_house.open()
    partition = await disk_house.topics.open(disk_house.topics.get("orders"), 0)
    assert not partition.transactions.open
    assert partition.stable_end == 4
    await send(partition, (7, 0, 2), b"d")
    await end(partition, 7, 0, True)
    assert await committed(partition) == [b"d"]


async def test_what_is_held_is_seen_when_it_is_let_go(house) -> None:
    partition = await opened(house)
    seen: list[int] = []
    partition.watch(lambda _, size: seen.append(size), stable=True)
    await send(partition, (7, 0, 0), b"a")
    partition.hold("one", 7)
    await end(partition, 7, 0, True)
    await put(partition, batch_of(b"behind"))
    assert (partition.stable_end, partition.durable_end, seen) == (0, 3, [])
    partition.tell_stable(partition.let_go("one"))
    assert (partition.stable_end, len(seen)) == (3, 1)
    assert await committed(partition) == [b"a", b"behind"]


async def test_a_checkpoint_of_before_there_were_transactions_still_opens(disk_house) -> None:
    partition = await opened(disk_house)
    for number in range(3):
        await put(partition, batch_of(b"%d" % number, producer=(7, 1, number)))
    written = [(number, number, number, number + 1, -1) for number in range(3)]
    state = msgspec.msgpack.encode([0, msgspec.msgpack.encode([[(7, 1, 1000, written)], []])])
    await partition.engine.checkpoint(partition.stream, Checkpoint(3, state))
    await disk_house.topics.engines.disk.close()
    await disk_house.open()
    partition = await disk_house.topics.open(disk_house.topics.get("orders"), 0)
    assert await put(partition, batch_of(b"2", producer=(7, 1, 2))) == 2
    assert await send(partition, (7, 1, 3), b"3") == 3
    assert partition.stable_end == 3
