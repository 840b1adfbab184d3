"""Stories of dynamic members: two rounds, heartbeats, departures and time-outs."""

import pytest
from group_stage import WAITING, Stage, subscription

from penstock.delivery.group_events import GroupSettings, GroupState, Joined, Synced
from penstock.model.errors import (
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidSessionTimeout,
    RebalanceInProgress,
    StorageFailed,
    UnknownMember,
)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_lone_consumer_joins_leads_and_gets_what_it_assigned_itself(stage: Stage) -> None:
    joined = stage.joined(stage.join())
    assert (joined.generation, joined.protocol, joined.leader_id) == (1, "range", joined.member_id)
    assert [m.member_id for m in joined.members] == [joined.member_id]
    synced = stage.answers[stage.sync(joined.member_id, 1, {joined.member_id: b"all"})]
    assert synced == Synced("consumer", "range", b"all")
    assert stage.heartbeat(joined.member_id, 1) is None
    assert stage.group.state is GroupState.STABLE


def test_a_newcomer_makes_everyone_join_again(stage: Stage) -> None:
    (first,) = stage.stable(1)
    ticket = stage.join()
    assert stage.answers[ticket] is WAITING
    assert isinstance(stage.heartbeat(first, 1), RebalanceInProgress)
    again = stage.join(first)
    assert stage.joined(again).generation == stage.joined(ticket).generation == 2
    assert len(stage.joined(again).members) == 2, "the leader is told of everyone"
    assert stage.joined(ticket).members == (), "a follower is not"


def test_followers_wait_for_the_leaders_assignment(stage: Stage) -> None:
    a = stage.joined(stage.join()).member_id
    ticket = stage.join()
    stage.join(a)
    b = stage.joined(ticket).member_id
    follower = stage.sync(b, 2)
    assert stage.answers[follower] is WAITING
    stage.sync(a, 2, {b: b"for b"})
    assert stage.answers[follower] == Synced("consumer", "range", b"for b")


def test_consumers_that_start_together_share_one_rebalance() -> None:
    stage = Stage(GroupSettings(initial_rebalance_delay_ms=100))
    a = stage.join()
    stage.advance(60)
    b = stage.join()
    stage.advance(60)
    c = stage.join()
    assert stage.answers[a] is WAITING, "the delay is stretched while newcomers arrive"
    stage.advance(200)
    assert {stage.joined(t).generation for t in (a, b, c)} == {1}


def test_the_initial_delay_is_not_stretched_beyond_the_rebalance_time_out() -> None:
    stage = Stage(GroupSettings(initial_rebalance_delay_ms=100))
    first = stage.join(rebalance_ms=450)
    for _ in range(9):
        stage.join(rebalance_ms=450)
        stage.advance(50)
    assert isinstance(stage.answers[first], Joined)


def test_a_new_member_is_first_given_an_id(stage: Stage) -> None:
    member_id = stage.new_id(stage.join(requires_known_id=True))
    assert stage.group.state is GroupState.EMPTY
    assert stage.joined(stage.join(member_id, requires_known_id=True)).member_id == member_id


def test_an_id_that_is_not_used_expires(stage: Stage) -> None:
    member_id = stage.new_id(stage.join(requires_known_id=True, session_ms=6000))
    stage.advance(6000)
    assert isinstance(stage.answers[stage.join(member_id)], UnknownMember)
    assert stage.group.is_blank


def test_a_rebalance_waits_for_ids_handed_out_but_not_for_ever(stage: Stage) -> None:
    (a,) = stage.stable(1)
    stage.new_id(stage.join(requires_known_id=True, session_ms=6000))
    waiting = stage.join(a)
    assert stage.answers[waiting] is WAITING
    stage.advance(6000)
    assert stage.joined(waiting).generation == 2


def test_the_first_member_does_not_wait_for_ids_that_others_were_given(stage: Stage) -> None:
    stage.new_id(stage.join(requires_known_id=True))
    assert stage.joined(stage.join()).generation == 1


def test_who_does_not_join_again_in_time_is_left_behind(stage: Stage) -> None:
    a, b = stage.stable(2)
    waiting = stage.join(a, (("range", subscription("orders", "more")),))
    for _ in range(11):
        assert stage.answers[waiting] is WAITING
        stage.advance(5000)
        stage.heartbeat(b, stage.group.generation)
    stage.advance(5000)
    assert [m.member_id for m in stage.joined(waiting).members] == [a]
    assert isinstance(stage.heartbeat(b, stage.group.generation), UnknownMember)


