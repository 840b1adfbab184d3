"""One owner per data directory, and no more open files, threads' toes or memory than the bounds say."""

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.model.errors import StorageFailed
from penstock.model.ids import TOPIC_NAME_MAX_CHARS, StreamId
from penstock.storage.disk import DiskEngine, indexes
from penstock.storage.disk.files import Files
from penstock.storage.disk.segment import Descriptors, Segment
from penstock.storage.engine import Chunk, Durability, StreamSpec
from penstock.testing.chunks import END, make_chunk, read_all

TOPIC_ID = uuid.UUID(int=7)
STREAM = StreamId("orders", TOPIC_ID, 0)


async def test_second_server_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path)
    with pytest.raises(StorageFailed, match=f"{tmp_path} is already in use by process {os.getpid()}"):
        DiskEngine(tmp_path)
    await engine.close()
    await DiskEngine(tmp_path).close()


async def test_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageFailed, match="cannot use data directory"):
        DiskEngine(tmp_path / "file" / "data")


async def test_clean_mark_exists_only_between_close_and_start(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path)
    assert not (tmp_path / "clean").exists()
    await engine.close()
    assert (tmp_path / "clean").exists()
    engine = DiskEngine(tmp_path)
    assert not (tmp_path / "clean").exists()
    await engine.close()


async def test_many_streams_share_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.disk.engine.MAX_OPEN_FILES", 20)
    engine = DiskEngine(tmp_path)
    streams = [StreamId("orders", TOPIC_ID, partition) for partition in range(200)]
    spec = StreamSpec(durability=Durability.OS)
    for stream in streams:
        await engine.open(stream, spec)
    for base_offset in range(3):
        await asyncio.gather(*[engine.append(stream, make_chunk(base_offset)) for stream in streams])
        assert len(engine._descriptors) <= 20 + 4  # one more for each worker at work
    found = await asyncio.gather(*[read_all(engine, stream) for stream in streams])
    assert set(found) == {b"".join(bytes(make_chunk(at).data) for at in range(3))}
    assert len(engine._descriptors) <= 20
    await engine.close()


async def test_stream_without_appends_leaves_no_trace(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path)
    await engine.open(STREAM, StreamSpec())
    await engine.close()
    assert os.listdir(tmp_path / "topics") == []


async def test_longest_topic_name_fits_into_a_file_name(tmp_path: Path) -> None:
    stream = StreamId("n" * TOPIC_NAME_MAX_CHARS, TOPIC_ID, 0)
    engine = DiskEngine(tmp_path)
    await engine.open(stream, StreamSpec())
    await engine.append(stream, make_chunk(0))
    assert await read_all(engine, stream) == make_chunk(0).data
    await engine.delete(TOPIC_ID)
    assert os.listdir(tmp_path / "topics") == []
    await engine.close()


async def test_retain_only_removes_topics_that_nobody_knows(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path)
    others = [StreamId("orders", uuid.UUID(int=number), 0) for number in (8, 9)]
    for stream in (STREAM, *others):
        await engine.open(stream, StreamSpec())
        await engine.append(stream, make_chunk(0))
    await engine.close()
    engine = DiskEngine(tmp_path)
    await engine.retain_only(frozenset({TOPIC_ID}))
    assert os.listdir(tmp_path / "topics") == [f"orders.{TOPIC_ID.hex}"]
    await engine.open(STREAM, StreamSpec())
    assert await read_all(engine, STREAM) == make_chunk(0).data
    await engine.close()


