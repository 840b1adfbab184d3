"""Named steps through the binary protocol: many writers, one commit, nothing before it and nothing twice."""

import pytest
from native_wire import NativeWire

from penstock.model.batch import encode_batch
from penstock.model.record import Record
from penstock.testing.server import Server
from penstock.wire.native.messages import (
    AbortStep,
    Batch,
    Commits,
    CommitStep,
    Committed,
    DescribeStep,
    Done,
    ForgetStep,
    ListOffsets,
    Offsets,
    OpenWriter,
    Publish,
    Published,
    StepDescription,
    Stored,
    Writer,
)
from servers import StartServer

TRANSACTIONAL = 1 << 4


def written(writer: Writer, *values: bytes, sequence: int = 0) -> bytes:
    return bytes(
        encode_batch(
            [Record(at, 1_900_000_000_000, None, value) for at, value in enumerate(values)],
            producer_id=writer.producer_id,
            producer_epoch=writer.producer_epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
    )


async def write(native: NativeWire, writer: Writer, topic: str, *values: bytes, sequence: int = 0) -> Stored:
    request = Publish(-1, [Batch(topic, 0, written(writer, *values, sequence=sequence))])
    return (await native.ask(request, Published)).results[0]


async def test_writers_that_count_are_shown_at_once(native: NativeWire, topic: str, group: str) -> None:
    for name in (topic, topic + "-b"):
        await native.create(name)
    one, two, three = [await native.ask(OpenWriter(topic, 1, label), Writer) for label in ("a", "b", "b")]
    assert len({writer.producer_id for writer in (one, two, three)}) == 3
    assert (await write(native, one, topic, b"1")).error is None
    assert (await write(native, two, topic + "-b", b"2")).error is None
    assert (await write(native, three, topic + "-b", b"twice")).error is None
    await native.publish(topic, b"plain")
    assert await native.values_now(topic) == await native.values_now(topic + "-b") == []
    offsets = await native.ask(ListOffsets(topic, 0), Offsets)
    assert (offsets.end, offsets.stable) == (2, 0)
    told = await native.ask(DescribeStep(topic), StepDescription)
    assert (told.committed, [(epoch, sorted(labels)) for epoch, labels in told.open]) == ([], [(1, ["a", "b", "b"])])
    commit = CommitStep(topic, 1, [one.producer_id, two.producer_id], "mark", [(group, topic, 0, 1)])
    assert await native.ask(commit, Done) == Done(1)
    assert await native.ask(commit, Done) == Done(0)
    assert await native.values_now(topic) == [b"1", b"plain"]
    assert await native.values_now(topic + "-b") == [b"2"]
    assert await native.ask(Committed(group), Commits) == Commits([(topic, 0, 1)])
    again = await native.ask(OpenWriter(topic, 1, "a"), Writer)
    assert (again.done, again.mark) == (True, "mark")
    told = await native.ask(DescribeStep(topic), StepDescription)
    assert (told.committed, told.open) == ([(1, "mark")], [])


async def test_what_does_not_fit_is_refused(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    writer = await native.ask(OpenWriter(topic, 5, "a"), Writer)
    assert (await write(native, writer, topic, b"1")).error is None
    assert (await native.refused(CommitStep(topic, 5, [writer.producer_id + 1_000_000]))).code == "step-aborted"
    assert await native.ask(AbortStep(topic, 5), Done) == Done(1)
    late = await write(native, writer, topic, b"2", sequence=1)
    assert late.error in ("producer-fenced", "invalid-producer-epoch", "invalid-producer-mapping"), late
    assert (await native.refused(CommitStep(topic, 5, [writer.producer_id]))).code == "step-aborted"
    fresh = await native.ask(OpenWriter(topic, 5, "a"), Writer)
    await write(native, fresh, topic, b"3")
    assert await native.ask(CommitStep(topic, 5, [fresh.producer_id], "m"), Done) == Done(1)
    assert (await native.refused(CommitStep(topic, 5, [fresh.producer_id], "other"))).code == "step-mismatch"
    assert await native.values_now(topic) == [b"3"]
    assert (await native.refused(OpenWriter("__penstock_x", 1, "a"))).code == "not-allowed"
    assert (await native.refused(OpenWriter("", 1, "a"))).code == "invalid-request"
    stray = (await native.ask(Publish(-1, [Batch(topic, 0, written(Writer(10**12, 0), b"x"))]), Published)).results[0]
    assert stray.error in ("invalid-producer-mapping", "invalid-transaction-state")
    await native.ask(ForgetStep(topic), Done)
    assert (await native.refused(DescribeStep(topic))).code == "unknown-transaction"


async def test_a_step_outlives_the_server(start_server: StartServer) -> None:
    server: Server = start_server()
    native = await NativeWire.open(server.line)
    await native.create("t")
    writer = await native.ask(OpenWriter("s", 1, "a"), Writer)
    await write(native, writer, "t", b"1")
    await native.close()
    server.kill()
    server.start()
    native = await NativeWire.open(server.line)
    assert (await write(native, writer, "t", b"1")).error is None  # a repeat
    assert (await write(native, writer, "t", b"2", sequence=1)).error is None
    assert await native.values_now("t") == []
    assert await native.ask(CommitStep("s", 1, [writer.producer_id], "m"), Done) == Done(1)
    await native.close()
    server.kill()
    server.start()
    native = await NativeWire.open(server.line)
    assert await native.ask(CommitStep("s", 1, [writer.producer_id], "m"), Done) == Done(0)
    assert await native.values_now("t") == [b"1", b"2"]
    await native.publish("t", b"3")
    assert await native.values_now("t") == [b"1", b"2", b"3"]
    await native.close()


@pytest.mark.parametrize("attributes", [TRANSACTIONAL | 1 << 5, 1 << 5])
async def test_nobody_writes_markers(native: NativeWire, topic: str, attributes: int) -> None:
    await native.create(topic)
    writer = await native.ask(OpenWriter(topic, 1, "a"), Writer)
    forged = encode_batch(
        [Record(0, 1000, b"\0\0\0\1", b"\0\0\0\0\0\0")],
        producer_id=writer.producer_id,
        producer_epoch=writer.producer_epoch,
        base_sequence=0,
        attributes=attributes,
    )
    refused = (await native.ask(Publish(-1, [Batch(topic, 0, bytes(forged))]), Published)).results[0]
    assert refused.error == "invalid-record"
