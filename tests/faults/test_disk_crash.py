"""A crash at every single system call of a stream's life, by kill and by power loss: law 1 and law 6 hold each time.

One scripted life (appends, rolls, trims, a rewrite, checkpoints, a restart) is lived again and again, and dies one
call later each time. What is then on the disk is opened by a fresh engine and compared with what the caller knew.
"""

import asyncio
import os
import random
import shutil
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.model.errors import StorageFailed
from penstock.model.ids import StreamId
from penstock.storage.disk import DiskEngine
from penstock.storage.engine import Checkpoint, Chunk, Durability, StreamSpec
from penstock.testing.chunks import make_chunk, read_all
from penstock.testing.files import Crash, FaultyFiles, PowerLossFiles

STREAM = StreamId("orders", uuid.UUID(int=7), 0)
JUMP = 100  # where the stream goes on after it was trimmed beyond its end


class Life:
    """One life of a stream, and what its owner knows: what was promised, and what was merely begun."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self.begun: dict[int, Chunk] = {}  # every chunk ever handed to the engine, by base offset
        self.promised_end = 0
        self.begun_end = 0
        self.promised_start = 0
        self.begun_start = 0
        self.removed: set[int] = set()  # base offsets that the rewrite leaves out
        self.rewrite = "no"  # "begun", "promised"

    async def live(self, engine: DiskEngine, restart: Callable[[], DiskEngine]) -> DiskEngine:
        await engine.open(STREAM, self.spec)
        await self.append(engine, 3)
        await self.append(engine, 4)
        await engine.checkpoint(STREAM, Checkpoint(4, b"early"))
        await self.append(engine, 6)
        await self.trim(engine, 2)
        await engine.roll(STREAM)
        await self.append(engine, 2)
        await self.compact(engine)
        await self.append(engine, 2)
        await self.trim(engine, 5)
        await engine.close()
        engine = restart()
        await engine.open(STREAM, self.spec)
        await engine.checkpoint(STREAM, Checkpoint(self.promised_end, b"late"))
        await self.append(engine, 5)
        await self.trim(engine, JUMP)
        await self.append(engine, 4)
        await engine.close()
        return engine

    async def append(self, engine: DiskEngine, count: int) -> None:
        futures = []
        for _ in range(count):
            chunk = make_chunk(self.begun_end, value=b"chunk %03d" % self.begun_end)
            self.begun[chunk.base_offset] = chunk
            self.begun_end = chunk.end_offset
            futures.append(engine.append(STREAM, chunk))
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        self.promised_end = self.begun_end

    async def trim(self, engine: DiskEngine, start_offset: int) -> None:
        self.begun_start = start_offset
        self.begun_end = max(self.begun_end, start_offset)
        await engine.trim(STREAM, start_offset)
        self.promised_start = start_offset
        self.promised_end = max(self.promised_end, start_offset)

    async def compact(self, engine: DiskEngine) -> None:
        closed = [span for span in engine.spans(STREAM) if span.closed]
        base_offset, end_offset = closed[0].base_offset, closed[-1].end_offset
        self.removed = {offset for offset in self.begun if base_offset <= offset < end_offset and offset % 3}
        self.rewrite = "begun"

        async def survivors() -> AsyncIterator[Chunk]:
            for offset, chunk in self.begun.items():
                if base_offset <= offset < end_offset and offset not in self.removed:
                    yield chunk

        await engine.rewrite(STREAM, base_offset, end_offset, survivors())
        self.rewrite = "promised"

    def chunks(self, start_offset: int, end_offset: int, *, rewritten: bool) -> bytes:
        return b"".join(
            bytes(chunk.data)
            for offset, chunk in self.begun.items()
            if chunk.end_offset > start_offset and offset < end_offset and not (rewritten and offset in self.removed)
        )

    async def check(self, directory: Path, *, keeps_promises: bool = True) -> None:
        """Open what is left, compare it, and go on with it."""
        engine = DiskEngine(directory, files=FaultyFiles())
        state = await engine.open(STREAM, self.spec)
        if keeps_promises:
            assert self.promised_start <= state.start_offset <= self.begun_start
            assert self.promised_end <= state.end_offset <= self.begun_end
        assert state.start_offset <= state.end_offset
        if state.checkpoint is not None:
            assert state.checkpoint.offset <= state.end_offset
        found = await read_all(engine, STREAM)
        allowed = []
        if self.rewrite != "promised" or not keeps_promises:
            allowed.append(self.chunks(state.start_offset, state.end_offset, rewritten=False))
        if self.rewrite != "no":
            allowed.append(self.chunks(state.start_offset, state.end_offset, rewritten=True))
        assert found in allowed
        more = make_chunk(state.end_offset, value=b"life goes on")
        await engine.append(STREAM, more)
        await engine.roll(STREAM)
        assert await read_all(engine, STREAM) == found + bytes(more.data)
        await engine.close()
        engine = DiskEngine(directory, files=FaultyFiles())
        assert (await engine.open(STREAM, self.spec)).end_offset == more.end_offset
        assert await read_all(engine, STREAM) == found + bytes(more.data)
        await engine.close()
        left = {path.suffix for path in directory.glob("topics/*/0/*")}
        assert left <= {"", ".log", ".index"}


async def live_until(directory: Path, crash_at: int, spec: StreamSpec) -> tuple[Life, PowerLossFiles]:
    (directory / "topics").mkdir(parents=True)
    files = PowerLossFiles(str(directory))
    files.crash_at = crash_at
    life = Life(spec)
    engines: list[DiskEngine] = []

    def start() -> DiskEngine:
        engines.append(DiskEngine(directory, files=files))
        return engines[-1]

    try:
        await life.live(start(), start)
    except (Crash, StorageFailed):
        assert files.crashed
    for engine in engines:
        bury(engine)
    return life, files


def bury(engine: DiskEngine) -> None:
    """Release what a dead process would not hold any more."""
    engine._executor.shutdown()
    engine._committer.shutdown()
    engine._descriptors.close()
    engine._directory.unlock()


def specs(durability: Durability) -> StreamSpec:
    return StreamSpec(durability=durability, segment_bytes=320)


async def calls_of_a_life(directory: Path, durability: Durability) -> int:
    life, files = await live_until(directory, 0, specs(durability))
    assert not files.crashed
    assert life.promised_end == JUMP + 4
    return files.calls


async def test_kill_at_every_call_keeps_every_promise(tmp_path: Path) -> None:
    for durability in (Durability.SYNC, Durability.OS):
        calls = await calls_of_a_life(tmp_path / f"whole-{durability.value}", durability)
        assert calls > 50
        for crash_at in range(1, calls + 1):
            directory = tmp_path / f"{durability.value}-{crash_at}"
            life, _ = await live_until(directory, crash_at, specs(durability))
            await life.check(directory)
            shutil.rmtree(directory)


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_power_loss_at_every_call_keeps_every_promise_of_a_synced_stream(
    tmp_path: Path, seed: int | None
) -> None:
    calls = await calls_of_a_life(tmp_path / "whole", Durability.SYNC)
    for crash_at in range(1, calls + 1):
        directory = tmp_path / str(crash_at)
        life, files = await live_until(directory, crash_at, specs(Durability.SYNC))
        remains = tmp_path / f"{crash_at}-remains"
        files.after_power_loss(str(remains), None if seed is None else random.Random(f"{seed}/{crash_at}"))
        await life.check(remains)
        shutil.rmtree(directory)
        shutil.rmtree(remains)


@pytest.mark.parametrize("seed", [None, 3])
async def test_power_loss_leaves_an_unsynced_stream_shorter_but_whole(tmp_path: Path, seed: int | None) -> None:
    calls = await calls_of_a_life(tmp_path / "whole", Durability.OS)
    for crash_at in range(1, calls + 1):
        directory = tmp_path / str(crash_at)
        life, files = await live_until(directory, crash_at, specs(Durability.OS))
        remains = tmp_path / f"{crash_at}-remains"
        files.after_power_loss(str(remains), None if seed is None else random.Random(f"{seed}/{crash_at}"))
        await life.check(remains, keeps_promises=False)
        shutil.rmtree(directory)
        shutil.rmtree(remains)


async def test_clean_close_survives_power_loss_whatever_the_durability(tmp_path: Path) -> None:
    for durability in Durability:
        directory = tmp_path / durability.value
        life, files = await live_until(directory, 0, specs(durability))
        files.after_power_loss(str(tmp_path / "remains" / durability.value))
        await life.check(tmp_path / "remains" / durability.value)


async def test_topic_whose_deletion_was_cut_short_is_gone_after_the_next_start(tmp_path: Path) -> None:
    crash_at = 0
    while True:
        crash_at += 1
        directory = tmp_path / str(crash_at)
        (directory / "topics").mkdir(parents=True)
        files = PowerLossFiles(str(directory))
        engine = DiskEngine(directory, files=files)
        await engine.open(STREAM, StreamSpec())
        await engine.append(STREAM, make_chunk(0))
        files.crash_at = files.calls + crash_at
        try:
            await engine.delete(STREAM.topic_id)
        except Crash:
            bury(engine)
        else:
            files.crash_at = 0
            await engine.close()
            break
        engine = DiskEngine(directory, files=FaultyFiles())
        await engine.retain_only(frozenset())
        assert not os.listdir(directory / "topics")
        await engine.close()
    assert crash_at > 4
