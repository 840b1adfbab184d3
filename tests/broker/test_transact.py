"""Transactions and named steps from the verbs down to the log, over each engine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import pytest
from queue_house import until
from transaction_house import TransactionHouse

from penstock.broker.transact import Opened, ProducerIdentity, TransactionSettings
from penstock.delivery.offsets import TopicPartition
from penstock.model.batch import TRANSACTIONAL, encode_batch, read_header
from penstock.model.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerMapping,
    InvalidTransactionState,
    LimitReached,
    ProducerFenced,
    StepAborted,
    StorageFailed,
    UnknownTransaction,
    UnstableOffset,
)
from penstock.model.record import Record
from penstock.security.principal import ANONYMOUS


@pytest.fixture(params=["memory", "disk"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TransactionHouse]:
    house = await TransactionHouse(request.param, tmp_path / "life0").open()
    await house.topics.create("t", 3, {})
    yield house
    await house.close()


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[TransactionHouse]:
    house = await TransactionHouse("disk", tmp_path / "life0").open()
    await house.topics.create("t", 3, {})
    yield house
    await house.close()


async def test_a_commit_is_seen_by_whoever_gets_the_answer(house: TransactionHouse) -> None:
    who = await house.init()
    await house.put(who, b"1", b"2")
    await house.put(who, b"3", partition=2)
    await house.commit_offset(who, 7)
    assert await house.committed() == []
    assert await house.offset() is None
    assert isinstance(await house.offset(stable=True), UnstableOffset)
    after = await house.end(who)
    assert after == (who.producer_id, who.epoch + 1)
    assert await house.committed() == [b"1", b"2"]
    assert await house.committed(partition=2) == [b"3"]
    assert await house.offset(stable=True) == 7
    await house.put(after, b"4")
    after = await house.end(after, commit=False)
    await house.put(after, b"5")
    await house.end(after)
    assert await house.committed() == [b"1", b"2", b"5"]


async def test_the_first_protocol_asks_for_its_partitions(house: TransactionHouse) -> None:
    who = await house.init()
    with pytest.raises(InvalidTransactionState):
        await house.write(who, b"0", name="x", implicit=False)
    results = await house.add(who, 0, 1, 9)
    assert [type(result).__name__ for result in results.values()] == ["NoneType", "NoneType", "UnknownPartition"]
    assert (await house.add(who, 0, topic="__penstock_groups"))[TopicPartition("__penstock_groups", 0)] is not None
    await house.put(who, b"1", name="x", implicit=False)
    with pytest.raises(InvalidTransactionState):
        await house.commit_offset(who, 1, implicit=False)
    await house.transactions.add_group(ANONYMOUS, "x", *who, "g")
    await house.commit_offset(who, 3, implicit=False)
    assert await house.end(who, bump=False) == who
    assert await house.end(who, bump=False) == who
    assert await house.committed() == [b"1"]
    assert await house.offset() == 3
    verified = await house.transactions.add_partitions(ANONYMOUS, "x", *who, [TopicPartition("t", 0)], verify_only=True)
    assert isinstance(verified[TopicPartition("t", 0)], InvalidTransactionState)


async def test_nobody_writes_in_a_transaction_that_is_not_his(house: TransactionHouse) -> None:
    who = await house.init()
    with pytest.raises(InvalidProducerMapping):
        await house.write(ProducerIdentity(999, 0), b"1")
    with pytest.raises(InvalidProducerMapping):
        await house.write(who, b"1", name="y")
    newer = await house.init()
    with pytest.raises(InvalidProducerEpoch):
        await house.write(who, b"1")
    with pytest.raises(ProducerFenced):
        await house.end(who)
    with pytest.raises(InvalidProducerMapping):
        await house.end(newer, name="unknown")
    assert await house.committed() == []


async def test_a_time_out_ends_what_its_producer_left(house: TransactionHouse) -> None:
    who = await house.init(timeout_ms=5_000)
    await house.put(who, b"1")
    house.advance(5_000)
    await house.stable()
    assert await house.committed() == []
    with pytest.raises(InvalidProducerEpoch):
        await house.write(who, b"2")


async def test_taking_over_aborts_what_was_open(house: TransactionHouse) -> None:
    who = await house.init()
    await house.put(who, b"1")
    with pytest.raises(ConcurrentTransactions):
        await house.init()
    after = await house.take_over()
    assert after.epoch == 2
    await house.put(after, b"2")
    await house.end(after)
    assert await house.committed() == [b"2"]


async def test_a_deleted_topic_holds_nothing_up(house: TransactionHouse) -> None:
    await house.topics.create("gone", 1, {})
    who = await house.init()
    await house.put(who, b"1")
    await house.put(who, b"1", topic="gone")
    await house.topics.delete("gone")
    await house.end(who)
    assert await house.committed() == [b"1"]


async def test_what_is_open_can_be_listed_and_described(house: TransactionHouse) -> None:
    who = await house.init("a-1")
    await house.init("b-1")
    await house.put(who, b"1", partition=1)
    transactions = house.transactions
    described = transactions.describe(ANONYMOUS, "a-1")
    assert (described.state.value, described.identity, list(described.partitions)) == (
        "Ongoing", who, [TopicPartition("t", 1)],
    )  # fmt: skip
    assert {each.transactional_id for each in transactions.transactions(ANONYMOUS)} == {"a-1", "b-1"}

    def names(*filters: object) -> list[str]:
        return [each.transactional_id for each in transactions.transactions(ANONYMOUS, *filters)]  # type: ignore[arg-type]

    assert names(["Ongoing"]) == ["a-1"]
    assert names((), [who.producer_id]) == ["a-1"]
    assert names((), (), -1, "b-.*") == ["b-1"]
    house.clock.advance(100)
    assert names((), (), 100) == ["a-1"]
    assert names((), (), 101) == []
    with pytest.raises(UnknownTransaction):
        transactions.describe(ANONYMOUS, "c")


async def test_the_number_of_names_has_a_bound(tmp_path: Path) -> None:
    house = await TransactionHouse("memory", tmp_path, TransactionSettings(max_ids=2, max_steps=1)).open()
    try:
        await house.init("a")
        await house.init("b")
        with pytest.raises(LimitReached):
            await house.init("c")
        await house.commit_step(0, [], name="s")
        with pytest.raises(LimitReached):
            await house.commit_step(0, [], name="other")
        await house.transactions.forget_step(ANONYMOUS, "s")
        await house.commit_step(0, [], name="other")
    finally:
        await house.close()


async def test_nobody_is_told_what_the_ledger_did_not_take(house: TransactionHouse) -> None:
    who = await house.init()
    house.ledger.failing = StorageFailed("disk full")
    appended = await house.write(who, b"1")
    with pytest.raises(StorageFailed):
        await appended.durable
    house.ledger.failing = None
    house.sequences.clear()  # the producer repeats its batch
    await house.put(who, b"1")
    house.ledger.failing = StorageFailed("disk full")
    with pytest.raises(ConcurrentTransactions):
        await house.end(who)
    assert not await house.is_stable()
    house.ledger.failing = None
    await house.end(who)
    assert await house.committed() == [b"1"]


async def test_a_step_that_is_committed_again_stores_nothing(house: TransactionHouse) -> None:
    first, second, other = [await house.open_writer(0) for _ in range(3)]
    for writer, value in ((first, b"1"), (second, b"2"), (other, b"x")):
        await house.put(ProducerIdentity(*writer[:2]), value)
    counted = [first.producer_id, second.producer_id]
    place = TopicPartition("t", 0)
    assert await house.commit_step(0, counted, offsets={"g": {place: 5}}) is True
    assert await house.committed() == [b"1", b"2"]
    assert await house.offset() == 5
    assert await house.commit_step(0, counted, offsets={"g": {place: 5}}) is False
    assert await house.open_writer(0) == Opened(-1, -1, True, "m")
    with pytest.raises(InvalidProducerMapping):
        await house.write(ProducerIdentity(other.producer_id, 0), b"late")
    assert house.transactions.describe_step(ANONYMOUS, "s").committed == [(0, "m")]
    if house.kind == "disk":
        await house.restart()
        assert await house.commit_step(0, counted) is False
        assert await house.committed() == [b"1", b"2"]


async def test_a_step_whose_offsets_are_refused_is_not_committed(
    house: TransactionHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise LimitReached("so many groups")

    writer = await house.open_writer(0)
    await house.put(ProducerIdentity(*writer[:2]), b"1")
    with monkeypatch.context() as patched, pytest.raises(LimitReached):
        patched.setattr(house.coordinator, "pend", refuse)
        await house.commit_step(0, [writer.producer_id], offsets={"g": {TopicPartition("t", 0): 5}})
    assert await house.committed() == []
    await until(lambda: house.transactions.describe_step(ANONYMOUS, "s").open == [(0, ["task"])])
    assert await house.commit_step(0, [writer.producer_id]) is True
    assert await house.committed() == [b"1"]


async def test_a_step_may_be_aborted_or_forgotten(house: TransactionHouse) -> None:
    writer = await house.open_writer(4)
    await house.put(ProducerIdentity(*writer[:2]), b"1")
    assert await house.transactions.abort_step(ANONYMOUS, "s", 4) == 1
    assert await house.transactions.abort_step(ANONYMOUS, "nothing", 4) == 0
    with pytest.raises(StepAborted):
        await house.commit_step(4, [writer.producer_id])
    writer = await house.open_writer(4)
    await house.put(ProducerIdentity(*writer[:2]), b"2")
    await house.transactions.forget_step(ANONYMOUS, "s")
    assert await house.committed() == []
    assert await house.is_stable()
    with pytest.raises(UnknownTransaction):
        house.transactions.describe_step(ANONYMOUS, "s")


async def test_many_writers_commit_at_once(house: TransactionHouse) -> None:
    async def task(number: int) -> int:
        writer = await house.open_writer(0)
        who = ProducerIdentity(*writer[:2])
        await asyncio.gather(*[house.put(who, b"%d" % number, partition=index) for index in range(3)])
        return writer.producer_id

    writers = await asyncio.gather(*map(task, range(100)))
    assert await house.commit_step(0, writers[:50]) is True
    for index in range(3):
        assert sorted(map(int, await house.committed(partition=index))) == list(range(50))


async def test_what_was_open_survives_a_crash(disk: TransactionHouse) -> None:
    who = await disk.init()
    await disk.put(who, b"1")
    await disk.commit_offset(who, 4)
    writer = await disk.open_writer(0)
    await disk.put(ProducerIdentity(*writer[:2]), b"2", partition=1)
    await disk.crash()
    await disk.put(who, b"3", partition=2)
    assert await disk.committed() == []
    await disk.end(who)
    assert await disk.commit_step(0, [writer.producer_id]) is True
    assert [await disk.committed(partition=index) for index in range(3)] == [[b"1"], [b"2"], [b"3"]]
    assert await disk.offset() == 4


async def test_a_batch_that_outlived_its_fact_is_not_left_open(disk: TransactionHouse) -> None:
    """The ledger failed and the server crashed: nobody knows the partition, but its log."""
    who, gone = await disk.init(), await disk.init("y")
    await disk.put(who, b"0", partition=1)
    disk.ledger.failing = StorageFailed("disk full")
    for each in (who, gone):
        with pytest.raises(StorageFailed):
            await (await disk.write(each, b"1")).durable
    disk.ledger.failing = None
    await disk.crash()
    log = await disk.topics.open(disk.topics.get("t"), 0)
    assert set(log.transactions.open) == {who.producer_id, gone.producer_id}
    disk.sequences.clear()
    await disk.put(who, b"1")  # repeated, and found to be there
    await disk.end(who)
    assert not await disk.is_stable()  # the other one waits for its producer, or its time-out
    disk.advance(60_000)
    await disk.stable()
    assert await disk.committed() == [b"1"]


async def test_a_transaction_of_nobody_is_aborted_when_its_partition_opens(disk: TransactionHouse) -> None:
    log = await disk.topics.open(disk.topics.get("t"), 0)
    batch = encode_batch(
        [Record(0, 0, None, b"x")], attributes=TRANSACTIONAL, producer_id=777, producer_epoch=2, base_sequence=0
    )
    await log.append(read_header(batch), batch).durable
    assert not await disk.is_stable()
    await disk.crash()
    await disk.stable()
    assert await disk.committed() == []


async def test_markers_that_cannot_be_written_are_tried_again(house: TransactionHouse) -> None:
    who = await house.init()
    await house.put(who, b"1")
    log = await house.topics.open(house.topics.get("t"), 0)
    engine_append = log.engine.append
    failing = True

    def append(stream, chunk):  # type: ignore[no-untyped-def]
        if failing and stream == log.stream:
            raise StorageFailed("disk full")
        return engine_append(stream, chunk)

    log.engine.append = append  # type: ignore[method-assign]
    with pytest.raises(ConcurrentTransactions):
        await house.end(who)
    failing = False
    ended = asyncio.ensure_future(house.end(who))
    await asyncio.sleep(0)
    house.advance(5_000)
    await ended
    assert await house.committed() == [b"1"]


async def test_a_server_that_stops_answers_everyone(house: TransactionHouse) -> None:
    who = await house.init()
    await house.put(who, b"1")
    house.transactions.release()
    with pytest.raises(StorageFailed):
        await house.end(who)
    with pytest.raises(StorageFailed):
        await house.open_writer(0)
