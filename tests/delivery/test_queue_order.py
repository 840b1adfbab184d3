"""Stories of priorities, order by key, guarantees and steps."""

import pytest
from queue_stage import WAITING, Stage

from penstock.delivery.queue import AGAIN_MS
from penstock.delivery.queue_events import Outcome, QueueSettings, Receipt
from penstock.delivery.queue_steps import MAX_REMEMBERED, NAME_MAX_BYTES
from penstock.model.errors import InvalidRequest, LeaseLost

# -- priorities -------------------------------------------------------------------------------------------------


def test_important_messages_overtake() -> None:
    stage = Stage(max_priority=9)
    for priority in (0, 9, 4, 9):
        stage.publish(priority=priority)
    stage.attach()
    assert stage.offsets() == [1, 3, 2, 0]
    stage.queue.check()


def test_a_late_important_one_overtakes_a_long_backlog() -> None:
    stage = Stage(max_priority=9)
    stage.publish(500)
    stage.attach(credit=1)
    stage.publish(priority=5)
    stage.ack(stage.take())
    assert stage.offsets() == [500]


def test_priorities_above_the_views_highest_count_as_it() -> None:
    stage = Stage(max_priority=2)
    stage.publish(priority=9)
    stage.publish(priority=2)
    stage.publish(priority=1)
    stage.attach()
    assert stage.offsets() == [0, 1, 2]


def test_without_priorities_first_come_first_served() -> None:
    stage = Stage()
    stage.publish()
    stage.publish(priority=9)
    stage.attach()
    assert stage.offsets() == [0, 1]


def test_a_message_keeps_its_priority_over_retries_and_delays() -> None:
    stage = Stage(max_priority=9, retry_initial_ms=1_000, retry_jitter=0.0)
    stage.publish(priority=7)
    stage.publish(priority=8, due_ms=stage.clock.wall_ms() + 1_000)
    stage.publish(2)
    stage.attach(credit=1)
    stage.settle(Outcome.NACK, stage.take())
    assert stage.offsets() == [2]
    stage.advance(1_000)
    order = []
    while leases := stage.take():
        order += [lease.place for lease in leases]
        stage.ack(leases)
    assert order == [2, 1, 0, 3]
    stage.queue.check()


# -- order by key -----------------------------------------------------------------------------------------------


def test_a_key_is_with_one_consumer_at_a_time() -> None:
    stage = Stage(ordered_by_key=True)
    for key in (1, 1, 2, 1, 2, 0, 0):
        stage.publish(key_hash=key)
    stage.attach(1)
    assert stage.offsets() == [0, 2, 5, 6], "what has no key has no order"
    stage.attach(2)
    assert stage.offsets(2) == []
    stage.ack(stage.held[1][:1])
    assert stage.offsets(1) + stage.offsets(2) == [2, 5, 6, 1]
    stage.queue.check()


def test_a_nacked_message_holds_its_key_until_it_is_settled() -> None:
    stage = Stage(ordered_by_key=True, retry_initial_ms=5_000, retry_jitter=0.0)
    stage.publish(3, key_hash=1)
    stage.publish(key_hash=2)
    stage.attach()
    stage.settle(Outcome.NACK, stage.take()[:1])
    assert stage.offsets() == []
    stage.advance(5_000)
    assert stage.offsets() == [0]
    stage.ack(stage.take())
    assert stage.offsets() == [1]


def test_a_dead_message_frees_its_key_when_it_is_buried() -> None:
    stage = Stage(ordered_by_key=True)
    stage.publish(2, key_hash=1)
    stage.attach()
    stage.buries = False
    stage.settle(Outcome.REJECT, stage.take())
    assert stage.offsets() == []
    stage.buries = True
    stage.advance(AGAIN_MS)
    assert stage.offsets() == [1]
    stage.queue.check()


def test_a_released_message_goes_before_its_successors() -> None:
    stage = Stage(ordered_by_key=True)
    stage.publish(3, key_hash=1)
    stage.attach(1)
    stage.attach(2)
    stage.settle(Outcome.RELEASE, stage.take(1))
    assert stage.offsets(1) + stage.offsets(2) == [0]
    stage.detach(1)
    stage.detach(2)
    stage.attach(3)
    assert stage.offsets(3) == [0]


def test_keys_keep_their_order_over_a_restart() -> None:
    stage = Stage(ordered_by_key=True, retry_initial_ms=10_000, retry_jitter=0.0)
    stage.publish(3, key_hash=1)
    stage.attach()
    stage.settle(Outcome.NACK, stage.take())
    stage.clock.advance(1)
    stage.start()
    stage.attach()
    assert stage.offsets() == []
    stage.advance(10_000)
    order = []
    while leases := stage.take():
        order += [lease.place for lease in leases]
        stage.ack(leases)
    assert order == [0, 1, 2]


def test_a_late_ack_of_the_first_lets_the_second_go() -> None:
    stage = Stage(ordered_by_key=True, lease_ms=1_000, retry_initial_ms=60_000)
    stage.publish(2, key_hash=1)
    stage.attach()
    late = stage.take()
    stage.advance(1_000)
    assert stage.offsets() == []
    stage.ack(late)
    assert stage.offsets() == [1]
    stage.queue.check()


# -- guarantees -------------------------------------------------------------------------------------------------


def test_at_most_once_settles_before_it_hands_out() -> None:
    stage = Stage(guarantee="at-most-once")
    stage.publish(3)
    stage.attach(credit=2)
    assert stage.offsets() == [0, 1] and stage.statuses() == "xx."
    stage.detach()
    stage.start()
    stage.attach()
    assert stage.offsets() == [2]
    stage.queue.check()