def test_a_leader_that_does_not_join_again_loses_its_office(stage: Stage) -> None:
    a, b = stage.stable(2)
    waiting = stage.join(b, (("range", subscription("orders", "more")),))
    stage.advance(60_000)
    assert stage.joined(waiting).leader_id == b
    assert a not in stage.group.roster


def test_silence_ends_a_session(stage: Stage) -> None:
    a, b = stage.stable(2)
    generation = stage.group.generation
    stage.advance(9_999)
    assert stage.heartbeat(a, generation) is None
    stage.advance(1)
    assert isinstance(stage.heartbeat(b, generation), UnknownMember)
    assert isinstance(stage.heartbeat(a, generation), RebalanceInProgress)


def test_a_parked_join_needs_no_heartbeat(stage: Stage) -> None:
    a, b = stage.stable(2)
    waiting = stage.join(a, (("range", b"other"),), session_ms=6000)
    for _ in range(10):
        stage.advance(5000)
        stage.heartbeat(b, stage.group.generation)
    assert stage.answers[waiting] is WAITING
    stage.join(b)
    assert stage.joined(waiting).member_id == a


def test_a_join_that_nobody_comes_back_for_is_given_up(stage: Stage) -> None:
    stage.stable(1)
    (a,) = [m.member_id for m in stage.group.roster]
    stage.join(a, rebalance_ms=1_000_000)
    stage.sync(a, stage.group.generation)
    newcomer = stage.join()
    for _ in range(60):
        stage.advance(5000)
        stage.heartbeat(a, stage.group.generation)
    assert isinstance(stage.answers[newcomer], UnknownMember)


def test_members_that_never_sync_are_removed(stage: Stage) -> None:
    a, b = stage.stable(2)
    stage.join(a, (("range", b"other"),))
    stage.join(b)
    generation = stage.group.generation
    assert stage.group.state is GroupState.COMPLETING_REBALANCE
    stage.sync(a, generation, {})
    for _ in range(12):
        stage.advance(5000)
        stage.heartbeat(a, generation)
        stage.heartbeat(b, generation)
    assert b not in stage.group.roster
    assert stage.group.state is GroupState.PREPARING_REBALANCE


def test_when_the_leader_never_syncs_the_followers_are_told_to_join_again(stage: Stage) -> None:
    a, b = stage.stable(2)
    stage.join(a, (("range", b"other"),))
    stage.join(b)
    parked = stage.sync(b, stage.group.generation)
    stage.advance(10_000)
    assert isinstance(stage.answers[parked], RebalanceInProgress)
    assert a not in stage.group.roster


def test_the_last_to_leave_leaves_an_empty_group_behind(stage: Stage) -> None:
    a, b = stage.stable(2)
    generation = stage.group.generation
    assert stage.leave(a) == [None]
    assert isinstance(stage.heartbeat(b, generation), RebalanceInProgress)
    assert stage.leave(b) == [None]
    assert stage.group.state is GroupState.EMPTY
    assert stage.group.generation == generation + 1
    assert isinstance(stage.answers[stage.join(a)], UnknownMember)


def test_several_leave_at_once_and_each_is_answered(stage: Stage) -> None:
    a, b = stage.stable(2)
    first, second, third = stage.leave(a, "stranger", b)  # type: ignore[misc]
    assert first is None and third is None
    assert isinstance(second, UnknownMember)
    assert stage.group.state is GroupState.EMPTY


def test_leaving_answers_what_is_parked(stage: Stage) -> None:
    a, _ = stage.stable(2)
    parked = stage.join(a, (("range", b"other"),))
    stage.leave(a)
    assert isinstance(stage.answers[parked], UnknownMember)


def test_an_unused_id_can_leave_without_disturbing_anyone(stage: Stage) -> None:
    (a,) = stage.stable(1)
    pending = stage.new_id(stage.join(requires_known_id=True))
    assert stage.leave(pending) == [None]
    assert stage.heartbeat(a, 1) is None


