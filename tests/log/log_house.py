"""Batches to put into partitions, and what comes back out."""

from penstock.log.partition import Partition
from penstock.model.batch import check_batch, encode_batch
from penstock.model.record import Record


def batch_of(*values: bytes, producer: tuple[int, int, int] = (-1, -1, -1), time_ms: int = 1000) -> bytearray:
    """A batch as a producer sends it: offsets from 0. `producer` is (id, epoch, first sequence)."""
    producer_id, epoch, sequence = producer
    return encode_batch(
        [Record(i, time_ms + i, None, value) for i, value in enumerate(values)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def keyed(*pairs: tuple[bytes, bytes | None], time_ms: int = 1000, compression: int = 0) -> bytearray:
    return encode_batch(
        [Record(i, time_ms, key, value) for i, (key, value) in enumerate(pairs)], compression=compression
    )


async def put(partition: Partition, batch: bytearray) -> int:
    """Append and wait until durable; the base offset."""
    appended = partition.append(check_batch(batch), batch)
    await appended.durable
    return appended.base_offset


async def all_records(partition: Partition) -> list[Record]:
    offset, records = partition.start_offset, []
    while offset < partition.stable_end:
        found, offset = await partition.records(offset, 1 << 20)
        records.extend(found)
    return records
