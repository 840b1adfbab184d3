"""Fetch and ListOffsets beside transactions: what each isolation level sees, and what wakes it."""

import asyncio
from types import SimpleNamespace as Struct

import pytest
from kafka_wire import Wire, batch

from penstock.doors.kafka.door import KafkaDoor
from penstock.log.partition import Partition
from penstock.model.batch import TRANSACTIONAL, check_batch, decode_batch, encode_batch, walk
from penstock.wire.kafka.api import ApiKey

UNCOMMITTED, COMMITTED = 0, 1


@pytest.fixture
async def partition(kafka_door: KafkaDoor, wire: Wire) -> Partition:
    await wire.create("orders")
    return await kafka_door.broker.topics.open(kafka_door.broker.topics.get("orders"), 0)


async def write(partition: Partition, producer_id: int, sequence: int, *values: bytes) -> None:
    records = decode_batch(batch(*values))
    made = encode_batch(
        records,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=TRANSACTIONAL,
    )
    await partition.append(check_batch(made), made).durable


async def end(partition: Partition, producer_id: int, commit: bool) -> None:
    await partition.end_transaction(producer_id, 0, commit).durable


def send_fetch(
    wire: Wire,
    offset: int,
    *,
    isolation: int = COMMITTED,
    wait_ms: int = 0,
    min_bytes: int = 1,
    session: tuple[int, int] = (0, -1),
) -> None:
    asked = [Struct(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)] if offset >= 0 else []
    wire.send(
        ApiKey.FETCH,
        12,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=[Struct(topic="orders", partitions=asked)] if asked else [],
    )


async def fetched(wire: Wire) -> Struct:
    """The one partition of an answer: stored values and markers, aborted ones, and the two ends."""
    reply = await wire.receive()
    assert reply.error_code == 0
    found = Struct(values=[], markers=0, session=reply.session_id, named=bool(reply.responses))
    for p in reply.responses[0].partitions if reply.responses else ():
        assert p.error_code == 0
        aborted = p.aborted_transactions
        found.aborted = aborted if aborted is None else [(a.producer_id, a.first_offset) for a in aborted]
        found.ends = (p.last_stable_offset, p.high_watermark)
        for header in walk(bytes(p.records or b"")):
            if header.is_control:
                found.markers += 1
            else:
                found.values += [r.value for r in decode_batch(bytes(p.records), header.position)]
    return found


async def fetch(wire: Wire, offset: int, **options) -> Struct:
    send_fetch(wire, offset, **options)
    return await fetched(wire)


async def test_read_committed_stops_before_what_is_open(wire: Wire, partition: Partition) -> None:
    await wire.produce("orders", b"plain")
    await write(partition, 7, 0, b"a")
    await wire.produce("orders", b"behind")

    seen = await fetch(wire, 0)
    assert (seen.values, seen.aborted, seen.ends) == ([b"plain"], [], (1, 3))
    seen = await fetch(wire, 0, isolation=UNCOMMITTED)
    assert (seen.values, seen.aborted, seen.ends) == ([b"plain", b"a", b"behind"], None, (1, 3))
    seen = await fetch(wire, 1)
    assert (seen.values, seen.aborted, seen.ends) == ([], [], (1, 3))
    assert (await fetch(wire, 2)).values == []  # a position that read_uncommitted has reached

    await end(partition, 7, True)
    seen = await fetch(wire, 1)
    assert (seen.values, seen.markers, seen.aborted, seen.ends) == ([b"a", b"behind"], 1, [], (4, 4))


async def test_aborted_ones_are_told_in_the_order_of_their_first_offsets(wire: Wire, partition: Partition) -> None:
    await write(partition, 7, 0, b"a")
    await write(partition, 8, 0, b"b")
    await write(partition, 9, 0, b"c")
    for producer_id, commit in ((9, True), (8, False), (7, False)):
        await end(partition, producer_id, commit)
    await wire.produce("orders", b"plain")
    seen = await fetch(wire, 0)
    assert seen.aborted == [(7, 0), (8, 1)]
    assert (seen.values, seen.markers, seen.ends) == ([b"a", b"b", b"c", b"plain"], 3, (7, 7))
    assert (await fetch(wire, 5)).aborted == [(7, 0)]
    assert (await fetch(wire, 6)).aborted == []
    assert (await fetch(wire, 0, isolation=UNCOMMITTED)).aborted is None


