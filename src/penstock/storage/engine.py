"""The storage seam: what every engine promises, and nothing more.

An engine keeps streams of chunks. A chunk is one record batch, already stamped with its base offset; an engine never
looks inside. Offsets, idempotence, retention and compaction live above, once for all engines; `tests/laws` holds the
laws below against each engine.

    laws   1  what append() accepted and whose future resolved is read back, byte for byte, in order, for ever:
              after close and open, and after a crash, as far as the stream's durability promises
           2  append() with a base offset that is not the end of the stream raises Conflict and changes nothing
           3  when an append fails, every later append of that stream that was not yet durable fails too, and the
              stream ends where the last good one ended; the next append with that base offset may succeed
           4  read() returns whole chunks only, at least one if any is there, and starts with the one that holds
              `offset` (or the next one that still exists); it never returns what is not durable
           5  trim(n) hides every chunk that ends at or before n; chunks are removed in whole spans, later or never
           6  rewrite() replaces whole spans at once: a reader or a crash sees all of the old or all of the new
           7  files(), of an engine that has any, names files that hold what read() returns: whole durable chunks back
              to back, as long as no trim or rewrite takes them away
"""

import asyncio
import enum
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.model.ids import StreamId, TopicId

Buffer = bytes | bytearray | memoryview


class Durability(enum.Enum):
    """When the future of an append resolves."""

    SYNC = "sync"  # the bytes are on stable storage
    INTERVAL = "interval"  # the operating system has them; synced every `sync_interval_ms`
    OS = "os"  # the operating system has them; it decides when they reach the disk


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """How a stream is kept. May change while it is open (configure)."""

    durability: Durability = Durability.SYNC
    sync_interval_ms: int = 1000
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000


class Grant(asyncio.Future[None]):
    """The future of an append. Many may wait for it, so none of them can cancel it: it always tells the outcome."""

    def cancel(self, msg: object = None) -> bool:
        return False


class Chunk(NamedTuple):
    """One record batch with what an engine must know of it."""

    data: Buffer
    base_offset: int
    end_offset: int  # one past the last offset
    max_timestamp_ms: int


class Slice(NamedTuple):
    """What a read returns: whole chunks, one after another."""

    buffers: Sequence[Buffer]
    size_bytes: int
    next_offset: int  # where the next read goes on; equals the asked offset when nothing was there


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State that the layer above derived from everything before `offset`; replay goes on from there."""

    offset: int
    state: bytes


@dataclass(frozen=True, slots=True)
class StreamState:
    """What an engine knows of a stream when it opens it."""

    start_offset: int
    end_offset: int
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class Span:
    """A run of chunks that an engine keeps, removes and rewrites together (a segment on disk)."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    closed: bool  # nothing is appended to it any more


class FileSpan(NamedTuple):
    """Chunks as they lie in a file: from `position` on, and before `size_bytes`."""

    path: str
    base_offset: int  # of the file, at or before its first chunk
    end_offset: int  # one past the last offset before `size_bytes`, or beyond where there are holes
    position: int
    size_bytes: int


class Engine(Protocol):
    async def open(self, stream: StreamId, spec: StreamSpec) -> StreamState:
        """Open the stream, or begin an empty one at offset 0. Must come before any other call for it."""
        ...

    def configure(self, stream: StreamId, spec: StreamSpec) -> None:
        """From now on keep the stream so."""
        ...

    def append(self, stream: StreamId, chunk: Chunk) -> asyncio.Future[None]:
        """Store the chunk at the end. The call fixes the order, the future grants the durability.

        The chunk's base offset is the expected end. The engine may keep the buffer until the future is done.
        """
        ...

    async def read(self, stream: StreamId, offset: int, max_bytes: int, end_offset: int) -> Slice:
        """Whole durable chunks from the one that holds `offset`, none that begins at or after `end_offset`.

        At most `max_bytes`, but always at least one chunk if there is one.
        """
        ...

    async def seek(self, stream: StreamId, timestamp_ms: int) -> int | None:
        """Base offset of the first chunk whose largest timestamp is at least this, or None."""
        ...

    async def trim(self, stream: StreamId, start_offset: int) -> None:
        """Forget everything before this offset, durably. Beyond the end: the stream goes on, empty, from there."""
        ...

    def spans(self, stream: StreamId) -> Sequence[Span]:
        """What the stream is made of, in order, the open span last. Cheap: called at every roll."""
        ...

    async def files(self, stream: StreamId, start_offset: int, end_offset: int) -> Sequence[FileSpan]:
        """Where the durable chunks lie that hold offsets from `start_offset` up to `end_offset`, in order.

        Nothing if the engine does not keep this stream in files.
        """
        ...

    async def roll(self, stream: StreamId) -> None:
        """Close the open span, if it holds anything, so that it can be removed or rewritten."""
        ...

    async def rewrite(self, stream: StreamId, base_offset: int, end_offset: int, chunks: AsyncIterable[Chunk]) -> None:
        """Replace the closed spans that make up exactly [base_offset, end_offset) by these chunks, atomically.

        The chunks are consumed as they come, never held together. Offsets that none of them covers any more are holes
        that reads skip. The bounds of the stream stay. If `chunks` raises, nothing has changed.
        """
        ...

    async def checkpoint(self, stream: StreamId, checkpoint: Checkpoint) -> None:
        """Keep this for the next open. It may be lost in a crash; an older one, or none, is then returned."""
        ...

    async def delete(self, topic_id: TopicId) -> None:
        """Remove every stream of this topic for good. Their appends under way fail."""
        ...

    async def retain_only(self, topic_ids: frozenset[TopicId]) -> None:
        """At start: remove what belongs to no topic any more (a deletion that a crash cut short)."""
        ...

    async def close(self) -> None:
        """Make everything durable, mark the shutdown as clean, release everything. Appends after it fail."""
        ...
