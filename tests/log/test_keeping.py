"""Retention, compaction and ledgers: what goes, what stays, and that it stays after a restart."""

import pytest
from log_house import all_records, batch_of, keyed, put

from penstock.log import compaction, retention
from penstock.log.housekeeper import Housekeeper
from penstock.log.ledger import Ledger
from penstock.log.partition import Partition
from penstock.log.topics import CATALOGUE
from penstock.model.batch import walk
from penstock.model.errors import OffsetOutOfRange

DAY_MS = 24 * 3600 * 1000


async def partition_of(house, **settings: str) -> Partition:
    topic = await house.topics.create("orders", 1, {k.replace("_", "."): v for k, v in settings.items()})
    return await house.topics.open(topic, 0)


async def tidy(house, partition: Partition) -> None:
    await Housekeeper(house.clock, DAY_MS).tidy(partition, house.clock.wall_ms())


# -- retention --------------------------------------------------------------------------------------------------


async def test_segments_older_than_the_retention_time_go(house) -> None:
    partition = await partition_of(house, retention_ms="10000", segment_bytes="1024")
    for _ in range(40):
        await put(partition, batch_of(bytes(300), time_ms=house.clock.wall_ms()))
        house.clock.advance(1000)
        await tidy(house, partition)
    oldest = (await all_records(partition))[0]
    assert 0 < partition.start_offset == oldest.offset
    age_ms = house.clock.wall_ms() - oldest.timestamp_ms
    assert 10_000 <= age_ms <= 25_000  # twice the promise and a segment at the most


async def test_everything_goes_when_nothing_new_comes(house) -> None:
    partition = await partition_of(house, retention_ms="10000")
    await put(partition, batch_of(b"a", b"b", time_ms=house.clock.wall_ms()))
    await tidy(house, partition)
    house.clock.advance(10_002)
    await tidy(house, partition)
    assert (partition.start_offset, partition.durable_end) == (2, 2)
    with pytest.raises(OffsetOutOfRange):
        await partition.read(0, 100)
    assert await put(partition, batch_of(b"c", time_ms=house.clock.wall_ms())) == 2


async def test_old_timestamps_do_not_take_new_records_away_at_once(house) -> None:
    partition = await partition_of(house)
    for _ in range(3):
        await put(partition, batch_of(b"from long ago", time_ms=1000))
        house.clock.advance(1000)
        await tidy(house, partition)
    assert (partition.start_offset, len(partition.spans())) == (0, 1)
    for _ in range(3):
        house.clock.advance(retention.GRACE_MS)
        await tidy(house, partition)
    assert partition.start_offset == 3


async def test_the_oldest_segments_go_above_the_retention_size(house) -> None:
    partition = await partition_of(house, retention_bytes="4096", segment_bytes="1024")
    for _ in range(40):
        await put(partition, batch_of(bytes(300), time_ms=house.clock.wall_ms()))
    await tidy(house, partition)
    kept = sum(span.size_bytes for span in partition.spans())
    assert 4096 <= kept < 4096 + 1024 + 400


async def test_nothing_goes_without_retention(house) -> None:
    partition = await partition_of(house, retention_ms="-1", segment_bytes="1024")
    for _ in range(10):
        await put(partition, batch_of(bytes(300), time_ms=house.clock.wall_ms()))
    house.clock.advance(400 * DAY_MS)
    await tidy(house, partition)
    assert partition.start_offset == 0


async def test_what_went_is_gone_after_a_restart(disk_house) -> None:
    partition = await partition_of(disk_house, retention_ms="1000")
    await put(partition, batch_of(b"a", time_ms=disk_house.clock.wall_ms()))
    await tidy(disk_house, partition)
    disk_house.clock.advance(5000)
    await tidy(disk_house, partition)
    await disk_house.topics.close()
    topics = await disk_house.open()
    partition = await topics.open(topics.get("orders"), 0)
    assert (partition.start_offset, partition.durable_end) == (1, 1)


