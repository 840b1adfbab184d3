"""Stories of offsets that transactions hand in: invisible until they count, and then all at once."""

import pytest
from group_stage import Stage

from penstock.delivery.group_events import GroupSettings, OffsetCommit
from penstock.delivery.offsets import Commit, TopicPartition
from penstock.model.errors import (
    FencedInstance,
    IllegalGeneration,
    LimitReached,
    OffsetMetadataTooLarge,
    PenstockError,
    StorageFailed,
    UnknownMember,
)

DAY_MS = 24 * 3600 * 1000
P, Q = 7001, 7002  # producers
FULL = StorageFailed("disk is full")


@pytest.fixture
def stage() -> Stage:
    return Stage()


def pend(
    stage: Stage,
    producer_id: int = P,
    *,
    error: PenstockError | None = None,
    member_id: str = "",
    generation: int = -1,
    instance_id: str | None = None,
    metadata: str = "",
    **offsets: int,
) -> object:
    """Hand in offsets by the names of their topics; one refusal, or None."""
    ticket = stage.ticket()
    commits = {TopicPartition(topic, 0): Commit(offset, 3, metadata) for topic, offset in offsets.items()}
    ask = OffsetCommit(commits, member_id, generation, instance_id)
    stage.settle(stage.group.pend(stage.now, ticket, ask, producer_id), error)
    result = stage.answers[ticket]
    return next((r for r in result.values() if r is not None), None) if isinstance(result, dict) else result


def end(stage: Stage, producer_id: int = P, *, commit: bool = True, error: PenstockError | None = None) -> object:
    ticket = stage.ticket()
    stage.settle(stage.group.end_pending(stage.now, ticket, producer_id, commit=commit), error)
    return stage.answers[ticket]


def unstable(stage: Stage, topic: str = "orders") -> bool:
    return stage.group.pending_offsets.holds(TopicPartition(topic, 0))


def test_offsets_of_a_transaction_show_when_it_commits(stage: Stage) -> None:
    stage.commit(1)
    assert pend(stage, orders=5, payments=6) is None
    assert (stage.committed(), unstable(stage), stage.committed("payments")) == (1, True, None)
    assert end(stage) is None
    assert (stage.committed(), stage.committed("payments"), unstable(stage)) == (5, 6, False)
    kept = stage.group.offsets.get(TopicPartition("orders", 0))
    assert kept is not None and kept.leader_epoch == 3


def test_offsets_of_an_aborted_transaction_never_show(stage: Stage) -> None:
    stage.commit(1)
    pend(stage, orders=5)
    end(stage, commit=False)
    assert (stage.committed(), unstable(stage)) == (1, False)
    end(stage, commit=True)
    assert stage.committed() == 1, "what was aborted cannot be committed afterwards"


def test_an_end_told_twice_changes_nothing_the_second_time(stage: Stage) -> None:
    pend(stage, orders=5)
    end(stage)
    stage.commit(9)
    end(stage)
    assert stage.committed() == 9


def test_the_last_offset_of_a_transaction_counts(stage: Stage) -> None:
    pend(stage, orders=5)
    pend(stage, orders=8, payments=2)
    end(stage)
    assert (stage.committed(), stage.committed("payments")) == (8, 2)


def test_what_was_handed_in_last_counts_whoever_ends_last(stage: Stage) -> None:
    pend(stage, P, orders=5)
    pend(stage, Q, orders=20)
    end(stage, Q)
    assert not unstable(stage), "the older one was overtaken"
    end(stage, P)
    assert stage.committed() == 20
    pend(stage, P, orders=30)
    stage.commit(25)
    end(stage, P)
    assert stage.committed() == 25, "a plain commit overtakes as well"


def test_an_older_transaction_that_ends_first_leaves_the_younger_pending(stage: Stage) -> None:
    pend(stage, P, orders=5)
    pend(stage, Q, orders=20)
    end(stage, P)
    assert (stage.committed(), unstable(stage)) == (5, True)
    end(stage, Q)
    assert stage.committed() == 20


def test_pending_offsets_survive_a_restart_and_so_does_their_order(stage: Stage) -> None:
    pend(stage, P, orders=5)
    pend(stage, Q, orders=20)
    stage.restart()
    assert (stage.committed(), unstable(stage)) == (None, True)
    end(stage, Q)
    stage.restart()
    end(stage, P)
    assert (stage.committed(), unstable(stage)) == (20, False)


