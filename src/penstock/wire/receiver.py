"""A stream of bytes into frames. A frame's bytes are its own: nothing received later ever touches them.

    frame     int32 length (0..max_frame_bytes) | that many bytes

What a frame holds is its protocol's affair, and so is the error that a length out of bounds raises.

The receiver hands out the memory that the transport reads into, as `asyncio.BufferedProtocol` wants it, so a large
frame's bytes are written once, by the kernel, where they stay:

    small frames   share a chunk of CHUNK_BYTES; a chunk is filled once and never used again, whoever keeps a frame
                   keeps its chunk
    large frames   (more than SMALL_FRAME_BYTES and more than is left of the chunk) get a bytearray of exactly their
                   size; only what the chunk had already received of them is copied

A length is a promise of a stranger: memory is set aside for at most GROWTH times what has really come (or FIRST_BYTES).
"""

from struct import Struct
from typing import Final

Buffer = bytes | bytearray | memoryview

CHUNK_BYTES: Final = 16 * 1024
SMALL_FRAME_BYTES: Final = 4 * 1024
MIN_READ_BYTES: Final = 512  # less room than this in a chunk is not worth a read
FIRST_BYTES: Final = 16 * 1024
GROWTH: Final = 16

_length_at = Struct(">i").unpack_from


class Receiver:
    """The receiving half of one connection. In turns: `get_buffer`, `received`, then `next_frame` until it is None."""

    Malformed: type[Exception] = ValueError

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._start = 0  # of what is not yet handed out in the chunk
        self._stop = 0  # of what is received in the chunk
        self._wanted = 4  # bytes from _start on that must come before there is anything to do
        self._large: memoryview | None = None  # a frame that has memory of its own
        self._large_stop = 0
        self._large_size = 0

    @property
    def waiting_bytes(self) -> int:
        """Received, and not yet handed out as part of a frame."""
        return self._stop - self._start + self._large_stop

    @property
    def waiting(self) -> memoryview:
        """What has come of the next frame, if it is a small one or no frame at all."""
        return self._chunk[self._start : self._stop]

    @property
    def unfinished_bytes(self) -> int:
        """Memory set aside for a large frame that is still arriving."""
        return len(self._large) if self._large is not None else 0

    def get_buffer(self, _size_hint: int = -1) -> memoryview:
        """Writable memory for the next bytes of the stream; not empty once every whole frame was taken."""
        if self._large is not None:
            return self._large[self._large_stop :]
        room = len(self._chunk) - self._stop
        worth_reading = MIN_READ_BYTES if self._wanted == 4 else 1
        if room < worth_reading or self._start + self._wanted > len(self._chunk):
            self._new_chunk()
        return self._chunk[self._stop :]

    def received(self, size: int) -> None:
        """The first `size` bytes of what `get_buffer` returned are now filled."""
        large = self._large
        if large is None:
            self._stop += size
            return
        self._large_stop += size
        if self._large_stop == len(large) < self._large_size:
            self._large = _grown(large, self._large_stop, self._large_size)

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, or None until more is received."""
        if self._large is not None:
            if self._large_stop < self._large_size:
                return None
            frame, self._large, self._large_stop = self._large, None, 0
            return frame
        start = self._start
        have = self._stop - start
        if have < self._wanted:
            return None
        (length,) = _length_at(self._chunk, start)
        if length < 0 or length > self._max_frame_bytes:
            raise self.Malformed(f"a frame of {length} bytes; at most {self._max_frame_bytes} are allowed")
        whole = 4 + length
        if have >= whole:
            self._start = start + whole
            self._wanted = 4
            return self._chunk[start + 4 : start + whole]
        if whole > SMALL_FRAME_BYTES and start + whole > len(self._chunk):
            self._large = _grown(self._chunk[start + 4 : self._stop], have - 4, length)
            self._large_stop = have - 4
            self._large_size = length
            self._start = self._stop
            self._wanted = 4
        else:
            self._wanted = whole
        return None

    def next_bytes(self, size: int) -> memoryview | None:
        """So many bytes that stand before the first frame, or None until they are received."""
        start = self._start
        if self._stop - start < size:
            self._wanted = size
            return None
        self._start = start + size
        self._wanted = 4
        return self._chunk[start : start + size]

    def feed(self, data: Buffer) -> list[memoryview]:
        """Receive bytes that are already in memory; return the frames they complete."""
        frames = []
        rest = memoryview(data)
        while True:
            while (frame := self.next_frame()) is not None:
                frames.append(frame)
            if not len(rest):
                return frames
            room = self.get_buffer()
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            rest = rest[size:]
            self.received(size)

    def _new_chunk(self) -> None:
        left = self._chunk[self._start : self._stop]
        chunk = memoryview(bytearray(max(CHUNK_BYTES, len(left) + MIN_READ_BYTES)))
        chunk[: len(left)] = left
        self._chunk, self._start, self._stop = chunk, 0, len(left)


def _grown(received: memoryview, received_bytes: int, size: int) -> memoryview:
    """Memory for a frame of `size`, holding what has come of it: all of it, unless little has come yet."""
    memory = memoryview(bytearray(min(size, max(FIRST_BYTES, received_bytes * GROWTH))))
    memory[:received_bytes] = received
    return memory
