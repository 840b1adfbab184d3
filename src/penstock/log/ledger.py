"""A ledger: facts about the broker itself, kept in an internal compacted topic and replayed at start.

The newest value of a key is the fact; no value means it no longer holds. Facts of one loop tick become one batch, so
a thousand commits that arrive together cost one write and one sync. Facts that are recorded together stand in the same
batch, so a crash keeps all of them or none.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from penstock.log.partition import Partition
from penstock.model.batch import encode_batch, read_header
from penstock.model.record import Record
from penstock.storage.engine import Grant

REPLAY_READ_BYTES = 1 << 20
MAX_BATCH_BYTES = 512 << 10
RECORD_OVERHEAD_BYTES = 32

Fact = tuple[bytes, bytes | None]


class Ledger:
    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._waiting: list[Sequence[Fact]] = []
        self._recorded: Grant | None = None

    async def replay(self) -> AsyncIterator[tuple[bytes, bytes | None]]:
        """Every fact in the order it was recorded; to be read before the first record()."""
        offset, end = self.partition.start_offset, self.partition.durable_end
        while offset < end:
            records, offset = await self.partition.records(offset, REPLAY_READ_BYTES)
            for record in records:
                yield record.key or b"", record.value

    def record(self, key: bytes, value: bytes | None) -> asyncio.Future[None]:
        """Record a fact. The call fixes the order; the future resolves when the fact is durable."""
        return self.record_together(((key, value),))

    def record_together(self, facts: Sequence[Fact]) -> asyncio.Future[None]:
        """Record facts of which a crash keeps all or none."""
        if self._recorded is None:
            loop = asyncio.get_running_loop()
            self._recorded = Grant(loop=loop)
            loop.call_soon(self._flush)
        self._waiting.append(facts)
        return self._recorded

    def _flush(self) -> None:
        facts, self._waiting = self._waiting, []
        recorded, self._recorded = self._recorded, None
        assert recorded is not None
        try:
            durable = [self._append(batch) for batch in _batches(facts)]
        except Exception as error:  # whatever the engine raised is the answer of everyone who waits
            recorded.set_exception(error)
            return
        durable[-1].add_done_callback(lambda last: _pass_on(durable, recorded))

    def _append(self, facts: list[Fact]) -> asyncio.Future[None]:
        now_ms = self.partition.clock.wall_ms()
        batch = encode_batch([Record(i, now_ms, key, value) for i, (key, value) in enumerate(facts)])
        return self.partition.append(read_header(batch), batch).durable


def _batches(waiting: list[Sequence[Fact]]) -> list[list[Fact]]:
    batches: list[list[Fact]] = [[]]
    size_bytes = 0
    for facts in waiting:
        for key, value in facts:
            size_bytes += len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
        if size_bytes > MAX_BATCH_BYTES and batches[-1]:
            batches.append([])
            size_bytes = 0
        batches[-1].extend(facts)
    return batches


def _pass_on(durable: list[asyncio.Future[None]], recorded: Grant) -> None:
    """Futures of one partition resolve in order, and once one fails all later ones do: the last tells for all."""
    failed = durable[-1].exception()
    if failed is not None:
        recorded.set_exception(failed)
    else:
        recorded.set_result(None)
    for earlier in durable[:-1]:
        earlier.exception()  # marked as seen
