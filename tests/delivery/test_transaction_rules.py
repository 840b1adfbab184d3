"""Kafka's rules for a transactional id, one story each."""

import pytest
from transaction_stage import Entry, Stage

from penstock.delivery.offsets import TopicPartition
from penstock.delivery.transaction import Transaction
from penstock.delivery.transaction_events import LAST_EPOCH, MAX_EPOCH, ProducerIdentity, TransactionSettings
from penstock.model.errors import (
    ConcurrentTransactions,
    InvalidProducerMapping,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    PenstockError,
    ProducerFenced,
    StorageFailed,
)

P0, P1, P2 = (TopicPartition("t", n) for n in range(3))


class Id:
    """One transactional id, asked things; an error is raised."""

    def __init__(self, stage: Stage | None = None) -> None:
        self.stage = stage or Stage()

    @property
    def machine(self) -> Transaction:
        return self.stage.transaction("x")

    @property
    def state(self) -> str:
        return self.machine.state.value

    def _ask(self, event) -> object:
        answer = self.stage.ask(self.machine, event)
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def init(self, given: ProducerIdentity | None = None, timeout_ms: int = 60_000, via: int = 0) -> ProducerIdentity:
        new_id = self.stage.new_id()
        stage = self.stage
        return self._ask(lambda ticket: self.machine.init(stage.now, ticket, timeout_ms, given, new_id, via))

    def add(self, who: ProducerIdentity, *places: object, via: int = 0) -> object:
        return self._ask(lambda ticket: self.machine.add(self.stage.now, ticket, who, places, via))

    def end(self, who: ProducerIdentity, commit: bool, bump: bool = False, via: int = 0) -> ProducerIdentity:
        new_id = self.stage.new_id()
        stage = self.stage
        return self._ask(lambda ticket: self.machine.end(stage.now, ticket, who, commit, bump, via, new_id))

    def markers(self, place: TopicPartition = P0) -> list[tuple[int, int, int]]:
        return [(e.producer_id, e.epoch, e.uid) for e in self.stage.logs[place].entries if e.sequence < 0]


def test_each_init_takes_over_with_the_next_epoch():
    id_ = Id()
    first = id_.init()
    assert first.epoch == 0
    assert id_.init() == (first.producer_id, 1)
    with pytest.raises(ProducerFenced):
        id_.add(first, P0)
    with pytest.raises(InvalidProducerMapping):
        id_.add(ProducerIdentity(7, 0), P0)


def test_a_time_out_must_be_within_bounds():
    id_ = Id()
    for timeout_ms in (0, -1, 900_001):
        with pytest.raises(InvalidTransactionTimeout):
            id_.init(timeout_ms=timeout_ms)
    id_.stage.bury()
    assert not id_.stage.transactions


def test_init_while_a_transaction_is_open_aborts_it_under_a_new_epoch():
    id_ = Id()
    who = id_.init()
    id_.add(who, P0)
    with pytest.raises(ConcurrentTransactions):
        id_.init()
    assert id_.markers() == [(who.producer_id, 1, 0)]
    assert id_.init() == (who.producer_id, 2)


def test_a_producer_that_continues_is_answered_again_and_anybody_else_is_fenced():
    id_ = Id()
    first = id_.init()
    second = id_.init(first)
    assert second == (first.producer_id, 1)
    assert id_.init(first) == second  # its answer was lost
    id_.stage.crash()
    assert id_.init(first) == second
    third = id_.init(second)
    assert third.epoch == 2
    with pytest.raises(ProducerFenced):
        id_.init(first)
    assert id_.init().epoch == 3  # somebody else took over
    with pytest.raises(ProducerFenced):
        id_.init(third)
    with pytest.raises(ProducerFenced):
        id_.init(ProducerIdentity(1, 3))


def test_a_stale_producer_cannot_abort_the_open_transaction_by_continuing():
    id_ = Id()
    old = id_.init()
    new = id_.init()
    id_.add(new, P0)
    with pytest.raises(ProducerFenced):
        id_.init(old)
    assert id_.state == "Ongoing"


def test_continuing_while_the_transaction_is_open_aborts_it_and_then_succeeds():
    id_ = Id()
    who = id_.init()
    id_.add(who, P0)
    with pytest.raises(ConcurrentTransactions):
        id_.init(who)
    assert id_.init(who) == (who.producer_id, 1)


def test_when_epochs_are_used_up_there_is_a_new_producer_id():
    id_ = Id()
    who = id_.init()
    id_.machine.identity = who = who._replace(epoch=LAST_EPOCH)
    fresh = id_.init(who)
    assert fresh.epoch == 0
    assert fresh.producer_id != who.producer_id
    assert id_.init(who) == fresh
    id_.machine.identity = who = fresh._replace(epoch=LAST_EPOCH)
    id_.add(who, P0)
    after = id_.end(who, commit=True, bump=True)
    assert after.epoch == 0
    assert after.producer_id not in (who.producer_id, fresh.producer_id + 0)
    assert id_.markers() == [(who.producer_id, MAX_EPOCH, 1)]
    assert id_.end(who, commit=True, bump=True) == after