@pytest.mark.parametrize("kept", range(5))
def test_an_end_that_a_crash_cut_short_is_finished_by_the_next_one(stage: Stage, kept: int) -> None:
    pend(stage, orders=5, payments=6)
    facts = stage.group.end_pending(stage.now, stage.ticket(), P, commit=True).facts
    assert len(facts) == 4
    stage.write(facts[:kept])
    stage.restart()
    end(stage)
    assert (stage.committed(), stage.committed("payments")) == (5, 6)
    assert stage.group.pending_offsets.is_blank


def test_what_could_not_be_stored_leaves_no_trace(stage: Stage) -> None:
    assert pend(stage, orders=5, error=FULL) is FULL
    assert stage.group.is_blank
    pend(stage, orders=6)
    assert end(stage, error=FULL) is FULL
    assert (stage.committed(), unstable(stage)) == (None, True)
    end(stage)
    assert stage.committed() == 6


def test_an_end_sees_what_is_still_on_its_way_to_the_ledger(stage: Stage) -> None:
    ask = OffsetCommit({TopicPartition("orders", 0): Commit(5)})
    first = stage.group.pend(stage.now, stage.ticket(), ask, P)
    second = stage.group.end_pending(stage.now, stage.ticket(), P, commit=True)
    stage.settle(first)
    stage.settle(second)
    assert (stage.committed(), unstable(stage)) == (5, False)


def test_a_transaction_that_names_a_member_must_be_it(stage: Stage) -> None:
    a, _ = stage.stable(2, instances=True)
    generation = stage.group.generation
    assert pend(stage, orders=1, member_id=a, generation=generation, instance_id="i0") is None
    assert isinstance(pend(stage, orders=1, member_id="x", generation=generation), UnknownMember)
    assert isinstance(pend(stage, orders=1, member_id=a, generation=generation - 1), IllegalGeneration)
    assert isinstance(
        pend(stage, orders=1, member_id=a, generation=generation, instance_id="i1"), FencedInstance | UnknownMember
    )
    assert pend(stage, orders=2) is None, "older clients name nobody"


def test_a_member_may_hand_in_offsets_while_the_group_awaits_its_assignment(stage: Stage) -> None:
    ticket = stage.join()
    joined = stage.joined(ticket)
    assert pend(stage, orders=4, member_id=joined.member_id, generation=joined.generation) is None


def test_pending_offsets_have_a_bound(stage: Stage) -> None:
    stage = Stage(GroupSettings(initial_rebalance_delay_ms=0, max_pending_offsets=2))
    assert pend(stage, a=1, b=1) is None
    assert isinstance(pend(stage, c=1), LimitReached)
    assert pend(stage, a=2) is None, "an offset that takes the place of another needs no room"
    assert isinstance(pend(stage, Q, a=2), LimitReached)
    end(stage, commit=False)
    assert pend(stage, Q, c=1) is None


def test_metadata_has_a_bound_in_transactions_too(stage: Stage) -> None:
    assert isinstance(pend(stage, orders=1, metadata="x" * 4097), OffsetMetadataTooLarge)
    assert stage.group.is_blank


def test_offsets_do_not_expire_while_a_transaction_has_yet_to_decide(stage: Stage) -> None:
    stage.commit(1)
    pend(stage, orders=2)
    stage.advance(8 * DAY_MS)
    assert stage.committed() == 1
    end(stage, commit=False)
    stage.advance(DAY_MS)
    assert stage.committed() is None


def test_deleting_takes_what_is_pending_along(stage: Stage) -> None:
    stage.commit(1)
    pend(stage, orders=2, payments=3)
    stage.settle(stage.group.forget_topic("orders"))
    assert not unstable(stage) and unstable(stage, "payments")
    ticket = stage.ticket()
    stage.settle(stage.group.delete_offsets(stage.now, ticket, [TopicPartition("payments", 0)]))
    assert stage.answers[ticket] == {TopicPartition("payments", 0): None}
    end(stage)
    assert (stage.committed(), stage.committed("payments")) == (None, None)
    pend(stage, orders=2)
    stage.settle(stage.group.delete(stage.now, stage.ticket()))
    end(stage)
    assert stage.group.is_blank and stage.ledger == {}
