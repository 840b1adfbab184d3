"""The two small files beside a stream's segments: where it starts, and the checkpoint of the layer above.

    state        magic "PSs1" | start offset i64 | crc-32c of all before u32
    checkpoint   magic "PSc1" | offset i64       | crc-32c of all but itself u32 | state, to the end of the file

Both are replaced whole, never changed in place. A state file is synced before anything it hides is removed; a
checkpoint is not synced at all, so one that a crash left damaged is the same as none.
"""

import struct

from crc32c import crc32c

from penstock.storage.disk import layout
from penstock.storage.disk.files import Files, read_file, replace_file
from penstock.storage.engine import Checkpoint

_HEAD = struct.Struct(">4sq")
_CRC = struct.Struct(">I")
_STATE_MAGIC = b"PSs1"
_CHECKPOINT_MAGIC = b"PSc1"


def write_start_offset(files: Files, directory: str, start_offset: int) -> None:
    head = _HEAD.pack(_STATE_MAGIC, start_offset)
    replace_file(files, f"{directory}/{layout.STATE}", head + _CRC.pack(crc32c(head)), durable=True)


def read_start_offset(files: Files, directory: str) -> int | None:
    """The start offset, or None when the file is missing or damaged."""
    data = read_file(files, f"{directory}/{layout.STATE}")
    if data is None or len(data) != _HEAD.size + _CRC.size:
        return None
    magic, start_offset = _HEAD.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    if magic != _STATE_MAGIC or crc != crc32c(data[: _HEAD.size]):
        return None
    return int(start_offset)


def write_checkpoint(files: Files, directory: str, checkpoint: Checkpoint) -> None:
    head = _HEAD.pack(_CHECKPOINT_MAGIC, checkpoint.offset)
    crc = crc32c(checkpoint.state, crc32c(head))
    replace_file(files, f"{directory}/{layout.CHECKPOINT}", head + _CRC.pack(crc) + checkpoint.state, durable=False)


def read_checkpoint(files: Files, directory: str) -> Checkpoint | None:
    data = read_file(files, f"{directory}/{layout.CHECKPOINT}")
    if data is None or len(data) < _HEAD.size + _CRC.size:
        return None
    magic, offset = _HEAD.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    state = data[_HEAD.size + _CRC.size :]
    if magic != _CHECKPOINT_MAGIC or crc != crc32c(state, crc32c(data[: _HEAD.size])):
        return None
    return Checkpoint(int(offset), state)
