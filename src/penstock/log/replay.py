"""What a partition derives from its log, kept in a checkpoint and rebuilt from the headers that follow it.

That is each producer's last batches, and the transactions. The checkpoint may be lost: then the whole log tells.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.log.producers import Written
from penstock.model.batch import BatchHeader, walk
from penstock.model.errors import CorruptBatch
from penstock.model.marker import read_marker
from penstock.storage.engine import Buffer, Checkpoint

if TYPE_CHECKING:
    from penstock.log.partition import Partition

REPLAY_READ_BYTES = 1 << 20

_log = logging.getLogger(__name__)


class _State(msgspec.Struct, array_like=True):
    """What a checkpoint holds besides its offset. Fields are only ever added at the end, with what they were before."""

    cleaned_end: int
    producers: bytes
    transactions: bytes = b""


def make_checkpoint(partition: "Partition") -> Checkpoint:
    """Of a partition in which nothing is being written."""
    state = _State(partition.cleaned_end, partition.producers.snapshot(), partition.transactions.snapshot())
    return Checkpoint(partition.durable_end, msgspec.msgpack.encode(state))


async def replay(partition: "Partition", checkpoint: Checkpoint | None) -> int:
    """Bring a partition that was just opened up to date; how many bytes had to be read for that."""
    offset = partition.start_offset
    if checkpoint is not None and checkpoint.offset <= partition.end_offset:
        state = msgspec.msgpack.decode(checkpoint.state, type=_State)
        partition.producers.restore(state.producers)
        if checkpoint.offset >= offset:
            partition.transactions.restore(state.transactions)
        else:
            # Between the two, records were deleted of which the checkpoint knows nothing: producers went on there, and
            # what was open may have ended. Whatever is left of it is found below.
            partition.producers.forget_sequences()
        partition.cleaned_end = max(partition.start_offset, state.cleaned_end)
        offset = max(offset, checkpoint.offset)
    read_bytes = 0
    try:
        while offset < partition.end_offset:
            found = await partition.engine.read(partition.stream, offset, REPLAY_READ_BYTES, partition.end_offset)
            if not found.buffers:
                raise CorruptBatch(
                    f"{partition.stream} has no batch at offset {offset} although it ends at {partition.end_offset}"
                )
            _replay(partition, found.buffers)
            read_bytes += found.size_bytes
            offset = found.next_offset
    except CorruptBatch as error:
        # The rest of the log can still be served; only repeats of what lies beyond may go unnoticed.
        _log.error("producers of %s are known only up to a corrupt batch: %s", partition.stream, error)
    partition.transactions.prune(partition.start_offset)
    return read_bytes


def _replay(partition: "Partition", buffers: Sequence[Buffer]) -> None:
    now_ms = partition.clock.wall_ms()
    for buffer in buffers:
        for header in walk(buffer):
            if header.producer_id >= 0:
                if header.is_control:
                    _replay_marker(partition, header, buffer, now_ms)
                else:
                    _replay_batch(partition, header, now_ms)


def _replay_batch(partition: "Partition", header: BatchHeader, now_ms: int) -> None:
    append_time_ms = header.max_timestamp_ms if header.log_append_time else -1
    written = Written(header.base_sequence, header.last_sequence, header.base_offset, header.end_offset, append_time_ms)
    # The batch's own time tells when the producer was here; a clock that ran ahead must not keep it for ever.
    seen_ms = min(now_ms, max(0, header.max_timestamp_ms))
    partition.producers.add(header, written, partition.end_offset, seen_ms)
    if header.is_transactional:
        partition.transactions.note(header, header.base_offset, seen_ms)


def _replay_marker(partition: "Partition", header: BatchHeader, buffer: Buffer, now_ms: int) -> None:
    marker = read_marker(buffer, header.position)
    if marker is not None:
        seen_ms = min(now_ms, max(0, header.base_timestamp_ms))
        partition.producers.add_marker(header.producer_id, header.producer_epoch, seen_ms)
        partition.transactions.end(header.producer_id, marker.commit, header.base_offset)
        partition.transactions.settle(header.end_offset)
