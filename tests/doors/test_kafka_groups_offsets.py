"""The offset APIs of the Kafka door, version by version."""

import uuid
from collections.abc import AsyncIterator
from types import SimpleNamespace as Struct
from typing import Any

import pytest
from kafka_groups_house import House

from penstock.model.errors import NotAllowed, StorageFull
from penstock.security.acl import AllowAll, Operation, Resource
from penstock.security.principal import Principal
from penstock.wire.kafka.api import ApiKey


@pytest.fixture
async def house() -> AsyncIterator[House]:
    built = House()
    yield built
    await built.coordinator.stop()


def of_topic(house: House, name: str, version: int, **more: Any) -> Struct:
    """A topic as this version calls it."""
    known = house.topics.by_name.get(name)
    if version < 10:
        return Struct(name=name, **more)
    return Struct(topic_id=known.id if known else uuid.UUID(int=99), **more)


async def commit(
    house: House, version: int, topic: str = "orders", index: int = 0, offset: int = 5, **more: Any
) -> int:
    partition = Struct(
        partition_index=index,
        committed_offset=offset,
        committed_leader_epoch=2,
        committed_metadata=more.pop("note", "n"),
    )
    reply = await house.now(
        ApiKey.OFFSET_COMMIT,
        version,
        **{"group_id": "readers", "topics": [of_topic(house, topic, version, partitions=[partition])], **more},
    )
    (answered,) = reply.topics
    assert answered.topic_id == of_topic(house, topic, version).topic_id if version >= 10 else answered.name == topic
    code: int = answered.partitions[0].error_code
    return code


async def fetch(house: House, version: int, *topics: tuple[str, list[int]], everything: bool = False) -> Any:
    """The reply about the group, whichever way this version wraps it."""
    wanted = None if everything else [of_topic(house, t, version, partition_indexes=i) for t, i in topics]
    if version < 8:
        return await house.now(ApiKey.OFFSET_FETCH, version, group_id="readers", topics=wanted)
    reply = await house.now(
        ApiKey.OFFSET_FETCH, version, groups=[Struct(group_id="readers", topics=wanted)], require_stable=True
    )
    return reply.groups[0]


@pytest.mark.parametrize("version", range(2, 11))
async def test_what_was_committed_in_one_version_is_fetched_in_all(house: House, version: int) -> None:
    assert await commit(house, version, note="half way") == 0
    for fetch_version in range(1, 11):
        reply = await fetch(house, fetch_version, ("orders", [0, 1]))
        (topic,) = reply.topics
        first, second = topic.partitions
        assert (first.committed_offset, first.metadata, first.error_code) == (5, "half way", 0)
        assert (second.committed_offset, second.metadata, second.error_code) == (-1, "", 0)
        if fetch_version >= 5:
            assert first.committed_leader_epoch == (2 if version >= 6 else -1)
            assert second.committed_leader_epoch == -1


@pytest.mark.parametrize("version", range(2, 11))
async def test_no_list_of_topics_means_all(house: House, version: int) -> None:
    assert (await fetch(house, version, everything=True)).topics == []
    await commit(house, 2, "orders", 3)
    await commit(house, 2, "orders", 1)
    await commit(house, 2, "payments", 0)
    reply = await fetch(house, version, everything=True)
    assert [[p.partition_index for p in t.partitions] for t in reply.topics] == [[1, 3], [0]]
    if version >= 10:
        assert [t.topic_id for t in reply.topics] == [house.topics.by_name[n].id for n in ("orders", "payments")]
    else:
        assert [t.name for t in reply.topics] == ["orders", "payments"]


@pytest.mark.parametrize("version", range(8, 11))
async def test_several_groups_are_fetched_at_once(house: House, version: int) -> None:
    await commit(house, 2)
    topics = [of_topic(house, "orders", version, partition_indexes=[0])]
    reply = await house.now(
        ApiKey.OFFSET_FETCH,
        version,
        groups=[Struct(group_id="readers", topics=topics), Struct(group_id="others", topics=topics)],
    )
    assert [(g.group_id, g.topics[0].partitions[0].committed_offset) for g in reply.groups] == [
        ("readers", 5),
        ("others", -1),
    ]


@pytest.mark.parametrize("version", range(2, 11))
async def test_nothing_is_kept_for_what_does_not_exist(house: House, version: int) -> None:
    assert await commit(house, version, "nowhere") == (100 if version >= 10 else 3)
    assert await commit(house, version, "orders", 4) == 3
    assert await commit(house, version, "orders", -1) == 3
    assert (await house.now(ApiKey.LIST_GROUPS, 0)).groups == [], "nor is a group made for it"


