"""Futures for batches that were appended before: a repeat is answered when what it repeats is durable."""

import asyncio
from typing import TYPE_CHECKING

from penstock.model.errors import StorageFailed
from penstock.storage.engine import Grant

if TYPE_CHECKING:
    from penstock.log.partition import Partition


def durable_at(partition: "Partition", end_offset: int) -> asyncio.Future[None]:
    """Done when durable_end has got there, which it may have; fails with the write that was to bring it there."""
    future = Grant(loop=asyncio.get_running_loop())
    if end_offset <= partition.durable_end:
        future.set_result(None)
        return future
    rewinds = partition.rewinds

    def watch(_: "Partition", __: int) -> None:
        if future.done() or end_offset <= partition.durable_end or rewinds != partition.rewinds:
            partition.unwatch(watch)
            if not future.done():
                if rewinds == partition.rewinds:
                    future.set_result(None)
                else:
                    future.set_exception(StorageFailed(f"the write to {partition.stream} that this one repeats failed"))

    partition.watch(watch)
    return future
