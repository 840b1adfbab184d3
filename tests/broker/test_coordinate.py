"""The shell around the groups: nobody is told what is not durable, everyone is told in order, one timer serves all."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.broker.coordinate import (
    Commit,
    Coordinator,
    GroupSettings,
    GroupState,
    Join,
    Joined,
    Leaver,
    NewMemberId,
    OffsetCommit,
    Sync,
    TopicPartition,
)
from penstock.model.clock import SystemClock
from penstock.model.errors import (
    GroupNotEmpty,
    IllegalGeneration,
    InvalidGroup,
    LimitReached,
    NotAllowed,
    RebalanceInProgress,
    StorageFailed,
    StorageFull,
    UnknownGroup,
    UnknownMember,
    UnstableOffset,
)
from penstock.security.acl import AllowAll, Operation, Resource
from penstock.security.principal import ANONYMOUS, Principal
from penstock.testing.clock import ManualClock

ORDERS = TopicPartition("orders", 0)


class LateLedger:
    """A ledger whose facts become durable when the test says so."""

    def __init__(self) -> None:
        self.facts: list[tuple[bytes, bytes | None]] = []
        self.under_way: list[tuple[tuple[bytes, bytes | None], asyncio.Future[None]]] = []
        self.at_once = False

    def record(self, key: bytes, value: bytes | None) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.at_once:
            self.facts.append((key, value))
            future.set_result(None)
        else:
            self.under_way.append(((key, value), future))
        return future

    async def replay(self) -> AsyncIterator[tuple[bytes, bytes | None]]:
        for fact in self.facts:
            yield fact

    def land(self, error: Exception | None = None) -> None:
        landing, self.under_way = self.under_way, []
        for fact, future in landing:
            if error is None:
                self.facts.append(fact)
                future.set_result(None)
            else:
                future.set_exception(error)


class House:
    def __init__(self, **settings: Any) -> None:
        self.ledger = LateLedger()
        self.clock = ManualClock()
        self.settings = GroupSettings(**{"initial_rebalance_delay_ms": 0, **settings})
        self.coordinator = Coordinator(self.ledger, self.clock, self.settings)

    async def restart(self) -> None:
        await self.coordinator.stop()
        self.ledger.under_way.clear()
        self.coordinator = Coordinator(self.ledger, self.clock, self.settings)
        await self.coordinator.start()

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.coordinator.run_due()

    def join(self, member_id: str = "", group: str = "readers", known_id: bool = False) -> asyncio.Future[Any]:
        ask = Join(
            member_id=member_id, new_member_id="", instance_id=None, client_id="app", client_host="/127.0.0.1",
            session_timeout_ms=10_000, rebalance_timeout_ms=60_000, protocol_type="consumer",
            protocols=(("range", b""),), requires_known_id=known_id,
        )  # fmt: skip
        return self.coordinator.join(ANONYMOUS, group, ask)

    def sync(self, joined: Joined, assignments: dict[str, bytes]) -> asyncio.Future[Any]:
        return self.coordinator.sync(ANONYMOUS, "readers", Sync(joined.member_id, joined.generation, assignments))

    def commit(self, offset: int, joined: Joined | None = None) -> asyncio.Future[Any]:
        ask = OffsetCommit({ORDERS: Commit(offset)})
        if joined is not None:
            ask.member_id, ask.generation = joined.member_id, joined.generation
        return self.coordinator.commit(ANONYMOUS, "readers", ask)

    async def committed(self) -> int | None:
        found = await soon(self.coordinator.committed(ANONYMOUS, "readers", [ORDERS]))
        return None if found[ORDERS] is None else found[ORDERS].offset

    async def stable(self) -> Joined:
        joined: Joined = await soon(self.join())
        synced = self.sync(joined, {joined.member_id: b"all"})
        self.ledger.land()
        await soon(synced)
        return joined


async def soon(future: Any) -> Any:
    return await asyncio.wait_for(future, 5)


async def ticks(count: int = 3) -> None:
    """Let callbacks run; nothing that was decided needs more."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    built = House()
    yield built
    await built.coordinator.stop()


async def test_a_commit_is_acknowledged_when_it_is_durable_and_not_before(house: House) -> None:
    reply = house.commit(7)
    await ticks()
    assert not reply.done()
    house.ledger.land()
    assert await soon(reply) == {ORDERS: None}
    assert await house.committed() == 7


