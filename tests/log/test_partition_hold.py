"""A stable end that is held: what ends in several partitions is shown in all of them at once."""

from log_house import batch_of, put
from transactional_log import committed, end, send

from penstock.log.partition import Partition


async def opened(house) -> Partition:
    return await house.topics.open(await house.topics.create("orders", 1, {}), 0)


async def test_what_is_durable_is_shown_when_the_last_one_lets_go(house) -> None:
    partition = await opened(house)
    told: list[int] = []
    partition.watch(lambda _, new_bytes: told.append(new_bytes), stable=True)
    await send(partition, (7, 0, 0), b"a")
    assert partition.hold("one", 7)
    assert partition.hold("other", 7)
    await end(partition, 7, 0, commit=True)
    await put(partition, batch_of(b"plain"))
    assert (partition.durable_end, partition.stable_end) == (3, 0)
    assert await committed(partition) == []
    assert partition.let_go("one") == 0
    assert (partition.stable_end, told) == (0, [])
    freed = partition.let_go("other")
    assert partition.stable_end == 3
    assert told == []
    partition.tell_stable(freed)
    assert told == [freed]
    assert freed > 0
    assert await committed(partition) == [b"a", b"plain"]
    await put(partition, batch_of(b"more"))
    assert (partition.stable_end, len(told)) == (4, 2)


async def test_nothing_is_held_where_nothing_is_open(house) -> None:
    partition = await opened(house)
    await put(partition, batch_of(b"a"))
    assert not partition.hold("one", 7)
    await put(partition, batch_of(b"b"))
    assert partition.stable_end == 2
    assert partition.let_go("one") == 0


async def test_what_lies_before_the_held_transaction_is_shown(house) -> None:
    partition = await opened(house)
    await send(partition, (7, 0, 0), b"first")
    await send(partition, (8, 0, 0), b"second")
    partition.hold("second", 8)
    await end(partition, 8, 0, commit=True)
    assert partition.stable_end == 0
    await end(partition, 7, 0, commit=False)
    assert partition.stable_end == 1  # where the second begins
    await partition.trim(2)
    assert partition.stable_end == 2
    partition.let_go("second")
    assert partition.stable_end == partition.durable_end == 4


async def test_a_holder_of_several_keeps_the_first(house) -> None:
    partition = await opened(house)
    await send(partition, (7, 0, 0), b"a")
    await send(partition, (8, 0, 0), b"b")
    partition.hold("both", 8)
    partition.hold("both", 7)
    await end(partition, 8, 0, commit=True)
    await end(partition, 7, 0, commit=True)
    assert partition.stable_end == 0
    partition.let_go("both")
    assert await committed(partition) == [b"a", b"b"]


async def test_holders_that_follow_one_another_hold_up_nobody_for_ever(house) -> None:
    """At every moment somebody commits, and what was committed before is seen all the same."""
    partition = await opened(house)
    await send(partition, (100, 0, 0), b"0")
    partition.hold(100, 100)
    for number in range(1, 20):
        await send(partition, (100 + number, 0, 0), b"%d" % number)
        partition.hold(100 + number, 100 + number)
        await end(partition, 99 + number, 0, commit=True)
        partition.let_go(99 + number)
        assert await committed(partition) == [b"%d" % seen for seen in range(number)]


async def test_an_open_transaction_stays_hidden_when_it_is_let_go(house) -> None:
    partition = await opened(house)
    await send(partition, (6, 0, 0), b"a")
    partition.hold("one", 6)
    await end(partition, 6, 0, commit=True)
    await send(partition, (7, 0, 0), b"open")
    partition.let_go("one")
    assert partition.stable_end == 2
    await end(partition, 7, 0, commit=False)
    assert partition.stable_end == 4
    assert await committed(partition) == [b"a"]
