"""Reading message by message: everyone at the end shares what is opened, whoever is behind goes at its own pace."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_house import BrokerHouse
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker import tail
from penstock.broker.read import Match, Overflow, Reader, Start, Taken
from penstock.model.batch import check_batch, encode_batch
from penstock.model.errors import (
    NotAllowed,
    OffsetOutOfRange,
    SlowSubscriber,
    UnknownPartition,
    UnknownTopic,
)
from penstock.model.message import Outgoing
from penstock.model.record import Record
from penstock.security.acl import AllowAll, Operation, Resource
from penstock.security.principal import ANONYMOUS, Principal

SOON_MS = 20_000  # nothing here waits so long unless it hangs


@pytest.fixture(params=["memory", "disk"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerHouse]:
    opened = await BrokerHouse(request.param, tmp_path / "data").open()
    yield opened
    assert len(opened.readers.tails) == 0, "a reader was not closed"
    await opened.close()


async def take(reader: Reader, max_messages: int = 1000, max_bytes: int = 1 << 20, wait_ms: int = 0) -> Taken:
    return await asyncio.wait_for(reader.take(max_messages, max_bytes, wait_ms), 30)


def values(taken: Taken) -> list[bytes | None]:
    assert [m for part in taken.parts for m in part] == list(taken.messages)
    return [message.record.value for message in taken.messages]


async def rest(reader: Reader, **limits: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while (taken := await take(reader, **limits)).messages:
        found += values(taken)
    return found


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % i for i in range(start, stop)]


# -- the log view -----------------------------------------------------------------------------------------------


async def test_a_log_reader_gets_everything_from_where_it_begins(house: BrokerHouse) -> None:
    await house.publish("orders", *numbers(0, 5))
    house.clock.advance(1000)
    await house.publish("orders", *numbers(5, 9))
    for start, expected in (
        (None, numbers(0, 9)),
        (Start(earliest=False), []),
        (Start(offsets={0: 3}), numbers(3, 9)),
        (Start(timestamp_ms=house.clock.wall_ms() - 500), numbers(5, 9)),
        (Start(timestamp_ms=house.clock.wall_ms() + 500), []),
    ):
        reader = await house.readers.log(ANONYMOUS, "orders", start)
        assert await rest(reader) == expected
        assert reader.positions == {0: 9}
        reader.close()
    reader = await house.readers.log(ANONYMOUS, "orders", Start(earliest=False))
    await house.publish("orders", b"new")
    assert await rest(reader) == [b"new"]
    reader.close()


async def test_everything_of_a_message_comes_out(house: BrokerHouse) -> None:
    await house.send("orders", [Outgoing(b"k", b"v", (("h", b"x"),), 1234)])
    reader = await house.readers.log(ANONYMOUS, "orders")
    (message,) = (await take(reader)).messages
    assert message == ("orders", 0, Record(0, 1234, b"k", b"v", (("h", b"x"),)))
    reader.close()


async def test_limits_cut_anywhere_and_nothing_is_lost(house: BrokerHouse) -> None:
    for i in range(0, 60, 6):
        await house.publish("orders", *numbers(i, i + 6))
    for limits in ({"max_messages": 1}, {"max_messages": 7}, {"max_bytes": 1}, {"max_bytes": 200}):
        reader = await house.readers.log(ANONYMOUS, "orders", Start(offsets={0: 4}))
        assert await rest(reader, **limits) == numbers(4, 60)
        reader.close()


async def test_a_message_larger_than_asked_for_comes_alone(house: BrokerHouse) -> None:
    await house.publish("orders", b"a", b"x" * 5000, b"b")
    reader = await house.readers.log(ANONYMOUS, "orders")
    assert values(await take(reader, max_bytes=100)) == [b"a"]
    assert len((await take(reader, max_bytes=100)).messages) == 1
    taken = await take(reader, max_bytes=100)
    assert (values(taken), taken.positions) == ([b"b"], {0: 3})
    reader.close()


async def test_a_reader_waits_for_news_and_no_longer_than_it_wants(house: BrokerHouse) -> None:
    await house.create("orders")
    reader = await house.readers.log(ANONYMOUS, "orders")
    assert (await take(reader, wait_ms=1)).messages == []
    waiting = asyncio.create_task(take(reader, wait_ms=SOON_MS))
    await asyncio.sleep(0)
    await house.publish("orders", b"a")
    assert values(await waiting) == [b"a"]
    reader.close()


async def test_each_wait_has_its_own_length(house: BrokerHouse) -> None:
    await house.create("orders")
    reader, other = [await house.readers.log(ANONYMOUS, "orders", Start(earliest=False)) for _ in range(2)]
    for first_ms in (SOON_MS, 30):
        waiting = asyncio.create_task(take(reader, wait_ms=first_ms))
        await asyncio.sleep(0)
        await house.publish("orders", b"a")
        assert values(await waiting) == [b"a"]
    assert (await asyncio.wait_for(take(reader, wait_ms=5), SOON_MS / 2000)).messages == []
    waiting = asyncio.create_task(take(reader, wait_ms=SOON_MS))
    await rest(other)
    assert (await take(other, wait_ms=60)).messages == []  # meanwhile the short time of before is over
    assert not waiting.done()
    await house.publish("orders", b"b")
    assert values(await waiting) == [b"b"]
    reader.close()
    other.close()


async def test_a_position_that_is_gone_is_out_of_range(house: BrokerHouse) -> None:
    await house.publish("orders", *numbers(0, 10))
    reader = await house.readers.log(ANONYMOUS, "orders")
    assert values(await take(reader, max_messages=2)) == numbers(0, 2)
    await (await house.partition("orders")).trim(5)
    with pytest.raises(OffsetOutOfRange):
        await take(reader)
    beyond = await house.readers.log(ANONYMOUS, "orders", Start(offsets={0: 11}))
    with pytest.raises(OffsetOutOfRange):
        await take(beyond)
    reader.close()
    beyond.close()


async def test_a_deleted_topic_ends_its_readers(house: BrokerHouse) -> None:
    await house.publish("orders", b"a")
    log = await house.readers.log(ANONYMOUS, "orders")
    pubsub = await house.readers.pubsub(ANONYMOUS, "orders")
    waiting = asyncio.create_task(take(pubsub, wait_ms=SOON_MS))
    await asyncio.sleep(0)
    await house.administrator.delete_topic(ANONYMOUS, "orders")
    for reading in (waiting, take(log)):
        with pytest.raises(UnknownTopic):
            await reading
    with pytest.raises(UnknownTopic):
        await house.readers.log(ANONYMOUS, "orders")
    log.close()
    pubsub.close()


async def test_a_take_that_is_given_up_loses_nothing(house: BrokerHouse) -> None:
    await house.create("orders")
    reader = await house.readers.log(ANONYMOUS, "orders")
    waiting = asyncio.create_task(reader.take(10, 1000, SOON_MS))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=10)
    await house.publish("orders", b"a")
    assert values(await take(reader)) == [b"a"]
    reader.close()


async def test_rights_and_partitions_are_checked(tmp_path: Path) -> None:
    class NoReading(AllowAll):
        def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
            if operation is Operation.READ and name == "secret":
                raise NotAllowed("no")

    house = await BrokerHouse("memory", tmp_path, authorizer=NoReading()).open()
    await house.create("secret")
    await house.create("orders")
    for opening in (house.readers.log, house.readers.pubsub):
        with pytest.raises(NotAllowed):
            await opening(ANONYMOUS, "secret")
    with pytest.raises(UnknownPartition):
        await house.readers.log(ANONYMOUS, "orders", partitions=[1])
    assert len(house.readers.tails) == 0
    await house.close()


# -- several partitions -----------------------------------------------------------------------------------------


async def test_partitions_take_turns(house: BrokerHouse) -> None:
    await house.create("orders", 3)
    for partition in range(3):
        await house.send("orders", [Outgoing(None, b"%d" % partition, partition=partition) for _ in range(100)])
    reader = await house.readers.log(ANONYMOUS, "orders")
    first = [values(await take(reader, max_messages=10))[0] for _ in range(6)]
    assert first == [b"0", b"1", b"2"] * 2
    assert len(await rest(reader)) == 300 - 60
    reader.close()


async def test_only_the_wanted_partitions_are_read(house: BrokerHouse) -> None:
    await house.create("orders", 3)
    reader = await house.readers.log(ANONYMOUS, "orders", Start(offsets={2: 1}), partitions=[2, 0])
    for partition in range(3):
        await house.send("orders", [Outgoing(None, b"%d" % partition, partition=partition) for _ in range(2)])
    taken = await take(reader)
    assert sorted(values(taken)) == [b"0", b"0", b"2"]
    assert taken.positions == {0: 2, 2: 2}
    reader.close()


async def test_new_partitions_are_read_too(house: BrokerHouse) -> None:
    await house.create("orders")
    readers = [await house.readers.log(ANONYMOUS, "orders"), await house.readers.pubsub(ANONYMOUS, "orders")]
    await house.topics.add_partitions("orders", 3)
    await house.send("orders", [Outgoing(None, b"a", partition=2)])
    for reader in readers:
        assert values(await take(reader, wait_ms=SOON_MS)) == [b"a"]
        reader.close()


# -- the pub/sub view -------------------------------------------------------------------------------------------


async def test_a_subscriber_hears_what_comes_while_it_is_there(house: BrokerHouse) -> None:
    await house.publish("orders", b"before")
    reader = await house.readers.pubsub(ANONYMOUS, "orders")
    await house.publish("orders", b"a", b"b")
    taken = await take(reader)
    assert (values(taken), taken.gap) == ([b"a", b"b"], 0)
    reader.close()


async def test_a_slow_subscriber_misses_the_oldest_and_is_told_how_many(house: BrokerHouse) -> None:
    await house.create("orders")
    slow = await house.readers.pubsub(ANONYMOUS, "orders", max_behind=10)
    quick = await house.readers.pubsub(ANONYMOUS, "orders", max_behind=10)
    heard: list[bytes | None] = []
    for i in range(30):
        await house.publish("orders", b"%d" % i)
        heard += values(await take(quick))
    assert heard == numbers(0, 30)
    taken = await take(slow)
    assert (taken.gap, values(taken)[0]) == (20, b"20")
    assert values(taken) + await rest(slow) == numbers(20, 30)
    assert (await take(slow)).gap == 0
    slow.close()
    quick.close()


async def test_a_subscriber_may_rather_be_ended(house: BrokerHouse) -> None:
    await house.create("orders")
    reader = await house.readers.pubsub(ANONYMOUS, "orders", max_behind=10, overflow=Overflow.DISCONNECT)
    await house.publish("orders", *numbers(0, 10))
    assert values(await take(reader)) == numbers(0, 10)
    await house.publish("orders", *numbers(0, 11))
    for _ in range(2):
        with pytest.raises(SlowSubscriber):
            await take(reader)
    reader.close()


async def test_what_retention_takes_from_a_subscriber_is_a_gap(house: BrokerHouse) -> None:
    await house.create("orders")
    reader = await house.readers.pubsub(ANONYMOUS, "orders")
    await house.publish("orders", *numbers(0, 10))
    await (await house.partition("orders")).trim(4)
    taken = await take(reader)
    assert (taken.gap, values(taken)) == (4, numbers(4, 10))
    reader.close()


# -- filters ----------------------------------------------------------------------------------------------------


async def test_a_filter_lets_through_what_matches_and_passes_over_the_rest(house: BrokerHouse) -> None:
    await house.send("orders", [Outgoing(b"eu" if i % 3 == 0 else b"us", b"%d" % i) for i in range(30)])
    reader = await house.readers.log(ANONYMOUS, "orders", matches=[Match(key="eu")])
    assert values(await take(reader, max_messages=4)) == [b"0", b"3", b"6", b"9"]
    assert values(await take(reader, max_bytes=1)) == [b"12"]
    assert await rest(reader) == [b"15", b"18", b"21", b"24", b"27"]
    assert reader.positions == {0: 30}
    waiting = asyncio.create_task(take(reader, wait_ms=SOON_MS))
    await asyncio.sleep(0)
    await house.send("orders", [Outgoing(b"us", b"not")])
    await house.send("orders", [Outgoing(b"eu", b"yes")])
    assert values(await waiting) == [b"yes"]
    await house.send("orders", [Outgoing(b"us", b"not")])
    taken = await take(reader, wait_ms=1)
    assert (values(taken), taken.positions) == ([], {0: 33})
    reader.close()


# -- many at the end --------------------------------------------------------------------------------------------


async def test_readers_at_the_end_share_what_is_opened(house: BrokerHouse) -> None:
    await house.create("orders")
    readers = [await house.readers.pubsub(ANONYMOUS, "orders") for _ in range(150)]
    readers += [await house.readers.log(ANONYMOUS, "orders") for _ in range(150)]
    made: list[int] = []

    def form(part: tail.Messages) -> bytes:
        made.append(len(part))
        return b"|".join(message.record.value or b"" for message in part)

    for round_ in range(3):
        waiting = [asyncio.create_task(take(reader, wait_ms=SOON_MS)) for reader in readers]
        await asyncio.sleep(0)
        await house.publish("orders", *numbers(round_, round_ + 3))
        taken = await asyncio.gather(*waiting)
        assert all(t.messages is taken[0].messages for t in taken)
        assert {t.parts[0].formed("joined", form) for t in taken} == {b"|".join(numbers(round_, round_ + 3))}
    assert made == [3, 3, 3]
    for reader in readers:
        reader.close()


async def test_readers_that_cut_alike_share_the_pieces(house: BrokerHouse) -> None:
    await house.create("orders")
    readers = [await house.readers.log(ANONYMOUS, "orders") for _ in range(20)]
    await house.publish("orders", *numbers(0, 100))
    for limits in ({"max_messages": 30}, {"max_messages": 30}, {"max_bytes": 400}):
        taken = [await take(reader, **limits) for reader in readers]
        assert all(t.messages is taken[0].messages for t in taken)
        assert 0 < len(taken[0].messages) <= 30
    assert [await rest(reader) for reader in readers] == [numbers(60 + len(taken[0].messages), 100)] * 20
    for reader in readers:
        reader.close()


async def test_the_ring_is_bounded_and_who_falls_out_of_it_reads_alone(
    house: BrokerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "TAIL_BYTES", 4000)
    monkeypatch.setattr(tail, "MIN_TAIL_BYTES", 4000)
    await house.create("orders")
    quick = await house.readers.log(ANONYMOUS, "orders")
    slow = await house.readers.log(ANONYMOUS, "orders")
    for i in range(100):
        await house.publish("orders", b"%d" % i)
        assert values(await take(quick)) == [b"%d" % i]
    ring = quick._slots[0].tail
    assert sum(opened.memory_bytes for opened in ring._ring) <= 4000
    assert await rest(slow) == numbers(0, 100)
    quick.close()
    slow.close()


async def test_a_reader_that_leaves_wakes_and_frees(house: BrokerHouse) -> None:
    await house.create("orders")
    reader = await house.readers.log(ANONYMOUS, "orders")
    waiting = asyncio.create_task(take(reader, wait_ms=SOON_MS))
    await asyncio.sleep(0)
    reader.close()
    reader.close()
    assert (await waiting).messages == []
    partition = await house.partition("orders")
    assert partition._watchers is None


async def test_a_stopping_server_lets_nobody_wait(house: BrokerHouse) -> None:
    await house.publish("orders", b"a")
    reader = await house.readers.log(ANONYMOUS, "orders", Start(earliest=False))
    waiting = asyncio.create_task(take(reader, wait_ms=SOON_MS))
    await asyncio.sleep(0)
    house.readers.release()
    assert (await waiting).messages == []
    assert (await take(reader, wait_ms=SOON_MS)).messages == []
    reader.close()


async def test_what_is_no_batch_of_records_is_a_gap(house: BrokerHouse) -> None:
    await house.create("orders")
    partition = await house.partition("orders")
    await house.publish("orders", b"a")
    rubbish = encode_batch([Record(i, 0, None, b"\xff" * 20) for i in range(3)])
    rubbish[61:] = b"\xff" * (len(rubbish) - 61)
    from crc32c import crc32c

    rubbish[17:21] = crc32c(bytes(rubbish[21:])).to_bytes(4, "big")
    await partition.append(check_batch(rubbish), rubbish).durable
    await house.publish("orders", b"b")
    reader = await house.readers.log(ANONYMOUS, "orders")
    taken = await take(reader)
    assert (values(taken), taken.gap) == ([b"a", b"b"], 3)
    reader.close()


# -- whatever the pace ------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 8), st.integers(0, 2)),
        st.tuples(st.just("take"), st.integers(1, 6), st.integers(1, 300)),
        st.tuples(st.just("other"), st.integers(1, 6), st.integers(1, 300)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, ring_bytes=st.sampled_from([400, 3000, 1 << 20]))
async def test_a_log_reader_misses_nothing_whatever_the_pace(steps, ring_bytes: int) -> None:
    house = await BrokerHouse("memory", Path()).open()
    await house.create("orders", 3)
    readers = {
        "take": await house.readers.log(ANONYMOUS, "orders"),
        "other": await house.readers.pubsub(ANONYMOUS, "orders"),
    }
    for reader in readers.values():
        for slot in reader._slots:
            slot.tail._budget = lambda: ring_bytes
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    got: dict[str, dict[int, list[bytes | None]]] = {name: {0: [], 1: [], 2: []} for name in readers}
    number = 0
    for action, count, extra in steps + [("take", 1000, 1 << 20), ("other", 1000, 1 << 20)] * 10:
        if action == "publish":
            new = [b"%d" % (number + i) for i in range(count)]
            number += count
            sent[extra] += new
            await house.send("orders", [Outgoing(None, value, partition=extra) for value in new])
        else:
            taken = await take(readers[action], max_messages=count, max_bytes=extra)
            assert len(taken.messages) <= count
            for message in taken.messages:
                got[action][message.partition].append(message.record.value)
            for index, position in taken.positions.items():
                assert readers[action].positions[index] == position
    assert got["take"] == got["other"] == sent
    for reader in readers.values():
        reader.close()
    await house.close()
