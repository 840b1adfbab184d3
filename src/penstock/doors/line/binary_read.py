"""Reading the log: stored batches as they are, where partitions begin and end, and what groups have read."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from penstock.broker.coordinate import Commit as OffsetToKeep
from penstock.broker.coordinate import OffsetCommit, OffsetFact, TopicPartition
from penstock.broker.fetch import Got, Interest, Isolation, Want
from penstock.doors.line.binary_api import LATER, Call, handles
from penstock.model.errors import InvalidRequest, PenstockError, UnknownPartition
from penstock.wire.native.framing import encode_fetched
from penstock.wire.native.messages import (
    Commit,
    Commits,
    Committed,
    Done,
    Fetch,
    ListOffsets,
    LocateLog,
    LogFile,
    LogLocation,
    Message,
    Offsets,
)

MAX_WAIT_MS = 3_600_000

_WANTED = 0  # the key of the one thing that a fetch wants


@handles(ListOffsets)
async def list_offsets(call: Call, request: ListOffsets) -> object:
    return _offsets(call, request)


async def _offsets(call: Call, request: ListOffsets) -> Message:
    observer = call.broker.observer
    partition = await observer.partition(call.principal, request.topic, request.partition)
    found_at = -1
    if request.timestamp_ms is not None:
        found = await observer.offset_at(call.principal, request.topic, request.partition, request.timestamp_ms)
        found_at = partition.stable_end if found is None else found.offset
    return Offsets(partition.start_offset, partition.durable_end, found_at, partition.stable_end)


@handles(LocateLog)
async def locate_log(call: Call, request: LocateLog) -> object:
    return _locate(call, request)


async def _locate(call: Call, request: LocateLog) -> Message:
    found = await call.broker.observer.locate(
        call.principal, request.topic, request.partition, request.start, request.end
    )
    files = [LogFile(one.path, one.base_offset, one.end_offset, one.size_bytes, one.position) for one in found.files]
    return LogLocation(files, [(one.producer_id, one.first_offset, one.last_offset) for one in found.aborted])


# -- fetching -----------------------------------------------------------------------------------------------


@handles(Fetch, waits=True)
async def fetch(call: Call, request: Fetch) -> Coroutine[Any, Any, object]:
    if request.max_bytes < 1:
        raise InvalidRequest(f"max_bytes is {request.max_bytes}; it must be at least 1")
    return _fetch(call, request)


async def _fetch(call: Call, request: Fetch) -> object:
    interest = Interest(Isolation.COMMITTED if request.committed else Isolation.NONE)
    want = Want(_WANTED, request.topic, request.partition, request.offset, request.max_bytes)
    interest.add(want)
    try:
        if not await _answer(call, interest, want, or_empty=request.wait_ms <= 0):
            await call.broker.fetcher.wait(interest, 1, min(request.wait_ms, MAX_WAIT_MS))
            await _answer(call, interest, want, or_empty=True)
    finally:
        interest.close()
    return LATER


async def _answer(call: Call, interest: Interest, want: Want, *, or_empty: bool) -> bool:
    """Answer with what is there now. One fetch of a connection at a time, and only when its client takes answers."""
    connection = call.connection
    async with connection.turn:
        await connection.outlet.room()
        for got in await call.broker.fetcher.read(call.principal, interest, want.max_bytes):
            _reply(call, got)
            return True
        if or_empty:
            _reply(call, Got(want, want.partition))
        return or_empty


def _reply(call: Call, got: Got) -> None:
    if got.error is not None:
        raise got.error
    partition, found = got.partition, got.found
    assert partition is not None
    start, end = partition.start_offset, partition.durable_end
    if found is None:
        call.reply_buffers(encode_fetched(call.correlation_id, (), 0, got.want.offset, start, end))
    else:
        call.reply_buffers(
            encode_fetched(call.correlation_id, found.buffers, found.size_bytes, found.next_offset, start, end)
        )


# -- what groups have read ----------------------------------------------------------------------------------


@handles(Commit)
async def commit(call: Call, request: Commit) -> object:
    commits: dict[TopicPartition, OffsetToKeep] = {}
    for name, index, offset in request.offsets:
        topic = call.broker.observer.topic(call.principal, name)
        if not 0 <= index < topic.partition_count:
            raise UnknownPartition(f"topic {name!r} has {topic.partition_count} partitions, none is {index}")
        if offset < 0:
            raise InvalidRequest(f"offset {offset} is not an offset")
        commits[TopicPartition(name, index)] = OffsetToKeep(offset)
    committing = call.broker.coordinator.commit(call.principal, request.group, OffsetCommit(commits))
    committing.add_done_callback(partial(_committed, call))
    return LATER


def _committed(call: Call, committing: "asyncio.Future[dict[TopicPartition, PenstockError | None]]") -> None:
    error = committing.exception()
    if error is None:
        refusals = committing.result()
        error = next((refused for refused in refusals.values() if refused is not None), None)
    if error is None:
        call.reply(Done(len(refusals)))
    else:
        call.fail(error)


@handles(Committed)
async def committed(call: Call, request: Committed) -> object:
    return _commits(call, request, call.broker.coordinator.committed(call.principal, request.group))


async def _commits(
    call: Call,
    request: Committed,
    finding: "asyncio.Future[dict[TopicPartition, OffsetFact | PenstockError | None]]",
) -> Message:
    found = await finding
    return Commits(
        [
            (partition.topic, partition.partition, fact.offset)
            for partition, fact in sorted(found.items(), key=lambda item: item[0])
            if isinstance(fact, OffsetFact) and request.topic in (None, partition.topic)
        ]
    )
