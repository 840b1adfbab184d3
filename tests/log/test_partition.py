"""One partition: order, durability, repeats, and what readers see."""

import asyncio

import pytest
from log_house import all_records, batch_of, keyed, put

from penstock.log.admission import admit
from penstock.log.settings import topic_settings
from penstock.model.batch import check_batch, encode_batch, read_header
from penstock.model.errors import (
    CorruptBatch,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordTooLarge,
    UnknownPartition,
)
from penstock.model.record import Record


async def partition_of(house, **settings: str):
    topic = await house.topics.create("orders", 1, {k.replace("_", "."): v for k, v in settings.items()})
    return await house.topics.open(topic, 0)


async def test_records_come_back_in_the_order_they_went_in(house) -> None:
    partition = await partition_of(house)
    for i in range(10):
        assert await put(partition, batch_of(b"%d" % i, b"x")) == 2 * i
    records = await all_records(partition)
    assert [r.offset for r in records] == list(range(20))
    assert [r.value for r in records[::2]] == [b"%d" % i for i in range(10)]


async def test_reading_starts_inside_a_batch(house) -> None:
    partition = await partition_of(house)
    await put(partition, batch_of(b"a", b"b", b"c"))
    records, next_offset = await partition.records(2, 1)
    assert [r.value for r in records] == [b"c"]
    assert next_offset == 3


async def test_nothing_is_seen_before_it_is_durable(house) -> None:
    partition = await partition_of(house)
    batch = batch_of(b"a")
    appended = partition.append(check_batch(batch), batch)
    assert (appended.base_offset, partition.end_offset) == (0, 1)
    if not appended.durable.done():
        assert partition.durable_end == 0
        assert (await partition.read(0, 1000)).size_bytes == 0
    await appended.durable
    assert partition.durable_end == 1


async def test_reading_outside_the_log_is_out_of_range(house) -> None:
    partition = await partition_of(house)
    await put(partition, batch_of(b"a"))
    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRange):
            await partition.read(offset, 1000)


async def test_a_watcher_hears_of_what_became_durable(house) -> None:
    partition = await partition_of(house)
    heard: list[int] = []

    def watcher(_, new_bytes: int) -> None:
        heard.append(new_bytes)

    partition.watch(watcher)
    batch = batch_of(b"a")
    await put(partition, batch)
    partition.unwatch(watcher)
    await put(partition, batch_of(b"b"))
    assert heard == [len(batch)]


async def test_someone_who_gives_up_waiting_takes_nothing_back(house) -> None:
    partition = await partition_of(house)
    batch = batch_of(b"a", producer=(7, 0, 0))
    appended = partition.append(check_batch(batch), batch)

    async def wait() -> None:
        await appended.durable

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=10)
    assert await put(partition, batch_of(b"b", producer=(7, 0, 1))) == 1
    assert [r.value for r in await all_records(partition)] == [b"a", b"b"]


# -- idempotence ------------------------------------------------------------------------------------------------


async def test_a_repeated_batch_is_stored_once_and_answered_alike(house) -> None:
    partition = await partition_of(house)
    for _ in range(3):
        assert await put(partition, batch_of(b"a", b"b", producer=(7, 0, 0))) == 0
    assert await put(partition, batch_of(b"c", producer=(7, 0, 2))) == 2
    assert [r.value for r in await all_records(partition)] == [b"a", b"b", b"c"]


async def test_a_repeat_of_a_batch_still_being_written_waits_for_it(house) -> None:
    partition = await partition_of(house)
    first, again = batch_of(b"a", producer=(7, 0, 0)), batch_of(b"a", producer=(7, 0, 0))
    one = partition.append(check_batch(first), first)
    two = partition.append(check_batch(again), again)
    assert two.base_offset == one.base_offset
    await asyncio.wait_for(two.durable, 10)
    assert partition.durable_end == 1


async def test_a_gap_in_the_sequence_is_refused(house) -> None:
    partition = await partition_of(house)
    await put(partition, batch_of(b"a", producer=(7, 0, 0)))
    with pytest.raises(OutOfOrderSequence):
        await put(partition, batch_of(b"c", producer=(7, 0, 2)))


async def test_an_old_epoch_is_refused_and_a_new_one_starts_at_zero(house) -> None:
    partition = await partition_of(house)
    await put(partition, batch_of(b"a", producer=(7, 1, 0)))
    with pytest.raises(InvalidProducerEpoch):
        await put(partition, batch_of(b"b", producer=(7, 0, 1)))
    with pytest.raises(OutOfOrderSequence):
        await put(partition, batch_of(b"b", producer=(7, 2, 5)))
    assert await put(partition, batch_of(b"b", producer=(7, 2, 0))) == 1


async def test_a_number_older_than_the_window_is_out_of_order(house) -> None:
    partition = await partition_of(house)
    for i in range(8):
        await put(partition, batch_of(b"a", producer=(7, 0, i)))
    assert await put(partition, batch_of(b"a", producer=(7, 0, 3))) == 3
    with pytest.raises(OutOfOrderSequence):
        await put(partition, batch_of(b"a", producer=(7, 0, 1)))


