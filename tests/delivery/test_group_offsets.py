"""Stories of committed offsets: who may commit, what is kept, and when it goes."""

import pytest
from group_stage import Stage

from penstock.delivery.group_events import GroupState, OffsetCommit
from penstock.delivery.offsets import Commit, TopicPartition
from penstock.model.errors import (
    GroupNotEmpty,
    GroupSubscribed,
    IllegalGeneration,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    StorageFailed,
    UnknownMember,
)

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def stage() -> Stage:
    return Stage()


def delete_offsets(stage: Stage, *topics: str) -> object:
    ticket = stage.ticket()
    stage.settle(stage.group.delete_offsets(stage.now, ticket, [TopicPartition(t, 0) for t in topics]))
    return stage.answers[ticket]


def delete(stage: Stage) -> object:
    ticket = stage.ticket()
    stage.settle(stage.group.delete(stage.now, ticket))
    return stage.answers[ticket]


def test_a_consumer_that_assigns_itself_commits_without_joining(stage: Stage) -> None:
    assert stage.commit(41, metadata="half way") is None
    kept = stage.group.offsets.get(TopicPartition("orders", 0))
    assert kept is not None
    assert (kept.offset, kept.leader_epoch, kept.metadata) == (41, 3, "half way")


def test_while_a_group_has_members_only_they_commit(stage: Stage) -> None:
    (a,) = stage.stable(1)
    assert isinstance(stage.commit(1), UnknownMember)
    assert isinstance(stage.commit(1, member_id="stranger", generation=1), UnknownMember)
    assert isinstance(stage.commit(1, member_id=a, generation=0), IllegalGeneration)
    assert stage.committed() is None
    assert stage.commit(7, member_id=a, generation=1) is None
    assert stage.committed() == 7


def test_a_member_of_the_last_generation_may_commit_until_the_next_begins(stage: Stage) -> None:
    a, b = stage.stable(2)
    generation = stage.group.generation
    stage.join(a)
    assert stage.commit(5, member_id=b, generation=generation) is None
    stage.join(b)
    assert isinstance(stage.commit(6, member_id=b, generation=generation), IllegalGeneration)
    assert isinstance(stage.commit(6, member_id=b, generation=generation + 1), RebalanceInProgress)


def test_a_commit_is_a_sign_of_life(stage: Stage) -> None:
    (a,) = stage.stable(1)
    for _ in range(5):
        stage.advance(8_000)
        assert stage.commit(1, member_id=a, generation=1) is None


def test_metadata_has_a_bound(stage: Stage) -> None:
    assert isinstance(stage.commit(1, metadata="x" * 4097), OffsetMetadataTooLarge)
    assert isinstance(stage.commit(1, metadata="ü" * 2049), OffsetMetadataTooLarge)
    assert stage.commit(1, metadata="x" * 4096) is None


def test_an_offset_shows_when_it_is_durable_and_not_before(stage: Stage) -> None:
    stage.commit(1)
    ask = OffsetCommit({TopicPartition("orders", 0): Commit(2)})
    decision = stage.group.commit(stage.now, stage.ticket(), ask)
    assert stage.committed() == 1
    stage.settle(decision)
    assert stage.committed() == 2


def test_an_offset_that_could_not_be_stored_never_shows(stage: Stage) -> None:
    stage.commit(1)
    assert isinstance(stage.commit(2, error=StorageFailed("disk is full")), StorageFailed)
    assert stage.committed() == 1


def test_offsets_are_there_after_a_restart(stage: Stage) -> None:
    stage.commit(12, metadata="note")
    stage.commit(13, topic="payments")
    stage.restart()
    assert (stage.committed(), stage.committed("payments")) == (12, 13)


def test_offsets_outlive_their_members_by_the_retention(stage: Stage) -> None:
    (a,) = stage.stable(1)
    stage.commit(1, member_id=a, generation=1)
    for _ in range(300):
        stage.advance(9_000)
        stage.heartbeat(a, 1)
    stage.leave(a)
    stage.advance(7 * DAY_MS - 1)
    assert stage.committed() == 1
    stage.advance(1)
    assert stage.committed() is None
    stage.advance(2 * 600_000)
    assert stage.group.is_blank, "nothing is left to remember"
    assert stage.ledger == {}


