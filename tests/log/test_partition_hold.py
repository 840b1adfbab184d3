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
    partition.hold()
    partition.hold()
    await end(partition, 7, 0, commit=True)
    await put(partition, batch_of(b"plain"))
    assert (partition.durable_end, partition.stable_end) == (3, 0)
    assert await committed(partition) == []
    partition.let_go()
    assert (partition.stable_end, told) == (0, [])
    partition.let_go()
    assert (partition.stable_end, len(told)) == (3, 1)
    assert told[0] > 0
    assert await committed(partition) == [b"a", b"plain"]
    await put(partition, batch_of(b"more"))
    assert (partition.stable_end, len(told)) == (4, 2)


async def test_without_transactions_it_holds_too(house) -> None:
    partition = await opened(house)
    await put(partition, batch_of(b"a"))
    partition.hold()
    await put(partition, batch_of(b"b"))
    assert (partition.durable_end, partition.stable_end) == (2, 1)
    await partition.trim(2)
    assert partition.stable_end == 2
    partition.let_go()
    assert partition.stable_end == 2


async def test_an_open_transaction_stays_hidden_when_it_is_let_go(house) -> None:
    partition = await opened(house)
    partition.hold()
    await put(partition, batch_of(b"a"))
    await send(partition, (7, 0, 0), b"open")
    partition.let_go()
    assert partition.stable_end == 1
    await end(partition, 7, 0, commit=False)
    assert partition.stable_end == 3
    assert await committed(partition) == [b"a"]
