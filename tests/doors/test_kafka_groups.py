"""The group APIs of the Kafka door, version by version."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace as Struct

import pytest
from kafka_groups_house import SUBSCRIPTION, House

from penstock.model.errors import NotAllowed, StorageFull
from penstock.security.acl import AllowAll, Operation, Resource
from penstock.security.principal import Principal
from penstock.wire.kafka.api import ApiKey


class NobodyMay(AllowAll):
    def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
        return False

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        raise NotAllowed(f"{name} is not yours")


@pytest.fixture
async def house() -> AsyncIterator[House]:
    built = House()
    yield built
    await built.coordinator.stop()


@pytest.fixture
async def locked_house() -> AsyncIterator[House]:
    built = House(NobodyMay())
    yield built
    await built.coordinator.stop()


@pytest.mark.parametrize("version", range(7))
async def test_the_coordinator_is_where_the_client_has_reached_us(house: House, version: int) -> None:
    if version < 4:
        found = await house.now(ApiKey.FIND_COORDINATOR, version, key="readers")
    else:
        reply = await house.now(ApiKey.FIND_COORDINATOR, version, coordinator_keys=["readers", "writers"])
        found, other = reply.coordinators
        assert (found.key, other.key) == ("readers", "writers")
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 3, "broker.example", 9092)


@pytest.mark.parametrize("version", range(1, 7))
async def test_what_is_not_coordinated_here_is_said_so(house: House, version: int) -> None:
    for key_type in (2, 9):
        found = await house.now(ApiKey.FIND_COORDINATOR, version, key="k", coordinator_keys=["k"], key_type=key_type)
        found = found if version < 4 else found.coordinators[0]
        assert (found.error_code, found.node_id) == (42, -1)
        assert found.error_message


@pytest.mark.parametrize("version", range(10))
async def test_a_member_joins_syncs_beats_and_leaves(house: House, version: int) -> None:
    joined = await house.member(version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id and joined.member_id.startswith("app-")
    assert [(m.member_id, m.metadata) for m in joined.members] == [(joined.member_id, SUBSCRIPTION)]
    if version >= 7:
        assert joined.protocol_type == "consumer"
    me = {"group_id": "readers", "generation_id": 1, "member_id": joined.member_id}
    synced = await house.now(
        ApiKey.SYNC_GROUP,
        min(version, 5),
        **me,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[Struct(member_id=joined.member_id, assignment=b"all")],
    )
    assert (synced.error_code, synced.assignment) == (0, b"all")
    assert (await house.now(ApiKey.HEARTBEAT, min(version, 4), **me)).error_code == 0
    left = await house.now(
        ApiKey.LEAVE_GROUP,
        min(version, 5),
        group_id="readers",
        member_id=joined.member_id,
        members=[Struct(member_id=joined.member_id)],
    )
    assert left.error_code == 0
    if version >= 3:
        assert [(m.member_id, m.error_code) for m in left.members] == [(joined.member_id, 0)]
    assert (await house.now(ApiKey.HEARTBEAT, min(version, 4), **me)).error_code == 25


@pytest.mark.parametrize("version", range(4, 10))
async def test_from_version_4_on_a_member_is_first_given_its_id(house: House, version: int) -> None:
    refused = await house.now(
        ApiKey.JOIN_GROUP,
        version,
        group_id="readers",
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[Struct(name="range", metadata=b"")],
    )
    assert refused.error_code == 79 and refused.member_id.startswith("app-")
    assert (refused.generation_id, refused.protocol_name) == (-1, None if version >= 7 else "")


async def test_version_0_has_one_time_out_for_both(house: House) -> None:
    first = await house.member(0)
    house.ask(
        ApiKey.JOIN_GROUP, 0, group_id="readers", session_timeout_ms=10_000, protocol_type="consumer",
        protocols=[Struct(name="range", metadata=b"")],
    )  # fmt: skip
    await asyncio.sleep(0)
    (group,) = house.coordinator._host.groups.values()
    assert {m.rebalance_timeout_ms for m in group.machine.roster} == {10_000}
    assert first.generation_id == 1


@pytest.mark.parametrize("version", range(10))
async def test_a_refused_join_says_why_and_repeats_who_asked(house: House, version: int) -> None:
    refused = await house.now(ApiKey.JOIN_GROUP, version, group_id="readers", session_timeout_ms=1, member_id="")
    assert refused.error_code == 26
    unknown = await house.now(ApiKey.JOIN_GROUP, version, group_id="readers", session_timeout_ms=1, member_id="me")
    assert (unknown.error_code, unknown.member_id) == (25, "me")
    nameless = await house.now(ApiKey.JOIN_GROUP, version, group_id="", session_timeout_ms=10_000)
    assert nameless.error_code == 24


async def test_from_version_5_on_a_sync_repeats_the_protocol(house: House) -> None:
    joined = await house.member()
    me = {"group_id": "readers", "generation_id": 1, "member_id": joined.member_id}
    for named in ({}, {"protocol_type": "consumer"}, {"protocol_type": "consumer", "protocol_name": "sticky"}):
        synced = await house.now(ApiKey.SYNC_GROUP, 5, **me, **named)
        assert (synced.error_code, synced.assignment, synced.protocol_name) == (23, b"", None)


async def test_a_static_member_returns_and_a_leader_that_can_is_told_to_skip(house: House) -> None:
    first = await house.stable(group_instance_id="i0")
    old_client = await house.member(8, group_instance_id="i0")
    assert old_client.generation_id == first.generation_id and old_client.leader == first.member_id
    new_client = await house.member(9, group_instance_id="i0")
    assert new_client.skip_assignment and new_client.leader == new_client.member_id
    assert [m.group_instance_id for m in new_client.members] == ["i0"]
    fenced = await house.now(
        ApiKey.HEARTBEAT, 3, group_id="readers", generation_id=1, member_id=first.member_id, group_instance_id="i0"
    )
    assert fenced.error_code == 82


@pytest.mark.parametrize("version", range(6))
async def test_who_is_not_there_cannot_leave(house: House, version: int) -> None:
    body = {"member_id": "me", "members": [Struct(member_id="me"), Struct(member_id="", group_instance_id="i7")]}
    left = await house.now(ApiKey.LEAVE_GROUP, version, group_id="nowhere", **body)
    await house.stable()
    also = await house.now(ApiKey.LEAVE_GROUP, version, group_id="readers", **body)
    if version < 3:
        assert left.error_code == also.error_code == 25
    else:
        assert left.error_code == also.error_code == 0
        assert [m.error_code for m in left.members] == [m.error_code for m in also.members] == [25, 25]


async def test_a_parked_join_holds_nobody_else(house: House) -> None:
    first = await house.stable()
    parked = house.ask(
        ApiKey.JOIN_GROUP, 0, group_id="readers", session_timeout_ms=10_000, protocol_type="consumer",
        protocols=[Struct(name="range", metadata=b"")],
    )  # fmt: skip
    await asyncio.sleep(0.01)
    assert not parked.done()
    beat = await house.now(ApiKey.HEARTBEAT, 0, group_id="readers", generation_id=1, member_id=first.member_id)
    assert beat.error_code == 27
    await house.now(ApiKey.LEAVE_GROUP, 0, group_id="readers", member_id=first.member_id)
    assert (await asyncio.wait_for(parked, 5)).generation_id == 2


@pytest.mark.parametrize("version", range(7))
async def test_groups_are_described(house: House, version: int) -> None:
    joined = await house.stable()
    reply = await house.now(
        ApiKey.DESCRIBE_GROUPS, version, groups=["readers", "nobody"], include_authorized_operations=True
    )
    readers, nobody = reply.groups
    assert (readers.error_code, readers.group_state, readers.protocol_type) == (0, "Stable", "consumer")
    assert readers.protocol_data == "range"
    (member,) = readers.members
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "app", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (SUBSCRIPTION, b"all")
    assert (nobody.group_state, nobody.members) == ("Dead", [])
    assert nobody.error_code == (69 if version >= 6 else 0)
    if version >= 3:
        assert readers.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8
    if version >= 6:
        assert "nobody" in nobody.error_message


@pytest.mark.parametrize("version", range(6))
async def test_groups_are_listed(house: House, version: int) -> None:
    await house.stable()
    await house.now(
        ApiKey.OFFSET_COMMIT, 2, group_id="simple",
        topics=[Struct(name="orders", partitions=[Struct(partition_index=0, committed_offset=1)])],
    )  # fmt: skip
    listed = await house.now(ApiKey.LIST_GROUPS, version)
    assert {(g.group_id, g.protocol_type) for g in listed.groups} == {("readers", "consumer"), ("simple", "")}
    if version >= 4:
        assert {g.group_state for g in listed.groups} == {"Stable", "Empty"}
        listed = await house.now(ApiKey.LIST_GROUPS, version, states_filter=["stable", "PreparingRebalance"])
        assert [g.group_id for g in listed.groups] == ["readers"]
    if version >= 5:
        assert {g.group_type for g in listed.groups} == {"classic"}
        assert len((await house.now(ApiKey.LIST_GROUPS, version, types_filter=["Classic"])).groups) == 2
        assert (await house.now(ApiKey.LIST_GROUPS, version, types_filter=["consumer"])).groups == []


@pytest.mark.parametrize("version", range(3))
async def test_only_empty_groups_are_deleted(house: House, version: int) -> None:
    joined = await house.stable()
    await house.member(5, group="leftover")
    names = ["readers", "nobody"]
    reply = await house.now(ApiKey.DELETE_GROUPS, version, groups_names=names)
    assert [(r.group_id, r.error_code) for r in reply.results] == [("readers", 68), ("nobody", 69)]
    await house.now(ApiKey.LEAVE_GROUP, 0, group_id="readers", member_id=joined.member_id)
    reply = await house.now(ApiKey.DELETE_GROUPS, version, groups_names=["readers"])
    assert [r.error_code for r in reply.results] == [0]
    assert (await house.now(ApiKey.DESCRIBE_GROUPS, 6, groups=["readers"])).groups[0].error_code == 69


async def test_a_full_disk_sends_members_back_to_look_for_the_coordinator(house: House) -> None:
    joined = await house.member()
    house.ledger.failure = StorageFull("no space left")
    synced = await house.now(ApiKey.SYNC_GROUP, 3, group_id="readers", generation_id=1, member_id=joined.member_id)
    assert synced.error_code == 15
    house.ledger.failure = None
    again = await house.member(5, member_id=joined.member_id)
    assert (again.error_code, again.generation_id) == (0, 2)


async def test_who_may_not_is_told_so_by_every_api(locked_house: House) -> None:
    ask = locked_house.now
    assert (await ask(ApiKey.FIND_COORDINATOR, 3, key="readers")).error_code == 30
    assert (await ask(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=["readers"])).coordinators[0].error_code == 30
    assert (await ask(ApiKey.JOIN_GROUP, 5, group_id="readers")).error_code == 30
    assert (await ask(ApiKey.SYNC_GROUP, 3, group_id="readers")).error_code == 30
    assert (await ask(ApiKey.HEARTBEAT, 3, group_id="readers")).error_code == 30
    assert (await ask(ApiKey.LEAVE_GROUP, 3, group_id="readers", members=[])).error_code == 30
    assert (await ask(ApiKey.DESCRIBE_GROUPS, 5, groups=["readers"])).groups[0].error_code == 30
    assert (await ask(ApiKey.DELETE_GROUPS, 1, groups_names=["readers"])).results[0].error_code == 30
    assert (await ask(ApiKey.LIST_GROUPS, 5)).groups == []
    partitions = [Struct(partition_index=0, committed_offset=1)]
    committed = await ask(
        ApiKey.OFFSET_COMMIT, 2, group_id="readers", topics=[Struct(name="orders", partitions=partitions)]
    )
    assert committed.topics[0].partitions[0].error_code == 30
    assert (await ask(ApiKey.OFFSET_FETCH, 7, group_id="readers", topics=None)).error_code == 30
    assert (await ask(ApiKey.OFFSET_DELETE, 0, group_id="readers")).error_code == 30