def test_an_active_group_keeps_the_offsets_of_what_it_reads_only(stage: Stage) -> None:
    stage.settings = stage.group.settings = type(stage.settings)(
        initial_rebalance_delay_ms=0, offsets_retention_ms=3_600_000
    )
    stage.commit(1, topic="orders")
    stage.commit(2, topic="abandoned")
    (a,) = stage.stable(1)
    for _ in range(500):
        stage.advance(9_000)
        stage.heartbeat(a, 1)
    assert stage.committed("abandoned") is None
    assert stage.committed("orders") == 1


def test_a_commit_may_bring_its_own_retention(stage: Stage) -> None:
    (a,) = stage.stable(1)
    stage.commit(1, member_id=a, generation=1, retention_ms=5_000)
    stage.advance(5_000)
    assert stage.committed() is None


def test_offsets_reset_in_an_empty_group_count_from_the_reset(stage: Stage) -> None:
    (a,) = stage.stable(1)
    stage.leave(a)
    stage.advance(300_000)
    stage.commit(1)
    stage.advance(6 * DAY_MS)
    stage.commit(2)
    stage.advance(6 * DAY_MS)
    assert stage.committed() == 2


def test_retention_goes_on_counting_through_a_restart(stage: Stage) -> None:
    stage.commit(1)
    stage.advance(7 * DAY_MS - 1000)
    stage.restart()
    stage.advance(600_000)
    assert stage.committed() is None


def test_an_empty_group_without_offsets_is_forgotten(stage: Stage) -> None:
    (a,) = stage.stable(1)
    stage.leave(a)
    assert not stage.group.is_blank
    stage.advance(600_000)
    assert stage.group.is_blank and stage.ledger == {}


def test_offsets_of_a_topic_that_is_read_cannot_be_deleted(stage: Stage) -> None:
    stage.commit(1, topic="orders")
    stage.commit(2, topic="old")
    stage.stable(1)
    results = delete_offsets(stage, "orders", "old")
    assert isinstance(results, dict)
    assert isinstance(results[TopicPartition("orders", 0)], GroupSubscribed)
    assert results[TopicPartition("old", 0)] is None
    assert (stage.committed("orders"), stage.committed("old")) == (1, None)


def test_when_subscriptions_cannot_be_read_no_offset_is_deleted(stage: Stage) -> None:
    stage.commit(1)
    stage.join(protocols=(("range", b"\x00\x01\x7f\xff\xff\xffnonsense"),))
    results = delete_offsets(stage, "orders")
    assert isinstance(results, dict) and isinstance(results[TopicPartition("orders", 0)], GroupSubscribed)
    other = Stage()
    other.commit(1)
    other.join(protocol_type="connect")
    assert isinstance(delete_offsets(other, "orders"), GroupNotEmpty)


def test_a_group_with_members_cannot_be_deleted(stage: Stage) -> None:
    (a,) = stage.stable(1)
    assert isinstance(delete(stage), GroupNotEmpty)
    stage.leave(a)
    stage.commit(3)
    assert delete(stage) is None
    assert stage.group.is_blank and stage.ledger == {}
    stage.group.bury()
    assert stage.group.state is GroupState.DEAD


def test_deleting_takes_commits_under_way_along(stage: Stage) -> None:
    under_way = stage.group.commit(stage.now, stage.ticket(), OffsetCommit({TopicPartition("orders", 0): Commit(2)}))
    deleted = stage.group.delete(stage.now, stage.ticket())
    assert not stage.group.is_blank
    stage.settle(under_way)
    stage.settle(deleted)
    assert stage.group.is_blank and stage.ledger == {}


def test_a_group_joined_while_its_deletion_is_under_way_lives_on(stage: Stage) -> None:
    (a,) = stage.stable(1)
    stage.leave(a)
    deleted = stage.group.delete(stage.now, stage.ticket())
    member_id = stage.joined(stage.join()).member_id
    stage.settle(deleted)
    stage.sync(member_id, stage.group.generation, {member_id: b"all"})
    stage.restart()
    assert stage.heartbeat(member_id, stage.group.generation) is None


def test_the_offsets_of_a_deleted_topic_go_with_it(stage: Stage) -> None:
    stage.commit(1, topic="orders")
    stage.commit(2, topic="payments")
    stage.settle(stage.group.forget_topic("orders"))
    stage.restart()
    assert (stage.committed("orders"), stage.committed("payments")) == (None, 2)
