"""What a crash or a bad disk leaves in a log: the engine keeps every sound chunk before it, and says so."""

import logging
import os
import uuid
from pathlib import Path

import pytest

from penstock.model.errors import CorruptBatch
from penstock.model.ids import StreamId
from penstock.storage.disk import DiskEngine
from penstock.storage.disk.index import ENTRY_BYTES, SPACING_BYTES
from penstock.storage.engine import Chunk, StreamSpec
from penstock.testing.chunks import END, make_chunk, read_all

STREAM = StreamId("orders", uuid.UUID(int=7), 0)
SPEC = StreamSpec()
ROLLING = StreamSpec(segment_bytes=300_000)


async def written(directory: Path, chunks: list[Chunk], spec: StreamSpec = SPEC) -> Path:
    """Write these chunks, close cleanly, and return the stream's directory."""
    engine = DiskEngine(directory)
    await engine.open(STREAM, spec)
    for chunk in chunks:
        await engine.append(STREAM, chunk)
    await engine.close()
    (stream_directory,) = (directory / "topics").glob("*/0")
    return stream_directory


def crashed(directory: Path, stream_directory: Path) -> None:
    """Let the directory look as if the server had been killed: no clean mark, no index entry made by the close."""
    (directory / "clean").unlink(missing_ok=True)
    for index in stream_directory.glob("*.index"):
        data = index.read_bytes()
        index.write_bytes(data[:-ENTRY_BYTES])


async def reopened(directory: Path, expected: list[Chunk], spec: StreamSpec = SPEC) -> None:
    """The stream holds exactly these chunks, takes another one, and still holds them after a restart."""
    end_offset = expected[-1].end_offset if expected else 0
    more = make_chunk(end_offset, value=b"after the crash")
    engine = DiskEngine(directory)
    state = await engine.open(STREAM, spec)
    assert state.end_offset == end_offset
    assert await read_all(engine, STREAM) == b"".join(bytes(chunk.data) for chunk in expected)
    await engine.append(STREAM, more)
    await engine.close()
    engine = DiskEngine(directory)
    assert (await engine.open(STREAM, spec)).end_offset == more.end_offset
    assert await read_all(engine, STREAM) == b"".join(bytes(chunk.data) for chunk in [*expected, more])
    await engine.close()


CHUNKS = [make_chunk(2 * at, 2, value=b"v%d" % at) for at in range(5)]


async def test_tail_torn_at_every_byte_of_the_last_chunk_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last = len(CHUNKS[-1].data)
    for lost_bytes in range(1, last + 1):
        directory = tmp_path / str(lost_bytes)
        stream_directory = await written(directory, CHUNKS)
        crashed(directory, stream_directory)
        (log,) = stream_directory.glob("*.log")
        os.truncate(log, log.stat().st_size - lost_bytes)
        caplog.clear()
        await reopened(directory, CHUNKS[:-1])
        warned = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert bool(warned) == (lost_bytes < last)
        if warned:
            assert f"{last - lost_bytes} bytes" in warned[0].getMessage()


@pytest.mark.parametrize("clean", [True, False])
async def test_log_shorter_than_its_index_says_is_read_again(tmp_path: Path, clean: bool) -> None:
    stream_directory = await written(tmp_path, CHUNKS)
    if not clean:
        (tmp_path / "clean").unlink()
    (log,) = stream_directory.glob("*.log")
    os.truncate(log, log.stat().st_size - 3)
    await reopened(tmp_path, CHUNKS[:-1])


@pytest.mark.parametrize(
    "garbage", [b"\0" * 500, b"\xff" * 500, b"x" * 10, bytes(CHUNKS[0].data), bytes(CHUNKS[4].data)[:80]]
)
async def test_garbage_after_the_last_chunk_is_cut_off(tmp_path: Path, garbage: bytes) -> None:
    stream_directory = await written(tmp_path, CHUNKS)
    crashed(tmp_path, stream_directory)
    (log,) = stream_directory.glob("*.log")
    with log.open("ab") as file:
        file.write(garbage)
    await reopened(tmp_path, CHUNKS)


async def test_flipped_bit_in_the_unverified_tail_ends_the_log_there(tmp_path: Path) -> None:
    size = len(CHUNKS[0].data)
    # The base offset and the epoch are outside the checksum; the log above stamps them.
    for byte in range(8, size):
        if 12 <= byte < 16:
            continue
        directory = tmp_path / str(byte)
        stream_directory = await written(directory, CHUNKS)
        crashed(directory, stream_directory)
        (log,) = stream_directory.glob("*.log")
        flip(log, 3 * size + byte)
        await reopened(directory, CHUNKS[:3])


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


LARGE = [make_chunk(at, value=bytes([at % 251]) * 20_000, timestamp_ms=1000 + at) for at in range(40)]