async def test_a_parked_fetch_wakes_when_a_transaction_ends(wire: Wire, partition: Partition) -> None:
    send_fetch(wire, 0, wait_ms=60_000)
    await parked(partition)
    await write(partition, 7, 0, b"a")
    await end(partition, 7, True)
    seen = await fetched(wire)
    assert (seen.values, seen.markers) == ([b"a"], 1)


async def test_what_is_open_wakes_nobody_who_reads_committed(
    kafka_door: KafkaDoor, wire: Wire, partition: Partition
) -> None:
    fetcher, reads = kafka_door.broker.fetcher, []
    read_one = fetcher._read_one
    fetcher._read_one = lambda *args: reads.append(args) or read_one(*args)  # type: ignore[method-assign,func-returns-value]
    send_fetch(wire, 0, wait_ms=60_000)
    other = await Wire.open(kafka_door.listener.port)
    send_fetch(other, 0, wait_ms=60_000, isolation=UNCOMMITTED)
    await parked(partition, 2)
    for sequence in range(20):
        await write(partition, 7, sequence, b"x" * 100)
    assert (await fetched(other)).values  # the other level sees each
    await other.close()
    assert len(reads) == 3
    await end(partition, 7, False)
    seen = await fetched(wire)
    assert (len(seen.values), seen.markers, seen.aborted) == (20, 1, [(7, 0)])
    assert len(reads) == 4


async def test_min_bytes_counts_what_is_stable(kafka_door: KafkaDoor, wire: Wire, partition: Partition) -> None:
    send_fetch(wire, 0, wait_ms=60_000, min_bytes=1500)
    await parked(partition)
    await write(partition, 7, 0, b"x" * 1000)
    await write(partition, 7, 1, b"y" * 1000)
    await end(partition, 7, True)
    assert len((await fetched(wire)).values) == 2


async def test_a_session_hears_of_what_became_stable(wire: Wire, partition: Partition) -> None:
    await wire.produce("orders", b"plain")
    seen = await fetch(wire, 0, session=(0, 0))
    session = seen.session
    assert seen.values == [b"plain"]
    await write(partition, 7, 0, b"a")
    assert (await fetch(wire, 1, session=(session, 1))).values == []
    assert not (await fetch(wire, -1, session=(session, 2))).named  # nothing new, nothing said
    await end(partition, 7, False)
    seen = await fetch(wire, -1, session=(session, 3))
    assert (seen.values, seen.aborted, seen.ends) == ([b"a"], [(7, 1)], (3, 3))


async def test_a_session_may_change_its_isolation(wire: Wire, partition: Partition) -> None:
    await write(partition, 7, 0, b"a")
    session = (await fetch(wire, 0, session=(0, 0))).session
    assert (await fetch(wire, -1, session=(session, 1), isolation=UNCOMMITTED)).values == [b"a"]
    assert (await fetch(wire, 1, session=(session, 2), isolation=UNCOMMITTED)).values == []
    await write(partition, 7, 1, b"b")
    assert (await fetch(wire, -1, session=(session, 3), isolation=UNCOMMITTED)).values == [b"b"]


async def test_the_latest_offset_depends_on_the_isolation(wire: Wire, partition: Partition) -> None:
    await wire.produce("orders", b"plain")
    await write(partition, 7, 0, b"a")

    async def listed(timestamp: int, isolation: int) -> int:
        asked = Struct(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
        topics = [Struct(name="orders", partitions=[asked])]
        reply = await wire.ask(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=isolation, topics=topics)
        assert reply.topics[0].partitions[0].error_code == 0
        offset: int = reply.topics[0].partitions[0].offset
        return offset

    times = [r.timestamp_ms for r in decode_batch(bytes((await partition.read(1, 1000)).buffers[0]))]
    assert [await listed(-1, level) for level in (UNCOMMITTED, COMMITTED)] == [2, 1]
    assert [await listed(-2, level) for level in (UNCOMMITTED, COMMITTED)] == [0, 0]
    await end(partition, 7, True)
    assert [await listed(-1, level) for level in (UNCOMMITTED, COMMITTED)] == [3, 3]
    assert await listed(times[0], COMMITTED) in (0, 1)
    assert await listed(times[0] + 1_000_000, COMMITTED) == -1


async def parked(partition: Partition, count: int = 1) -> None:
    """Until so many readers wait there."""
    async with asyncio.timeout(10):
        while partition.watcher_count < count:  # noqa: ASYNC110 - nobody tells when somebody begins to wait
            await asyncio.sleep(0)
