"""Reading through the Python client: the log at one's own pace, and pub/sub for whoever is here."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

import penstock
from penstock.testing.proxy import Proxy
from penstock.testing.server import Server
from penstock.wire.native.messages import Commit, Fetch, ListOffsets, SubscribeLog
from servers import StartServer

WAIT_S = 30.0


@pytest.fixture
async def client(server: Server) -> AsyncIterator[penstock.Client]:
    async with penstock.Client(server.line) as connected:
        yield connected


async def read(subscription: penstock.LogSubscription | penstock.PubSubSubscription, count: int) -> list[str]:
    """So many messages, and not one more."""
    texts: list[str] = []
    while len(texts) < count:
        batch = await subscription.take(count - len(texts), timeout_s=WAIT_S)
        assert batch, f"only {len(texts)} of {count} came"
        texts += [message.text for message in batch]
    return texts


def numbers(*bounds: int) -> list[str]:
    return [str(number) for number in range(*bounds)]


# -- the log ------------------------------------------------------------------------------------------------


async def test_a_log_is_read_from_the_beginning_and_then_as_it_grows(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(100))
    came = []
    async for message in client.subscribe(topic):
        came.append((message.offset, message.text))
        if len(came) == 100:
            await client.publish_many(topic, numbers(100, 200))
        if len(came) == 200:
            break
    assert came == [(number, str(number)) for number in range(200)]


async def test_batches_are_what_is_there_and_no_more_than_asked_for(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(1_000))
    sizes, came = [], []
    async with client.subscribe(topic) as subscription:
        async for batch in subscription.batches(max_messages=64):
            sizes.append(len(batch))
            came += [message.text for message in batch]
            if len(came) == 1_000:
                break
    assert came == numbers(1_000)
    assert max(sizes) == 64


async def test_the_latest_is_what_comes_from_now_on(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(10))
    async with client.subscribe(topic, start="latest") as subscription:
        await client.publish_many(topic, numbers(10, 20))
        assert await read(subscription, 10) == numbers(10, 20)


async def test_a_log_begins_at_an_offset_or_at_a_time(client: penstock.Client, topic: str) -> None:
    for number in range(10):
        await client.publish(topic, str(number), timestamp_ms=1_700_000_000_000 + number * 1_000)
    async with client.subscribe(topic, start={0: 7}) as subscription:
        assert await read(subscription, 3) == ["7", "8", "9"]
    moment = datetime.fromtimestamp(1_700_000_004, UTC)
    async with client.subscribe(topic, start=moment) as subscription:
        assert await read(subscription, 6) == numbers(4, 10)


async def test_an_offset_in_the_middle_of_a_batch_is_exact(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(500))  # one batch
    async with client.subscribe(topic, start={0: 123}) as subscription:
        assert await read(subscription, 377) == numbers(123, 500)


async def test_partitions_may_be_chosen(client: penstock.Client, topic: str) -> None:
    await client.create_topic(topic, partitions=3)
    for partition in range(3):
        await client.publish_many(topic, [penstock.Outgoing(str(number), partition=partition) for number in range(50)])
    async with client.subscribe(topic, partitions=[2]) as subscription:
        assert await read(subscription, 50) == numbers(50)
        assert subscription.positions == {2: 50}
    async with client.subscribe(topic) as subscription:
        came: dict[int, list[str]] = {}
        while sum(map(len, came.values())) < 150:
            for message in await subscription.take(timeout_s=WAIT_S):
                came.setdefault(message.partition, []).append(message.text)
    assert came == {0: numbers(50), 1: numbers(50), 2: numbers(50)}


async def test_a_filter_is_applied_by_the_server(client: penstock.Client, topic: str) -> None:
    messages = [penstock.Outgoing(str(number), key=f"eu.order.{number % 5}") for number in range(100)]
    await client.publish_many(topic, messages)
    async with client.subscribe(topic, matches=[{"key": "eu.order.3"}]) as subscription:
        assert await read(subscription, 20) == numbers(3, 100, 5)
        await client.publish(topic, "no", key="eu.order.4")
        await client.publish(topic, "yes", key="eu.order.3")
        assert await read(subscription, 1) == ["yes"]
    async with client.subscribe(topic, matches=[{"pattern": "*.order.#"}], start={0: 90}) as subscription:
        assert await read(subscription, 12) == [*numbers(90, 100), "no", "yes"]


async def test_a_filtered_log_gives_its_credit_back(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, [penstock.Outgoing(str(number), key="k") for number in range(5_000)])
    async with client.subscribe(topic, matches=[{"key": "k"}]) as subscription:
        assert await read(subscription, 5_000) == numbers(5_000)


async def test_what_is_buffered_is_bounded(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, [b"x" * 10_000] * 2_000)  # 20 MB
    async with client.subscribe(topic, prefetch_bytes=1 << 20) as subscription:
        assert len(await subscription.take(1, timeout_s=WAIT_S)) == 1
        await client.topics()  # whatever was fetched ahead has come by now, and no more of it
        buffered = sum(track.buffered_bytes for track in subscription._tracks.values())
        assert buffered <= 3 << 20
        count = 1
        while count < 2_000:
            count += len(await subscription.take(timeout_s=WAIT_S))


async def test_many_readers_share_a_connection(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(500))
    subscriptions = [client.subscribe(topic) for _ in range(20)]
    for texts in await asyncio.gather(*(read(subscription, 500) for subscription in subscriptions)):
        assert texts == numbers(500)


async def test_records_that_retention_took_are_counted(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(10))
    async with client.subscribe(topic, start={0: 50}) as subscription:
        with pytest.raises(penstock.OffsetOutOfRange):
            await subscription.take(timeout_s=WAIT_S)
        assert subscription.is_closed


async def test_a_deleted_topic_ends_its_readers(client: penstock.Client, topic: str) -> None:
    await client.publish(topic, "x")
    async with client.subscribe(topic) as subscription:
        assert await read(subscription, 1) == ["x"]
        waiting = asyncio.create_task(subscription.take(timeout_s=WAIT_S))
        await client.delete_topic(topic)
        with pytest.raises(penstock.UnknownTopic):
            await waiting


async def test_a_reader_goes_on_where_the_cable_was_pulled(server: Server, client: penstock.Client, topic: str) -> None:
    with Proxy(server.line, native=True) as proxy:
        proxy.lose_replies(Fetch.KIND, every=3, limit=5)
        proxy.lose_requests(Fetch.KIND, every=7, limit=3)
        proxy.lose_replies(ListOffsets.KIND, every=1, limit=1)
        async with penstock.Client(proxy.address) as reader, reader.subscribe(topic) as subscription:
            came = []
            for start in range(0, 4_000, 200):
                await client.publish_many(topic, numbers(start, start + 200))
                came += await read(subscription, 200)
            proxy.cut()
            await client.publish_many(topic, ["last"])
            came += await read(subscription, 1)
            assert reader.reconnects >= 9
    assert came == [*numbers(4_000), "last"]


async def test_a_filtered_reader_goes_on_too(server: Server, client: penstock.Client, topic: str) -> None:
    with Proxy(server.line, native=True) as proxy:
        proxy.lose_replies(SubscribeLog.KIND, every=1, limit=1)
        async with (
            penstock.Client(proxy.address) as reader,
            reader.subscribe(topic, start="latest", matches=[{"key": "k"}]) as subscription,
        ):
            came = []
            for start in range(0, 1_000, 100):
                batch = [penstock.Outgoing(text, key="k") for text in numbers(start, start + 100)]
                await client.publish_many(topic, batch)
                came += await read(subscription, 50)
                proxy.cut()
                came += await read(subscription, 50)
            assert reader.reconnects >= 10
    assert came == numbers(1_000)


async def test_a_reader_waits_for_a_restarted_server(start_server: StartServer, topic: str) -> None:
    server = start_server()
    async with penstock.Client(server.line) as client, client.subscribe(topic) as subscription:
        await client.publish_many(topic, numbers(10))
        assert await read(subscription, 10) == numbers(10)
        server.kill()
        server.restart()
        await client.publish_many(topic, numbers(10, 20))
        assert await read(subscription, 10) == numbers(10, 20)


# -- groups -------------------------------------------------------------------------------------------------


async def test_a_group_goes_on_where_it_committed(client: penstock.Client, topic: str, group: str) -> None:
    await client.publish_many(topic, numbers(30))
    async with client.subscribe(topic, group=group, auto_commit=False) as subscription:
        assert await read(subscription, 10) == numbers(10)
        await subscription.commit()
        assert await read(subscription, 10) == numbers(10, 20)
    assert await client.committed(group) == {(topic, 0): 10}
    async with client.subscribe(topic, group=group, auto_commit=False) as subscription:
        messages = await subscription.take(10, timeout_s=WAIT_S)
        assert [message.text for message in messages] == numbers(10, 20)
        await subscription.commit(messages[4])
    assert await client.committed(group, topic) == {(topic, 0): 15}


async def test_a_group_commits_by_itself_what_was_processed(client: penstock.Client, topic: str, group: str) -> None:
    await client.publish_many(topic, numbers(30))
    async with client.subscribe(topic, group=group) as subscription:
        seen = 0
        async for _ in subscription:
            seen += 1
            if seen == 12:
                break
    # The twelfth was handed out, but whoever got it never asked for more: it comes again.
    assert await client.committed(group) == {(topic, 0): 11}
    async with client.subscribe(topic, group=group) as subscription:
        assert await read(subscription, 19) == numbers(11, 30)


async def test_offsets_are_committed_for_any_group(client: penstock.Client, topic: str, group: str) -> None:
    await client.publish_many(topic, numbers(30))
    await client.commit(group, {(topic, 0): 25})
    async with client.subscribe(topic, group=group, start="earliest") as subscription:
        assert await read(subscription, 5) == numbers(25, 30)
    assert await client.offsets(topic) == penstock.Bounds(0, 30, -1)


async def test_a_commit_is_repeated_when_its_answer_is_lost(server: Server, topic: str, group: str) -> None:
    with Proxy(server.line, native=True) as proxy:
        proxy.lose_replies(Commit.KIND, every=1, limit=2)
        async with penstock.Client(proxy.address) as client:
            await client.publish_many(topic, numbers(3))
            await client.commit(group, {(topic, 0): 2})
            assert await client.committed(group) == {(topic, 0): 2}


async def test_only_a_group_commits(client: penstock.Client, topic: str) -> None:
    await client.publish(topic, "x")
    async with client.subscribe(topic) as subscription:
        with pytest.raises(ValueError, match="group"):
            await subscription.commit()
        [message] = await subscription.take(timeout_s=WAIT_S)
        with pytest.raises(TypeError, match="queue"):
            message.ack()


# -- pub/sub ------------------------------------------------------------------------------------------------


async def test_everyone_who_is_here_gets_it(client: penstock.Client, topic: str) -> None:
    await client.publish(topic, "before")
    async with client.subscribe(topic, "pubsub") as one, client.subscribe(topic, "pubsub") as other:
        await client.publish_many(topic, numbers(100))
        assert await read(one, 100) == numbers(100)
        assert await read(other, 100) == numbers(100)
        assert one.gap == other.gap == 0


async def test_a_subscriber_filters(client: penstock.Client, topic: str) -> None:
    async with client.subscribe(topic, "pubsub", matches=[{"headers": {"colour": "red"}}]) as subscription:
        for number in range(10):
            await client.publish(topic, str(number), headers={"colour": "red" if number % 2 else "blue"})
        assert await read(subscription, 5) == ["1", "3", "5", "7", "9"]


async def test_credit_flows_back_as_messages_are_taken(client: penstock.Client, topic: str) -> None:
    async with client.subscribe(topic, "pubsub", credit=10, max_behind=100_000) as subscription:
        await client.publish_many(topic, numbers(3_000))
        assert await read(subscription, 3_000) == numbers(3_000)


async def test_a_slow_subscriber_misses_the_oldest_and_knows_how_many(client: penstock.Client, topic: str) -> None:
    async with client.subscribe(topic, "pubsub", credit=10, max_behind=100) as subscription:
        for start in range(0, 2_000, 100):
            await client.publish_many(topic, numbers(start, start + 100))
        came: list[str] = []
        while not came or came[-1] != "1999":
            came += [message.text for message in await subscription.take(timeout_s=WAIT_S)]
        assert len(came) + subscription.gap == 2_000
        assert subscription.gap > 0
        assert came == sorted(came, key=int)


async def test_a_slow_subscriber_may_ask_to_be_ended(client: penstock.Client, topic: str) -> None:
    async with client.subscribe(topic, "pubsub", credit=10, max_behind=100, overflow="disconnect") as subscription:
        for start in range(0, 2_000, 100):
            await client.publish_many(topic, numbers(start, start + 100))
        with pytest.raises(penstock.SlowSubscriber):
            while True:
                await subscription.take(timeout_s=WAIT_S)


async def test_a_subscriber_is_back_after_the_cable_was_pulled(
    server: Server, client: penstock.Client, topic: str
) -> None:
    with Proxy(server.line, native=True) as proxy:
        async with penstock.Client(proxy.address) as other, other.subscribe(topic, "pubsub") as subscription:
            await client.publish(topic, "one")
            assert await read(subscription, 1) == ["one"]
            proxy.cut()
            while True:  # what is published while nobody is there is missed
                await client.publish(topic, "two")
                if await subscription.take(1, timeout_s=0.05):
                    break
            assert other.reconnects == 1


# -- the ends of subscriptions ------------------------------------------------------------------------------


async def test_a_closed_subscription_ends_its_loop(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(3))
    subscription = client.subscribe(topic)
    third = asyncio.Event()

    async def consume() -> list[str]:
        came = []
        async for message in subscription:
            came.append(message.text)
            if len(came) == 3:
                third.set()
        return came

    task = asyncio.create_task(consume())
    await asyncio.wait_for(third.wait(), WAIT_S)
    await subscription.close()
    assert await asyncio.wait_for(task, WAIT_S) == numbers(3)
    assert await subscription.take() == []
    await subscription.close()


async def test_closing_the_client_ends_every_loop(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        kinds = [
            asyncio.create_task(client.subscribe(topic).take()),
            asyncio.create_task(client.subscribe(topic, matches=[{"key": "k"}]).take()),
            asyncio.create_task(client.subscribe(topic, "pubsub").take()),
        ]
        await client.topics()
    assert [await asyncio.wait_for(kind, WAIT_S) for kind in kinds] == [[], [], []]


async def test_cancelling_a_reader_loses_nothing(client: penstock.Client, topic: str) -> None:
    async with client.subscribe(topic) as subscription:
        came = []
        for number in range(100):
            reading = asyncio.create_task(anext(subscription))
            await asyncio.sleep(0)
            reading.cancel()
            [result] = await asyncio.gather(reading, return_exceptions=True)
            if isinstance(result, penstock.Message):  # it was quicker than its cancelling
                came.append(result.text)
            await client.publish(topic, str(number))
        came += await read(subscription, 100 - len(came))
    assert came == numbers(100)


async def test_a_reader_that_runs_out_of_time_gets_nothing(client: penstock.Client, topic: str) -> None:
    async with client.subscribe(topic) as subscription:
        assert await subscription.take(timeout_s=0.01) == []
        await client.publish(topic, "x")
        assert await read(subscription, 1) == ["x"]


async def test_an_unknown_kind_is_refused(client: penstock.Client) -> None:
    with pytest.raises(ValueError, match="log, queue or pubsub"):
        client.subscribe("orders", "stack")  # type: ignore[call-overload]


async def test_a_topic_that_is_not_there_is_unknown_to_its_readers(start_server: StartServer) -> None:
    server = start_server(auto_create_topics=False)
    async with penstock.Client(server.line) as client:
        for kind in ("log", "pubsub"):
            with pytest.raises(penstock.UnknownTopic):
                await client.subscribe("nowhere", kind).take()  # type: ignore[call-overload]
