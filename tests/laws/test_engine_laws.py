"""The laws of the storage seam, held against every engine. What only a disk can do is in tests/faults."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.model.errors import Conflict, StorageFailed
from penstock.model.ids import StreamId
from penstock.storage.disk import DiskEngine
from penstock.storage.engine import Checkpoint, Chunk, Durability, Engine, StreamSpec
from penstock.storage.memory import MemoryEngine
from penstock.testing.chunks import END, make_chunk, read_all
from penstock.testing.clock import ManualClock

STREAM = StreamId("orders", uuid.UUID(int=7), 0)
SMALL_SEGMENTS = StreamSpec(segment_bytes=400)  # four or five of the chunks below


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "disk-sync", "disk-os", "disk-interval"])
async def kept(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[tuple[Engine, StreamSpec]]:
    """An engine, and a spec with small segments for it."""
    name: str = request.param
    engine: Engine
    if name == "memory":
        engine, spec = MemoryEngine(clock), SMALL_SEGMENTS
    else:
        engine = DiskEngine(tmp_path, clock)
        spec = StreamSpec(durability=Durability(name.removeprefix("disk-")), segment_bytes=400)
    await engine.open(STREAM, spec)
    yield engine, spec
    await engine.close()


@pytest.fixture
def engine(kept: tuple[Engine, StreamSpec]) -> Engine:
    return kept[0]


async def fill(
    engine: Engine, count: int, first: int = 0, value: Callable[[int], bytes] = lambda at: b"v%d" % at
) -> list[Chunk]:
    """Append so many chunks of two records and wait for them."""
    chunks = [make_chunk(first + 2 * at, 2, value=value(at), timestamp_ms=1000 + 10 * at) for at in range(count)]
    await asyncio.gather(*[engine.append(STREAM, chunk) for chunk in chunks])
    return chunks


def joined(chunks: Iterable[Chunk]) -> bytes:
    return b"".join(bytes(chunk.data) for chunk in chunks)


async def each(chunks: Iterable[Chunk]) -> AsyncIterator[Chunk]:
    for chunk in chunks:
        yield chunk


async def test_new_stream_is_empty_and_begins_at_zero(engine: Engine) -> None:
    state = await engine.open(STREAM, SMALL_SEGMENTS)
    assert (state.start_offset, state.end_offset, state.checkpoint) == (0, 0, None)
    found = await engine.read(STREAM, 0, 1000, END)
    assert (found.size_bytes, found.next_offset) == (0, 0)
    assert list(engine.spans(STREAM)) == []
    assert await engine.seek(STREAM, 0) is None


async def test_what_was_appended_is_read_back_byte_for_byte_in_order(engine: Engine) -> None:
    chunks = await fill(engine, 40)
    assert await read_all(engine, STREAM) == joined(chunks)
    assert await read_all(engine, STREAM, max_bytes=1) == joined(chunks)
    assert (await engine.open(STREAM, SMALL_SEGMENTS)).end_offset == 80


async def test_caller_may_reuse_its_buffer_once_the_future_is_done(engine: Engine) -> None:
    chunk = make_chunk(0)
    buffer = bytearray(chunk.data)
    await engine.append(STREAM, chunk._replace(data=memoryview(buffer)))
    buffer[:] = bytes(len(buffer))
    assert await read_all(engine, STREAM) == chunk.data


async def test_futures_resolve_in_the_order_of_the_appends(engine: Engine) -> None:
    resolved: list[int] = []
    futures = []
    for at in range(20):
        future = engine.append(STREAM, make_chunk(at))
        future.add_done_callback(lambda _, at=at: resolved.append(at))
        futures.append(future)
    await asyncio.gather(*futures)
    await asyncio.sleep(0)
    assert resolved == list(range(20))


async def test_append_elsewhere_than_at_the_end_conflicts_and_changes_nothing(engine: Engine) -> None:
    chunks = await fill(engine, 3)
    for base_offset in (0, 5, 7, 100):
        with pytest.raises(Conflict):
            engine.append(STREAM, make_chunk(base_offset))
    assert await read_all(engine, STREAM) == joined(chunks)
    await engine.append(STREAM, make_chunk(6))


async def test_read_begins_with_the_chunk_that_holds_the_offset(engine: Engine) -> None:
    chunks = await fill(engine, 20)
    for at, chunk in enumerate(chunks):
        for offset in (chunk.base_offset, chunk.end_offset - 1):
            found = await engine.read(STREAM, offset, 1, END)
            assert [bytes(buffer) for buffer in found.buffers] == [chunk.data]
            assert found.next_offset == chunk.end_offset, at


async def test_read_returns_one_chunk_even_if_it_is_larger_than_asked_for(engine: Engine) -> None:
    large = make_chunk(0, value=bytes(100_000))
    await engine.append(STREAM, large)
    await engine.append(STREAM, make_chunk(1))
    found = await engine.read(STREAM, 0, 10, END)
    assert joined([large]) == b"".join(bytes(buffer) for buffer in found.buffers)
    found = await engine.read(STREAM, 1, 10, END)
    assert found.next_offset == 2


async def test_read_keeps_to_its_bounds(engine: Engine) -> None:
    chunks = await fill(engine, 20)
    size = len(chunks[0].data)
    for max_bytes in (1, size, size + 1, 2 * size + 5, 10_000):
        found = await engine.read(STREAM, 0, max_bytes, END)
        assert found.size_bytes <= max(size, max_bytes)
    for end_offset in range(12):
        offset, seen = 0, b""
        while (found := await engine.read(STREAM, offset, 10_000, end_offset)).size_bytes:
            seen += b"".join(bytes(buffer) for buffer in found.buffers)
            offset = found.next_offset
        assert seen == joined(chunk for chunk in chunks if chunk.base_offset < end_offset)


async def test_read_at_or_beyond_the_end_finds_nothing(engine: Engine) -> None:
    await fill(engine, 2)
    for offset in (4, 5, 1000):
        found = await engine.read(STREAM, offset, 1000, END)
        assert (found.size_bytes, found.next_offset) == (0, offset)


async def test_spans_are_contiguous_and_only_the_last_is_open(engine: Engine) -> None:
    chunks = await fill(engine, 40)
    spans = engine.spans(STREAM)
    assert len(spans) > 5
    assert spans[0].base_offset == 0
    assert spans[-1].end_offset == 80
    assert [span.closed for span in spans] == [True] * (len(spans) - 1) + [False]
    for before, after in pairwise(spans):
        assert before.end_offset == after.base_offset
    assert sum(span.size_bytes for span in spans) == len(joined(chunks))
    for span in spans:
        inside = [chunk for chunk in chunks if span.base_offset <= chunk.base_offset < span.end_offset]
        assert span.max_timestamp_ms == max(chunk.max_timestamp_ms for chunk in inside)
        assert span.size_bytes == len(joined(inside)) <= 400


async def test_span_rolls_when_its_first_chunk_is_old_enough(
    kept: tuple[Engine, StreamSpec], clock: ManualClock
) -> None:
    engine, _ = kept
    engine.configure(STREAM, StreamSpec(segment_ms=1000))
    await engine.append(STREAM, make_chunk(0))
    clock.advance(999)
    await engine.append(STREAM, make_chunk(1))
    assert len(engine.spans(STREAM)) == 1
    clock.advance(1)
    await engine.append(STREAM, make_chunk(2))
    assert [span.base_offset for span in engine.spans(STREAM)] == [0, 2]


async def test_roll_closes_the_open_span_and_appends_go_on(engine: Engine) -> None:
    await engine.roll(STREAM)
    first = await fill(engine, 1)
    await engine.roll(STREAM)
    await engine.roll(STREAM)
    assert [(span.base_offset, span.end_offset, span.closed) for span in engine.spans(STREAM)] == [(0, 2, True)]
    second = await fill(engine, 1, first=2)
    assert [span.closed for span in engine.spans(STREAM)] == [True, False]
    assert await read_all(engine, STREAM) == joined(first + second)


async def test_trim_hides_chunks_that_end_at_or_before_it(engine: Engine) -> None:
    chunks = await fill(engine, 30)
    for start_offset in (1, 2, 3, 17, 30, 59, 60):
        await engine.trim(STREAM, start_offset)
        left = [chunk for chunk in chunks if chunk.end_offset > start_offset]
        assert await read_all(engine, STREAM) == joined(left)
        assert await read_all(engine, STREAM, start_offset) == joined(left)
        assert (await engine.open(STREAM, SMALL_SEGMENTS)).start_offset == start_offset
    await engine.trim(STREAM, 5)
    assert (await engine.open(STREAM, SMALL_SEGMENTS)).start_offset == 60


async def test_trim_removes_whole_spans(engine: Engine) -> None:
    await fill(engine, 30)
    spans = engine.spans(STREAM)
    await engine.trim(STREAM, spans[3].base_offset + 1)
    assert engine.spans(STREAM) == spans[3:]


async def test_stream_goes_on_empty_where_it_was_trimmed_beyond_its_end(engine: Engine) -> None:
    await fill(engine, 10)
    await engine.trim(STREAM, 1000)
    state = await engine.open(STREAM, SMALL_SEGMENTS)
    assert (state.start_offset, state.end_offset) == (1000, 1000)
    assert await read_all(engine, STREAM, 1000) == b""
    assert list(engine.spans(STREAM)) == []
    with pytest.raises(Conflict):
        engine.append(STREAM, make_chunk(20))
    chunks = await fill(engine, 10, first=1000)
    assert await read_all(engine, STREAM) == joined(chunks)


async def test_stream_that_never_held_anything_can_begin_elsewhere(engine: Engine) -> None:
    await engine.trim(STREAM, 50)
    chunks = await fill(engine, 2, first=50)
    assert await read_all(engine, STREAM) == joined(chunks)


async def test_files_hold_what_a_read_returns(engine: Engine) -> None:
    """Of an engine that has files: none is told of by another."""
    assert list(await engine.files(STREAM, 0, END)) == []
    chunks = await fill(engine, 13)
    if not await engine.files(STREAM, 0, END):
        assert isinstance(engine, MemoryEngine)
        return
    await engine.trim(STREAM, 3)
    for start in range(26):
        for end in range(start, 28):
            held = b""
            spans = list(await engine.files(STREAM, start, end))
            for span in spans:
                with open(span.path, "rb") as file:
                    held += file.read()[span.position : span.size_bytes]
                assert span.base_offset <= max(start, span.base_offset) < span.end_offset
            wanted = [chunk for chunk in chunks if chunk.end_offset > max(start, 3) and chunk.base_offset < end]
            assert held == joined(wanted if max(start, 3) < end else []), (start, end)
            assert not spans or spans[-1].end_offset >= min(end, 26)


async def test_seek_finds_the_first_chunk_young_enough(engine: Engine) -> None:
    times = [1000, 5000, 3000, 9000, 2000, 7000, 9000, 12000, 100, 13000]
    chunks = [make_chunk(at, timestamp_ms=time) for at, time in enumerate(times)]
    await asyncio.gather(*[engine.append(STREAM, chunk) for chunk in chunks])
    for wanted in (0, 1000, 1001, 5000, 5001, 9000, 9001, 12500, 13000, 13001):
        expected = next((at for at, time in enumerate(times) if time >= wanted), None)
        assert await engine.seek(STREAM, wanted) == expected
    await engine.trim(STREAM, 4)
    assert await engine.seek(STREAM, 1000) == 4
    assert await engine.seek(STREAM, 9000) == 6


async def test_rewrite_replaces_whole_spans_and_reads_skip_the_holes(engine: Engine) -> None:
    chunks = await fill(engine, 30)
    spans = engine.spans(STREAM)
    base_offset, end_offset = spans[1].base_offset, spans[4].base_offset
    inside = [chunk for chunk in chunks if base_offset <= chunk.base_offset < end_offset]
    survivors = inside[2::3]
    await engine.rewrite(STREAM, base_offset, end_offset, each(survivors))
    left = [chunk for chunk in chunks if chunk not in inside or chunk in survivors]
    assert await read_all(engine, STREAM) == joined(left)
    for offset in range(60):
        found = await engine.read(STREAM, offset, 1, END)
        holder = next(chunk for chunk in left if chunk.end_offset > offset)
        assert [bytes(buffer) for buffer in found.buffers] == [holder.data]
    span = engine.spans(STREAM)[1]
    assert (span.base_offset, span.end_offset, span.closed) == (base_offset, end_offset, True)
    assert span.size_bytes == len(joined(survivors))
    assert await engine.seek(STREAM, inside[0].max_timestamp_ms) == survivors[0].base_offset


async def test_rewrite_to_nothing_leaves_the_bounds(engine: Engine) -> None:
    chunks = await fill(engine, 4)
    await engine.roll(STREAM)
    await engine.rewrite(STREAM, 0, 8, each([]))
    assert await read_all(engine, STREAM) == b""
    assert chunks
    more = await fill(engine, 1, first=8)
    assert await read_all(engine, STREAM) == joined(more)


async def test_failed_rewrite_changes_nothing(engine: Engine) -> None:
    async def broken() -> AsyncIterator[Chunk]:
        yield chunks[0]
        raise ZeroDivisionError

    chunks = await fill(engine, 30)
    spans = engine.spans(STREAM)
    with pytest.raises(ZeroDivisionError):
        await engine.rewrite(STREAM, 0, spans[2].base_offset, broken())
    for base_offset, end_offset in ((0, 1), (1, spans[1].base_offset), (0, 60), (4, 4)):
        with pytest.raises(StorageFailed):
            await engine.rewrite(STREAM, base_offset, end_offset, each([]))
    assert await read_all(engine, STREAM) == joined(chunks)
    assert engine.spans(STREAM) == spans


async def test_checkpoint_is_returned_at_the_next_open(engine: Engine) -> None:
    await fill(engine, 3)
    await engine.checkpoint(STREAM, Checkpoint(4, b"first"))
    await engine.checkpoint(STREAM, Checkpoint(6, b"state"))
    assert (await engine.open(STREAM, SMALL_SEGMENTS)).checkpoint == Checkpoint(6, b"state")


async def test_deleted_topic_is_gone_and_others_stay(engine: Engine) -> None:
    other = StreamId("orders", uuid.UUID(int=8), 0)
    await engine.open(other, SMALL_SEGMENTS)
    await engine.append(other, make_chunk(0))
    await fill(engine, 10)
    await engine.delete(STREAM.topic_id)
    with pytest.raises(StorageFailed):
        engine.append(STREAM, make_chunk(20))
    assert (await engine.open(STREAM, SMALL_SEGMENTS)).end_offset == 0
    assert await read_all(engine, other) == make_chunk(0).data


async def test_appends_under_way_fail_when_their_topic_is_deleted(engine: Engine) -> None:
    futures = [engine.append(STREAM, make_chunk(at)) for at in range(10)]
    await engine.delete(STREAM.topic_id)
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert all(outcome is None or isinstance(outcome, StorageFailed) for outcome in outcomes)


async def test_retain_only_removes_what_belongs_to_nobody(engine: Engine) -> None:
    await fill(engine, 3)
    await engine.retain_only(frozenset({STREAM.topic_id}))
    assert await read_all(engine, STREAM)


async def test_nothing_is_taken_after_close(engine: Engine) -> None:
    await fill(engine, 1)
    await engine.close()
    with pytest.raises(StorageFailed):
        engine.append(STREAM, make_chunk(2))
    with pytest.raises(StorageFailed):
        await engine.open(STREAM, SMALL_SEGMENTS)
    await engine.close()


async def test_reader_at_the_tail_sees_only_what_is_resolved(engine: Engine) -> None:
    done = 0

    async def follow() -> int:
        offset = 0
        while offset < 200:
            found = await engine.read(STREAM, offset, 10_000, END)
            assert found.next_offset <= done + 1 or not found.size_bytes
            offset = found.next_offset
            await asyncio.sleep(0)
        return offset

    async def produce() -> None:
        nonlocal done
        for at in range(200):
            future = engine.append(STREAM, make_chunk(at))
            await future
            done = at + 1

    async with asyncio.timeout(60):
        offset, _ = await asyncio.gather(follow(), produce())
    assert offset == 200


# -- any sequence of calls, against a model of plain lists --------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6), st.integers(1, 300)),
        st.tuples(st.just("conflict"), st.integers(-3, 3), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 130), st.just(0)),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("rewrite"), st.integers(0, 20), st.integers(1, 4)),
        st.tuples(st.just("reopen"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


class Twin:
    """What a stream should hold."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.start_offset = self.end_offset = 0

    def visible(self) -> bytes:
        return joined(chunk for chunk in self.chunks if chunk.end_offset > self.start_offset)