def test_the_protocol_most_members_prefer_wins(stage: Stage) -> None:
    stage = Stage(GroupSettings(initial_rebalance_delay_ms=100))
    stage.join(protocols=(("range", b""), ("roundrobin", b""), ("sticky", b"")))
    stage.join(protocols=(("roundrobin", b""), ("range", b"")))
    last = stage.join(protocols=(("sticky", b""), ("roundrobin", b""), ("range", b"")))
    stage.advance(1000)
    assert stage.joined(last).protocol == "roundrobin"


def test_a_member_that_speaks_nothing_in_common_is_turned_away(stage: Stage) -> None:
    stage.stable(1)
    assert isinstance(stage.answers[stage.join(protocols=(("roundrobin", b""),))], InconsistentProtocol)
    assert isinstance(stage.answers[stage.join(protocol_type="connect")], InconsistentProtocol)
    assert isinstance(stage.answers[stage.join(protocols=())], InconsistentProtocol)
    assert stage.group.state is GroupState.STABLE


def test_an_empty_group_takes_the_protocol_type_of_whoever_comes(stage: Stage) -> None:
    (a,) = stage.stable(1)
    stage.leave(a)
    assert stage.joined(stage.join(protocol_type="connect")).protocol_type == "connect"


def test_generations_fence(stage: Stage) -> None:
    (a,) = stage.stable(1)
    assert isinstance(stage.heartbeat(a, 0), IllegalGeneration)
    assert isinstance(stage.answers[stage.sync(a, 2)], IllegalGeneration)


def test_a_follower_that_lost_its_answer_is_given_it_again(stage: Stage) -> None:
    a, b = stage.stable(2)
    generation = stage.group.generation
    assert stage.joined(stage.join(b)).generation == generation, "nothing changed: no rebalance"
    assert isinstance(stage.answers[stage.sync(b, generation)], Synced)
    assert stage.answers[stage.join(a)] is WAITING, "a leader that joins again wants to assign again"


def test_a_repeated_join_takes_the_place_of_the_lost_one(stage: Stage) -> None:
    a, _ = stage.stable(2)
    lost = stage.join(a)
    stage.join(a)
    assert isinstance(stage.answers[lost], RebalanceInProgress)


def test_session_time_outs_have_bounds(stage: Stage) -> None:
    assert isinstance(stage.answers[stage.join(session_ms=5_999)], InvalidSessionTimeout)
    assert isinstance(stage.answers[stage.join(session_ms=1_800_001)], InvalidSessionTimeout)


def test_a_full_group_turns_newcomers_away() -> None:
    stage = Stage(GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    a, _ = stage.stable(2)
    assert isinstance(stage.answers[stage.join()], GroupFull)
    assert stage.answers[stage.join(a)] is WAITING, "those who are in can rebalance"


def test_ids_handed_out_are_bounded_too() -> None:
    stage = Stage(GroupSettings(max_size=2))
    stage.new_id(stage.join(requires_known_id=True))
    stage.new_id(stage.join(requires_known_id=True))
    assert isinstance(stage.answers[stage.join(requires_known_id=True)], GroupFull)


def test_after_a_restart_consumers_go_on_without_joining(stage: Stage) -> None:
    a, b = stage.stable(2)
    generation = stage.group.generation
    stage.restart()
    assert stage.heartbeat(a, generation) is None
    assert stage.heartbeat(b, generation) is None
    assert stage.answers[stage.sync(b, generation)] == Synced("consumer", "range", f"part of {b}".encode())
    stage.advance(10_000)
    assert stage.group.state is GroupState.EMPTY, "sessions run from the restart on"


def test_an_assignment_that_could_not_be_stored_is_told_to_nobody_and_made_anew(stage: Stage) -> None:
    joined = stage.joined(stage.join())
    ticket = stage.sync(joined.member_id, 1, {joined.member_id: b"all"}, error=StorageFailed("disk is full"))
    assert isinstance(stage.answers[ticket], StorageFailed)
    assert isinstance(stage.heartbeat(joined.member_id, 1), RebalanceInProgress)
    assert stage.joined(stage.join(joined.member_id)).generation == 2


def test_heartbeats_do_not_bring_the_next_deadline_nearer(stage: Stage) -> None:
    (a,) = stage.stable(1)
    before_ms = stage.group.next_deadline_ms()
    for _ in range(5):
        stage.clock.advance(1000)
        stage.heartbeat(a, 1)
    assert stage.group.next_deadline_ms() == before_ms, "a heartbeat costs the timer nothing"
