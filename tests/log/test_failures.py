"""When the disk says no: nothing that failed leaves a trace, and trying again works as if it were the first time."""

import errno
from pathlib import Path

import pytest
from log_house import all_records, batch_of, put

from penstock.log.topics import Engines, Topics
from penstock.model.batch import check_batch
from penstock.model.errors import StorageFailed, StorageFull, UnknownTopic
from penstock.storage.disk import DiskEngine
from penstock.testing.clock import ManualClock
from penstock.testing.files import FaultyFiles


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
async def topics(tmp_path: Path, clock: ManualClock, files: FaultyFiles):
    engine = DiskEngine(tmp_path / "data", clock, files=files)
    opened = Topics(Engines(engine, engine), clock)
    await opened.start()
    yield opened
    files.heal()
    await opened.close()


async def test_a_full_disk_takes_back_offsets_and_sequences(topics: Topics, files: FaultyFiles) -> None:
    partition = await topics.open(await topics.create("orders", 1, {}), 0)
    await put(partition, batch_of(b"0", producer=(7, 0, 0)))
    files.free_bytes = 10
    batches = [batch_of(b"%d" % i, producer=(7, 0, i)) for i in range(1, 5)]
    for appended in [partition.append(check_batch(batch), batch) for batch in batches]:
        with pytest.raises(StorageFull):
            await appended.durable
    assert (partition.end_offset, partition.durable_end) == (1, 1)

    files.free_bytes = None
    for i, batch in enumerate(batches, start=1):
        assert await put(partition, batch) == i
    assert await put(partition, batch_of(b"4", producer=(7, 0, 4))) == 4  # a repeat, as ever
    assert [r.value for r in await all_records(partition)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_repeat_of_a_write_that_fails_fails_with_it(topics: Topics, files: FaultyFiles) -> None:
    partition = await topics.open(await topics.create("orders", 1, {}), 0)
    files.free_bytes = 0
    first, again = batch_of(b"a", producer=(7, 0, 0)), batch_of(b"a", producer=(7, 0, 0))
    one = partition.append(check_batch(first), first)
    two = partition.append(check_batch(again), again)
    for appended in (one, two):
        with pytest.raises(StorageFailed):
            await appended.durable
    files.free_bytes = None
    assert await put(partition, batch_of(b"a", producer=(7, 0, 0))) == 0


async def test_a_failed_sync_ends_writing_but_not_reading(topics: Topics, files: FaultyFiles) -> None:
    partition = await topics.open(await topics.create("orders", 1, {}), 0)
    await put(partition, batch_of(b"safe"))
    files.fail("fdatasync", errno.EIO)
    with pytest.raises(StorageFailed):
        await put(partition, batch_of(b"who knows"))
    with pytest.raises(StorageFailed):
        await put(partition, batch_of(b"not before a restart"))
    assert [r.value for r in await all_records(partition)] == [b"safe"]


async def test_a_topic_whose_fact_was_not_stored_does_not_exist(topics: Topics, files: FaultyFiles) -> None:
    files.free_bytes = 0
    with pytest.raises(StorageFull):
        await topics.create("orders", 1, {})
    with pytest.raises(UnknownTopic):
        topics.get("orders")
    files.free_bytes = None
    assert (await topics.create("orders", 1, {})).partition_count == 1
