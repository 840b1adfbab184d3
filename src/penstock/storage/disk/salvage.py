"""What recovery cuts off, kept aside when it looks like more than a write that was cut short.

A torn write ends the log. When sound chunks follow the place where the log breaks off, either the last write reached
the disk out of order, and nobody was told that it succeeded, or the disk damaged what it had acknowledged. Recovery
cannot tell which. It cuts the log, so that readers and writers go on, and leaves the bytes beside it for a person.
"""

import os

from penstock.model.batch import HEADER_BYTES, check_batch
from penstock.model.errors import CorruptBatch
from penstock.storage.disk import layout
from penstock.storage.disk.files import Files, write_whole
from penstock.storage.disk.segment import Segment

BLOCK_BYTES = 1 << 20
# So much of what is cut off is searched for sound chunks.
MAX_SEARCHED_BYTES = 16 << 20

# Where a chunk begins: i64 base offset | i32 length | i32 leader epoch, 0 here | i8 magic 2 | ...
_LANDMARK = b"\x00\x00\x00\x00\x02"
_LANDMARK_AT = 12


def keep_aside(files: Files, fd: int, segment: Segment, position: int) -> str | None:
    """Copy everything from `position` on to a file beside the segment if it holds a sound chunk; the copy's path."""
    if not _holds_chunk(files.pread(fd, min(MAX_SEARCHED_BYTES, segment.size - position), position)):
        return None
    path = f"{segment.directory}/{layout.cut_name(segment.base_offset, position)}"
    copy = files.open(path, os.O_RDWR | os.O_CREAT)
    try:
        copied = 0
        while block := files.pread(fd, BLOCK_BYTES, position + copied):
            copied = write_whole(files, copy, [block], copied)
        files.fdatasync(copy)
    finally:
        files.close(copy)
    files.sync_directory(segment.directory)
    return path


def _holds_chunk(data: bytes) -> bool:
    at = data.find(_LANDMARK, _LANDMARK_AT)
    while at >= 0 and len(data) - (at - _LANDMARK_AT) >= HEADER_BYTES:
        try:
            check_batch(data, at - _LANDMARK_AT)
        except CorruptBatch:
            at = data.find(_LANDMARK, at + 1)
        else:
            return True
    return False
