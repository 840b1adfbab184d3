"""A disk that takes no more, or takes and does not keep: producers are told, readers go on, nothing false is said."""

import asyncio
import errno
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.model.errors import StorageFailed, StorageFull
from penstock.model.ids import StreamId
from penstock.storage.disk import DiskEngine
from penstock.storage.engine import Chunk, Durability, StreamSpec
from penstock.testing.chunks import make_chunk, read_all
from penstock.testing.files import FaultyFiles

STREAM = StreamId("orders", uuid.UUID(int=7), 0)
OTHER = StreamId("bills", uuid.UUID(int=8), 0)


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture(params=list(Durability))
def spec(request: pytest.FixtureRequest) -> StreamSpec:
    return StreamSpec(durability=request.param, segment_bytes=2000)


@pytest.fixture
async def engine(tmp_path: Path, files: FaultyFiles, spec: StreamSpec) -> AsyncIterator[DiskEngine]:
    engine = DiskEngine(tmp_path, files=files)
    await engine.open(STREAM, spec)
    await engine.open(OTHER, spec)
    yield engine
    files.heal()
    await engine.close()


def chunks(first: int, count: int) -> list[Chunk]:
    return [make_chunk(first + at, value=bytes(100)) for at in range(count)]


def joined(some: list[Chunk]) -> bytes:
    return b"".join(bytes(chunk.data) for chunk in some)


async def append(engine: DiskEngine, some: list[Chunk]) -> list[BaseException | None]:
    return await asyncio.gather(*[engine.append(STREAM, chunk) for chunk in some], return_exceptions=True)


async def test_full_disk_is_a_retriable_error_and_heals_by_itself(
    engine: DiskEngine, files: FaultyFiles, tmp_path: Path, spec: StreamSpec
) -> None:
    good = chunks(0, 5)
    assert await append(engine, good) == [None] * 5
    for free_bytes in (0, 1, 60, 171, 172, 300):
        files.free_bytes = free_bytes
        outcomes = await append(engine, chunks(5, 4))
        assert all(isinstance(outcome, StorageFull) and outcome.retriable for outcome in outcomes)
        assert await read_all(engine, STREAM) == joined(good)
        assert (await engine.open(STREAM, spec)).end_offset == 5
        assert engine.queued_bytes == 0
    files.heal()
    more = chunks(5, 40)
    assert await append(engine, more) == [None] * 40
    assert await read_all(engine, STREAM) == joined(good + more)
    await engine.close()
    engine = DiskEngine(tmp_path)
    assert (await engine.open(STREAM, spec)).end_offset == 45
    assert await read_all(engine, STREAM) == joined(good + more)
    await engine.close()


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
async def test_no_room_for_a_new_segment(engine: DiskEngine, files: FaultyFiles, error_number: int) -> None:
    good = chunks(0, 10)
    await append(engine, good)
    for method in ("open", "sync_directory"):
        # The first open of a roll is that of the index, which is not worth an error.
        files.fail(method, error_number, times=2 if method == "open" else 1)
        outcomes = await append(engine, chunks(len(good), 1))
        while outcomes == [None] and len(good) < 100:  # the segment had room for more; the roll is still to come
            good += chunks(len(good), 1)
            outcomes = await append(engine, chunks(len(good), 1))
        assert [type(outcome) for outcome in outcomes] == [StorageFull]
        assert await read_all(engine, STREAM) == joined(good)
    more = chunks(len(good), 3)
    assert await append(engine, more) == [None] * 3
    assert await read_all(engine, STREAM) == joined(good + more)


async def test_later_appends_fail_with_the_first_and_the_stream_ends_before_them(
    engine: DiskEngine, files: FaultyFiles
) -> None:
    await append(engine, chunks(0, 1))
    files.fail("pwritev", errno.EIO)
    futures = [engine.append(STREAM, chunk) for chunk in chunks(1, 3)]
    await asyncio.sleep(0)
    while not futures[0].done() and len(futures) < 50:
        futures.append(engine.append(STREAM, make_chunk(1 + len(futures))))
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert all(type(outcome) is StorageFailed for outcome in outcomes)
    assert await append(engine, chunks(1, 3)) == [None] * 3
    assert await read_all(engine, STREAM) == joined(chunks(0, 4))


async def test_writes_that_take_little_at_a_time_are_finished(engine: DiskEngine, files: FaultyFiles) -> None:
    for max_write_bytes in (1, 7, 171, 173):
        files.max_write_bytes = max_write_bytes
        end_offset = (await engine.open(STREAM, engine._streams[STREAM].spec)).end_offset
        assert await append(engine, chunks(end_offset, 3)) == [None] * 3
    assert await read_all(engine, STREAM) == joined(chunks(0, 12))


async def test_more_buffers_than_one_call_takes(engine: DiskEngine) -> None:
    engine.configure(STREAM, StreamSpec(durability=engine._streams[STREAM].spec.durability))
    many = chunks(0, 3000)
    assert set(await append(engine, many)) == {None}
    assert await read_all(engine, STREAM) == joined(many)


async def test_stream_whose_write_cannot_be_undone_takes_no_more(engine: DiskEngine, files: FaultyFiles) -> None:
    await append(engine, chunks(0, 2))
    files.fail("pwritev", errno.ENOSPC)
    files.fail("truncate", errno.EIO)
    assert [type(outcome) for outcome in await append(engine, chunks(2, 1))] == [StorageFailed]
    with pytest.raises(StorageFailed):
        engine.append(STREAM, make_chunk(2))
    assert await read_all(engine, STREAM) == joined(chunks(0, 2))


