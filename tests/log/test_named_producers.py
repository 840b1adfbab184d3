"""Producers with a name: numbers rise and may have gaps; what is repeated is stored once, also after a restart."""

import tracemalloc
from pathlib import Path

import msgspec
import pytest
from log_house import all_records, batch_of, put

from penstock.log import named_producers
from penstock.log.named_producers import (
    EPOCH_SHIFT,
    FIRST_NAMED_ID,
    MAX_NAMED_PER_PARTITION,
    NamedProducers,
    last_number_of,
    producer_id_of,
)
from penstock.log.producers import Producers
from penstock.log.topics import Engines, Topics
from penstock.model.batch import check_batch, read_header
from penstock.model.errors import OutOfOrderSequence, StorageFull
from penstock.storage.disk import DiskEngine
from penstock.testing.clock import ManualClock
from penstock.testing.files import FaultyFiles

NAME = producer_id_of("till-7")


async def partition_of(house, topics: Topics | None = None):
    topics = topics or house.topics
    topic = topics.by_name.get("orders") or await topics.create("orders", 1, {})
    return await topics.open(topic, 0)


def numbered(number: int, *values: bytes) -> bytearray:
    """A batch whose first message has this number."""
    epoch, sequence = number >> EPOCH_SHIFT, number & (1 << EPOCH_SHIFT) - 1
    return batch_of(*values, producer=(NAME, epoch, sequence))


def test_ids_of_names_are_apart_from_those_given_to_kafka_clients() -> None:
    ids = {producer_id_of(f"name {i}") for i in range(1000)}
    assert len(ids) == 1000
    assert all(FIRST_NAMED_ID <= i < 1 << 63 for i in ids)
    assert producer_id_of("till-7") == NAME


async def test_numbers_rise_and_may_have_gaps(house) -> None:
    partition = await partition_of(house)
    assert await put(partition, numbered(0, b"a")) == 0
    assert await put(partition, numbered(10, b"b", b"c")) == 1
    assert await put(partition, numbered(5_000_000_000, b"d")) == 3
    assert [r.value for r in await all_records(partition)] == [b"a", b"b", b"c", b"d"]


async def test_a_repeat_within_the_window_gets_its_offset_and_an_older_one_is_only_known(house) -> None:
    partition = await partition_of(house)
    for i in range(8):
        assert await put(partition, numbered(10 * i, b"a", b"b")) == 2 * i
    assert await put(partition, numbered(70, b"a", b"b")) == 14
    assert await put(partition, numbered(30, b"a", b"b")) == 6
    assert await put(partition, numbered(20, b"a", b"b")) == -1
    assert await put(partition, numbered(5, b"never seen, yet below what is")) == -1
    assert partition.durable_end == 16


async def test_what_is_half_stored_is_refused(house) -> None:
    partition = await partition_of(house)
    await put(partition, numbered(0, b"a", b"b"))
    with pytest.raises(OutOfOrderSequence):
        await put(partition, numbered(1, b"b", b"c"))
    assert await put(partition, numbered(2, b"c")) == 2


async def test_numbers_pass_the_end_of_an_epoch(house) -> None:
    partition = await partition_of(house)
    last = (1 << EPOCH_SHIFT) - 1
    assert await put(partition, numbered(last, b"a", b"b")) == 0
    assert await put(partition, numbered(last + 2, b"c")) == 2
    assert await put(partition, numbered(last, b"a", b"b")) == 0
    assert last_number_of(read_header(numbered(last, b"a", b"b"))) == last + 1


async def test_a_repeat_of_what_is_being_written_waits_for_it(disk_house) -> None:
    partition = await partition_of(disk_house)
    batches = [numbered(number, b"a") for number in (0, 10, 20, 30, 40, 50, 0, 5, 50)]
    appended = [partition.append(check_batch(batch), batch) for batch in batches]
    assert [a.base_offset for a in appended] == [0, 1, 2, 3, 4, 5, 0, -1, 5]
    assert not any(a.durable.done() for a in appended)
    await appended[7].durable
    assert partition.durable_end == 6


@pytest.mark.parametrize("clean", [True, False])
async def test_names_are_known_after_a_restart(disk_house, clean: bool) -> None:
    partition = await partition_of(disk_house)
    for i in range(7):
        await put(partition, numbered(10 * i, b"%d" % i))
    if clean:
        await disk_house.topics.close()
    else:
        await disk_house.topics.engines.disk.close()  # as a crash leaves it: without a checkpoint
    partition = await partition_of(disk_house, await disk_house.open())
    assert await put(partition, numbered(60, b"6")) == 6
    assert await put(partition, numbered(0, b"0")) == -1
    assert await put(partition, numbered(61, b"7")) == 7
    assert [r.value for r in await all_records(partition)] == [b"%d" % i for i in range(8)]


async def test_a_failed_write_owes_its_numbers(tmp_path: Path, clock: ManualClock) -> None:
    files = FaultyFiles()
    engine = DiskEngine(tmp_path / "data", clock, files=files)
    topics = Topics(Engines(engine, engine), clock)
    await topics.start()
    partition = await topics.open(await topics.create("orders", 1, {}), 0)
    for i in range(6):
        await put(partition, numbered(i, b"%d" % i))
    files.free_bytes = 10
    batches = [numbered(i, b"%d" % i) for i in range(6, 14)]  # more than the window holds
    for appended in [partition.append(check_batch(batch), batch) for batch in batches]:
        with pytest.raises(StorageFull):
            await appended.durable
    named = partition.producers.named
    assert named.last_number(NAME) == 5
    assert named.owed_by(NAME) == 6

    files.free_bytes = None
    assert await put(partition, numbered(5, b"5")) == 5
    for i, batch in enumerate(batches, start=6):
        assert await put(partition, batch) == i
    assert named.owed_by(NAME) is None
    assert [r.value for r in await all_records(partition)] == [b"%d" % i for i in range(14)]
    files.heal()
    await topics.close()


def written_once(name: str) -> bytearray:
    return batch_of(b"x", producer=(producer_id_of(name), 0, 0))


def test_names_used_once_stay_small_and_bounded() -> None:
    producers = NamedProducers()
    headers = [read_header(written_once(f"order {i}")) for i in range(MAX_NAMED_PER_PARTITION)]
    tracemalloc.start()
    for offset, header in enumerate(headers):
        producers.add(header, offset, offset, 1_700_000_000_000)
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size_bytes / len(producers) < 250
    producers.add(read_header(written_once("one more")), len(headers), len(headers), 1_700_000_000_000)
    assert len(producers) == MAX_NAMED_PER_PARTITION + 1 - named_producers.EVICTED_TOGETHER
    assert producers.last_number(producer_id_of("one more")) == 0
    assert producers.last_number(producer_id_of("order 0")) == -1


def test_a_checkpoint_of_before_there_were_names_is_read() -> None:
    producers = Producers()
    producers.restore(msgspec.msgpack.encode([[(7, 1, 1000, [(0, 2, 10, 13, -1)])]]))
    assert len(producers) == 1
    assert list(producers.active()[7].batches) == [(0, 2, 10, 13, -1)]


async def test_names_expire(house) -> None:
    partition = await partition_of(house)
    await put(partition, numbered(3, b"a"))
    partition.producers.expire(house.clock.wall_ms() + 1)
    assert partition.producers.named.last_number(NAME) == -1
