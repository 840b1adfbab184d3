"""Stories of messages that fail, wait, expire and die."""

import pytest
from queue_stage import Stage

from penstock.delivery.queue import AGAIN_MS
from penstock.delivery.queue_dispatch import MAX_DUE_AT_ONCE, MAX_DYING
from penstock.delivery.queue_events import WEEKS_MS, Outcome, QueueSettings, Reason
from penstock.delivery.queue_troubles import back_off_ms
from penstock.model.errors import InvalidSetting

WEEK_MS = 7 * 24 * 3_600_000


def test_a_nacked_message_comes_back_after_a_growing_back_off() -> None:
    stage = Stage(retry_initial_ms=1_000, retry_factor=3.0, retry_ceiling_ms=5_000, retry_jitter=0.0)
    stage.publish()
    stage.attach()
    for attempt, wait_ms in ((1, 1_000), (2, 3_000), (3, 5_000), (4, 5_000)):
        (lease,) = stage.take()
        assert lease.attempt == attempt
        stage.settle(Outcome.NACK, [lease])
        stage.advance(wait_ms - 1)
        assert stage.take() == []
        stage.advance(1)
    assert stage.offsets() == [0]
    stage.queue.check()


def test_jitter_spreads_and_stays_within_its_share() -> None:
    settings = QueueSettings(retry_initial_ms=1_000, retry_jitter=0.2)
    waits = [back_off_ms(settings, place, 1) for place in range(1_000)]
    assert all(800 <= wait <= 1_200 for wait in waits) and len(set(waits)) > 200
    assert waits == [back_off_ms(settings, place, 1) for place in range(1_000)], "no randomness"
    assert back_off_ms(QueueSettings(retry_factor=1_000.0), 1, 1_000_000) <= 300_000


def test_a_nack_may_name_its_own_delay() -> None:
    stage = Stage(retry_initial_ms=1_000)
    stage.publish(2)
    stage.attach(credit=1)
    stage.settle(Outcome.NACK, stage.take(), delay_ms=0)
    assert stage.offsets() == [0], "at once, and before those behind it"
    stage.settle(Outcome.NACK, stage.take(), delay_ms=60_000)
    assert stage.offsets() == [1]
    stage.ack(stage.take())
    stage.advance(60_000)
    assert [lease.attempt for lease in stage.take()] == [3]


def test_after_the_last_attempt_a_message_goes_to_the_dead_letters() -> None:
    stage = Stage(max_attempts=2, retry_initial_ms=100, retry_jitter=0.0)
    (place,) = stage.publish()
    stage.attach()
    first_ms = stage.clock.wall_ms()
    stage.settle(Outcome.NACK, stage.take())
    stage.advance(100)
    stage.buries = False
    stage.settle(Outcome.NACK, stage.take())
    (bury,) = stage.buried
    assert (bury.place, bury.reason, bury.attempts) == (place, Reason.ATTEMPTS, 2)
    assert (bury.first_failure_ms, bury.last_failure_ms) == (first_ms, first_ms + 100)
    assert stage.statuses() == "o", "until the dead letter is stored it is not settled"
    stage.buries = True
    stage.advance(AGAIN_MS)
    assert len(stage.buried) == 2
    assert stage.statuses() == "x" and stage.queue.counts().dead == 1
    stage.queue.check()


def test_a_crash_does_not_forget_who_is_dying() -> None:
    stage = Stage()
    stage.publish(2)
    stage.attach()
    stage.buries = False
    stage.settle(Outcome.REJECT, stage.take()[:1])
    stage.start()
    assert [(bury.reason, bury.attempts) for bury in stage.buried] == [(Reason.REJECTED, 1)]
    stage.attach()
    assert stage.offsets() == [1]
    stage.buries = True
    stage.advance(AGAIN_MS)
    assert stage.statuses() == "xo"
    stage.queue.check()


def test_without_dead_letters_what_fails_for_good_is_dropped() -> None:
    stage = Stage(dead_letter="", max_attempts=1)
    stage.publish(3)
    stage.attach()
    first, second, _ = stage.take()
    stage.settle(Outcome.REJECT, [first])
    stage.settle(Outcome.NACK, [second])
    assert stage.buried == [] and stage.statuses() == "xxo"
    assert stage.queue.counts().dead == 2


