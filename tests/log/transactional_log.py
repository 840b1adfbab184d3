"""Transactional batches, and a partition read in every way that its readers have."""

from log_house import all_records

from penstock.log.partition import Partition
from penstock.model.batch import TRANSACTIONAL, check_batch, decode_batch, encode_batch, walk
from penstock.model.marker import read_marker
from penstock.model.record import Record


def batch_in(
    producer: tuple[int, int, int], *values: bytes, key: bytes | None = None, time_ms: int = 1000
) -> bytearray:
    """A transactional batch. `producer` is (id, epoch, first sequence)."""
    producer_id, epoch, sequence = producer
    return encode_batch(
        [Record(i, time_ms + i, key, value) for i, value in enumerate(values)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL,
    )


async def send(partition: Partition, producer: tuple[int, int, int], *values: bytes) -> int:
    batch = batch_in(producer, *values)
    appended = partition.append(check_batch(batch), batch)
    await appended.durable
    return appended.base_offset


async def end(partition: Partition, producer_id: int, epoch: int, commit: bool) -> int:
    appended = partition.end_transaction(producer_id, epoch, commit)
    await appended.durable
    return appended.base_offset


async def committed(partition: Partition) -> list[bytes | None]:
    """What the broker itself takes for committed, read by small and by large steps."""
    values = [r.value for r in await all_records(partition)]
    offset, stepwise = partition.start_offset, []
    while offset < partition.stable_end:
        records, offset = await partition.records(offset, 1)
        stepwise.extend(r.value for r in records)
    assert stepwise == values
    assert await as_kafka_client(partition) == values
    return values


async def as_kafka_client(partition: Partition, max_bytes: int = 200) -> list[bytes | None]:
    """What a Kafka client at read_committed makes of batches up to the stable end and the list of aborted ones."""
    offset, values = partition.start_offset, []
    while offset < partition.stable_end:
        found = await partition.read(offset, max_bytes, stable=True)
        aborted = partition.transactions.aborted_within(offset, found.next_offset)
        assert aborted == sorted(aborted, key=lambda a: a.first_offset)
        ignored: set[int] = set()
        for buffer in found.buffers:
            for header in walk(buffer):
                while aborted and aborted[0].first_offset <= header.end_offset - 1:
                    ignored.add(aborted.pop(0).producer_id)
                if header.is_control:
                    marker = read_marker(buffer, header.position)
                    if marker is not None and not marker.commit:
                        ignored.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in ignored):
                    values += [r.value for r in decode_batch(buffer, header.position) if r.offset >= offset]
        assert found.next_offset > offset
        offset = found.next_offset
    return values
