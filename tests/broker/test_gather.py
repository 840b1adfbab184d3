"""Publishing message by message: one batch per partition and tick, and a bad message harms its own call only."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_house import BrokerHouse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker.gather import Acks
from penstock.model.errors import (
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    NotAllowed,
    OutOfOrderSequence,
    RecordTooLarge,
    StorageFailed,
    StorageFull,
    UnknownPartition,
    UnknownTopic,
)
from penstock.model.message import Outgoing
from penstock.model.partitioner import partition_for_key
from penstock.security.acl import AllowAll, Operation, Resource
from penstock.security.principal import ANONYMOUS, Principal
from penstock.testing.files import FaultyFiles


@pytest.fixture(params=["memory", "disk"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerHouse]:
    opened = await BrokerHouse(request.param, tmp_path / "data").open()
    yield opened
    await opened.close()


def said(*values: bytes) -> list[Outgoing]:
    return [Outgoing(None, value) for value in values]


async def test_what_comes_in_one_tick_becomes_one_batch(house: BrokerHouse) -> None:
    target = await house.gatherer.target(ANONYMOUS, "orders")
    futures = [target.publish(said(b"%d" % i)) for i in range(500)]
    placed = [await future for future in futures]
    assert placed == [[(0, i)] for i in range(500)]
    assert await house.batches("orders") == 1
    assert await house.values("orders") == [b"%d" % i for i in range(500)]


async def test_everything_of_a_message_is_kept(house: BrokerHouse) -> None:
    headers = (("trace", b"\x00\x01"), ("none", None), ("ключ", b"x"))
    await house.send("orders", [Outgoing(b"k", b"v", headers, 1234), Outgoing(b"", None), Outgoing(None, b"")])
    first, second, third = await house.records("orders")
    assert (first.key, first.value, first.headers, first.timestamp_ms) == (b"k", b"v", headers, 1234)
    assert (second.key, second.value, second.timestamp_ms) == (b"", None, house.clock.wall_ms())
    assert (third.key, third.value, third.headers) == (None, b"", ())


async def test_keys_choose_partitions_as_other_clients_do_and_the_rest_keeps_together(house: BrokerHouse) -> None:
    await house.create("orders", 4)
    keys = [b"key %d" % i for i in range(40)]
    placed = await house.send("orders", [Outgoing(key, b"x") for key in keys])
    assert [p for p, _ in placed] == [partition_for_key(key, 4) for key in keys]
    without = [(await house.publish("orders", b"a", b"b", b"c")) for _ in range(60)]
    assert all(len({p for p, _ in places}) == 1 for places in without)
    assert {places[0][0] for places in without} == {0, 1, 2, 3}
    assert (await house.send("orders", [Outgoing(b"key 1", b"x", partition=3)]))[0][0] == 3


async def test_a_partition_that_is_not_there_is_refused(house: BrokerHouse) -> None:
    for index in (1, 7):
        with pytest.raises(UnknownPartition):
            await house.send("orders", [Outgoing(None, b"x"), Outgoing(None, b"x", partition=index)])
    assert await house.values("orders") == []


async def test_a_batch_ends_where_the_topic_says(house: BrokerHouse) -> None:
    await house.create("orders", max_message_bytes="1000")
    target = await house.gatherer.target(ANONYMOUS, "orders")
    many = target.publish(said(*[b"%04d" % i * 25 for i in range(50)]))
    one = target.publish(said(b"after"))
    assert [p.offset for p in await many] == list(range(50))
    assert await one == [(0, 50)]
    assert await house.batches("orders") > 5
    assert await house.values("orders") == [b"%04d" % i * 25 for i in range(50)] + [b"after"]


async def test_a_message_too_large_is_refused_and_one_that_just_fits_is_not(house: BrokerHouse) -> None:
    await house.create("orders", max_message_bytes="1000")
    target = await house.gatherer.target(ANONYMOUS, "orders")
    before, large, after = [target.publish(said(*values)) for values in ([b"a"], [b"b", b"x" * 1000], [b"c"])]
    fits = target.publish(said(b"y" * (1000 - 61 - 9)))
    assert (await before, await after, await fits) == ([(0, 0)], [(0, 1)], [(0, 2)])
    with pytest.raises(RecordTooLarge):
        await large
    with pytest.raises(RecordTooLarge):
        await target.publish(said(b"y" * (1000 - 61 - 8)))
    assert (await house.values("orders"))[:2] == [b"a", b"c"]


async def test_batches_stay_handy_where_the_topic_takes_large_ones(house: BrokerHouse) -> None:
    await house.create("orders", max_message_bytes=str(64 << 20))
    target = await house.gatherer.target(ANONYMOUS, "orders")
    futures = [target.publish(said(*[b"x" * 300_000] * 10)), target.publish(said(b"y" * 5_000_000, b"z"))]
    assert [[p.offset for p in await future] for future in futures] == [list(range(10)), [10, 11]]
    assert await house.batches("orders") == 6
    assert [len(value or b"") for value in await house.values("orders")] == [300_000] * 10 + [5_000_000, 1]


async def test_a_compacted_topic_refuses_what_has_no_key(house: BrokerHouse) -> None:
    await house.create("orders", cleanup_policy="compact")
    target = await house.gatherer.target(ANONYMOUS, "orders")
    good = target.publish([Outgoing(b"k", b"v")])
    bad = target.publish([Outgoing(b"k", b"w"), Outgoing(None, b"x")])
    assert await good == [(0, 0)]
    with pytest.raises(InvalidRecord):
        await bad
    assert await house.values("orders") == [b"v"]


async def test_times_out_of_bounds_are_refused(house: BrokerHouse) -> None:
    await house.create("orders", message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="1000")
    now_ms = house.clock.wall_ms()
    target = await house.gatherer.target(ANONYMOUS, "orders")
    futures = [target.publish([Outgoing(None, b"x", (), now_ms + d)]) for d in (-2000, -500, 500, 2000)]
    for at, future in enumerate(futures):
        if at in (0, 3):
            with pytest.raises(InvalidTimestamp):
                await future
        else:
            await future
    assert [r.timestamp_ms - now_ms for r in await house.records("orders")] == [-500, 500]


async def test_the_topics_time_and_compression_are_obeyed(house: BrokerHouse) -> None:
    await house.create("orders", message_timestamp_type="LogAppendTime", compression_type="zstd")
    await house.send("orders", [Outgoing(None, b"x" * 500, (), 77), Outgoing(None, b"x" * 500)])
    assert [r.timestamp_ms for r in await house.records("orders")] == [house.clock.wall_ms()] * 2
    partition = await house.partition("orders")
    assert (await partition.read(0, 1 << 20)).size_bytes < 500


async def test_what_is_no_message_fails_alone(house: BrokerHouse) -> None:
    target = await house.gatherer.target(ANONYMOUS, "orders")
    good = [target.publish(said(b"a"))]
    bad = [target.publish([Outgoing(None, b"x", ((name, b""),))]) for name in ("\ud800", 7)]  # type: ignore[list-item]
    bad.append(target.publish([Outgoing(None, b"x", (("h", "text"),))]))  # type: ignore[arg-type]
    good.append(target.publish(said(b"b")))
    for future in bad:
        with pytest.raises(InvalidRecord):
            await future
    assert [(await f)[0].offset for f in good] == [0, 1]
    assert await house.values("orders") == [b"a", b"b"]


async def test_nothing_to_publish_is_done_at_once(house: BrokerHouse) -> None:
    target = await house.gatherer.target(ANONYMOUS, "orders")
    assert await target.publish([]) == []


async def test_who_gives_up_waiting_takes_nothing_back(house: BrokerHouse) -> None:
    target = await house.gatherer.target(ANONYMOUS, "orders")

    async def wait() -> None:
        await target.publish(said(b"a"))

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    other = target.publish(said(b"b"))
    waiting.cancel()
    assert await other == [(0, 1)]
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await house.values("orders") == [b"a", b"b"]


async def test_flushing_needs_no_tick(house: BrokerHouse) -> None:
    target = await house.gatherer.target(ANONYMOUS, "orders")
    one = target.publish(said(b"a"))
    house.gatherer.flush()
    assert (await house.partition("orders")).end_offset == 1
    two = target.publish(said(b"b"))
    assert (await one, await two) == ([(0, 0)], [(0, 1)])


# -- topics come and go -----------------------------------------------------------------------------------------


async def test_a_topic_deleted_between_publish_and_tick_is_unknown(house: BrokerHouse) -> None:
    target = await house.gatherer.target(ANONYMOUS, "orders")
    await target.publish(said(b"a"))
    deleting = asyncio.create_task(house.topics.delete("orders"))
    while (gone := house.topics.by_name.get("orders")) is not None:
        future = target.publish(said(b"b"))
        assert gone is target.topic
        await asyncio.wait([future], timeout=10)
        future.exception()
    with pytest.raises(UnknownTopic):
        await target.publish(said(b"c"))
    await deleting
    again = await house.gatherer.target(ANONYMOUS, "orders")
    assert await again.publish(said(b"new")) == [(0, 0)]
    with pytest.raises(UnknownTopic):
        await target.publish(said(b"c"))


async def test_new_partitions_are_used_once_they_are_open(house: BrokerHouse) -> None:
    target = await house.gatherer.target(ANONYMOUS, "orders")
    await house.topics.add_partitions("orders", 3)
    key = next(b"%d" % i for i in range(100) if partition_for_key(b"%d" % i, 3) == 2)
    for _ in range(1000):
        placed = await target.publish([Outgoing(key, b"x")])
        if placed[0].partition == 2:
            break
        await asyncio.sleep(0)
    assert placed == [(2, 0)]


async def test_rights_are_asked_for(tmp_path: Path) -> None:
    class NoWriting(AllowAll):
        def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
            if operation is Operation.WRITE and name == "secret":
                raise NotAllowed("no")

    house = await BrokerHouse("memory", tmp_path, authorizer=NoWriting()).open()
    with pytest.raises(NotAllowed):
        await house.gatherer.target(ANONYMOUS, "secret")
    with pytest.raises(UnknownTopic):
        await house.gatherer.target(ANONYMOUS, "__penstock_new")
    with pytest.raises(NotAllowed):
        await house.gatherer.target(ANONYMOUS, "__penstock_catalogue")
    await house.close()


# -- without acknowledgement ------------------------------------------------------------------------------------


async def test_without_acks_nobody_waits_and_losses_are_counted(house: BrokerHouse) -> None:
    target = await house.gatherer.target(ANONYMOUS, "orders")
    future = target.publish(said(b"a", b"b"), acks=Acks.NONE)
    assert future.done()
    assert [p.offset for p in future.result()] == [-1, -1]
    too_large = target.publish(said(b"x" * 2_000_000), acks=Acks.NONE)
    assert [p.offset for p in too_large.result()] == [-1]
    assert await target.publish(said(b"c")) == [(0, 2)]
    assert house.gatherer.losses.messages == 1
    assert await house.values("orders") == [b"a", b"b", b"c"]


# -- producers with a name --------------------------------------------------------------------------------------


async def test_a_repeated_publish_is_stored_once(house: BrokerHouse) -> None:
    first = await house.publish("orders", b"a", b"b", producer="till", sequence=10)
    assert first == [(0, 0), (0, 1)]
    assert await house.publish("orders", b"a", b"b", producer="till", sequence=10) == first
    assert await house.publish("orders", b"c", producer="till", sequence=500) == [(0, 2)]
    assert await house.publish("orders", b"a", producer="other", sequence=10) == [(0, 3)]
    assert await house.values("orders") == [b"a", b"b", b"c", b"a"]


async def test_a_repeat_in_the_same_tick_is_one_too(house: BrokerHouse) -> None:
    target = await house.gatherer.target(ANONYMOUS, "orders")
    calls = [target.publish(said(b"x"), producer=f"key {i % 3}") for i in range(9)]
    other = target.publish(said(b"y"))
    assert [(await call)[0].offset for call in calls] == [0, 1, 2] * 3
    assert await other == [(0, 3)]
    assert await house.values("orders") == [b"x", b"x", b"x", b"y"]


async def test_named_and_other_messages_keep_the_order_of_the_calls(house: BrokerHouse) -> None:
    target = await house.gatherer.target(ANONYMOUS, "orders")
    calls = [target.publish(said(b"%d" % i), producer="till" if i % 3 == 1 else None, sequence=i) for i in range(9)]
    assert [(await call)[0].offset for call in calls] == list(range(9))
    assert await house.values("orders") == [b"%d" % i for i in range(9)]


async def test_a_repeat_cut_differently_stores_what_is_missing(house: BrokerHouse) -> None:
    assert [o for _, o in await house.publish("orders", b"5", b"6", producer="till", sequence=5)] == [0, 1]
    assert [o for _, o in await house.publish("orders", b"6", b"7", b"8", producer="till", sequence=6)] == [-1, 2, 3]
    assert [o for _, o in await house.publish("orders", b"5", producer="till", sequence=5)] == [-1]
    assert await house.values("orders") == [b"5", b"6", b"7", b"8"]


async def test_keyed_messages_of_a_name_are_repeated_partition_by_partition(house: BrokerHouse) -> None:
    await house.create("orders", 3)
    messages = [Outgoing(b"key %d" % i, b"%d" % i) for i in range(30)]
    first = await house.send("orders", messages, producer="till", sequence=0)
    assert await house.send("orders", messages, producer="till", sequence=0) == first
    # Cut differently, offsets are unknown but nothing is stored twice.
    again = await house.send("orders", messages[10:] + messages[:2], producer="till", sequence=10)
    assert all(offset == -1 for _, offset in again[:20])
    stored = [v for p in range(3) for v in await house.values("orders", p)]
    assert sorted(stored) == sorted([b"%d" % i for i in range(30)] + [b"0", b"1"])


async def test_without_keys_a_name_has_one_partition(house: BrokerHouse) -> None:
    await house.create("orders", 8)
    placed = [(await house.publish("orders", b"x", producer="till", sequence=i))[0] for i in range(20)]
    assert len({p for p, _ in placed}) == 1
    names = {(await house.publish("orders", b"x", producer=f"key {i}"))[0][0] for i in range(100)}
    assert names == set(range(8))


async def test_a_sequence_out_of_range_is_refused(house: BrokerHouse) -> None:
    for sequence in (-1, 1 << 46):
        with pytest.raises(InvalidRequest):
            await house.publish("orders", b"x", producer="till", sequence=sequence)


@pytest.mark.parametrize("clean", [True, False])
async def test_an_idempotency_key_outlives_the_server(tmp_path: Path, clean: bool) -> None:
    house = await BrokerHouse("disk", tmp_path / "data").open()
    assert await house.publish("orders", b"a", producer="key 1") == [(0, 0)]
    await (house.close() if clean else house.crash())
    await house.open()
    assert await house.publish("orders", b"a", producer="key 1") == [(0, 0)]
    assert await house.publish("orders", b"a", producer="key 2") == [(0, 1)]
    await house.close()


# -- when the disk says no --------------------------------------------------------------------------------------


async def test_a_failed_write_is_told_to_all_and_tried_again_as_if_new(tmp_path: Path) -> None:
    files = FaultyFiles()
    house = await BrokerHouse("disk", tmp_path / "data", files=files).open()
    target = await house.gatherer.target(ANONYMOUS, "orders")
    await target.publish(said(b"0"), producer="till", sequence=0)
    files.free_bytes = 10
    futures = [target.publish(said(b"1"), producer="till", sequence=1), target.publish(said(b"x"))]
    lost = target.publish(said(b"unheard"), acks=Acks.NONE)
    for future in futures:
        with pytest.raises(StorageFull):
            await future
    assert lost.done() and house.gatherer.losses.messages == 1
    # What was sent before the failure was known must not overtake what failed: its repeat would look stored.
    files.free_bytes = None
    with pytest.raises(OutOfOrderSequence):
        await target.publish(said(b"2"), producer="till", sequence=2)
    for number in (1, 2, 1):
        await target.publish(said(b"%d" % number), producer="till", sequence=number)
    assert await house.values("orders") == [b"0", b"1", b"2"]
    files.heal()
    await house.close()


async def test_a_closed_engine_fails_what_comes_late(house: BrokerHouse) -> None:
    target = await house.gatherer.target(ANONYMOUS, "orders")
    await house.engine.close()
    with pytest.raises(StorageFailed):
        await target.publish(said(b"a"))
    await house.open()


# -- whatever the interleaving ----------------------------------------------------------------------------------

CALLS = st.lists(
    st.tuples(
        st.integers(0, 3),  # who
        st.lists(st.tuples(st.sampled_from([None, b"a", b"b", b"c", b"d"]), st.integers(0, 400)), max_size=6),
        st.sampled_from(["join", "tick", "flush"]),
        st.booleans(),  # under a name, repeated once
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=CALLS, partitions=st.integers(1, 3))
async def test_every_message_is_stored_once_in_order_where_its_answer_says(calls, partitions: int) -> None:
    house = await BrokerHouse("memory", Path()).open()
    await house.create("orders", partitions, max_message_bytes="1000")
    target = await house.gatherer.target(ANONYMOUS, "orders")
    sent: list[bytes | None] = []
    waiting: list[tuple[list[Outgoing], list[asyncio.Future]]] = []
    number = 0
    for who, parts, then, named in calls:
        messages, first = [], number
        for key, size in parts:
            messages.append(Outgoing(key, b"%d:%d:" % (who, number) + b"x" * size))
            number += 1
        options = {"producer": f"p{who}", "sequence": first} if named else {}
        waiting.append((messages, [target.publish(messages, **options) for _ in range(1 + named)]))
        sent += [message.value for message in messages]
        if then == "tick":
            await asyncio.sleep(0)
        elif then == "flush":
            house.gatherer.flush()
    records = {}
    answers = [(messages, [await future for future in futures]) for messages, futures in waiting]
    for p in range(partitions):
        records.update({(p, r.offset): r for r in await house.records("orders", p)})
    assert sorted(r.value for r in records.values()) == sorted(sent)
    for messages, replies in answers:
        assert all(reply == replies[0] for reply in replies)
        for message, place in zip(messages, replies[0], strict=True):
            assert (records[place].key, records[place].value) == (message.key, message.value)
            if message.key is not None:
                assert place.partition == partition_for_key(message.key, partitions)
    for p in range(partitions):
        for who in range(4):
            mine = [r.value for (at, _), r in sorted(records.items()) if at == p and r.value.startswith(b"%d:" % who)]
            assert mine == sorted(mine, key=lambda value: int(value.split(b":")[1]))
    await house.close()
