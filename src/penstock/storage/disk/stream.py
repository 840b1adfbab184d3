"""A stream as the disk engine knows it: its segments, where it ends, and who waits for it.

Fields are changed on the event loop only, with one exception: while `busy`, the worker that writes the stream moves
`size`, `end_offset` and the index of its last segment. What readers look at changes on the loop, when a write is done.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Coroutine, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from penstock.model.errors import StorageFailed
from penstock.model.ids import StreamId
from penstock.storage.disk.segment import Segment
from penstock.storage.engine import Chunk, Span, StreamSpec

T = TypeVar("T")
_UNBROKEN: set[asyncio.Task[Any]] = set()
_BASE = attrgetter("base_offset")


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that goes on to its end even if the waiting is cancelled."""
    task = asyncio.get_running_loop().create_task(work)
    _UNBROKEN.add(task)  # the loop itself keeps only a weak reference
    task.add_done_callback(_UNBROKEN.discard)
    return await asyncio.shield(task)


class Append(NamedTuple):
    """A chunk on its way to the disk."""

    chunk: Chunk
    future: asyncio.Future[None]


class Stream:
    __slots__ = (
        "busy",
        "deleted",
        "directory",
        "durable_end",
        "end_offset",
        "failure",
        "held",
        "id",
        "lock",
        "pending",
        "rewritable",
        "segments",
        "spec",
        "start_offset",
        "syncing",
        "waiters",
    )

    def __init__(self, stream: StreamId, spec: StreamSpec, directory: str) -> None:
        self.id = stream
        self.spec = spec
        self.directory = directory
        self.segments: list[Segment] = []  # never empty again after the first append; the last one is open
        self.start_offset = 0
        self.end_offset = 0  # where the next append goes
        self.durable_end = 0  # what readers may see ends here
        self.pending: list[Append] = []
        self.busy = False  # a worker writes it
        self.held = False  # no worker may begin to write it
        self.syncing = False  # a background sync is under way
        self.deleted = False
        self.rewritable = True  # no rewrite failed between its decision and its end
        self.failure: StorageFailed | None = None  # a sync failed: nothing is appended before a restart
        self.waiters: list[asyncio.Future[None]] | None = None  # wake when no worker writes it
        self.lock: asyncio.Lock | None = None

    def maintenance(self) -> asyncio.Lock:
        """One of trim, roll, rewrite and delete at a time."""
        if self.lock is None:
            self.lock = asyncio.Lock()
        return self.lock

    def segment_at(self, offset: int) -> int:
        """Index of the segment whose range holds the offset."""
        return max(0, bisect_right(self.segments, offset, key=_BASE) - 1)

    def end_of(self, at: int) -> int:
        return self.segments[at + 1].base_offset if at + 1 < len(self.segments) else self.durable_end

    def spans(self) -> Sequence[Span]:
        last = len(self.segments) - 1
        return [
            Span(segment.base_offset, self.end_of(at), segment.readable, segment.max_timestamp_ms, at < last)
            for at, segment in enumerate(self.segments)
            if at < last or segment.readable
        ]

    def wake(self) -> None:
        if self.waiters is not None:
            waiters, self.waiters = self.waiters, None
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def changed(self) -> None:
        """Wait until a write of the stream has ended."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(waiter)
        await waiter

    async def hold(self) -> None:
        """Let the write under way end and no other begin; undone by the committer's release()."""
        self.held = True
        while self.busy:
            await self.changed()

    async def drained(self) -> None:
        """Wait until nothing that was appended is on its way any more."""
        while self.busy or self.pending:
            await self.changed()