async def test_readers_of_removed_and_rewritten_segments_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every read waits for a thread here, while the segments it reads are replaced and removed under it."""
    monkeypatch.setattr(Files, "preadv_cached", lambda *_: -1)
    engine = DiskEngine(tmp_path)
    await engine.open(STREAM, StreamSpec(segment_bytes=500))
    chunks = [make_chunk(at, value=bytes(80)) for at in range(60)]
    await asyncio.gather(*[engine.append(STREAM, chunk) for chunk in chunks])

    async def follow(offset: int) -> None:
        while offset < 60:
            found = await engine.read(STREAM, offset, 200, END)
            data = b"".join(bytes(buffer) for buffer in found.buffers)
            assert data in b"".join(bytes(chunk.data) for chunk in chunks)
            offset = found.next_offset

    async def same() -> AsyncIterator[Chunk]:
        for chunk in chunks:
            if base_offset <= chunk.base_offset < end_offset:
                yield chunk

    for _ in range(5):
        readers = [asyncio.create_task(follow(offset)) for offset in (0, 0, 20, 40)]
        closed = [span for span in engine.spans(STREAM) if span.closed]
        base_offset, end_offset = closed[1].base_offset, closed[-1].end_offset
        await engine.rewrite(STREAM, base_offset, end_offset, same())
        await engine.trim(STREAM, (await engine.open(STREAM, StreamSpec(segment_bytes=500))).start_offset + 1)
        async with asyncio.timeout(30):
            await asyncio.gather(*readers)
        chunks += [make_chunk(len(chunks) + at, value=bytes(80)) for at in range(6)]
        await asyncio.gather(*[engine.append(STREAM, chunk) for chunk in chunks[-6:]])
        await engine.roll(STREAM)
    await engine.close()


async def test_indexes_of_closed_segments_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "MAX_CACHED_ENTRIES", 4)
    engine = DiskEngine(tmp_path)
    spec = StreamSpec(segment_bytes=200_000, durability=Durability.OS)
    await engine.open(STREAM, spec)
    for at in range(30):
        await engine.append(STREAM, make_chunk(at, value=bytes(66_000)))
    for offset in range(30):
        assert (await engine.read(STREAM, offset, 1, END)).next_offset == offset + 1
        assert engine._indexes._cached_entries <= 4
    loaded = [segment for segment in engine._streams[STREAM].segments if segment.index is not None]
    assert len(loaded) <= 3
    await engine.close()


def test_pinned_descriptor_outlives_its_segment(tmp_path: Path) -> None:
    descriptors = Descriptors(Files(), 1)
    first, second = Segment(str(tmp_path), 0, 0), Segment(str(tmp_path), 1, 0)
    fd = descriptors.acquire(first, os.O_RDWR | os.O_CREAT)
    descriptors.acquire(second, os.O_RDWR | os.O_CREAT)
    descriptors.doom(first)
    os.fstat(fd)
    descriptors.release(first)
    with pytest.raises(OSError):
        os.fstat(fd)
    descriptors.release(second)
    descriptors.close()
    assert len(descriptors) == 0


async def test_cancelled_caller_leaves_maintenance_whole(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path)
    await engine.open(STREAM, StreamSpec())
    await engine.append(STREAM, make_chunk(0))
    for work in (engine.roll(STREAM), engine.trim(STREAM, 1), engine.trim(STREAM, 50)):
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    # The lock is taken in turn, so this one ends after them.
    await engine.trim(STREAM, 51)
    await engine.append(STREAM, make_chunk(51))
    assert await read_all(engine, STREAM) == make_chunk(51).data
    await engine.close()


WRITER = """
import asyncio, sys, uuid
from penstock.model.ids import StreamId
from penstock.storage.disk import DiskEngine
from penstock.storage.engine import StreamSpec
from penstock.testing.chunks import make_chunk

async def main():
    stream = StreamId("orders", uuid.UUID(int=7), 0)
    engine = DiskEngine(sys.argv[1])
    end_offset = (await engine.open(stream, StreamSpec(segment_bytes=50_000))).end_offset
    while True:
        futures = [engine.append(stream, make_chunk(end_offset + at, value=bytes(300))) for at in range(20)]
        await asyncio.gather(*futures)
        end_offset += 20
        print(end_offset, flush=True)

asyncio.run(main())
"""


def write_until_killed(directory: Path, rounds: int) -> int:
    """Let a process append until it is killed; return what it was promised last."""
    command = [sys.executable, "-c", WRITER, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        promised = [int(writer.stdout.readline()) for _ in range(rounds)]
        writer.send_signal(signal.SIGKILL)
        promised += [int(line) for line in writer.stdout if line.endswith("\n")]
    return promised[-1]


async def test_killed_writer_has_lost_nothing_it_was_promised(tmp_path: Path) -> None:
    for round_number in range(4):
        promised = await asyncio.to_thread(write_until_killed, tmp_path, 20 + 7 * round_number)
        engine = DiskEngine(tmp_path)
        state = await engine.open(STREAM, StreamSpec())
        assert state.end_offset >= promised
        expected = b"".join(bytes(make_chunk(at, value=bytes(300)).data) for at in range(state.end_offset))
        assert await read_all(engine, STREAM) == expected
        await engine.close()
