"""Topics that exchange their names, through the client, and what Kafka's clients see of it."""

import pytest
from kafka import KafkaConsumer
from kafka.structs import TopicPartition
from native_wire import NativeWire

import penstock
from penstock.testing.server import Server
from penstock.wire.native.messages import Done, Failure, Ping, SwapTopics
from servers import StartServer


async def test_what_was_made_of_a_topic_takes_its_place(server: Server, topic: str, group: str) -> None:
    other = f"{topic}-small"
    async with penstock.Client(server.line) as client:
        await client.create_topic(topic, 2)
        await client.create_topic(other, 1)
        await client.publish_many(topic, [penstock.Outgoing(value, partition=1) for value in ("a", "b", "a")])
        await client.publish_many(other, ["a", "b"])
        await client.commit(group, {(topic, 1): 2})
        before = await client.describe_topic(topic)
        with pytest.raises(penstock.Conflict):
            await client.swap_topics(topic, other, [0, 2])
        await client.swap_topics(topic, other, [0, 3], {group: {0: 1}})
        after = await client.describe_topic(topic)
        assert after.topic_id != before.topic_id
        assert [(one.start, one.end) for one in after.partitions] == [(0, 2)]
        assert await client.committed(group) == {(topic, 0): 1}
        await client.publish(topic, "c")
        assert (await client.offsets(topic)).end == 3
        subscription = client.subscribe(topic, group=group)
        assert [message.text for message in await subscription.take(2, timeout_s=30)] == ["b", "c"]


def test_kafkas_clients_read_the_new_log(server: Server, topic: str) -> None:
    with penstock.SyncClient(server.line) as client:
        for name, values in ((topic, ["old", "old", "old"]), (topic + "-new", ["new", "new"])):
            client.create_topic(name, 1)
            client.publish_many(name, values)
        client.swap_topics(topic, topic + "-new", [3])
    consumer = KafkaConsumer(bootstrap_servers=server.kafka, consumer_timeout_ms=10_000)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek(TopicPartition(topic, 0), 0)
    assert [next(consumer).value for _ in range(2)] == [b"new", b"new"]
    consumer.close()


async def test_what_reads_a_topic_keeps_it_in_its_place(server: Server, topic: str) -> None:
    other = f"{topic}-new"
    async with penstock.Client(server.line) as client:
        for name in (topic, other):
            await client.create_topic(name, 1)
        await client.create_queue(topic)
        with pytest.raises(penstock.InvalidRequest, match="queue view"):
            await client.swap_topics(topic, other, [0])
        with pytest.raises(penstock.InvalidRequest, match="queue view"):
            await client.swap_topics(other, topic, [0])
        await client.delete_queue(topic)
        await client.create_router(other, "fanout")
        with pytest.raises(penstock.InvalidRequest, match="router"):
            await client.swap_topics(topic, other, [0])
        await client.delete_router(other)
        await client.swap_topics(topic, other, [0])


async def test_views_and_settings_of_a_swapped_topic_last(start_server: StartServer) -> None:
    server = start_server()
    async with penstock.Client(server.line) as client:
        await client.create_topic("orders", 1)
        await client.create_topic("new", 1, {"retention.ms": "-1"})
        await client.publish("new", "first")
        await client.swap_topics("orders", "new", [0])
        await client.create_queue("orders")
        subscription = client.subscribe("orders", "queue")
        (message,) = await subscription.take(1, timeout_s=30)
        assert (message.text, message.topic) == ("first", "orders")
        await message.ack()
    server.stop()
    server.start()
    async with penstock.Client(server.line) as client:
        assert (await client.topic("orders")).settings == {"retention.ms": "-1"}
        await client.publish("orders", "second")
        subscription = client.subscribe("orders", "queue")
        (message,) = await subscription.take(1, timeout_s=30)
        assert message.text == "second"
        await message.ack()


async def test_a_fetch_that_waits_is_sent_away(native: NativeWire, topic: str) -> None:
    """Its offset means nothing in the new log."""
    for name in (topic, topic + "-new"):
        await native.create(name)
        await native.publish(name, b"a", b"b")
    waiting = native.send_fetch(topic, 2, wait_ms=30_000)
    await native.ask(Ping(), Done)
    await native.ask(SwapTopics(topic, topic + "-new", [2]), Done)
    refused = await native.of(waiting)
    assert isinstance(refused, Failure)
    assert (refused.code, refused.retriable) == ("unknown-topic", True)
    assert await native.values_now(topic) == [b"a", b"b"]


async def test_what_a_step_wrote_takes_the_place(server: Server, topic: str) -> None:
    other = f"{topic}-new"
    async with penstock.Client(server.line) as client:
        for name in (topic, other):
            await client.create_topic(name, 1)
        step = client.step(topic, 1)
        await step.begin()
        await step.publish(other, "new")
        for _ in range(2):
            with pytest.raises(penstock.Conflict, match="transaction"):
                await client.swap_topics(topic, other, [0])
        await step.commit()
        await client.swap_topics(topic, other, [0])
        assert [message.text for message in await client.subscribe(topic).take(1, timeout_s=30)] == ["new"]
        async with client.step(topic, 2) as step:
            await step.publish(topic, "more")
        assert (await client.offsets(topic)).end == 4