def test_a_fence_may_use_the_very_last_epoch():
    id_ = Id()
    who = id_.init()
    id_.machine.identity = who = who._replace(epoch=LAST_EPOCH)
    id_.add(who, P0)
    id_.stage.advance(60_000)
    assert id_.markers() == [(who.producer_id, MAX_EPOCH, 0)]
    assert id_.init().producer_id != who.producer_id


@pytest.mark.parametrize("commit", [True, False])
def test_the_first_protocol_keeps_the_epoch_and_answers_repeats(commit):
    id_ = Id()
    who = id_.init()
    with pytest.raises(InvalidTransactionState):
        id_.end(who, commit)
    id_.add(who, P0, P1)
    id_.add(who, P1, "group")
    assert id_.end(who, commit) == who
    assert id_.markers(P0) == id_.markers(P1) == [(who.producer_id, 0, int(commit))]
    assert not id_.markers(P2)
    assert id_.end(who, commit) == who
    with pytest.raises(InvalidTransactionState):
        id_.end(who, not commit)
    id_.stage.crash()
    assert id_.end(who, commit) == who
    assert len(id_.markers()) == 1
    id_.add(who, P2)
    assert id_.state == "Ongoing"


@pytest.mark.parametrize("commit", [True, False])
def test_the_second_protocol_gives_a_new_epoch_with_every_end(commit):
    id_ = Id()
    who = id_.init()
    id_.add(who, P0)
    after = id_.end(who, commit, bump=True)
    assert after == (who.producer_id, 1)
    assert id_.markers() == [(who.producer_id, 1, int(commit))]
    assert id_.end(who, commit, bump=True) == after  # repeated, the answer was lost
    with pytest.raises(InvalidTransactionState):
        id_.end(who, not commit, bump=True)
    with pytest.raises(ProducerFenced):
        id_.add(who, P0)
    id_.add(after, P0)
    with pytest.raises(ProducerFenced):
        id_.end(who, commit, bump=True)  # delayed, and another transaction is open


def test_aborting_nothing_gives_a_new_epoch_and_committing_nothing_is_refused():
    id_ = Id()
    who = id_.init()
    with pytest.raises(InvalidTransactionState):
        id_.end(who, True, bump=True)
    after = id_.end(who, False, bump=True)
    assert after.epoch == 1
    assert id_.end(who, False, bump=True) == after
    assert id_.end(after, False, bump=True).epoch == 2


def test_a_delayed_end_of_the_first_protocol_is_told_by_its_connection():
    id_ = Id()
    who = id_.init(via=1)
    id_.add(who, P0, via=1)
    id_.end(who, True, via=2)  # the first try is still on its way, on connection 1
    id_.add(who, P1, via=2)
    with pytest.raises(InvalidTransactionState):
        id_.end(who, True, via=1)
    assert id_.state == "Ongoing"
    assert id_.end(who, False, via=2) == who
    assert id_.markers(P1) == [(who.producer_id, 0, 0)]


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced():
    id_ = Id()
    who = id_.init(timeout_ms=10_000)
    id_.add(who, P0)
    id_.stage.advance(9_999)
    assert id_.state == "Ongoing"
    id_.stage.advance(1)
    assert id_.state == "CompleteAbort"
    assert id_.markers() == [(who.producer_id, 1, 0)]
    for bump in (False, True):
        with pytest.raises(ProducerFenced):
            id_.end(who, True, bump)
        with pytest.raises(ProducerFenced):
            id_.end(who, False, bump)
    with pytest.raises(ProducerFenced):
        id_.init(who)


def test_nothing_begins_and_nobody_is_answered_before_the_end_is_durable():
    id_ = Id()
    who = id_.init()
    id_.add(who, P0)
    stage = id_.stage
    stage.prompt = False
    answers = []
    stage.ask(id_.machine, lambda t: id_.machine.end(stage.now, t, who, True, False), answers.append)
    assert not stage.endings  # no marker before the decision is durable
    stage.record()
    with pytest.raises(ConcurrentTransactions):
        id_.machine.covers(who, P0)
    stage.conclude()
    assert id_.state == "CompleteCommit"
    with pytest.raises(ConcurrentTransactions):  # its markers would be written again after a crash
        id_.machine.covers(who, P0)
    assert not answers
    stage.record()
    assert answers == [who]
    assert not id_.machine.covers(who, P0)


def test_markers_that_fail_are_tried_again_and_the_caller_is_told_to_ask_again():
    id_ = Id()
    who = id_.init()
    id_.add(who, P0, P1)
    stage = id_.stage
    stage.prompt = False
    answers = []
    ask = lambda t: id_.machine.end(stage.now, t, who, True, False)  # noqa: E731
    stage.ask(id_.machine, ask, answers.append)
    stage.record()
    stage.conclude(failing=lambda task: task.partition == P1)
    assert isinstance(answers[0], ConcurrentTransactions)
    stage.ask(id_.machine, ask, answers.append)
    stage.prompt = True
    stage.advance(10_000)
    assert answers[1] == who
    assert len(id_.markers(P0)) == len(id_.markers(P1)) == 1


