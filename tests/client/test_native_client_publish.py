"""Publishing through the Python client: what is acknowledged is there, once, in order, whatever the cable does."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest

import penstock
from penstock.testing.proxy import Proxy
from penstock.testing.server import Server
from penstock.wire.native.messages import FindTopic, Publish, TakeProducerId
from servers import StartServer

WAIT_S = 30.0


@pytest.fixture
async def client(server: Server) -> AsyncIterator[penstock.Client]:
    async with penstock.Client(server.line) as connected:
        yield connected


async def stored(address: str, topic: str) -> dict[int, list[penstock.Message]]:
    """Everything in a topic now, per partition."""
    found: dict[int, list[penstock.Message]] = {}
    async with penstock.Client(address) as reader:
        partitions = (await reader.topic(topic)).partitions
        for partition in range(partitions):
            left = (await reader.offsets(topic, partition)).end
            found[partition] = []
            async with reader.subscribe(topic, partitions=[partition]) as subscription:
                while left and (not found[partition] or found[partition][-1].offset < left - 1):
                    batch = await subscription.take(10_000, timeout_s=WAIT_S)
                    assert batch, "a record that was stored does not come"
                    found[partition] += batch
    return found


async def values(address: str, topic: str, partition: int = 0) -> list[str]:
    return [message.text for message in (await stored(address, topic))[partition]]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


# -- in quiet times -----------------------------------------------------------------------------------------


async def test_a_message_says_the_same_when_it_is_read(client: penstock.Client, server: Server, topic: str) -> None:
    placed = await client.publish(
        topic, {"order_id": 101}, key="101", headers={"a": b"1", "b": "text", "c": None}, timestamp_ms=1_700_000_000_000
    )
    assert placed == penstock.Placed(0, 0)
    [message] = (await stored(server.line, topic))[0]
    assert message.json() == {"order_id": 101}
    assert message.text == '{"order_id":101}'
    assert (message.topic, message.partition, message.offset) == (topic, 0, 0)
    assert message.key == b"101"
    assert message.headers == {"a": b"1", "b": b"text", "c": None}
    assert message.timestamp_ms == 1_700_000_000_000


async def test_values_of_every_kind_are_stored(client: penstock.Client, server: Server, topic: str) -> None:
    given = [b"bytes", "text", None, 7, [1, "two"], {"k": None}, bytearray(b"array"), memoryview(b"view"), b""]
    for value in given:
        await client.publish(topic, value)
    read = [message.value for message in (await stored(server.line, topic))[0]]
    assert read == [b"bytes", b"text", None, b"7", b'[1,"two"]', b'{"k":null}', b"array", b"view", b""]


async def test_how_it_is_to_be_delivered_travels_in_headers(
    client: penstock.Client, server: Server, topic: str
) -> None:
    await client.publish(topic, "x", delay_s=1.5, priority=7, ttl_s=60, headers={"mine": "1"})
    await client.publish_many(topic, [penstock.Outgoing("y", deliver_at_ms=123, key="k")])
    first, second = (await stored(server.line, topic))[0]
    assert first.headers == {
        "mine": b"1", "penstock-delay-ms": b"1500", "penstock-ttl-ms": b"60000", "penstock-priority": b"7",
    }  # fmt: skip
    assert second.headers == {"penstock-deliver-at-ms": b"123"}
    assert second.key == b"k"


async def test_many_come_back_with_their_places_in_order(client: penstock.Client, server: Server, topic: str) -> None:
    placed = await client.publish_many(topic, [f"message {number}" for number in range(2_500)])
    assert placed == [penstock.Placed(0, offset) for offset in range(2_500)]
    assert await values(server.line, topic) == [f"message {number}" for number in range(2_500)]
    assert await client.publish_many(topic, []) == []


async def test_what_is_published_at_once_goes_in_few_batches(server: Server, topic: str) -> None:
    with Proxy(server.line, native=True) as proxy:
        async with penstock.Client(proxy.address) as client:
            placed = await asyncio.gather(*(client.publish(topic, str(number)) for number in range(2_000)))
        assert [place.offset for place in placed] == list(range(2_000))
        assert proxy.requests[Publish.KIND] <= 4, "messages of one tick travel together"


async def test_the_order_is_fixed_by_the_call(client: penstock.Client, server: Server, topic: str) -> None:
    futures = [client.publish_nowait(topic, str(number)) for number in range(500)]
    assert [(await future).offset for future in futures] == list(range(500))
    assert await values(server.line, topic) == [str(number) for number in range(500)]


async def test_a_key_stays_in_its_partition_and_in_order(client: penstock.Client, server: Server, topic: str) -> None:
    await client.create_topic(topic, partitions=4)
    outgoing = [penstock.Outgoing(f"{number}", key=f"key {number % 10}") for number in range(1_000)]
    placed = await client.publish_many(topic, outgoing)
    read = await stored(server.line, topic)
    assert sum(map(len, read.values())) == 1_000
    for number, place in enumerate(placed):
        assert read[place.partition][place.offset].text == str(number)
    for key in range(10):
        homes = {partition for partition, some in read.items() if any(one.key == f"key {key}".encode() for one in some)}
        assert len(homes) == 1
        [home] = homes
        assert [int(one.text) for one in read[home] if one.key == f"key {key}".encode()] == list(range(key, 1_000, 10))


async def test_a_partition_may_be_chosen(client: penstock.Client, topic: str) -> None:
    await client.create_topic(topic, partitions=3)
    assert (await client.publish(topic, "x", partition=2)).partition == 2
    first, _ = await client.publish_many(topic, [penstock.Outgoing("x", partition=1), "y"])
    assert first.partition == 1
    with pytest.raises(penstock.UnknownPartition, match="0 to 2"):
        await client.publish(topic, "x", partition=3)


async def test_messages_without_keys_use_all_partitions(client: penstock.Client, topic: str) -> None:
    await client.create_topic(topic, partitions=3)
    assert {(await client.publish(topic, "x")).partition for _ in range(12)} == {0, 1, 2}


async def test_messages_without_acks_arrive_all_the_same(client: penstock.Client, server: Server, topic: str) -> None:
    assert await client.publish(topic, "first", acks="none") == penstock.Placed(0, -1)
    await client.publish_many(topic, ["second", "third"], acks="none")
    assert (await client.publish(topic, "fourth", acks="leader")).offset == 3
    assert await values(server.line, topic) == ["first", "second", "third", "fourth"]


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_batches_may_be_compressed(
    server: Server, topic: str, compression: penstock.client.client.Compression
) -> None:
    async with penstock.Client(server.line, compression=compression) as client:
        await client.publish_many(topic, ["the same again"] * 100)
    assert await values(server.line, topic) == ["the same again"] * 100


# -- what the server refuses --------------------------------------------------------------------------------


async def test_a_message_that_is_too_large_fails_alone(client: penstock.Client, server: Server, topic: str) -> None:
    await client.create_topic(topic, settings={"max.message.bytes": "10000"})
    before = [client.publish_nowait(topic, f"before {number}") for number in range(3)]
    await asyncio.gather(*before)
    with pytest.raises(penstock.RecordTooLarge):
        await client.publish(topic, b"x" * 20_000)
    after = await asyncio.gather(*(client.publish(topic, f"after {number}") for number in range(3)))
    assert [place.offset for place in after] == [3, 4, 5]
    with pytest.raises(penstock.RecordTooLarge):
        await client.publish_many(topic, [b"y" * 20_000])
    assert (await client.publish(topic, "last")).offset == 6


async def test_a_refused_batch_takes_no_later_one_with_it(server: Server, topic: str) -> None:
    """The server takes nothing out of order, so what follows a refused batch is numbered anew."""
    async with penstock.Client(server.line) as client:
        await client.create_topic(topic, settings={"max.message.bytes": "800000"})
        small = "s" * 200_000  # several batches of these are on their way at once
        futures = [
            client.publish_nowait(topic, "x" * 900_000 if number % 7 == 3 else f"{number} {small}")
            for number in range(40)
        ]
        results = await asyncio.gather(*futures, return_exceptions=True)
    refused = [number for number, result in enumerate(results) if isinstance(result, penstock.RecordTooLarge)]
    assert refused == [number for number in range(40) if number % 7 == 3]
    read = [text.split()[0] for text in await values(server.line, topic)]
    assert read == [str(number) for number in range(40) if number % 7 != 3]


async def test_a_message_larger_than_a_frame_fails_and_breaks_nothing(start_server: StartServer) -> None:
    server = start_server(max_request_bytes=2_000_000)
    async with penstock.Client(server.line) as client:
        futures = [client.publish_nowait("t", b"x" * size) for size in (10, 3_000_000, 20)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(result) for result in results] == [penstock.Placed, penstock.RecordTooLarge, penstock.Placed]
        assert (await client.publish("t", "after")).offset == 2
        assert client.reconnects == 0
        assert client.buffered_bytes == 0


async def test_a_topic_that_may_not_be_made_is_unknown(start_server: StartServer) -> None:
    server = start_server(auto_create_topics=False)
    async with penstock.Client(server.line) as client:
        with pytest.raises(penstock.UnknownTopic):
            await client.publish("nowhere", "x")
        with pytest.raises(penstock.UnknownTopic):
            await client.publish_many("nowhere", ["x", "y"])
        await client.create_topic("somewhere")
        assert (await client.publish("somewhere", "x")).offset == 0


async def test_a_bad_name_is_refused_by_its_own_error(client: penstock.Client) -> None:
    with pytest.raises(penstock.InvalidTopicName):
        await client.publish("not a name!", "x")


async def test_a_deleted_topic_is_made_again(client: penstock.Client, topic: str) -> None:
    await client.publish(topic, "old")
    await client.delete_topic(topic)
    assert await client.publish(topic, "new") == penstock.Placed(0, 0)


# -- bounds -------------------------------------------------------------------------------------------------


async def test_publishers_wait_when_too_much_is_unacknowledged(server: Server, topic: str) -> None:
    """`kill -STOP` is a server that takes its time."""
    limit = 200_000
    async with penstock.Client(server.line, max_buffered_bytes=limit) as client:
        await client.publish(topic, "warm")
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, client.buffered_bytes)
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        value = "v" * 1_000
        placed = await asyncio.gather(*(client.publish(topic, f"{number} {value}") for number in range(2_000)))
        watching.cancel()
        assert [place.offset for place in placed] == list(range(1, 2_001))
        assert 0 < most <= limit
        assert client.buffered_bytes == 0


async def test_publish_nowait_says_that_there_is_no_room(server: Server, topic: str) -> None:
    async with penstock.Client(server.line, max_buffered_bytes=10_000) as client:
        futures = []
        with pytest.raises(penstock.BufferFull, match="10000"):
            while True:
                futures.append(client.publish_nowait(topic, "x" * 1_000))
        assert 5 <= len(futures) <= 10
        await asyncio.gather(*futures)
        assert (await client.publish_nowait(topic, "y")).offset == len(futures)


async def test_a_message_larger_than_the_bound_goes_alone(server: Server, topic: str) -> None:
    async with penstock.Client(server.line, max_buffered_bytes=1_000) as client:
        placed = await asyncio.gather(*(client.publish(topic, "x" * 5_000) for _ in range(5)))
        assert [place.offset for place in placed] == list(range(5))


async def test_a_cancelled_publisher_frees_its_room(server: Server, topic: str) -> None:
    async with penstock.Client(server.line, max_buffered_bytes=5_000) as client:
        await client.publish(topic, "warm")
        tasks = [asyncio.create_task(client.publish(topic, f"{number} " + "x" * 1_000)) for number in range(30)]
        await asyncio.sleep(0)
        for task in tasks[1::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, penstock.Placed) for result in results[0::2])
        await client.flush()
        assert client.buffered_bytes == 0
    read = [int(text.split()[0]) for text in (await values(server.line, topic))[1:]]
    assert read == sorted(read), "cancelling changes no order"
    assert set(range(0, 30, 2)) <= set(read)


# -- broken connections -------------------------------------------------------------------------------------


async def test_nothing_is_lost_or_doubled_when_answers_are(server: Server, topic: str) -> None:
    with Proxy(server.line, native=True) as proxy:
        proxy.lose_replies(Publish.KIND, every=3, limit=12)
        async with penstock.Client(proxy.address) as client:
            placed = []
            for start in range(0, 6_000, 100):
                placed += await asyncio.gather(
                    *(client.publish(topic, str(number)) for number in range(start, start + 100))
                )
            assert client.reconnects == 12
    assert [place.offset for place in placed] == list(range(6_000))
    assert await values(server.line, topic) == [str(number) for number in range(6_000)]


async def test_nothing_is_lost_or_doubled_when_requests_are(server: Server, topic: str) -> None:
    with Proxy(server.line, native=True) as proxy:
        proxy.lose_requests(Publish.KIND, every=4, limit=10)
        proxy.lose_requests(TakeProducerId.KIND, every=1, limit=1)
        proxy.lose_replies(FindTopic.KIND, every=1, limit=1)
        async with penstock.Client(proxy.address) as client:
            futures = [client.publish_nowait(topic, f"{number} " + "x" * 5_000) for number in range(3_000)]
            placed = await asyncio.gather(*futures)
            assert client.reconnects == 12
    assert [place.offset for place in placed] == list(range(3_000))
    assert [int(text.split()[0]) for text in await values(server.line, topic)] == list(range(3_000))


async def test_cut_connections_in_the_middle_of_thousands(server: Server, topic: str) -> None:
    """Several batches per partition are under way whenever the cable is pulled."""
    with Proxy(server.line, native=True) as proxy:
        async with penstock.Client(proxy.address, max_buffered_bytes=4 << 20) as client:
            await client.create_topic(topic, partitions=3)
            sent: dict[int, list[int]] = {0: [], 1: [], 2: []}

            async def produce(partition: int) -> None:
                for start in range(0, 8_000, 500):
                    numbers = range(start, start + 500)
                    outgoing = [penstock.Outgoing(f"{number} " + "x" * 500, partition=partition) for number in numbers]
                    placed = await client.publish_many(topic, outgoing)
                    assert [place.partition for place in placed] == [partition] * 500
                    sent[partition] += [place.offset for place in placed]

            async def cut() -> None:
                while True:
                    enough = proxy.requests[Publish.KIND] + 7
                    await until(lambda enough=enough: proxy.requests[Publish.KIND] >= enough)
                    proxy.cut()

            cutting = asyncio.create_task(cut())
            await asyncio.gather(*map(produce, sent))
            cutting.cancel()
            assert client.reconnects > 0
    read = await stored(server.line, topic)
    for partition, offsets in sent.items():
        assert offsets == list(range(8_000))
        assert [int(message.text.split()[0]) for message in read[partition]] == list(range(8_000))


async def test_a_killed_server_has_what_it_acknowledged_once_and_in_order(
    start_server: StartServer, topic: str
) -> None:
    server = start_server()
    acknowledged = 0
    async with penstock.Client(server.line) as client:

        async def kill_and_restart() -> None:
            for wanted in (2_000, 6_000):
                await until(lambda wanted=wanted: acknowledged >= wanted)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)

        killing = asyncio.create_task(kill_and_restart())
        for start in range(0, 10_000, 50):
            placed = await asyncio.gather(*(client.publish(topic, str(number)) for number in range(start, start + 50)))
            assert [place.offset for place in placed] == list(range(start, start + 50))
            acknowledged += len(placed)
        await killing
        assert client.reconnects >= 2
    assert await values(server.line, topic) == [str(number) for number in range(10_000)]


async def test_a_server_that_does_not_come_back_is_named(start_server: StartServer, topic: str) -> None:
    server = start_server()
    async with penstock.Client(server.line, timeout_s=1.0) as client:
        await client.publish(topic, "x")
        server.kill()
        with pytest.raises((penstock.Unreachable, penstock.TimedOut)) as refused:
            await client.publish(topic, "y")
        assert server.line in str(refused.value) or "no connection" in str(refused.value)
        with pytest.raises(penstock.Unreachable, match=server.line):
            await client.topics()
        assert client.buffered_bytes == 0
        server.restart()
        assert (await client.publish(topic, "z")).offset in (1, 2)  # y may or may not have arrived before the kill


async def test_a_silent_server_is_given_up_in_time(start_server: StartServer, topic: str) -> None:
    """It took the message and says nothing: the publisher learns that nobody knows."""
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        client = penstock.Client(address, timeout_s=0.5)
        began = time.monotonic()
        with pytest.raises((penstock.Unreachable, penstock.TimedOut)):
            await client.publish(topic, "x")
        with pytest.raises(penstock.Unreachable, match="no answer in time"):
            await client.connect()
        assert time.monotonic() - began < WAIT_S
        await client.close()
    finally:
        listener.close()


async def test_the_other_address_is_taken_when_one_is_dead(server: Server, topic: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
    async with penstock.Client([dead, server.line]) as client:
        assert (await client.publish(topic, "x")).offset == 0
    async with penstock.Client(f"{dead}, {server.line}") as client:
        assert (await client.publish(topic, "y")).offset == 1


# -- closing ------------------------------------------------------------------------------------------------


async def test_closing_sends_what_was_published(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        futures = [client.publish_nowait(topic, str(number)) for number in range(1_000)]
    assert [future.result().offset for future in futures] == list(range(1_000))
    with pytest.raises(penstock.ClientClosed):
        await client.publish(topic, "late")
    with pytest.raises(penstock.ClientClosed):
        client.publish_nowait(topic, "late")
    with pytest.raises(penstock.ClientClosed):
        await client.topics()
    await client.close()


async def test_closing_takes_no_longer_than_it_may_when_the_server_is_gone(
    start_server: StartServer, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.client.FLUSH_AT_CLOSE_S", 0.3)
    server = start_server()
    client = penstock.Client(server.line)
    await client.publish_many(topic, ["x"] * 10)
    log = client.subscribe(topic, group=group)
    queue = client.subscribe(topic, "queue")
    assert len(await log.take(5)) == 5
    [message] = await queue.take(1)
    await log.take(1)  # the five are processed, and not committed yet
    server.kill()
    waiting = [client.publish_nowait(topic, "y"), message.ack()]
    async with asyncio.timeout(WAIT_S):
        await client.close()
        for future in waiting:
            with pytest.raises((penstock.ClientClosed, penstock.Unreachable)):
                await future
    with pytest.raises(penstock.ClientClosed):
        await client.publish(topic, "z")


async def test_a_lingering_client_gathers_for_longer(server: Server, topic: str) -> None:
    with Proxy(server.line, native=True) as proxy:
        async with penstock.Client(proxy.address, linger_ms=50) as client:
            tasks = []
            for number in range(10):
                tasks.append(asyncio.create_task(client.publish(topic, str(number))))
                await asyncio.sleep(0.001)
            await asyncio.gather(*tasks)
        assert proxy.requests[Publish.KIND] <= 3
    assert await values(server.line, topic) == [str(number) for number in range(10)]


def test_addresses_are_checked_before_anything_happens() -> None:
    with pytest.raises(ValueError, match="host:port"):
        penstock.Client("")
    with pytest.raises(ValueError, match="host:port"):
        penstock.Client("127.0.0.1:port")
    with pytest.raises(ValueError, match="zip"):
        penstock.Client(compression="zip")  # type: ignore[arg-type]