async def test_a_gap_after_the_numbers_wrapped_is_not_taken_for_a_repeat(house) -> None:
    partition = await partition_of(house)
    last = (1 << 31) - 1
    await put(partition, batch_of(b"a", producer=(7, 0, last)))
    await put(partition, batch_of(b"b", producer=(7, 0, 0)))
    with pytest.raises(OutOfOrderSequence):
        await put(partition, batch_of(b"d", producer=(7, 0, 2)))
    assert await put(partition, batch_of(b"c", producer=(7, 0, 1))) == 2


@pytest.mark.parametrize("clean", [True, False])
async def test_repeats_are_known_after_a_restart(disk_house, clean: bool) -> None:
    partition = await partition_of(disk_house)
    for i in range(4):
        await put(partition, batch_of(b"%d" % i, producer=(7, 3, i)))
    if clean:
        await disk_house.topics.close()
    else:
        # As a crash leaves it: no checkpoint was written; the lock is the only thing given back.
        await disk_house.topics.engines.disk.close()
    topics = await disk_house.open()
    partition = await topics.open(topics.get("orders"), 0)
    assert partition.durable_end == 4
    assert await put(partition, batch_of(b"3", producer=(7, 3, 3))) == 3
    assert await put(partition, batch_of(b"4", producer=(7, 3, 4))) == 4
    assert [r.value for r in await all_records(partition)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_producers_expire(house) -> None:
    partition = await partition_of(house)
    await put(partition, batch_of(b"a", producer=(7, 0, 0)))
    partition.producers.expire(house.clock.wall_ms() + 1)
    assert len(partition.producers) == 0


# -- times and trimming -----------------------------------------------------------------------------------------


async def test_records_are_found_by_time(house) -> None:
    partition = await partition_of(house)
    for second in range(5):
        await put(partition, batch_of(b"a", b"b", time_ms=second * 1000))
    assert await partition.find_time(0) == (0, 0)
    assert await partition.find_time(2001) == (5, 2001)
    assert await partition.find_time(2002) == (6, 3000)
    assert await partition.find_time(9000) is None
    assert await partition.find_newest() == (9, 4001)


async def test_trimmed_records_are_gone_for_readers_at_once(house) -> None:
    partition = await partition_of(house)
    await put(partition, batch_of(b"a", b"b", b"c"))
    await partition.trim(2)
    with pytest.raises(OffsetOutOfRange):
        await partition.read(1, 1000)
    assert [r.value for r in await all_records(partition)] == [b"c"]
    with pytest.raises(OffsetOutOfRange):
        await partition.trim(4)


async def test_a_partition_that_is_not_there_is_unknown(house) -> None:
    topic = await house.topics.create("orders", 2, {})
    for index in (-1, 2):
        with pytest.raises(UnknownPartition):
            await house.topics.open(topic, index)


# -- admission --------------------------------------------------------------------------------------------------


def test_a_batch_that_is_too_large_is_refused() -> None:
    with pytest.raises(RecordTooLarge):
        admit(batch_of(b"x" * 2000), topic_settings({"max.message.bytes": "1000"}), 0)


def test_a_flipped_bit_is_refused() -> None:
    batch = batch_of(b"hello")
    batch[-2] ^= 1
    with pytest.raises(CorruptBatch):
        admit(batch, topic_settings({}), 0)


def test_two_batches_in_one_are_refused() -> None:
    with pytest.raises(InvalidRecord):
        admit(batch_of(b"a") + batch_of(b"b"), topic_settings({}), 0)


def test_a_compacted_topic_wants_keys() -> None:
    settings = topic_settings({"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecord):
        admit(batch_of(b"a"), settings, 0)
    assert admit(keyed((b"k", b"v")), settings, 0).header.record_count == 1


def test_append_time_replaces_the_producers_timestamps() -> None:
    admitted = admit(batch_of(b"a"), topic_settings({"message.timestamp.type": "LogAppendTime"}), 5000)
    assert admitted.header.log_append_time
    assert check_batch(admitted.batch).max_timestamp_ms == 5000


def test_timestamps_too_far_off_are_refused() -> None:
    settings = topic_settings({"message.timestamp.after.max.ms": "100", "message.timestamp.before.max.ms": "100"})
    admit(batch_of(b"a", time_ms=1000), settings, 1000)
    for now_ms in (800, 1200):
        with pytest.raises(InvalidTimestamp):
            admit(batch_of(b"a", time_ms=1000), settings, now_ms)


def test_the_topic_may_choose_the_compression() -> None:
    records = [Record(i, 1000, b"k", b"v" * 100) for i in range(50)]
    plain = encode_batch(records, producer_id=7, producer_epoch=1, base_sequence=4)
    admitted = admit(plain, topic_settings({"compression.type": "zstd"}), 0)
    assert admitted.header.compression == 4
    assert (admitted.header.producer_id, admitted.header.base_sequence) == (7, 4)
    again = admit(admitted.batch, topic_settings({"compression.type": "uncompressed"}), 0)
    assert read_header(again.batch).compression == 0
    assert bytes(again.batch) == bytes(plain)
