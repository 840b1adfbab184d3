"""Chunks as the log would hand them to an engine, made in one line."""

from penstock.model.batch import encode_batch
from penstock.model.ids import StreamId
from penstock.model.record import Record
from penstock.storage.engine import Chunk, Engine

END = (1 << 63) - 1


def make_chunk(base_offset: int, records: int = 1, *, value: bytes = b"value", timestamp_ms: int = 1_000) -> Chunk:
    """A chunk of so many records, one millisecond apart."""
    batch = encode_batch([Record(base_offset + at, timestamp_ms + at, None, value) for at in range(records)])
    return Chunk(bytes(batch), base_offset, base_offset + records, timestamp_ms + records - 1)


async def read_all(engine: Engine, stream: StreamId, offset: int = 0, max_bytes: int = 1 << 20) -> bytes:
    """Everything from this offset to the end, read slice by slice."""
    parts: list[bytes] = []
    while True:
        found = await engine.read(stream, offset, max_bytes, END)
        if not found.size_bytes:
            assert found.next_offset == offset
            return b"".join(parts)
        data = b"".join(bytes(buffer) for buffer in found.buffers)
        assert len(data) == found.size_bytes
        assert found.next_offset > offset
        parts.append(data)
        offset = found.next_offset
