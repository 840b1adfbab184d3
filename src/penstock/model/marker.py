"""The marker: a control batch of one record that ends a producer's transaction in one partition.

    key      version       int16    0
             type          int16    0 abort, 1 commit; others are Kafka's own and mean nothing here
    value    version       int16    0
             coordinator   int32    epoch of whoever coordinates

It takes one offset, as every record does. Its header carries the producer's id and epoch, no sequence, and no largest
timestamp: a marker must neither keep a segment beyond its records' time nor be found where somebody seeks by time.
"""

import struct
from typing import NamedTuple

from penstock.model.batch import CONTROL, TRANSACTIONAL, Buffer, decode_batch, encode_batch
from penstock.model.errors import CorruptBatch
from penstock.model.record import Record

ABORT, COMMIT = 0, 1
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class Marker(NamedTuple):
    commit: bool
    coordinator_epoch: int


def encode_marker(
    producer_id: int, producer_epoch: int, commit: bool, now_ms: int, coordinator_epoch: int = 0
) -> bytearray:
    key, value = _KEY.pack(0, COMMIT if commit else ABORT), _VALUE.pack(0, coordinator_epoch)
    return encode_batch(
        [Record(0, now_ms, key, value)],
        attributes=TRANSACTIONAL | CONTROL,
        max_timestamp_ms=-1,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def read_marker(batch: Buffer, position: int = 0) -> Marker | None:
    """What the control batch that begins here says of its producer's transaction; None if it says nothing of one."""
    records = decode_batch(batch, position)
    if not records:
        return None  # compaction left its place only
    try:
        kind = _KEY.unpack_from(records[0].key or b"")[1]
        epoch = _VALUE.unpack_from(records[0].value or b"")[1] if kind in (ABORT, COMMIT) else 0
    except struct.error:
        raise CorruptBatch("a control batch whose record is not a control record") from None
    return Marker(kind == COMMIT, epoch) if kind in (ABORT, COMMIT) else None
