"""Groups and descriptions of topics through the binary protocol; members come through the Kafka door."""

import asyncio

from aiokafka import AIOKafkaConsumer
from native_wire import NativeWire

from penstock.testing.server import Server
from penstock.wire.kafka.messages import decode_assignment
from penstock.wire.native.messages import (
    MAX_DESCRIBED,
    Commit,
    CreateTopic,
    DeleteGroup,
    DeleteOffsets,
    DeleteTopic,
    DescribeGroup,
    DescribeTopics,
    Done,
    GroupDescription,
    GroupInfo,
    GroupOffset,
    Groups,
    ListGroups,
    ListTopics,
    PartitionInfo,
    TopicDescriptions,
    Topics,
)
from servers import StartServer

WITHIN_S = 30


async def described(native: NativeWire, group: str) -> GroupDescription:
    return await native.ask(DescribeGroup(group), GroupDescription)


async def committed(native: NativeWire, group: str) -> list[GroupOffset]:
    return (await described(native, group)).offsets


# -- topics -------------------------------------------------------------------------------------------------


async def test_a_topic_is_described(native: NativeWire, topic: str) -> None:
    await native.ask(CreateTopic(topic, 2, {"retention.ms": "60000"}), Topics)
    await native.publish(topic, b"a", b"b", partition=1)
    (told,) = (await native.ask(DescribeTopics([topic, topic, topic + "-gone"]), TopicDescriptions)).topics
    assert (told.name, len(told.topic_id), told.internal) == (topic, 36, False)
    nodes = told.partitions[0].replicas
    assert told.partitions == [PartitionInfo(0, 0, nodes[0], nodes, nodes), PartitionInfo(0, 2, nodes[0], nodes, nodes)]
    settings = {one.name: (one.value, one.source) for one in told.settings}
    assert settings["retention.ms"] == ("60000", "topic")
    assert settings["cleanup.policy"] == ("delete", "default")
    (brief,) = (await native.ask(DescribeTopics([topic], settings=False), TopicDescriptions)).topics
    assert (brief.partitions, brief.settings) == (told.partitions, [])


async def test_a_default_of_the_server_is_told_from_one_of_the_topic(start_server: StartServer) -> None:
    native = await NativeWire.open(start_server(topic_defaults="retention.ms=12345").line)
    await native.ask(CreateTopic("t"), Topics)
    (told,) = (await native.ask(DescribeTopics(["t"]), TopicDescriptions)).topics
    assert {one.name: (one.value, one.source) for one in told.settings}["retention.ms"] == ("12345", "server")
    await native.close()


async def test_the_servers_own_topics_are_listed_when_asked_for(native: NativeWire) -> None:
    listed = (await native.ask(ListTopics(), Topics)).topics
    assert not [one.name for one in listed if one.internal]
    every = (await native.ask(ListTopics(internal=True), Topics)).topics
    own = [one.name for one in every if one.internal]
    assert "__penstock_groups" in own
    (told,) = (await native.ask(DescribeTopics(["__penstock_groups"]), TopicDescriptions)).topics
    assert told.internal


async def test_more_topics_than_allowed_are_malformed(native: NativeWire) -> None:
    refused = await native.refused(DescribeTopics(["t"] * (MAX_DESCRIBED + 1)))
    assert refused.code == "malformed"


# -- groups -------------------------------------------------------------------------------------------------


async def test_a_group_of_offsets_alone(native: NativeWire, topic: str, group: str) -> None:
    await native.ask(CreateTopic(topic, 2), Topics)
    await native.publish(topic, b"a", b"b", b"c")
    await native.ask(Commit(group, [(topic, 1, 0), (topic, 0, 2)]), Done)
    assert GroupInfo(group, "Empty", "") in (await native.ask(ListGroups(), Groups)).groups
    told = await described(native, group)
    assert (told.name, told.state, told.members) == (group, "Empty", [])
    assert told.offsets == [GroupOffset(topic, 0, 2, 3), GroupOffset(topic, 1, 0, 0)]

    assert (await native.ask(DeleteOffsets(group, [(topic, 1)]), Done)).count == 1
    assert await committed(native, group) == [GroupOffset(topic, 0, 2, 3)]
    await native.ask(DeleteGroup(group), Done)
    assert group not in [one.name for one in (await native.ask(ListGroups(), Groups)).groups]
    for request in (DescribeGroup(group), DeleteGroup(group), DeleteOffsets(group, [(topic, 0)])):
        assert (await native.refused(request)).code == "unknown-group"


async def test_a_group_forgets_a_topic_that_is_deleted(native: NativeWire, topic: str, group: str) -> None:
    for name in (topic, topic + "-2"):
        await native.ask(CreateTopic(name, 1), Topics)
        await native.ask(Commit(group, [(name, 0, 0)]), Done)
    await native.ask(DeleteTopic(topic), Done)
    assert [one.topic for one in await committed(native, group)] == [topic + "-2"]


async def test_a_group_with_members(native: NativeWire, server: Server, topic: str, group: str) -> None:
    await native.ask(CreateTopic(topic, 3), Topics)
    await native.ask(CreateTopic(topic + "-unread", 1), Topics)
    await native.ask(Commit(group, [(topic, 0, 0), (topic + "-unread", 0, 0)]), Done)
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=server.kafka, group_id=group, client_id="one")
    await asyncio.wait_for(consumer.start(), WITHIN_S)
    try:
        told = await described(native, group)
        (member,) = told.members
        assert (told.state, told.protocol_type, member.client_id, member.host) == (
            "Stable",
            "consumer",
            "one",
            "127.0.0.1",
        )
        (part,) = decode_assignment(member.assignment).assigned_partitions
        assert (part.topic, sorted(part.partitions)) == (topic, [0, 1, 2])

        assert (await native.refused(DeleteGroup(group))).code == "group-not-empty"
        assert (await native.refused(DeleteOffsets(group, [(topic, 0)]))).code == "group-subscribed"
        assert (await native.refused(Commit(group, [(topic, 0, 0)]))).code == "unknown-member"
        assert (await native.ask(DeleteOffsets(group, [(topic + "-unread", 0)]), Done)).count == 1
    finally:
        await asyncio.wait_for(consumer.stop(), WITHIN_S)
    await native.ask(DeleteGroup(group), Done)