def test_attempts_survive_a_restart() -> None:
    stage = Stage(retry_initial_ms=60_000, retry_jitter=0.0)
    stage.publish(2)
    stage.attach()
    stage.settle(Outcome.NACK, stage.take()[:1])
    stage.clock.advance(20_000)
    stage.start()
    stage.attach()
    assert stage.offsets() == [1]
    stage.advance(39_999)
    assert stage.offsets() == [1]
    stage.advance(1)
    assert [(lease.attempt, lease.place) for lease in stage.take()] == [(1, 1), (2, 0)]
    stage.queue.check()


def test_without_a_limit_a_message_is_tried_for_ever() -> None:
    stage = Stage(max_attempts=0, retry_initial_ms=0)
    stage.publish()
    stage.attach()
    for _ in range(200):
        stage.settle(Outcome.NACK, stage.take())
    assert [lease.attempt for lease in stage.take()] == [201]


def test_a_release_does_not_count_and_keeps_the_order() -> None:
    stage = Stage()
    stage.publish(4)
    stage.attach(credit=2)
    stage.settle(Outcome.RELEASE, stage.take()[::-1])
    assert [(lease.place, lease.attempt) for lease in stage.take()] == [(0, 1), (1, 1)]


# -- delays -----------------------------------------------------------------------------------------------------


def test_a_delayed_message_waits_and_does_not_hold_up_the_others() -> None:
    stage = Stage()
    stage.attach()
    stage.publish(due_ms=stage.clock.wall_ms() + 5_000)
    stage.publish()
    assert stage.offsets() == [1] and stage.queue.counts().delayed == 1
    stage.advance(4_999)
    assert stage.offsets() == [1]
    stage.advance(1)
    assert stage.offsets() == [1, 0]
    stage.queue.check()


def test_a_delay_of_weeks_survives_restarts() -> None:
    stage = Stage()
    stage.attach()
    due_ms = stage.clock.wall_ms() + 3 * WEEK_MS
    stage.publish(due_ms=due_ms)
    for _ in range(3):
        stage.advance(WEEK_MS - 1)
        assert stage.offsets() == []
        stage.clock = type(stage.clock)(stage.clock.wall_ms(), 5_000)  # another process: its own monotonic clock
        stage.start()
        stage.attach()
    stage.advance(3)
    assert stage.offsets() == [0]


def test_a_view_may_delay_everything() -> None:
    stage = Stage(delay_ms=1_000)
    stage.attach()
    stage.publish(timestamp_ms=stage.clock.wall_ms() - 1_000)
    stage.publish()
    stage.publish(due_ms=stage.clock.wall_ms() + 2_000)
    assert stage.offsets() == [0]
    stage.advance(1_000)
    assert stage.offsets() == [0, 1]
    stage.advance(1_000)
    assert stage.offsets() == [0, 1, 2]