async def test_failed_sync_is_never_acknowledged_nor_tried_again(tmp_path: Path, files: FaultyFiles) -> None:
    spec = StreamSpec()
    engine = DiskEngine(tmp_path, files=files)
    await engine.open(STREAM, spec)
    await engine.open(OTHER, spec)
    await append(engine, chunks(0, 3))
    files.fail("fdatasync", errno.EIO)
    outcomes = await append(engine, chunks(3, 2))
    assert all(type(outcome) is StorageFailed for outcome in outcomes)
    with pytest.raises(StorageFailed):
        engine.append(STREAM, make_chunk(3))
    assert await read_all(engine, STREAM) == joined(chunks(0, 3))
    await engine.append(OTHER, make_chunk(0))
    await engine.close()

    assert not (tmp_path / "clean").exists()
    engine = DiskEngine(tmp_path)
    end_offset = (await engine.open(STREAM, spec)).end_offset
    assert 3 <= end_offset <= 5
    assert await append(engine, chunks(end_offset, 1)) == [None]
    await engine.close()


async def test_failed_background_sync_stops_the_stream(tmp_path: Path, files: FaultyFiles) -> None:
    engine = DiskEngine(tmp_path, files=files)
    await engine.open(STREAM, StreamSpec(durability=Durability.INTERVAL, sync_interval_ms=1))
    files.fail("fdatasync", errno.EIO, times=10)
    async with asyncio.timeout(10):
        with pytest.raises(StorageFailed):
            for at in range(1_000_000):
                await engine.append(STREAM, make_chunk(at))
                await asyncio.sleep(0.001)
    assert await read_all(engine, STREAM)
    files.heal()
    await engine.close()


async def test_interval_stream_is_synced_in_time_and_its_timer_rests_then(tmp_path: Path, files: FaultyFiles) -> None:
    engine = DiskEngine(tmp_path, files=files)
    await engine.open(STREAM, StreamSpec(durability=Durability.INTERVAL, sync_interval_ms=20))
    await engine.append(STREAM, make_chunk(0))
    segment = engine._streams[STREAM].segments[-1]
    assert segment.synced < segment.size
    deadline = time.monotonic() + 10
    while segment.synced < segment.size and time.monotonic() < deadline:  # noqa: ASYNC110 (nothing tells of it)
        await asyncio.sleep(0.005)
    assert segment.synced == segment.size
    assert engine._syncer._timer is None
    await engine.close()


async def test_index_that_cannot_be_written_harms_nobody(tmp_path: Path, files: FaultyFiles) -> None:
    spec = StreamSpec(segment_bytes=1 << 20)
    engine = DiskEngine(tmp_path, files=files)
    await engine.open(STREAM, spec)
    large = [make_chunk(at, value=bytes(60_000)) for at in range(60)]
    for at, chunk in enumerate(large):
        if at % 15 == 14:
            files.fail("open", errno.ENOSPC)
        outcome = (await append(engine, [chunk]))[0]
        if outcome is not None:  # the fault hit the creation of a segment, not of an index
            assert await append(engine, [chunk]) == [None]
    files.heal()
    assert await read_all(engine, STREAM) == joined(large)
    await engine.close()
    engine = DiskEngine(tmp_path)
    await engine.open(STREAM, spec)
    assert await read_all(engine, STREAM) == joined(large)
    await engine.close()


async def test_failed_trim_beyond_the_end_leaves_the_stream_as_it_was(
    engine: DiskEngine, files: FaultyFiles, tmp_path: Path, spec: StreamSpec
) -> None:
    await append(engine, chunks(0, 3))
    for method in ("pwritev", "rename", "sync_directory"):
        files.fail(method, errno.ENOSPC)
        with pytest.raises(StorageFull):
            await engine.trim(STREAM, 100)
    assert await append(engine, chunks(3, 1)) == [None]
    await engine.close()
    engine = DiskEngine(tmp_path)
    state = await engine.open(STREAM, spec)
    assert (state.start_offset, state.end_offset) == (0, 4)
    assert await read_all(engine, STREAM) == joined(chunks(0, 4))
    await engine.close()


@pytest.mark.parametrize("method", ["open", "pwritev", "fdatasync", "rename", "unlink", "sync_directory"])
@pytest.mark.parametrize("earlier", range(4))
async def test_rewrite_on_a_bad_disk_leaves_the_old_or_the_new(
    tmp_path: Path, files: FaultyFiles, method: str, earlier: int
) -> None:
    async def every_other() -> AsyncIterator[Chunk]:
        for chunk in chunks(0, 40)[::2]:
            yield chunk
        files.fail(method, 0, times=0)
        files._faults[method] = [errno.EIO]

    spec = StreamSpec(segment_bytes=2000)
    engine = DiskEngine(tmp_path, files=files)
    await engine.open(STREAM, spec)
    await append(engine, chunks(0, 40))
    await engine.roll(STREAM)
    try:
        await engine.rewrite(STREAM, 0, 40, every_other())
    except StorageFailed:
        expected = chunks(0, 40)
    else:
        expected = chunks(0, 40)[::2]
    files.heal()
    assert await read_all(engine, STREAM) == joined(expected)
    more = chunks(40, earlier)
    assert await append(engine, more) == [None] * earlier
    await engine.close()
    engine = DiskEngine(tmp_path)
    assert (await engine.open(STREAM, spec)).end_offset == 40 + earlier
    after = await read_all(engine, STREAM)
    assert after in (joined(chunks(0, 40) + more), joined(chunks(0, 40)[::2] + more))
    await engine.close()
