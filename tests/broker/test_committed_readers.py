"""Readers, subscriptions and queue views beside transactions: they see what is committed, when it is, and only that."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_house import BrokerHouse
from queue_house import QueueHouse, ticks, until, values
from transactional import Writer

from penstock.broker.queues import QueueSettings
from penstock.broker.read import Reader, Start, Taken
from penstock.log.housekeeper import Housekeeper
from penstock.security.principal import ANONYMOUS


@pytest.fixture(params=["memory", "disk"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerHouse]:
    opened = await BrokerHouse(request.param, tmp_path / "data").open()
    await opened.create("orders")
    yield opened
    assert len(opened.readers.tails) == 0, "a reader was not closed"
    await opened.close()


async def take(reader: Reader, max_messages: int = 1000, wait_ms: int = 0) -> Taken:
    return await asyncio.wait_for(reader.take(max_messages, 1 << 20, wait_ms), 30)


async def rest(reader: Reader, max_messages: int = 1000) -> list[bytes | None]:
    found: list[bytes | None] = []
    while (taken := await take(reader, max_messages)).messages:
        found += [message.record.value for message in taken.messages]
    return found


async def log_reader(house: BrokerHouse, offset: int = 0) -> Reader:
    return await house.readers.log(ANONYMOUS, "orders", Start(offsets={0: offset}))


# -- log and pub/sub views ----------------------------------------------------------------------------------


async def test_a_log_reader_waits_for_the_end_of_a_transaction(house: BrokerHouse) -> None:
    writer = Writer(await house.partition("orders"), 7)
    await house.publish("orders", b"plain")
    await writer.write(b"a", b"b")
    await house.publish("orders", b"behind")
    reader = await log_reader(house)
    assert await rest(reader) == [b"plain"]
    waiting = asyncio.create_task(take(reader, wait_ms=20_000))
    await ticks()
    await house.publish("orders", b"still behind")
    await ticks()
    assert not waiting.done()
    await writer.commit()
    assert [m.record.value for m in (await waiting).messages] == [b"a", b"b", b"behind", b"still behind"]
    assert reader.positions == {0: 6}  # past the marker
    reader.close()


@pytest.mark.parametrize("at_once", [1, 1000])
async def test_what_was_aborted_is_passed_over(house: BrokerHouse, at_once: int) -> None:
    partition = await house.partition("orders")
    one, two = Writer(partition, 7), Writer(partition, 8)
    early = await log_reader(house)
    pubsub = await house.readers.pubsub(ANONYMOUS, "orders")
    await one.write(b"no")
    await two.write(b"yes")
    await one.write(b"no")
    await two.commit()
    await one.abort()
    await house.publish("orders", b"plain")
    late = await log_reader(house)
    for reader in (early, pubsub, late):
        assert await rest(reader, at_once) == [b"yes", b"plain"]
        assert reader.positions == {0: 6}
        reader.close()


async def test_a_reader_moves_past_nothing_but_aborted_records(house: BrokerHouse) -> None:
    writer = Writer(await house.partition("orders"), 7)
    reader = await log_reader(house)
    for _ in range(30):
        await writer.write(b"no")
    await writer.abort()
    taken = await take(reader)
    assert (list(taken.messages), dict(taken.positions)) == ([], {0: 31})
    await house.publish("orders", b"yes")
    assert await rest(reader) == [b"yes"]
    reader.close()


async def test_a_subscription_made_meanwhile_gets_what_is_committed_later(house: BrokerHouse) -> None:
    writer = Writer(await house.partition("orders"), 7)
    await house.publish("orders", b"before")
    await writer.write(b"a")
    pubsub = await house.readers.pubsub(ANONYMOUS, "orders")
    latest = await house.readers.log(ANONYMOUS, "orders", Start(earliest=False))
    by_time = await house.readers.log(ANONYMOUS, "orders", Start(timestamp_ms=house.clock.wall_ms() + 1))
    await writer.commit()
    for reader in (pubsub, latest, by_time):
        assert await rest(reader) == [b"a"]
        reader.close()


async def test_a_reader_that_stands_among_open_records_waits(house: BrokerHouse) -> None:
    partition = await house.partition("orders")
    writer = Writer(partition, 7)
    await writer.write(b"a")
    await writer.write(b"b")
    reader = await log_reader(house, 1)
    reads = []
    engine_read = partition.engine.read
    partition.engine.read = lambda *args: reads.append(args) or engine_read(*args)  # type: ignore[method-assign]
    waiting = asyncio.create_task(take(reader, wait_ms=20_000))
    await ticks()
    await writer.write(b"c")
    await ticks()
    assert not waiting.done()
    assert reads == []
    await writer.commit()
    assert [m.record.value for m in (await waiting).messages] == [b"b", b"c"]
    reader.close()


async def test_readers_agree_whatever_is_interleaved(house: BrokerHouse) -> None:
    chance = random.Random(4)
    partition = await house.partition("orders")
    writers = [Writer(partition, number) for number in range(1, 5)]
    pending: dict[Writer, list[bytes]] = {}
    outcome: dict[bytes, bool] = {}
    early = await log_reader(house)
    pubsub = await house.readers.pubsub(ANONYMOUS, "orders")
    seen: dict[Reader, list[bytes | None]] = {early: [], pubsub: []}
    for number in range(200):
        writer, value = chance.choice(writers), b"%d" % number
        match chance.randrange(4):
            case 0:
                await house.publish("orders", value)
                outcome[value] = True
            case 1 if writer in pending:
                commit = chance.random() < 0.6
                await writer.end(commit)
                outcome.update(dict.fromkeys(pending.pop(writer), commit))
            case _:
                await writer.write(value)
                pending.setdefault(writer, []).append(value)
        reader = chance.choice([early, pubsub])
        seen[reader] += [m.record.value for m in (await take(reader, chance.choice([1, 3, 100]))).messages]
    for writer, written in pending.items():
        await writer.commit()
        outcome.update(dict.fromkeys(written, True))
    expected = [r.value for r in await house.records("orders")]
    assert sorted(expected) == sorted(value for value, commit in outcome.items() if commit)  # type: ignore[type-var]
    late = await log_reader(house)
    assert await rest(late, 7) == expected
    late.close()
    for reader, found in seen.items():
        assert found + await rest(reader) == expected
        reader.close()


# -- queue views --------------------------------------------------------------------------------------------


async def writer_of(house: QueueHouse, producer_id: int = 7) -> Writer:
    return Writer(await house.topics.open(house.topics.get("orders"), 0), producer_id)


async def test_a_queue_delivers_what_is_committed(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create()
    writer, other = await writer_of(house), await writer_of(house, 8)
    await writer.write(b"a")
    await other.write(b"no")
    await house.publish(b"behind")
    assert await house.lease() == []
    waiting = asyncio.create_task(house.lease(1, wait_ms=10_000))
    await ticks()
    assert not waiting.done()
    await other.abort()
    await writer.commit()
    got = await waiting + await house.lease_all(1)
    assert values(got) == [b"a", b"behind"]
    await house.ack(got)
    assert await house.lease() == []
    counts = house.counts()
    assert (counts.pending, counts.processing) == (0, 0)


async def test_a_subscriber_of_a_queue_is_woken_by_the_end_of_a_transaction(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create()
    crowd = await house.subscribe(100, ack=True)
    writer = await writer_of(house)
    for number in range(5):
        await writer.write(b"%d" % number)
    await ticks()
    assert crowd.got == []
    await writer.commit()
    await crowd.has(5)
    await writer.write(b"never")
    await writer.abort()
    await writer.write(b"last")
    await writer.commit()
    await crowd.has(6)
    assert crowd.values == [b"0", b"1", b"2", b"3", b"4", b"last"]
    await until(lambda: house.counts().processing == 0 and house.counts().pending == 0)


async def test_a_queue_that_begins_at_the_end_gets_what_is_committed_later(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.topics.create("orders", 1, {})
    writer = await writer_of(house)
    await house.publish(b"before")
    await writer.write(b"a")
    await house.queues.create(ANONYMOUS, "orders", "queue", QueueSettings(), start="latest")
    await writer.commit()
    assert values(await house.lease_all(1)) == [b"a"]


async def test_a_restart_amid_a_transaction_forgets_nothing_that_was_settled(disk_queues: QueueHouse) -> None:
    house = disk_queues
    await house.create()
    await house.publish(b"a", b"b")
    await house.ack(await house.lease_all(2))
    writer = await writer_of(house)
    await writer.write(b"no")
    await writer.abort()
    await writer.write(b"c")
    await house.crash()
    assert await house.lease() == []
    await (await writer_of(house)).commit()
    got = await house.lease_all(1)
    assert values(got) == [b"c"]
    await house.ack(got)
    await house.restart()
    assert await house.lease() == []
    assert house.counts().pending == 0


async def test_what_was_settled_goes_with_its_markers(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.topics.create("orders", 1, {"cleanup.policy": "settled", "segment.bytes": "1024"})
    await house.create()
    writer = await writer_of(house)
    for number in range(10):
        await writer.write(b"x" * 300)
        await writer.end(number % 2 == 0)
    await writer.write(b"open")
    await house.ack(await house.lease_all(5))
    await house.queues.pause(ANONYMOUS, "orders", "queue", paused=False)  # recorded after what was settled before it
    partition = writer.partition
    keeper = Housekeeper(house.clock, 86_400_000)
    for _ in range(3):
        house.advance(5000)
        await ticks(200)
        await keeper.tidy(partition, house.clock.wall_ms())
    assert 10 < partition.start_offset <= 20
    await writer.commit()
    assert values(await house.lease_all(1)) == [b"open"]