async def test_an_idle_segment_is_closed_when_it_is_old_enough(house) -> None:
    partition = await partition_of(house, retention_ms="-1", segment_ms="60000")
    await put(partition, batch_of(b"a", time_ms=house.clock.wall_ms()))
    await tidy(house, partition)
    house.clock.advance(60_000)
    await tidy(house, partition)
    assert [span.closed for span in partition.spans() if span.end_offset > span.base_offset] == [True]


# -- compaction -------------------------------------------------------------------------------------------------

COMPACT = {"cleanup_policy": "compact", "segment_bytes": "1024", "min_cleanable_dirty_ratio": "0"}


async def compacted(house, partition: Partition) -> None:
    await partition.engine.roll(partition.stream)
    await compaction.compact(partition, house.clock.wall_ms())


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
async def test_the_newest_record_of_every_key_survives_in_place(house, codec: int) -> None:
    partition = await partition_of(house, **COMPACT)
    for round_ in range(30):
        pairs = [(b"k%d" % k, b"v%d-%d" % (k, round_)) for k in range(5)]
        await put(partition, keyed(*pairs, compression=codec))
    end = partition.durable_end
    await compacted(house, partition)
    records = await all_records(partition)
    assert {r.key: r.value for r in records} == {b"k%d" % k: b"v%d-29" % k for k in range(5)}
    assert [r.offset for r in records] == [145, 146, 147, 148, 149]
    assert partition.durable_end == end
    assert await put(partition, keyed((b"k0", b"new"))) == end


async def test_a_reader_in_the_middle_of_a_hole_goes_on_after_it(house) -> None:
    partition = await partition_of(house, **COMPACT)
    for i in range(50):
        await put(partition, keyed((b"k", b"%d" % i)))
    await compacted(house, partition)
    records, _ = await partition.records(10, 1 << 20)
    assert [(r.offset, r.value) for r in records] == [(49, b"49")]


async def test_a_tombstone_is_seen_for_its_time_and_then_goes(house) -> None:
    partition = await partition_of(house, **COMPACT, delete_retention_ms="1000")
    await put(partition, keyed((b"k", b"v"), (b"other", b"o")))
    await put(partition, keyed((b"k", None)))
    await put(partition, keyed((b"last", b"l")))
    await compacted(house, partition)
    assert [(r.key, r.value) for r in await all_records(partition)] == [(b"other", b"o"), (b"k", None), (b"last", b"l")]
    house.clock.advance(500)
    await compacted(house, partition)
    assert [r.key for r in await all_records(partition)] == [b"other", b"k", b"last"]
    house.clock.advance(501)
    await compacted(house, partition)
    assert [r.key for r in await all_records(partition)] == [b"other", b"last"]


async def test_the_end_of_the_log_is_found_even_if_it_is_a_tombstone(house) -> None:
    partition = await partition_of(house, **COMPACT, delete_retention_ms="0")
    await put(partition, keyed((b"k", b"v")))
    await put(partition, keyed((b"k", None)))
    for _ in range(3):
        house.clock.advance(1000)
        await compacted(house, partition)
    assert [(r.offset, r.value) for r in await all_records(partition)] == [(1, None)]


async def test_timestamps_survive_the_tombstones_horizon(house) -> None:
    partition = await partition_of(house, **COMPACT)
    await put(partition, keyed((b"a", b"1"), (b"b", None), time_ms=4242))
    await compacted(house, partition)
    assert [r.timestamp_ms for r in await all_records(partition)] == [4242, 4242]


