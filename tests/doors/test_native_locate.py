"""Where a log lies: readers on the same machine read the files themselves, with the same result."""

import pytest
from native_wire import NativeWire, Refused, opened

from penstock.broker import observe
from penstock.model.batch import encode_batch, walk
from penstock.model.record import Record
from penstock.wire.native.messages import (
    AbortStep,
    Batch,
    CommitStep,
    Done,
    LocateLog,
    LogLocation,
    OpenWriter,
    Publish,
    Published,
    Writer,
)

TRANSACTIONAL = 1 << 4


def read(location: LogLocation, start: int, end: int) -> list[bytes | None]:
    """As docs/protocol.md tells it."""
    values: list[bytes | None] = []
    for one in location.files:
        with open(one.path, "rb") as file:
            stored = file.read()[one.position : one.size_bytes]
        for header in walk(stored, verify=True):
            aborted = header.is_transactional and any(
                producer == header.producer_id and first <= header.base_offset <= last
                for producer, first, last in location.aborted
            )
            if not header.is_control and not aborted:
                records = opened(stored[header.position : header.position + header.size_bytes])
                values += [record.value for record in records if start <= record.offset < end]
    return values


async def write(native: NativeWire, topic: str, writer: Writer, value: bytes) -> None:
    record = Record(0, 1_900_000_000_000, None, value)
    batch = encode_batch(
        [record], producer_id=writer.producer_id, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
    )
    (stored,) = (await native.ask(Publish(-1, [Batch(topic, 0, bytes(batch))]), Published)).results
    assert stored.error is None


async def test_files_hold_what_a_fetch_returns(native: NativeWire, topic: str) -> None:
    await native.create(topic, segment_bytes="16384")
    big = [b"%d" % number * 900 for number in range(60)]
    for at in range(0, 60, 3):
        await native.publish(topic, *big[at : at + 3])
    location = await native.ask(LocateLog(topic, 0, 0, 60), LogLocation)
    assert len(location.files) > 3
    assert read(location, 0, 60) == big
    for start, end in ((0, 1), (1, 2), (17, 40), (59, 60), (5, 5)):
        part = await native.ask(LocateLog(topic, 0, start, end), LogLocation)
        assert read(part, start, end) == big[start:end]
    for start, end in ((-1, 5), (0, 61), (9, 3)):
        with pytest.raises(Refused, match="offset-out-of-range"):
            await native.ask(LocateLog(topic, 0, start, end), LogLocation)


async def test_what_was_aborted_is_told(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    for step, ending in (("a", AbortStep(f"{topic}-a", 1)), ("b", None)):
        writer = await native.ask(OpenWriter(f"{topic}-{step}", 1, "w"), Writer)
        await write(native, topic, writer, step.encode())
        await native.ask(ending or CommitStep(f"{topic}-{step}", 1, [writer.producer_id]), Done)
    await native.publish(topic, b"c")
    location = await native.ask(LocateLog(topic, 0, 0, 5), LogLocation)
    assert len(location.aborted) == 1
    assert read(location, 0, 5) == await native.values_now(topic) == [b"b", b"c"]


async def test_there_are_no_files_of_some(native: NativeWire, topic: str) -> None:
    await native.create(topic, storage="memory")
    await native.create(topic + "-c", cleanup_policy="compact")
    await native.publish(topic, b"x")
    assert await native.ask(LocateLog(topic, 0, 0, 1), LogLocation) == LogLocation([], [])
    assert await native.ask(LocateLog(topic + "-c", 0, 0, 0), LogLocation) == LogLocation([], [])


@pytest.mark.parametrize(
    ("host", "is_near"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("192.0.2.1", False), ("", False)],
)
def test_only_who_is_near_is_told(host: str, is_near: bool) -> None:
    assert observe._is_near(host) is is_near