async def test_a_fetch_sees_the_commit_made_before_it_once_that_is_durable(house: House) -> None:
    house.commit(7)
    asked = house.coordinator.committed(ANONYMOUS, "readers", [ORDERS])
    await ticks()
    assert not asked.done()
    house.ledger.land()
    assert (await soon(asked))[ORDERS].offset == 7


async def test_a_commit_that_cannot_be_stored_is_refused_and_leaves_the_former_one(house: House) -> None:
    first = house.commit(7)
    house.ledger.land()
    await soon(first)
    second = house.commit(8)
    house.ledger.land(StorageFull("no space left"))
    with pytest.raises(StorageFull):
        await soon(second)
    assert await house.committed() == 7
    third = house.commit(9)
    house.ledger.land()
    await soon(third)
    assert await house.committed() == 9


async def test_an_unforeseen_failure_of_the_ledger_is_an_answer_too(house: House) -> None:
    reply = house.commit(7)
    house.ledger.land(OSError("the cable is out"))
    with pytest.raises(StorageFailed, match="cable"):
        await soon(reply)


async def test_an_assignment_is_told_when_it_is_durable(house: House) -> None:
    joined = await soon(house.join())
    synced = house.sync(joined, {joined.member_id: b"all"})
    again = house.sync(joined, {})
    await ticks()
    assert not synced.done() and not again.done()
    house.ledger.land()
    assert (await soon(synced)).assignment == (await soon(again)).assignment == b"all"


async def test_an_assignment_that_cannot_be_stored_leads_to_a_new_rebalance(house: House) -> None:
    joined = await soon(house.join())
    synced = house.sync(joined, {joined.member_id: b"all"})
    house.ledger.land(StorageFull("no space left"))
    with pytest.raises(StorageFull):
        await soon(synced)
    with pytest.raises(RebalanceInProgress):
        await soon(house.coordinator.heartbeat(ANONYMOUS, "readers", joined.member_id, joined.generation))
    assert (await soon(house.join(joined.member_id))).generation == joined.generation + 1


async def test_joins_wait_for_each_other_and_are_answered_together(house: House) -> None:
    first = await house.stable()
    newcomer = house.join()
    await ticks()
    assert not newcomer.done()
    again = house.join(first.member_id)
    assert (await soon(newcomer)).generation == (await soon(again)).generation == 2


async def test_a_new_member_is_given_an_id_that_names_its_client(house: House) -> None:
    given = await soon(house.join(known_id=True))
    assert isinstance(given, NewMemberId) and given.member_id.startswith("app-")
    assert (await soon(house.join(given.member_id))).member_id == given.member_id


async def test_consumers_go_on_after_a_restart_and_their_sessions_begin_anew(house: House) -> None:
    joined = await house.stable()
    reply = house.commit(41, joined)
    house.ledger.land()
    await soon(reply)
    house.clock.advance(9_000)
    await house.restart()
    house.advance(9_000)
    await soon(house.coordinator.heartbeat(ANONYMOUS, "readers", joined.member_id, joined.generation))
    assert await house.committed() == 41


async def test_a_commit_that_was_not_durable_is_gone_after_a_crash(house: House) -> None:
    first = house.commit(1)
    house.ledger.land()
    await soon(first)
    lost = house.commit(2)
    await house.restart()
    with pytest.raises(StorageFailed):
        await soon(lost)
    assert await house.committed() == 1


async def test_a_member_that_falls_silent_is_found_by_the_timer(house: House) -> None:
    joined = await house.stable()
    house.advance(10_000)
    house.ledger.land()
    await ticks()
    assert house.coordinator.describe(ANONYMOUS, "readers").state is GroupState.EMPTY
    with pytest.raises(UnknownMember):
        await soon(house.coordinator.heartbeat(ANONYMOUS, "readers", joined.member_id, joined.generation))


async def test_the_timer_runs_by_itself_on_a_real_clock() -> None:
    house = House(min_session_timeout_ms=10)
    house.coordinator = Coordinator(
        house.ledger, SystemClock(), GroupSettings(initial_rebalance_delay_ms=20, min_session_timeout_ms=10)
    )
    joined = await soon(house.join())
    assert joined.generation == 1, "only the timer ends the initial delay"
    await house.coordinator.stop()


async def test_an_idle_group_and_its_heartbeats_cost_no_timer(house: House) -> None:
    joined = await house.stable()
    entries = len(house.coordinator._host.alarms._heap)
    for _ in range(100):
        house.clock.advance(50)
        await soon(house.coordinator.heartbeat(ANONYMOUS, "readers", joined.member_id, joined.generation))
    assert len(house.coordinator._host.alarms._heap) == entries


