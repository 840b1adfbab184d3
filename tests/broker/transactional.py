"""A transactional producer that writes straight into a partition, as the coordinator would let it."""

from penstock.log.partition import Partition
from penstock.model.batch import TRANSACTIONAL, check_batch, encode_batch
from penstock.model.record import Record


class Writer:
    def __init__(self, partition: Partition, producer_id: int) -> None:
        self.partition, self.producer_id = partition, producer_id
        self.sequence = 0

    async def write(self, *values: bytes) -> int:
        now_ms = self.partition.clock.wall_ms()
        batch = encode_batch(
            [Record(i, now_ms, None, value) for i, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=self.sequence,
            attributes=TRANSACTIONAL,
        )
        appended = self.partition.append(check_batch(batch), batch)
        self.sequence += len(values)
        await appended.durable
        return appended.base_offset

    async def end(self, commit: bool) -> None:
        await self.partition.end_transaction(self.producer_id, 0, commit).durable

    async def commit(self) -> None:
        await self.end(True)

    async def abort(self) -> None:
        await self.end(False)
