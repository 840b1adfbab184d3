"""The same frames come out, however the stream was cut; and what was handed out is never written again."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.kafka.framing import CHUNK_BYTES, FIRST_BYTES, GROWTH, SMALL_FRAME_BYTES, Receiver
from penstock.wire.kafka.reader import Malformed

MAX_FRAME_BYTES = 10_000_000

# Sizes at which something changes: a frame that still fits the chunk, one that does not, a large one, a growing one.
SIZES = st.one_of(
    st.integers(0, 40),
    st.integers(SMALL_FRAME_BYTES - 10, SMALL_FRAME_BYTES + 10),
    st.integers(CHUNK_BYTES - 10, CHUNK_BYTES + 10),
    st.integers(FIRST_BYTES - 10, FIRST_BYTES + 10),
)


def frame_of(size: int, fill: int) -> bytes:
    return bytes([fill % 256]) * size


def stream_of(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def test_whole() -> None:
    frames = [frame_of(size, size) for size in (0, 1, 100, SMALL_FRAME_BYTES, CHUNK_BYTES, 1_000_000)]
    assert Receiver(MAX_FRAME_BYTES).feed(stream_of(frames)) == frames


def test_byte_by_byte() -> None:
    frames = [frame_of(size, size) for size in (0, 1, 100, CHUNK_BYTES - 300, 5, SMALL_FRAME_BYTES, CHUNK_BYTES + 1, 7)]
    receiver = Receiver(MAX_FRAME_BYTES)
    stream = stream_of(frames)
    got = [frame for at in range(len(stream)) for frame in receiver.feed(stream[at : at + 1])]
    assert got == frames
    assert receiver.waiting_bytes == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(SIZES, max_size=8), st.lists(st.integers(1, 70_000), min_size=1, max_size=10), st.binary(max_size=3))
def test_in_any_pieces_with_a_tail(sizes: list[int], pieces: list[int], tail: bytes) -> None:
    frames = [frame_of(size, number) for number, size in enumerate(sizes)]
    stream = stream_of(frames) + tail
    receiver = Receiver(MAX_FRAME_BYTES)
    got: list[memoryview] = []
    at = turn = 0
    while at < len(stream):
        room = receiver.get_buffer()
        assert len(room) > 0
        size = min(len(room), pieces[turn % len(pieces)], len(stream) - at)
        room[:size] = stream[at : at + size]
        receiver.received(size)
        while (frame := receiver.next_frame()) is not None:
            got.append(frame)
        at += size
        turn += 1
    assert got == frames  # compared at the end: none of them was overwritten by what came later
    assert receiver.waiting_bytes == len(tail)


def test_frames_own_their_memory() -> None:
    receiver = Receiver(MAX_FRAME_BYTES)
    kept = [frame for number in range(3000) for frame in receiver.feed(stream_of([frame_of(40, number)]))]
    assert kept == [frame_of(40, number) for number in range(3000)]
    kept[0][:] = bytes(40)  # writable, as stamping an offset into a batch needs it
    assert kept[1] == frame_of(40, 1)


def test_a_large_frame_has_exactly_its_own_memory() -> None:
    receiver = Receiver(MAX_FRAME_BYTES)
    (frame,) = receiver.feed(stream_of([frame_of(200_000, 1)]))
    assert isinstance(frame.obj, bytearray)
    assert len(frame.obj) == 200_000


def test_the_rest_of_a_large_frame_is_read_into_place() -> None:
    receiver = Receiver(MAX_FRAME_BYTES)
    assert receiver.feed((100_000).to_bytes(4, "big") + bytes(10_000)) == []  # enough to believe in the rest
    room = receiver.get_buffer()
    assert len(room) == 100_000 - 10_000
    room[:] = b"x" * len(room)
    receiver.received(len(room))
    frame = receiver.next_frame()
    assert frame is not None
    assert frame.obj is room.obj
    assert receiver.next_frame() is None


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**31 - 1, -1, -(2**31)])
def test_a_length_out_of_bounds_is_refused_at_once(length: int) -> None:
    receiver = Receiver(MAX_FRAME_BYTES)
    room = receiver.get_buffer()
    stream = stream_of([b"good"]) + length.to_bytes(4, "big", signed=True)
    room[: len(stream)] = stream
    receiver.received(len(stream))
    assert receiver.next_frame() == b"good"
    for _ in range(2):
        with pytest.raises(Malformed, match=f"a frame of {length} bytes"):
            receiver.next_frame()


def test_a_length_alone_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        receiver = Receiver(1_000_000_000)
        receiver.feed((1_000_000_000).to_bytes(4, "big") + bytes(1000))
        announced_bytes, _ = tracemalloc.get_traced_memory()
        receiver.feed(bytes(FIRST_BYTES))
        grown_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert announced_bytes < FIRST_BYTES + 3 * CHUNK_BYTES
    assert grown_bytes < (GROWTH + 2) * FIRST_BYTES


def test_frames_that_nobody_takes_are_kept() -> None:
    receiver = Receiver(MAX_FRAME_BYTES)
    frames = [frame_of(100, number) for number in range(1000)]
    stream = memoryview(stream_of(frames))
    while len(stream):
        room = receiver.get_buffer()
        size = min(len(room), len(stream))
        room[:size] = stream[:size]
        receiver.received(size)
        stream = stream[size:]
    assert receiver.feed(b"") == frames