async def test_many_groups_share_one_timer_and_take_turns(house: House) -> None:
    house.ledger.at_once = True
    for index in range(1200):
        await soon(house.join(group=f"g{index}"))
    assert sum(1 for _ in house.coordinator.groups(ANONYMOUS)) == 1200
    house.clock.advance(10_000)
    for _ in range(3):
        house.coordinator.run_due()
    await ticks()
    assert {group.state for group in house.coordinator.groups(ANONYMOUS)} == {GroupState.EMPTY}


async def test_groups_of_which_nothing_is_left_are_forgotten(house: House) -> None:
    reply = house.commit(1)
    house.ledger.land()
    await soon(reply)
    deleted = house.coordinator.delete(ANONYMOUS, "readers")
    house.ledger.land()
    await soon(deleted)
    with pytest.raises(UnknownGroup):
        house.coordinator.describe(ANONYMOUS, "readers")
    await house.restart()
    assert list(house.coordinator.groups(ANONYMOUS)) == []


async def test_a_refused_join_leaves_no_group_behind(house: House) -> None:
    ask = Join("", "", None, "app", "h", 1, 1, "consumer", (("range", b""),))
    with pytest.raises(Exception, match="session time-out"):
        await soon(house.coordinator.join(ANONYMOUS, "readers", ask))
    assert list(house.coordinator.groups(ANONYMOUS)) == []


async def test_a_group_with_members_cannot_be_deleted(house: House) -> None:
    joined = await house.stable()
    with pytest.raises(GroupNotEmpty):
        await soon(house.coordinator.delete(ANONYMOUS, "readers"))
    left = house.coordinator.leave(ANONYMOUS, "readers", [Leaver(joined.member_id)])
    house.ledger.land()
    assert await soon(left) == [None]
    deleted = house.coordinator.delete(ANONYMOUS, "readers")
    house.ledger.land()
    await soon(deleted)


async def test_the_offsets_of_a_deleted_topic_are_removed(house: House) -> None:
    house.ledger.at_once = True
    await soon(house.commit(1))
    await soon(house.coordinator.forget_topic("orders"))
    assert await house.committed() is None


async def test_offsets_whose_topic_went_missing_in_a_crash_are_removed_at_start(house: House) -> None:
    house.ledger.at_once = True
    await soon(house.commit(1))
    await house.restart()
    await soon(house.coordinator.keep_only_topics({"payments"}))
    assert await house.committed() is None


async def test_whoever_waits_when_the_server_stops_is_told(house: House) -> None:
    await house.stable()
    waiting = house.join()
    house.coordinator.release()
    with pytest.raises(StorageFailed, match="stopping"):
        await soon(waiting)
    with pytest.raises(StorageFailed, match="stopping"):
        await soon(house.join())


async def test_whoever_went_away_while_waiting_disturbs_nobody(house: House) -> None:
    first = await house.stable()
    house.join().cancel()
    again = house.join(first.member_id)
    assert len((await soon(again)).members) == 2


async def test_members_of_groups_that_are_not_there(house: House) -> None:
    with pytest.raises(UnknownMember):
        house.join("someone")
    with pytest.raises(UnknownMember):
        house.coordinator.heartbeat(ANONYMOUS, "readers", "someone", 1)
    with pytest.raises(UnknownGroup):
        house.coordinator.commit(ANONYMOUS, "readers", OffsetCommit({}, "someone", 1))
    with pytest.raises(InvalidGroup):
        house.join(group="")


async def test_the_number_of_groups_is_bounded() -> None:
    house = House(max_groups=2)
    house.ledger.at_once = True
    for index in range(2):
        await soon(house.join(group=f"g{index}"))
    with pytest.raises(LimitReached, match="max_groups"):
        house.join(group="one too many")
    await house.coordinator.stop()


class OnlyOwn(AllowAll):
    """Everyone may do everything to what carries their name."""

    def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
        return name.startswith(principal.name)

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        if not self.allows(principal, operation, resource, name):
            raise NotAllowed(f"{principal.name} may not {operation.value} {resource.value} {name}")