def test_at_most_once_gives_credit_back_for_acks_time_and_the_asking() -> None:
    stage = Stage(guarantee="at-most-once", lease_ms=1_000)
    stage.publish(10)
    stage.attach(credit=2)
    assert stage.ack(stage.held[1][:1]) == [None]
    assert stage.offsets() == [1, 2]
    stage.decided(stage.queue.add_credit(stage.now, 1, 2))
    assert stage.offsets() == [1, 2, 3, 4]
    assert len(stage.queue._leases.held) == 2, "the oldest are done with"
    stage.advance(1_000)
    assert stage.offsets() == [1, 2, 3, 4, 5, 6]
    assert stage.queue.counts().failed == 0 and stage.queue.counts().redelivered == 0
    stage.queue.check()


def test_acks_of_what_is_settled_already_write_nothing() -> None:
    stage = Stage(guarantee="at-most-once")
    stage.publish(5)
    stage.attach(credit=5)
    receipts = [Receipt(lease.place, lease.number) for lease in stage.take()]
    decision = stage.queue.settle(stage.now, stage.ticket(), Outcome.ACK, receipts)
    assert decision.facts == [] and stage.queue.counts().acked == 5
    stage.queue.check()


def test_what_at_most_once_could_not_settle_is_not_lost() -> None:
    stage = Stage(guarantee="at-most-once", max_priority=3)
    stage.publish(2, priority=2)
    stage.fails = True
    stage.attach()
    stage.detach()
    assert stage.offsets() == [] and stage.statuses() == ".."
    stage.fails = False
    stage.attach()
    stage.publish(priority=1)
    assert stage.offsets() == [], "the ledger gets a moment"
    stage.advance(AGAIN_MS)
    assert stage.offsets() == [0, 1, 2]
    stage.queue.check()


# -- steps ------------------------------------------------------------------------------------------------------


def test_a_step_settles_and_performs_once() -> None:
    stage = Stage(guarantee="exactly-once")
    stage.publish(3)
    stage.attach()
    leases = stage.take()
    assert stage.step("one", leases[:2], b"out") is True
    assert [(effect.step, effect.payload) for effect in stage.performed] == [("one", b"out")]
    assert stage.statuses() == "xxo"
    assert stage.step("one", leases[:2], b"out") is False
    assert stage.step("one", [], b"something else") is False
    stage.start()
    assert stage.step("one", leases[:2], b"out") is False
    assert stage.performed == []
    stage.queue.check()


def test_a_step_takes_all_or_nothing() -> None:
    stage = Stage(lease_ms=1_000, retry_initial_ms=60_000)
    stage.publish(2)
    stage.attach()
    first, second = stage.take()
    stage.settle(Outcome.EXTEND, [first], lease_ms=60_000)
    stage.advance(1_000)
    assert isinstance(stage.step("one", [first, second]), LeaseLost), "not even what is free again"
    assert stage.performed == [] and stage.statuses() == "o."
    assert stage.step("one", [first]) is True, "a step that was refused may be tried again"


def test_a_step_that_is_repeated_while_it_is_under_way_waits_for_it() -> None:
    stage = Stage()
    stage.publish()
    stage.attach()
    leases = stage.take()
    stage.performs = False
    assert stage.step("one", leases) is WAITING
    assert stage.step("one", leases) is WAITING
    stage.decided(stage.queue.performed(stage.now, "one"))
    assert list(stage.answers.values())[-2:] == [True, False]


def test_a_crash_between_any_two_facts_of_a_step_leaves_no_half() -> None:
    for kept in range(6):
        stage = Stage(retry_initial_ms=0)
        stage.publish(2_100)
        stage.attach(credit=2_100)
        leases = stage.take()
        stage.settle(Outcome.NACK, leases[2_000:2_001])
        leases[2_000] = stage.take()[0]
        receipts = [Receipt(leases[n].place, leases[n].number) for n in (5, 1_500, 2_000)]
        decision = stage.queue.step(stage.now, stage.ticket(), "one", receipts, b"out")
        assert len(decision.facts) >= 4
        stage.write(decision.facts[:kept])
        stage.start()
        done = [stage.statuses()[n] for n in (5, 1_500, 2_000)]
        assert (done, len(stage.performed)) == ((["."] * 3, 0) if kept == 0 else (["x"] * 3, 1))
        assert not [key for key in stage.ledger if key[:1] == b"t"] or kept == 0, "its failures are forgotten"
        stage.queue.check()


def test_a_step_whose_intent_could_not_be_stored_happens_later() -> None:
    stage = Stage()
    stage.publish()
    stage.attach()
    stage.fails = True
    assert stage.step("one", stage.take()) is WAITING
    assert stage.performed == []
    stage.fails = False
    stage.advance(AGAIN_MS)
    assert len(stage.performed) == 1 and stage.answers[1] is True
    assert stage.statuses() == "x"


def test_steps_are_remembered_up_to_a_bound() -> None:
    stage = Stage()
    for number in range(MAX_REMEMBERED + 5):
        assert stage.step(f"step {number}", []) is True
    stage.start()
    assert len([key for key in stage.ledger if key[:1] == b"s"]) == MAX_REMEMBERED
    assert stage.step("step 5", []) is False
    assert stage.step("step 4", []) is True
    assert isinstance(stage.step("x" * (NAME_MAX_BYTES + 1), []), InvalidRequest)


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once", "exactly-once"])
def test_every_guarantee_hands_out_everything(guarantee: str) -> None:
    stage = Stage(QueueSettings(guarantee=guarantee))  # type: ignore[arg-type]
    stage.publish(300)
    stage.attach(credit=7)
    order = []
    while leases := stage.take():
        order += [lease.place for lease in leases]
        stage.ack(leases)
    assert order == list(range(300))