def test_an_end_that_could_not_be_recorded_cannot_become_the_other():
    id_ = Id()
    who = id_.init()
    id_.add(who, P0)
    stage = id_.stage
    stage.prompt = False
    answers = []
    stage.ask(id_.machine, lambda t: id_.machine.end(stage.now, t, who, True, False), answers.append)
    stage.record(failing=True)
    assert isinstance(answers[0], ConcurrentTransactions)
    assert not stage.endings
    stage.prompt = True
    with pytest.raises(InvalidTransactionState):
        id_.end(who, False)
    assert id_.end(who, True) == who
    assert id_.markers() == [(who.producer_id, 0, 1)]


def test_a_completion_that_could_not_be_recorded_is_told_again():
    id_ = Id()
    who = id_.init()
    id_.add(who, P0)
    stage = id_.stage
    stage.prompt = False
    answers = []
    stage.ask(id_.machine, lambda t: id_.machine.end(stage.now, t, who, True, False), answers.append)
    stage.record()
    stage.conclude()
    stage.record(failing=True)
    assert isinstance(answers[0], StorageFailed)
    stage.prompt = True
    stage.advance(1_000)
    id_.add(who, P1)
    stage.crash()
    assert id_.state == "Ongoing"
    assert len(id_.markers()) == 1


def test_a_partition_whose_fact_was_lost_is_told_again_before_anybody_relies_on_it():
    id_ = Id()
    who = id_.init()
    stage = id_.stage
    stage.prompt = False
    answers = []
    for _ in range(2):  # the second is answered with the fact of the first
        stage.ask(id_.machine, lambda t: id_.machine.add(stage.now, t, who, (P0,)), answers.append)
    assert len(stage.recording) == 1
    stage.record(failing=True)
    assert [type(answer) for answer in answers] == [StorageFailed, StorageFailed]
    assert not id_.machine.covers(who, P0)
    stage.ask(id_.machine, lambda t: id_.machine.add(stage.now, t, who, (P0,)), answers.append)
    stage.record()
    assert answers[2] is None
    assert id_.machine.covers(who, P0)


def test_what_was_prepared_is_carried_through_after_a_crash_and_what_was_open_waits():
    stage = Stage()
    prepared, ongoing = Id(stage), Id(stage)
    who = prepared.init()
    prepared.add(who, P0, P1)
    stage.prompt = False
    stage.ask(prepared.machine, lambda t: prepared.machine.end(stage.now, t, who, True, False))
    stage.record()
    stage.conclude(failing=lambda task: task.partition == P1)
    stage.crash()
    stage.prompt = True
    stage.settle()
    assert prepared.state == "CompleteCommit"
    assert prepared.markers(P1) == [(who.producer_id, 0, 1)]
    ongoing.add(who, P2)
    stage.clock.advance(10**6)
    stage.crash()
    assert ongoing.state == "Ongoing"  # the time it was down does not count
    stage.advance(60_000)
    assert ongoing.state == "CompleteAbort"


def test_an_id_that_nobody_uses_is_forgotten():
    id_ = Id(Stage(TransactionSettings(id_expiration_ms=100_000)))
    who = id_.init()
    id_.stage.advance(99_999)
    id_.add(who, P0)
    id_.end(who, True)
    id_.stage.advance(99_999)
    assert id_.stage.ledger
    id_.stage.advance(1)
    assert not id_.stage.transactions
    assert not id_.stage.ledger
    assert id_.init(who).epoch == 0


def test_a_deleted_topic_is_no_part_of_the_transaction_any_more():
    id_ = Id()
    who = id_.init()
    id_.add(who, P0, TopicPartition("gone", 0))
    id_.machine.forget_topic("gone")
    assert id_.machine.describe().partitions == [P0]
    assert id_.end(who, True) == who


def test_what_an_earlier_epoch_left_in_a_partition_is_not_committed_with_a_later_one():
    id_ = Id()
    who = id_.init()
    id_.stage.logs[P0].append(Entry(*who, 0, 1))  # the fact is lost, the batch is not
    id_.stage.crash(kept_batches=1)
    newer = id_.init()
    id_.add(newer, P0)
    id_.end(newer, True)  # nobody has opened the partition until now
    assert list(id_.stage.logs[P0].results()) == [(1, False)]


def test_a_batch_whose_fact_a_crash_took_belongs_to_the_transaction_of_its_producer():
    id_ = Id()
    who = id_.init()
    assert id_.machine.adopt(id_.stage.now, who, P0).facts
    assert id_.state == "Ongoing"
    id_.stage.crash()
    assert id_.machine.adopt(id_.stage.now, ProducerIdentity(who.producer_id, 5), P1) is None
