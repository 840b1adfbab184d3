"""Stories of static members: instances that are restarted and are still the same member."""

import pytest
from group_stage import RANGE, WAITING, Stage, subscription

from penstock.delivery.group_events import GroupState, Join, Synced
from penstock.model.errors import FencedInstance, RebalanceInProgress, StorageFailed, UnknownMember


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_restarted_instance_gets_its_place_back_without_a_rebalance(stage: Stage) -> None:
    a, b = stage.stable(2, instances=True)
    generation = stage.group.generation
    joined = stage.joined(stage.join(instance_id="i1"))
    assert joined.generation == generation and joined.member_id not in (a, b)
    assert stage.heartbeat(a, generation, "i0") is None, "the others notice nothing"
    synced = stage.answers[stage.sync(joined.member_id, generation, {}, "i1")]
    assert synced == Synced("consumer", "range", f"part of {b}".encode())


def test_the_former_id_of_an_instance_is_fenced(stage: Stage) -> None:
    _, b = stage.stable(2, instances=True)
    generation = stage.group.generation
    stage.join(instance_id="i1")
    assert isinstance(stage.heartbeat(b, generation, "i1"), FencedInstance)
    assert isinstance(stage.answers[stage.sync(b, generation, {}, "i1")], FencedInstance)
    assert isinstance(stage.commit(1, member_id=b, generation=generation, instance_id="i1"), FencedInstance)
    assert isinstance(stage.answers[stage.join(b, instance_id="i1")], FencedInstance)
    assert isinstance(stage.heartbeat(b, generation), UnknownMember)


def test_a_restarted_leader_is_not_made_to_assign_anew(stage: Stage) -> None:
    a, _ = stage.stable(2, instances=True)
    old_client = stage.joined(stage.join(instance_id="i0"))
    assert old_client.leader_id == a and old_client.members == (), "it must not believe that it leads"
    new_client = stage.joined(stage.join(instance_id="i0", can_skip_assignment=True))
    assert new_client.leader_id == new_client.member_id and new_client.skip_assignment
    assert len(new_client.members) == 2
    assert stage.group.state is GroupState.STABLE


def test_a_returning_instance_with_sticky_user_data_is_unchanged_as_long_as_its_topics_are(stage: Stage) -> None:
    stage.stable(2, instances=True)
    stage.joined(stage.join(instance_id="i1", protocols=(("range", subscription("orders", tail=b"owns nothing")),)))
    assert stage.group.state is GroupState.STABLE
    other = stage.join(instance_id="i1", protocols=(("range", subscription("payments")),))
    assert stage.answers[other] is WAITING, "other topics need another assignment"
    assert stage.group.state is GroupState.PREPARING_REBALANCE


def test_an_instance_that_returns_in_the_second_round_starts_a_new_one(stage: Stage) -> None:
    a, b = stage.stable(2, instances=True)
    stage.join(a, instance_id="i0")
    stage.join(b, instance_id="i1")
    parked = stage.sync(b, stage.group.generation, {}, "i1")
    stage.join(instance_id="i1")
    assert isinstance(stage.answers[parked], FencedInstance)
    assert stage.group.state is GroupState.PREPARING_REBALANCE


def test_a_parked_join_of_the_former_id_is_fenced(stage: Stage) -> None:
    a, _ = stage.stable(2, instances=True)
    parked = stage.join(a, instance_id="i0")
    stage.join(instance_id="i0")
    assert isinstance(stage.answers[parked], FencedInstance)


def test_an_absent_instance_survives_a_rebalance_but_not_its_session(stage: Stage) -> None:
    a, b = stage.stable(2, instances=True)
    stage.join(a, instance_id="i0", rebalance_ms=5_000, session_ms=20_000)
    stage.join(b, instance_id="i1", rebalance_ms=5_000, session_ms=20_000)
    for member_id, instance in ((a, "i0"), (b, "i1")):
        stage.sync(member_id, stage.group.generation, {}, instance)
    waiting = stage.join(a, instance_id="i0", rebalance_ms=5_000, session_ms=20_000)
    stage.advance(5_000)
    assert {m.instance_id for m in stage.joined(waiting).members} == {"i0", "i1"}
    stage.advance(20_000)
    assert b not in stage.group.roster


def test_when_every_instance_is_away_the_round_goes_on_until_one_returns(stage: Stage) -> None:
    a, b = stage.stable(2, instances=True)
    stage.join(b, instance_id="i1", protocols=(("range", b"x"),), rebalance_ms=1000, session_ms=60_000)
    stage.leave(b)
    assert stage.group.state is GroupState.PREPARING_REBALANCE
    stage.advance(5_000)
    assert a in stage.group.roster
    assert stage.joined(stage.join(instance_id="i0")).generation > 0


def test_an_operator_makes_an_instance_leave_by_its_name(stage: Stage) -> None:
    a, b = stage.stable(2, instances=True)
    gone, stranger, fenced = stage.leave(("", "i1"), ("", "i7"), ("someone", "i0"))  # type: ignore[misc]
    assert gone is None and b not in stage.group.roster
    assert isinstance(stranger, UnknownMember)
    assert isinstance(fenced, FencedInstance)
    assert isinstance(stage.heartbeat(a, stage.group.generation, "i0"), RebalanceInProgress)


def test_instances_are_known_after_a_restart(stage: Stage) -> None:
    a, _ = stage.stable(2, instances=True)
    generation = stage.group.generation
    stage.restart()
    joined = stage.joined(stage.join(instance_id="i1"))
    assert joined.generation == generation
    stage.restart()
    assert stage.heartbeat(joined.member_id, generation, "i1") is None, "the new id was recorded"
    assert stage.heartbeat(a, generation, "i0") is None


def test_a_lone_instance_may_return_speaking_another_protocol(stage: Stage) -> None:
    stage.stable(1, instances=True)
    joined = stage.joined(stage.join(instance_id="i0", protocols=(("roundrobin", b""),)))
    assert (joined.generation, joined.protocol) == (2, "roundrobin")


def test_an_id_that_could_not_be_stored_is_made_anew(stage: Stage) -> None:
    stage.stable(1, instances=True)
    ticket = stage.ticket()
    stage.ids += 1
    ask = Join("", "mx", "i0", "client", "host", 10_000, 60_000, "consumer", RANGE)
    stage.settle(stage.group.join(stage.now, ticket, ask), StorageFailed("disk is full"))
    assert isinstance(stage.answers[ticket], StorageFailed)
    assert stage.joined(stage.join(instance_id="i0")).generation == 2
