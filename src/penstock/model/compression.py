"""The codecs of a batch's records section. Nothing decompresses to more than its caller allows.

codec   name     format on the wire
    1   gzip     gzip members
    2   snappy   raw, or xerial's framing (what Java's producers send, and what is made here):
                 82 'SNAPPY' 00, int32 version, int32 oldest compatible version, then (int32 length, raw block)*
    3   lz4      LZ4 frames of independent blocks
    4   zstd     zstd frames
"""

import mmap
from collections.abc import Callable
from typing import Any

import cramjam

from penstock.model.errors import CorruptBatch

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

Buffer = bytes | bytearray | memoryview

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01" * 2
_XERIAL_BLOCK_BYTES = 32 * 1024

_USUAL_ROOM_BYTES = 256 * 1024
_USUAL_RATIO = 8


def compress(codec: int, data: Buffer) -> bytes:
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec == SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec == LZ4:
        return _compress_lz4(data)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3))
    raise ValueError(f"no compression codec {codec}")


def decompress(codec: int, data: Buffer, max_bytes: int) -> bytes:
    """The bytes behind `data`; CorruptBatch if they are damaged or more than `max_bytes`."""
    try:
        if codec == GZIP:
            return _bounded(cramjam.gzip.decompress_into, data, max_bytes)
        if codec == SNAPPY:
            return _decompress_snappy(memoryview(data), max_bytes)
        if codec == LZ4:
            return _bounded(cramjam.lz4.decompress_into, data, max_bytes)
        if codec == ZSTD:
            return _bounded(cramjam.zstd.decompress_into, data, max_bytes)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(
            f"{len(data)} bytes of {NAMES[codec]} cannot be opened within {max_bytes} bytes: {error}"
        ) from error
    raise CorruptBatch(f"no compression codec {codec}")


def _bounded(decompress_into: Callable[[Buffer, Any], int], data: Buffer, max_bytes: int) -> bytes:
    """Decompress into room that ends at the bound: first what nearly every batch fits in, then all that is allowed.

    The first is quick to have; the second is lent by the kernel page by page as it is filled, so that a batch that
    needs little of it, or is merely damaged, costs little.
    """
    usual_bytes = max(_USUAL_ROOM_BYTES, len(data) * _USUAL_RATIO)
    if usual_bytes < max_bytes:
        usual_room = bytearray(usual_bytes)
        try:
            size = decompress_into(data, usual_room)
        except cramjam.DecompressionError:
            pass  # too little room, or damaged: the second attempt tells
        else:
            return bytes(memoryview(usual_room)[:size])
    with mmap.mmap(-1, max(max_bytes, 1)) as room:
        return room[: decompress_into(data, room)]


def _compress_lz4(data: Buffer) -> bytes:
    # Java's client refuses frames of linked blocks, which is what the plain compress() makes.
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _compress_snappy(data: memoryview) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES])
        out += len(block).to_bytes(4, "big")
        out += bytes(block)
    return bytes(out)


def _decompress_snappy(data: memoryview, max_bytes: int) -> bytes:
    if data[:8] != _XERIAL_MAGIC:
        return _decompress_raw_snappy(data, max_bytes)
    blocks: list[bytes] = []
    position = len(_XERIAL_HEADER)
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if size > len(data) - position:
            raise CorruptBatch(f"a snappy block claims {size} bytes where {len(data) - position} remain")
        block = _decompress_raw_snappy(data[position : position + size], max_bytes)
        max_bytes -= len(block)
        blocks.append(block)
        position += size
    return b"".join(blocks)


def _decompress_raw_snappy(data: memoryview, max_bytes: int) -> bytes:
    declared = cramjam.snappy.decompress_raw_len(data)
    if declared > max_bytes:
        raise CorruptBatch(f"{len(data)} bytes of snappy claim to hold {declared}; at most {max_bytes} are allowed")
    return bytes(cramjam.snappy.decompress_raw(data))
