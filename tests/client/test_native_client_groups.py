"""Groups and descriptions of topics through the client."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer

import penstock
from penstock.testing import Server

WITHIN_S = 30


async def test_a_topic_is_described_with_where_its_settings_come_from(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        await client.create_topic(topic, 2, {"retention.ms": "60000"})
        await client.publish(topic, "x", partition=1)
        told = await client.describe_topic(topic)
        assert [(one.partition, one.start, one.end) for one in told.partitions] == [(0, 0, 0), (1, 0, 1)]
        sources = {one.name: one.source for one in told.settings}
        assert sources["retention.ms"] == "topic"
        assert sources["cleanup.policy"] == "default"
        with pytest.raises(penstock.UnknownTopic):
            await client.describe_topic(topic + "-gone")


async def test_many_topics_are_described_in_parts(server: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.admin.DESCRIBED_AT_ONCE", 2)
    names = [f"{topic}-{number}" for number in range(5)]
    async with penstock.Client(server.line) as client:
        for name in names:
            await client.create_topic(name, 1)
        told = await client.describe_topics([*names, topic + "-gone"], settings=False)
        assert [(one.name, one.settings) for one in told] == [(name, []) for name in names]


async def test_the_servers_own_topics_are_told_apart(server: Server) -> None:
    async with penstock.Client(server.line) as client:
        assert not any(topic.internal for topic in await client.topics())
        assert "__penstock_groups" in [topic.name for topic in await client.topics(internal=True) if topic.internal]


async def test_a_group_with_a_member_is_seen_and_refuses(server: Server, topic: str, group: str) -> None:
    async with penstock.Client(server.line) as client:
        await client.create_topic(topic, 2)
        for partition in (0, 1):
            await client.publish_many(topic, [penstock.Outgoing(str(number), partition=partition) for number in "abc"])
        await client.commit(group, {(topic, 0): 1})
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=server.kafka, group_id=group, client_id="reader")
        await asyncio.wait_for(consumer.start(), WITHIN_S)
        try:
            told = await client.group(group)
            (member,) = told.members
            assert (member.client_id, member.host, member.assignment) == ("reader", "127.0.0.1", {topic: [0, 1]})
            assert told.offsets == [
                penstock.GroupOffset(topic, 0, 1, 3, member.member_id),
                penstock.GroupOffset(topic, 1, None, 3, member.member_id),
            ]
            assert [one.lag for one in told.offsets] == [2, None]
            with pytest.raises(penstock.GroupNotEmpty):
                await client.delete_group(group)
        finally:
            await asyncio.wait_for(consumer.stop(), WITHIN_S)
        assert penstock.GroupListing(group, "Empty", "consumer") in await client.groups()
        await client.delete_group(group)
        with pytest.raises(penstock.UnknownGroup):
            await client.group(group)


def test_a_group_without_a_loop(server: Server, topic: str, group: str) -> None:
    with server.sync_client() as client:
        client.create_topic(topic, 1)
        client.publish_many(topic, ["a", "b"])
        client.commit(group, {(topic, 0): 1})
        assert client.bounds([(topic, 0)], timestamp_ms=0) == {(topic, 0): penstock.Bounds(0, 2, 0)}
        assert [(one.committed, one.lag) for one in client.group(group).offsets] == [(1, 1)]
        assert client.describe_topic(topic).partitions == client.describe_topics([topic])[0].partitions
        client.delete_offsets(group, [(topic, 0)])
        assert group not in [one.name for one in client.groups()]
        with pytest.raises(penstock.UnknownGroup):
            client.delete_group(group)