async def test_an_unknown_topic_id_is_no_offset_but_an_error(house: House) -> None:
    (topic,) = (await fetch(house, 10, ("nowhere", [0]))).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].committed_offset) == (100, -1)


@pytest.mark.parametrize("version", range(2, 11))
async def test_members_are_fenced_in_each_version(house: House, version: int) -> None:
    me = {"member_id": "me", "generation_id_or_member_epoch": 1}
    assert await commit(house, version, **me) == (69 if version >= 9 else 22)
    joined = await house.stable()
    assert await commit(house, version) == 25
    assert await commit(house, version, **me) == 25
    me["member_id"] = joined.member_id
    assert await commit(house, version, **me) == 0
    assert await commit(house, version, **{**me, "generation_id_or_member_epoch": 2}) == 22


async def test_metadata_that_is_too_long_is_refused_for_its_partition_alone(house: House) -> None:
    partitions = [
        Struct(partition_index=0, committed_offset=1, committed_metadata="x" * 4097),
        Struct(partition_index=1, committed_offset=1, committed_metadata=None),
    ]
    reply = await house.now(
        ApiKey.OFFSET_COMMIT, 8, group_id="readers", topics=[Struct(name="orders", partitions=partitions)]
    )
    assert [p.error_code for p in reply.topics[0].partitions] == [12, 0]


async def test_before_version_5_a_commit_may_bring_its_retention(house: House) -> None:
    assert await commit(house, 2, retention_time_ms=1000) == 0
    assert await commit(house, 4, index=1, retention_time_ms=-1) == 0
    house.clock.advance(1000)
    house.coordinator.run_due()
    (topic,) = (await fetch(house, 1, ("orders", [0, 1]))).topics
    assert [p.committed_offset for p in topic.partitions] == [-1, 5]


async def test_a_full_disk_refuses_the_commit_and_keeps_the_former(house: House) -> None:
    await commit(house, 8, offset=5)
    house.ledger.failure = StorageFull("no space left")
    assert await commit(house, 8, offset=6) == 15
    assert (await fetch(house, 7, ("orders", [0]))).topics[0].partitions[0].committed_offset == 5


async def test_offsets_are_deleted_unless_the_topic_is_read(house: House) -> None:
    await commit(house, 2, "orders")
    await commit(house, 2, "payments")
    await house.stable()
    topics = [Struct(name=n, partitions=[Struct(partition_index=0)]) for n in ("orders", "payments", "nowhere")]
    reply = await house.now(ApiKey.OFFSET_DELETE, 0, group_id="readers", topics=topics)
    assert reply.error_code == 0
    assert [(t.name, t.partitions[0].error_code) for t in reply.topics] == [
        ("orders", 86),
        ("payments", 0),
        ("nowhere", 3),
    ]
    left = await fetch(house, 7, everything=True)
    assert [t.name for t in left.topics] == ["orders"]


async def test_offsets_of_a_partition_that_is_not_there_cannot_be_deleted(house: House) -> None:
    assert await commit(house, 8, "orders") == 0
    topics = [Struct(name="orders", partitions=[Struct(partition_index=index) for index in (0, 99, -1)])]
    reply = await house.now(ApiKey.OFFSET_DELETE, 0, group_id="readers", topics=topics)
    assert [p.error_code for p in reply.topics[0].partitions] == [0, 3, 3]


async def test_offsets_of_a_group_that_is_not_there_cannot_be_deleted(house: House) -> None:
    reply = await house.now(ApiKey.OFFSET_DELETE, 0, group_id="nobody", topics=[])
    assert (reply.error_code, reply.topics) == (69, [])


class GroupsOnly(AllowAll):
    def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
        return resource is Resource.GROUP

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        if not self.allows(principal, operation, resource, name):
            raise NotAllowed(f"{name} is not yours")


async def test_who_may_not_read_a_topic_is_not_told_whether_it_exists() -> None:
    house = House(GroupsOnly())
    assert await commit(house, 8, "orders") == 29
    assert await commit(house, 8, "nowhere") == 29
    (topic,) = (await fetch(house, 7, ("orders", [0]))).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].committed_offset) == (29, -1)
    await house.coordinator.stop()


async def test_version_1_has_its_errors_in_the_partitions() -> None:
    class Nothing(GroupsOnly):
        def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
            return False

    house = House(Nothing())
    (topic,) = (await fetch(house, 1, ("orders", [0]))).topics
    assert topic.partitions[0].error_code == 30
    later = await fetch(house, 2, ("orders", [0]))
    assert (later.error_code, later.topics) == (30, [])
    await house.coordinator.stop()