def test_what_is_due_all_at_once_comes_in_portions() -> None:
    count = 3 * MAX_DUE_AT_ONCE
    stage = Stage(max_priority=1, lease_ms=1_000, retry_initial_ms=0, max_attempts=0)
    stage.publish(count, due_ms=stage.clock.wall_ms() + 1_000)
    stage.clock.advance(1_000)
    stage.decided(stage.queue.tick(stage.now))
    assert stage.queue.counts().delayed == 2 * MAX_DUE_AT_ONCE
    assert stage.queue.next_deadline_ms() == stage.clock.monotonic_ms() + 1
    stage.advance(5)
    assert stage.queue.counts().delayed == 0
    for consumer in range(30):
        stage.attach(consumer, credit=MAX_DUE_AT_ONCE // 10)
    assert len(stage.queue._leases.held) == count
    stage.clock.advance(1_000)
    stage.queue.tick(stage.now)
    assert stage.queue.counts().failed == MAX_DUE_AT_ONCE


def test_a_clock_that_is_set_moves_what_is_due_by_the_wall() -> None:
    stage = Stage()
    stage.attach()
    stage.publish(due_ms=stage.clock.wall_ms() + 10_000)
    stage.clock.set_wall(stage.clock.wall_ms() + 9_000)
    stage.publish()
    assert stage.queue.next_deadline_ms() == stage.clock.monotonic_ms() + 1_000
    stage.advance(1_000)
    assert stage.offsets() == [1, 0]


# -- time to live -----------------------------------------------------------------------------------------------


def test_a_message_that_is_too_old_dies_unseen_or_waiting() -> None:
    stage = Stage(ttl_ms=10_000)
    stage.publish(2)
    stage.attach(credit=1)
    assert stage.offsets() == [0]
    stage.advance(10_000)
    stage.publish(timestamp_ms=stage.clock.wall_ms() - 20_000)
    stage.publish()
    stage.ack(stage.take())
    assert stage.offsets() == [3]
    assert sorted((bury.place, bury.reason) for bury in stage.buried) == [(1, Reason.EXPIRED), (2, Reason.EXPIRED)]
    assert (stage.buried[0].attempts, stage.buried[0].first_failure_ms) == (0, 0)
    assert stage.queue.counts().expired == 2 and stage.statuses() == "xxxo"
    stage.queue.check()


def test_the_shorter_of_two_lives_counts() -> None:
    stage = Stage(ttl_ms=10_000, dead_letter="")
    now_ms = stage.clock.wall_ms()
    stage.publish(expires_ms=now_ms + 5_000)
    stage.publish(expires_ms=now_ms + 50_000)
    stage.publish(2, timestamp_ms=now_ms + 6_000)
    stage.decided(stage.queue.pause(stage.now))
    stage.attach()
    stage.advance(6_000)
    stage.decided(stage.queue.unpause(stage.now))
    assert stage.offsets() == [1, 2, 3]


def test_a_retry_that_comes_too_late_dies() -> None:
    stage = Stage(ttl_ms=10_000, retry_initial_ms=20_000)
    stage.publish()
    stage.attach()
    stage.settle(Outcome.NACK, stage.take())
    stage.advance(60_000)
    assert [(bury.reason, bury.attempts) for bury in stage.buried] == [(Reason.EXPIRED, 1)]
    stage.queue.check()


def test_those_who_expire_together_are_buried_in_portions() -> None:
    stage = Stage(ttl_ms=1_000, max_priority=1)
    stage.buries = False
    stage.publish(3 * MAX_DYING)
    stage.clock.advance(1_000)
    stage.attach(credit=10)
    assert MAX_DYING <= len(stage.buried) <= MAX_DYING + 10
    stage.buries = True
    stage.advance(AGAIN_MS)
    assert stage.numbers() == (0, 0, 3 * MAX_DYING)
    stage.queue.check()


# -- what cannot be stored --------------------------------------------------------------------------------------


def test_an_ack_that_could_not_be_stored_is_stored_later() -> None:
    stage = Stage()
    stage.publish(2)
    stage.attach()
    leases = stage.take()
    stage.fails = True
    with pytest.raises(Exception, match="disk is full"):
        stage.ack(leases[:1])
    with pytest.raises(Exception, match="disk is full"):
        stage.ack(leases[:1])
    assert stage.queue.floor(0) == 0, "what is not durable may not be forgotten"
    stage.fails = False
    stage.advance(AGAIN_MS)
    assert stage.queue.floor(0) == 1
    stage.start()
    assert stage.statuses() == "x."


def test_a_death_that_could_not_be_stored_is_told_again() -> None:
    stage = Stage()
    stage.publish()
    stage.attach()
    stage.fails = True
    with pytest.raises(Exception, match="disk is full"):
        stage.settle(Outcome.REJECT, stage.take())
    assert stage.buried == []
    stage.fails = False
    stage.advance(AGAIN_MS)
    assert len(stage.buried) == 1 and stage.statuses() == "x"


def test_a_delivery_that_was_never_made_is_made_again() -> None:
    stage = Stage(lease_ms=0)
    stage.publish(3)
    stage.attach(credit=1)
    stage.fails = True
    with pytest.raises(Exception, match="disk is full"):
        stage.ack(stage.take())  # the next delivery is part of this decision
    stage.fails = False
    stage.advance(AGAIN_MS)
    assert stage.offsets() == [1]
    stage.queue.check()


# -- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"lease_ms": -1},
        {"max_attempts": -1},
        {"retry_factor": 0.5},
        {"retry_factor": float("nan")},
        {"retry_jitter": 1.5},
        {"delay_ms": WEEKS_MS + 1},
        {"max_priority": 10},
        {"max_in_flight": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(changes))):
        QueueSettings(**changes).check()  # type: ignore[arg-type]
    QueueSettings().check()
