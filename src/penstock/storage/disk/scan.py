"""Walking a log file from chunk to chunk: how recovery finds its end, and how a lost index is made again.

Memory is bounded by the block below or the largest single chunk, never by the size of the log.
"""

from typing import NamedTuple

from penstock.model.batch import HEADER_BYTES, read_header, walk
from penstock.model.errors import CorruptBatch
from penstock.storage.disk.files import Files
from penstock.storage.disk.index import SPACING_BYTES, SparseIndex

BLOCK_BYTES = 1 << 20


class Extent(NamedTuple):
    """How far a log is sound."""

    end_offset: int
    position: int
    max_timestamp_ms: int


def scan(files: Files, fd: int, begin: Extent, limit: int, index: SparseIndex, *, verify: bool) -> Extent:
    """Walk from `begin` up to `limit` and add what belongs into the index; stop where no sound chunk begins."""
    end_offset, position, max_timestamp_ms = begin
    indexed = index.positions[-1] if len(index) else 0
    block_bytes = BLOCK_BYTES
    while limit - position >= HEADER_BYTES:
        block = _read(files, fd, min(block_bytes, limit - position), position)
        headers = walk(block, 0, -1, verify)
        if not headers:
            whole_bytes = _size_of(block)
            if whole_bytes <= len(block) or whole_bytes > limit - position:
                break
            block_bytes = whole_bytes
            continue
        block_bytes = BLOCK_BYTES
        block_position = position
        for header in headers:
            if header.base_offset < end_offset:
                return Extent(end_offset, position, max_timestamp_ms)
            if position - indexed >= SPACING_BYTES:
                index.add(end_offset, position, max_timestamp_ms)
                indexed = position
            end_offset = header.end_offset
            position = block_position + header.end_position
            max_timestamp_ms = max(max_timestamp_ms, header.max_timestamp_ms)
    return Extent(end_offset, position, max_timestamp_ms)


def _read(files: Files, fd: int, size: int, position: int) -> bytes:
    block = files.pread(fd, size, position)
    while len(block) < size:
        more = files.pread(fd, size - len(block), position + len(block))
        if not more:
            break
        block += more
    return block


def _size_of(block: bytes) -> int:
    """How long the chunk that begins the block says it is; 0 if it is none."""
    try:
        return int(read_header(block).size_bytes)
    except CorruptBatch:
        return 0