async def take(engine: Engine, twin: Twin, verb: str, first: int, second: int) -> None:
    if verb == "append":
        futures = []
        for at in range(first):
            chunk = make_chunk(twin.end_offset, 1 + at % 3, value=bytes(second), timestamp_ms=1000 + second * at)
            futures.append(engine.append(STREAM, chunk))
            twin.chunks.append(chunk)
            twin.end_offset = chunk.end_offset
        await asyncio.gather(*futures)
    elif verb == "conflict" and first:
        with pytest.raises(Conflict):
            engine.append(STREAM, make_chunk(max(0, twin.end_offset + first) if twin.end_offset + first >= 0 else 999))
    elif verb == "trim":
        await engine.trim(STREAM, first)
        twin.start_offset = max(twin.start_offset, first)
        if first > twin.end_offset:
            twin.end_offset = first
            twin.chunks.clear()
    elif verb == "roll":
        await engine.roll(STREAM)
    elif verb == "rewrite":
        closed = [span for span in engine.spans(STREAM) if span.closed]
        if closed:
            begin = closed[first % len(closed) :][:second]
            base_offset, end_offset = begin[0].base_offset, begin[-1].end_offset
            inside = [chunk for chunk in twin.chunks if base_offset <= chunk.base_offset < end_offset]
            gone = inside[first % 3 :: 2]
            await engine.rewrite(
                STREAM, base_offset, end_offset, each([chunk for chunk in inside if chunk not in gone])
            )
            twin.chunks = [chunk for chunk in twin.chunks if chunk not in gone]


@given(steps=STEPS, durability=st.sampled_from(Durability))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_any_sequence_of_calls_leaves_what_the_model_says(
    kind: str, steps: list[tuple[str, int, int]], durability: Durability, tmp_path: Path
) -> None:
    directory = tmp_path / uuid.uuid4().hex
    spec = StreamSpec(durability=durability, segment_bytes=600)
    engine: Engine = MemoryEngine() if kind == "memory" else DiskEngine(directory)
    await engine.open(STREAM, spec)
    twin = Twin()
    for verb, first, second in steps:
        if verb == "reopen" and kind == "disk":
            await engine.close()
            engine = DiskEngine(directory)
            await engine.open(STREAM, spec)
        await take(engine, twin, verb, first, second)
        state = await engine.open(STREAM, spec)
        assert (state.start_offset, state.end_offset) == (twin.start_offset, twin.end_offset)
    assert await read_all(engine, STREAM) == twin.visible()
    for offset in range(twin.start_offset, twin.end_offset):
        found = await engine.read(STREAM, offset, 1, END)
        expected = next((chunk for chunk in twin.chunks if chunk.end_offset > offset), None)
        assert [bytes(buffer) for buffer in found.buffers] == ([expected.data] if expected else [])
    await engine.close()