async def test_flipped_bit_in_the_middle_is_reported_and_nothing_before_it_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream_directory = await written(tmp_path, LARGE, ROLLING)
    victim = 5
    log = min(stream_directory.glob("*.log"))
    position = sum(len(chunk.data) for chunk in LARGE[:victim])
    flip(log, position + 5000)
    (tmp_path / "clean").unlink()

    engine = DiskEngine(tmp_path)
    assert (await engine.open(STREAM, ROLLING)).end_offset == len(LARGE)
    before = await engine.read(STREAM, 0, 1 << 20, END)
    assert before.next_offset == victim
    assert b"".join(bytes(buffer) for buffer in before.buffers) == b"".join(
        bytes(chunk.data) for chunk in LARGE[:victim]
    )
    with pytest.raises(CorruptBatch, match=f"{log.name} at byte {position}"):
        await engine.read(STREAM, victim, 1 << 20, END)
    assert any(str(log) in record.getMessage() and str(position) in record.getMessage() for record in caplog.records)
    after = await read_all(engine, STREAM, victim + 1)
    assert after == b"".join(bytes(chunk.data) for chunk in LARGE[victim + 1 :])
    await engine.close()


async def test_damaged_header_in_the_middle_leaves_the_chunks_before_it_and_after_the_next_index_entry(
    tmp_path: Path,
) -> None:
    stream_directory = await written(tmp_path, LARGE, ROLLING)
    log = min(stream_directory.glob("*.log"))
    flip(log, sum(len(chunk.data) for chunk in LARGE[:5]) + 16)
    engine = DiskEngine(tmp_path)
    await engine.open(STREAM, ROLLING)
    found = await engine.read(STREAM, 0, 1 << 20, END)
    assert found.next_offset == 5
    with pytest.raises(CorruptBatch):
        await engine.read(STREAM, 5, 1 << 20, END)
    beyond = 5 + 2 * SPACING_BYTES // 20_000 + 1
    assert await read_all(engine, STREAM, beyond) == b"".join(bytes(chunk.data) for chunk in LARGE[beyond:])
    await engine.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["deleted", "empty", "garbage", "cut", "first entry", "last entry", "appended"])
async def test_lost_or_damaged_index_is_made_again(tmp_path: Path, damage: str, clean: bool) -> None:
    stream_directory = await written(tmp_path, LARGE, ROLLING)
    if not clean:
        (tmp_path / "clean").unlink()
    good = {index.name: index.read_bytes() for index in stream_directory.glob("*.index")}
    assert len(good) > 2
    for name, data in good.items():
        index = stream_directory / name
        match damage:
            case "deleted":
                index.unlink()
            case "empty":
                index.write_bytes(b"")
            case "garbage":
                index.write_bytes(b"\x5a" * len(data))
            case "cut":
                index.write_bytes(data[:-5])
            case "first entry":
                flip(index, 4)
            case "last entry":
                flip(index, len(data) - 10)
            case "appended":
                index.write_bytes(data + b"?" * 11)
    engine = DiskEngine(tmp_path)
    assert (await engine.open(STREAM, ROLLING)).end_offset == len(LARGE)
    for offset in range(len(LARGE)):
        found = await engine.read(STREAM, offset, 1, END)
        assert found.next_offset == offset + 1
        assert await engine.seek(STREAM, 1000 + offset) == offset
    assert [span.max_timestamp_ms for span in engine.spans(STREAM)][-1] == 1000 + len(LARGE) - 1
    await engine.close()
    await reopened(tmp_path, LARGE, ROLLING)


async def test_clean_start_reads_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await written(tmp_path, LARGE, ROLLING)
    monkeypatch.setattr("penstock.storage.disk.recovery.scan", None)
    engine = DiskEngine(tmp_path)
    assert (await engine.open(STREAM, ROLLING)).end_offset == len(LARGE)
    await engine.close()


async def test_index_left_without_its_log_is_removed(tmp_path: Path) -> None:
    stream_directory = await written(tmp_path, CHUNKS)
    (stream_directory / f"{99:020d}.index").write_bytes(b"stale")
    (stream_directory / "state.tmp").write_bytes(b"half")
    await reopened(tmp_path, CHUNKS)
    assert sorted(path.suffix for path in stream_directory.iterdir()) == [".index", ".log"]


async def test_sound_chunks_behind_a_damaged_one_are_kept_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream_directory = await written(tmp_path, CHUNKS)
    crashed(tmp_path, stream_directory)
    (log,) = stream_directory.glob("*.log")
    data = bytearray(log.read_bytes())
    at = sum(len(chunk.data) for chunk in CHUNKS[:2])
    data[at + 70] ^= 1
    log.write_bytes(data)
    with caplog.at_level(logging.ERROR):
        await reopened(tmp_path, CHUNKS[:2])
    (aside,) = stream_directory.glob("*.cut")
    assert aside.read_bytes() == bytes(data[at:])
    assert str(aside) in caplog.text


async def test_a_write_that_was_merely_cut_short_leaves_nothing_beside_the_log(tmp_path: Path) -> None:
    stream_directory = await written(tmp_path, CHUNKS)
    crashed(tmp_path, stream_directory)
    (log,) = stream_directory.glob("*.log")
    os.truncate(log, log.stat().st_size - 3)
    await reopened(tmp_path, CHUNKS[:-1])
    assert not list(stream_directory.glob("*.cut"))