async def test_more_keys_than_fit_are_compacted_in_passes(house, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MAX_KEYS", 10)
    partition = await partition_of(house, **COMPACT)
    for round_ in range(4):
        for k in range(25):
            await put(partition, keyed((b"k%d" % k, b"%d" % round_)))
    for _ in range(20):
        await compacted(house, partition)
    assert partition.cleaned_end == partition.durable_end
    records = await all_records(partition)
    assert {r.key: r.value for r in records} == {b"k%d" % k: b"3" for k in range(25)}
    assert len(records) == 25


async def test_batches_that_lose_nothing_keep_their_bytes(house) -> None:
    partition = await partition_of(house, **COMPACT)
    batch = keyed((b"a", b"1"), (b"b", b"2"))
    await put(partition, batch)
    await compacted(house, partition)
    found = await partition.read(0, 1000)
    assert b"".join(bytes(b) for b in found.buffers) == bytes(batch)


async def test_a_compacted_log_repeats_nothing_after_a_restart(disk_house) -> None:
    partition = await partition_of(disk_house, **COMPACT)
    for i in range(60):
        await put(partition, keyed((b"k%d" % (i % 3), b"%d" % i)))
    await compacted(disk_house, partition)
    before = await all_records(partition)
    await disk_house.topics.close()
    topics = await disk_house.open()
    partition = await topics.open(topics.get("orders"), 0)
    assert await all_records(partition) == before
    assert partition.cleaned_end == 60


async def test_the_housekeeper_compacts_when_enough_is_dirty(house) -> None:
    partition = await partition_of(house, cleanup_policy="compact", segment_bytes="1024")
    for i in range(100):
        await put(partition, keyed((b"k", b"%d" % i)))
    await tidy(house, partition)
    closed = [span for span in partition.spans() if span.closed]
    assert len(await all_records(partition)) < 20
    assert sum(len(list(walk(b))) for b in (await partition.read(0, 1 << 20)).buffers) < 20
    assert closed


async def test_the_housekeeper_looks_when_something_is_due(house) -> None:
    keeper = Housekeeper(house.clock, DAY_MS)
    partition = await partition_of(house, retention_ms="5000")
    keeper.adopt(partition)
    assert partition.housekeeping_due_ms is None  # nothing there, nothing to do
    await put(partition, batch_of(b"a", time_ms=house.clock.wall_ms()))
    assert partition.housekeeping_due_ms == house.clock.wall_ms() + 1000
    partition.housekeeping_due_ms = None
    await keeper.tidy(partition, house.clock.wall_ms())
    assert partition.housekeeping_due_ms == house.clock.wall_ms() + 5000


async def test_the_books_of_the_housekeeper_do_not_grow_with_time(house) -> None:
    keeper = Housekeeper(house.clock, DAY_MS)
    partition = await partition_of(house, retention_ms="500000000")
    await put(partition, batch_of(b"a", time_ms=house.clock.wall_ms()))
    for _ in range(5000):
        house.clock.advance(2000)
        keeper.attend(partition)
        partition.housekeeping_due_ms = None
        keeper._waiting -= 1
        await keeper.tidy(partition, house.clock.wall_ms())
    assert len(keeper._heap) < 1100


# -- ledgers ----------------------------------------------------------------------------------------------------


async def test_facts_are_replayed_in_order(disk_house) -> None:
    ledger = await disk_house.topics.open_ledger("__penstock_test")
    facts = [(b"k%d" % (i % 7), None if i % 5 == 0 else b"%d" % i) for i in range(100)]
    for future in [ledger.record(key, value) for key, value in facts]:
        await future
    await disk_house.topics.close()
    topics = await disk_house.open()
    replayed = [fact async for fact in (await topics.open_ledger("__penstock_test")).replay()]
    assert replayed == facts


async def test_facts_of_one_tick_are_one_batch(house) -> None:
    partition = await house.topics.open(house.topics.get(CATALOGUE), 0)
    ledger = Ledger(partition)
    before = partition.durable_end
    futures = [ledger.record(b"k%d" % i, b"v") for i in range(50)]
    for future in futures:
        await future
    found = await partition.read(before, 1 << 20)
    assert sum(len(list(walk(buffer))) for buffer in found.buffers) == 1
    assert partition.durable_end == before + 50