async def test_each_verb_asks_whether_it_is_allowed() -> None:
    ledger = LateLedger()
    ledger.at_once = True
    coordinator = Coordinator(ledger, ManualClock(), GroupSettings(), OnlyOwn())
    ann, ben = Principal("ann"), Principal("ben")
    own, other = TopicPartition("ann.orders", 0), TopicPartition("ben.orders", 0)
    results = await soon(coordinator.commit(ann, "ann.readers", OffsetCommit({own: Commit(1), other: Commit(2)})))
    assert results[own] is None and isinstance(results[other], NotAllowed)
    join = Join("", "", None, "app", "h", 10_000, 10_000, "consumer", (("range", b""),))
    for verb in (
        lambda: coordinator.join(ben, "ann.readers", join),
        lambda: coordinator.sync(ben, "ann.readers", Sync("", 1, {})),
        lambda: coordinator.heartbeat(ben, "ann.readers", "", 1),
        lambda: coordinator.leave(ben, "ann.readers", [Leaver("m")]),
        lambda: coordinator.commit(ben, "ann.readers", OffsetCommit({})),
        lambda: coordinator.committed(ben, "ann.readers"),
        lambda: coordinator.delete_offsets(ben, "ann.readers", [own]),
        lambda: coordinator.describe(ben, "ann.readers"),
        lambda: coordinator.delete(ben, "ann.readers"),
        lambda: coordinator.check_may_find(ben, "ann.readers"),
    ):
        with pytest.raises(NotAllowed):
            verb()
    assert [g.group for g in coordinator.groups(ann)] == ["ann.readers"]
    assert list(coordinator.groups(ben)) == []
    await coordinator.stop()


# -- offsets of transactions ------------------------------------------------------------------------------------


def pend(house: House, offset: int, producer_id: int = 7) -> asyncio.Future[Any]:
    return house.coordinator.pend(ANONYMOUS, "readers", OffsetCommit({ORDERS: Commit(offset)}), producer_id)


async def stable_offset(house: House) -> Any:
    found = await soon(house.coordinator.committed(ANONYMOUS, "readers", [ORDERS], stable=True))
    return found[ORDERS]


async def test_offsets_of_a_transaction_are_durable_before_they_are_acknowledged(house: House) -> None:
    reply = pend(house, 5)
    await ticks()
    assert not reply.done()
    house.ledger.land()
    assert await soon(reply) == {ORDERS: None}
    assert await house.committed() is None
    assert isinstance(await stable_offset(house), UnstableOffset)
    everything = await soon(house.coordinator.committed(ANONYMOUS, "readers", stable=True))
    assert isinstance(everything[ORDERS], UnstableOffset)
    await house.restart()
    assert isinstance(await stable_offset(house), UnstableOffset), "a restart does not decide"
    ended = house.coordinator.end_pending("readers", 7, True)
    await ticks()
    assert not ended.done()
    house.ledger.land()
    await soon(ended)
    assert (await stable_offset(house)).offset == 5
    await house.restart()
    assert await house.committed() == 5


async def test_an_end_may_be_told_again_and_of_a_group_that_is_gone(house: House) -> None:
    house.ledger.at_once = True
    await soon(pend(house, 5))
    for _ in range(2):
        await soon(house.coordinator.end_pending("readers", 7, False))
    assert await house.committed() is None
    with pytest.raises(UnknownGroup):
        house.coordinator.describe(ANONYMOUS, "readers")
    await soon(house.coordinator.end_pending("readers", 7, True))


async def test_an_end_that_could_not_be_stored_is_an_error_and_can_be_tried_again(house: House) -> None:
    house.ledger.at_once = True
    await soon(pend(house, 5))
    house.ledger.at_once = False
    ended = house.coordinator.end_pending("readers", 7, True)
    house.ledger.land(StorageFull("no room"))
    with pytest.raises(StorageFull):
        await soon(ended)
    assert isinstance(await stable_offset(house), UnstableOffset)
    ended = house.coordinator.end_pending("readers", 7, True)
    house.ledger.land()
    await soon(ended)
    assert await house.committed() == 5


async def test_pending_offsets_of_topics_that_are_gone_are_forgotten_at_start(house: House) -> None:
    house.ledger.at_once = True
    await soon(pend(house, 5))
    await house.restart()
    await soon(house.coordinator.keep_only_topics(["payments"]))
    assert await stable_offset(house) is None


async def test_a_member_of_a_group_that_is_not_there_cannot_hand_in_offsets(house: House) -> None:
    ask = OffsetCommit({ORDERS: Commit(5)}, "somebody", 3)
    with pytest.raises(IllegalGeneration):
        house.coordinator.pend(ANONYMOUS, "readers", ask, 7)
