"""A batch of a transaction is stored when both it and what its transaction knows of it are."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_house import BrokerHouse

from penstock.log.partition import Appended
from penstock.log.topics import Topic
from penstock.model.batch import TRANSACTIONAL, BatchHeader, encode_batch
from penstock.model.errors import InvalidRecord, InvalidTransactionState, ProducerFenced, StorageFull
from penstock.model.record import Record


class Gate:
    """Lets everything through, and knows when the test says so."""

    def __init__(self) -> None:
        self.known: asyncio.Future[None] | None = None
        self.refusal: Exception | None = None
        self.asked: list[tuple[int, str, int, str | None, bool]] = []

    def admit(
        self, header: BatchHeader, topic: Topic, index: int, *, transactional_id: str | None, implicit: bool
    ) -> asyncio.Future[None] | None:
        self.asked.append((header.producer_id, topic.name, index, transactional_id, implicit))
        if self.refusal is not None:
            raise self.refusal
        return self.known


@pytest.fixture(params=["memory", "disk"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerHouse]:
    opened = await BrokerHouse(request.param, tmp_path / "data").open()
    await opened.create("orders")
    opened.publisher.gate = Gate()
    yield opened
    await opened.close()


def batch(sequence: int = 0, producer_id: int = 9, attributes: int = TRANSACTIONAL) -> bytearray:
    records = [Record(0, 1_700_000_000_000, None, b"x")]
    epoch, sequence = (0, sequence) if producer_id >= 0 else (-1, -1)
    return encode_batch(
        records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, attributes=attributes
    )


def gate_of(house: BrokerHouse) -> Gate:
    assert isinstance(house.publisher.gate, Gate)
    return house.publisher.gate


async def publish(house: BrokerHouse, data: bytearray, **options: object) -> Appended:
    return await house.publisher.publish(house.topics.get("orders"), 0, data, **options)  # type: ignore[arg-type]


async def test_plain_batches_do_not_pass_the_gate(house: BrokerHouse) -> None:
    await (await publish(house, batch(producer_id=-1, attributes=0))).durable
    await (await publish(house, batch(attributes=0))).durable
    assert gate_of(house).asked == []


async def test_the_gate_is_told_what_it_must_know(house: BrokerHouse) -> None:
    await (await publish(house, batch(0), transactional_id="payer", implicit=False)).durable
    await (await publish(house, batch(1))).durable
    assert gate_of(house).asked == [(9, "orders", 0, "payer", False), (9, "orders", 0, None, True)]


async def test_a_batch_waits_for_what_its_transaction_knows(house: BrokerHouse) -> None:
    known = gate_of(house).known = asyncio.get_running_loop().create_future()
    appended = await publish(house, batch())
    partition = await house.topics.open(house.topics.get("orders"), 0)
    if not partition.durable_end:
        stored = asyncio.Event()
        partition.watch(lambda *_: stored.set())
        await asyncio.wait_for(stored.wait(), 5)
    assert not appended.durable.done()
    known.set_result(None)
    await asyncio.wait_for(appended.durable, 5)


async def test_what_is_known_already_waits_for_the_batch(house: BrokerHouse) -> None:
    known = gate_of(house).known = asyncio.get_running_loop().create_future()
    known.set_result(None)
    appended = await publish(house, batch())
    await asyncio.wait_for(appended.durable, 5)
    assert (appended.base_offset, house.topics.get("orders").partitions[0].durable_end) == (0, 1)  # type: ignore[union-attr]


async def test_both_in_one_turn_are_settled_once(house: BrokerHouse) -> None:
    failures: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    known = gate_of(house).known = loop.create_future()
    appended = await publish(house, batch())
    partition = await house.topics.open(house.topics.get("orders"), 0)
    partition.watch(lambda *_: known.done() or known.set_result(None))
    if partition.durable_end:
        known.set_result(None)
    await asyncio.wait_for(appended.durable, 5)
    await asyncio.sleep(0)
    assert failures == []


async def test_a_batch_that_its_transaction_could_not_record_is_not_acknowledged(house: BrokerHouse) -> None:
    known = gate_of(house).known = asyncio.get_running_loop().create_future()
    appended = await publish(house, batch())
    known.set_exception(StorageFull("no room"))
    with pytest.raises(StorageFull):
        await asyncio.wait_for(appended.durable, 5)
    gate_of(house).known = None
    again = await publish(house, batch())
    await asyncio.wait_for(again.durable, 5)
    assert again.base_offset == appended.base_offset, "a repeat, found in the log"


async def test_what_the_gate_refuses_is_not_stored(house: BrokerHouse) -> None:
    gate_of(house).refusal = ProducerFenced("somebody else")
    with pytest.raises(ProducerFenced):
        await publish(house, batch())
    house.publisher.gate = None
    with pytest.raises(InvalidTransactionState):
        await publish(house, batch())
    with pytest.raises(InvalidRecord):
        await publish(house, batch(producer_id=-1))
    partition = await house.topics.open(house.topics.get("orders"), 0)
    assert partition.end_offset == 0
