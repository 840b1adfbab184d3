"""Stories of leases: handing out, settling, time-outs, credit, fairness, consumers that come and go."""

from queue_stage import Stage

from penstock.delivery.queue_events import Lease, Outcome, Reason
from penstock.model.errors import LeaseLost


def test_messages_are_handed_out_in_order_and_settled_when_acknowledged() -> None:
    stage = Stage()
    stage.publish(3)
    stage.attach()
    assert stage.offsets() == [0, 1, 2]
    assert stage.statuses() == "ooo"
    assert stage.ack(stage.take()) == [None, None, None]
    assert stage.statuses() == "xxx"
    assert stage.numbers() == (0, 0, 3)
    assert stage.queue.floor(0) == 3
    stage.queue.check()


def test_message_returns_when_its_consumer_leaves() -> None:
    stage = Stage()
    stage.publish(4)
    stage.attach(1, credit=2)
    stage.attach(2, credit=4)
    assert (stage.offsets(1), stage.offsets(2)) == ([0, 1], [2, 3])
    stage.detach(1)
    assert stage.offsets(2) == [2, 3, 0, 1]
    assert [lease.attempt for lease in stage.take(2)] == [1, 1, 1, 1], "nobody tried them yet"
    stage.queue.check()


def test_a_message_that_kills_its_consumers_is_dead_in_the_end() -> None:
    stage = Stage(max_attempts=3)
    stage.publish(1)
    for attempt in (1, 2, 3):
        stage.attach(attempt, credit=1)
        assert [lease.attempt for lease in stage.take(attempt)] == [attempt], "at once, without a back-off"
        stage.detach(attempt, lost=True)
    (letter,) = stage.buried
    assert (letter.reason, letter.attempts) == (Reason.ATTEMPTS, 3)
    stage.queue.check()


def test_what_was_lent_outlives_its_consumer_until_the_lease_ends() -> None:
    stage = Stage(lease_ms=5_000, retry_initial_ms=0)
    stage.publish(2)
    stage.attach(1)
    first, second = stage.take(1)
    stage.detach(1, keep_leases=True)
    stage.attach(2)
    assert stage.offsets(2) == []
    assert stage.ack([first]) == [None]
    stage.advance(5_000)
    assert stage.offsets(2) == [1]
    assert [type(result) for result in stage.ack([second])] == [LeaseLost]
    stage.queue.check()


def test_what_is_lent_without_a_time_limit_still_comes_back() -> None:
    stage = Stage(lease_ms=0)
    stage.publish()
    stage.attach(1)
    stage.detach(1, keep_leases=True)
    stage.advance(60_000)
    stage.attach(2)
    assert stage.offsets(2) == [0]


def test_a_lease_that_times_out_is_handed_out_again_after_the_back_off() -> None:
    stage = Stage(lease_ms=1_000, retry_initial_ms=500, retry_jitter=0.0)
    stage.publish(2)
    stage.attach()
    first, second = stage.take()
    stage.advance(600)
    stage.ack([first])
    stage.advance(400)
    assert stage.take() == [] and stage.queue.counts().failed == 1 and stage.queue.counts().delayed == 1
    stage.advance(500)
    (again,) = stage.take()
    assert (again.place, again.attempt) == (second.place, 2) and again.number > second.number
    stage.queue.check()


def test_a_consumer_may_ask_for_leases_of_its_own_length() -> None:
    stage = Stage(retry_initial_ms=0)
    stage.publish(2)
    stage.attach(1, credit=1, lease_ms=100)
    stage.attach(2, credit=1, lease_ms=0)
    assert [lease.deadline_ms for lease in stage.held[1] + stage.held[2]] == [100, 0]
    stage.advance(10_000_000)
    assert stage.queue.counts().failed > 1
    assert stage.offsets(2) == [1], "a lease without an end is held until its consumer leaves"


def test_an_extension_begins_the_lease_anew() -> None:
    stage = Stage(lease_ms=1_000, retry_initial_ms=0)
    stage.publish(3)
    stage.attach(credit=3)
    leases = stage.take()
    stage.advance(900)
    assert stage.settle(Outcome.EXTEND, leases[:2]) == [None, None]
    stage.advance(100)
    assert [lease.place for lease in stage.take()] == [leases[2].place], "the third was not extended"
    stage.advance(800)
    assert stage.settle(Outcome.EXTEND, leases[:1], lease_ms=60_000) == [None]
    stage.advance(150)
    assert stage.offsets() == [1]
    assert [type(r) for r in stage.settle(Outcome.EXTEND, leases)] == [type(None), LeaseLost, LeaseLost]
    assert stage.ack(leases[:1]) == [None]
    stage.queue.check()


def test_a_late_ack_takes_what_is_free_again() -> None:
    stage = Stage(lease_ms=1_000, retry_initial_ms=10_000)
    stage.publish()
    stage.attach()
    late = stage.take()
    stage.advance(1_000)
    assert stage.statuses() == "."
    assert stage.ack(late) == [None]
    assert stage.numbers() == (0, 0, 1)
    stage.advance(100_000)
    assert stage.take() == []
    assert stage.ledger.keys() == {key for key in stage.ledger if key[:1] == b"f"}, "its failures are forgotten"
    stage.queue.check()


def test_a_late_ack_of_what_another_has_is_refused() -> None:
    stage = Stage(lease_ms=1_000, retry_initial_ms=0)
    stage.publish()
    stage.attach(1, credit=1)
    late = stage.take(1)
    stage.detach(1)
    stage.attach(2)
    assert [type(result) for result in stage.ack(late)] == [LeaseLost]
    assert stage.ack(stage.take(2)) == [None]
    assert stage.ack(late) == [None], "what is settled may be settled again"


def test_an_ack_from_before_a_restart_counts() -> None:
    stage = Stage()
    stage.publish(5)
    stage.attach()
    leases = stage.take()
    stage.clock.advance(10)
    stage.start()
    assert stage.ack(leases[1:2]) == [None], "unseen"
    stage.attach(credit=1)
    assert stage.offsets() == [0]
    assert stage.ack(leases[2:3]) == [None], "seen and ready"
    stage.ack(stage.take())
    assert stage.offsets() == [3]
    stage.ack(stage.take())
    assert stage.offsets() == [4]
    stage.queue.check()


def test_a_receipt_that_was_never_given_is_refused() -> None:
    stage = Stage()
    (place,) = stage.publish()
    stage.attach(credit=1)
    (lease,) = stage.take()
    for made_up in (
        Lease(place, 0, 1, 0),
        Lease(place, lease.number + 1, 1, 0),
        Lease(place + 5, lease.number, 1, 0),
        Lease(place + 5, 1, 1, 0),
    ):
        for outcome in Outcome:
            assert [type(r) for r in stage.settle(outcome, [made_up])] == [LeaseLost]
    assert stage.statuses() == "o"


def test_settling_twice_in_one_call_is_fine() -> None:
    stage = Stage()
    stage.publish(2)
    stage.attach()
    leases = stage.take()
    assert stage.ack([leases[0], leases[0], leases[1], leases[0]]) == [None] * 4
    assert stage.numbers() == (0, 0, 2)


def test_credit_bounds_what_a_consumer_holds() -> None:
    stage = Stage()
    stage.publish(10)
    stage.attach(credit=3)
    assert stage.offsets() == [0, 1, 2]
    stage.ack(stage.held[1][1:2])
    assert stage.offsets() == [0, 2, 3]
    stage.decided(stage.queue.add_credit(stage.now, 1, 2))
    assert stage.offsets() == [0, 2, 3, 4, 5]
    stage.decided(stage.queue.add_credit(stage.now, 1, -4))
    stage.ack(stage.held[1][:4])
    assert stage.offsets() == [5]
    stage.ack(stage.take())
    assert stage.offsets() == [6]
    stage.queue.check()


def test_consumers_share_evenly_and_take_turns() -> None:
    stage = Stage()
    stage.attach(1, credit=100)
    stage.attach(2, credit=100)
    stage.attach(3, credit=2)
    for _ in range(5):
        stage.publish()
    assert [stage.offsets(n) for n in (1, 2, 3)] == [[0, 3], [1, 4], [2]]
    stage.publish(9)
    assert [len(stage.offsets(n)) for n in (1, 2, 3)] == [6, 6, 2], "who is full is passed over"
    stage.queue.check()


def test_one_consumer_gets_its_credit_in_one_batch() -> None:
    stage = Stage()
    stage.publish(40)
    stage.queue.arrived(stage.now, 0, [a for a in stage.logs[0] if a is not None], 40)
    decision = stage.queue.attach(stage.now, 1, 30)
    assert len(decision.effects) == 1 and not decision.facts, "leases need no facts"


def test_no_more_is_in_flight_than_the_view_allows() -> None:
    stage = Stage(max_in_flight=5)
    stage.publish(20)
    stage.attach(1, credit=10)
    stage.attach(2, credit=10)
    assert len(stage.offsets(1)) + len(stage.offsets(2)) == 5
    stage.ack(stage.take(1))
    assert stage.numbers() == (10, 5, 5)


def test_a_single_active_consumer_gets_everything_until_it_leaves() -> None:
    stage = Stage(single_active=True)
    stage.attach(1, credit=2)
    stage.attach(2, credit=9)
    stage.publish(4)
    assert (stage.offsets(1), stage.offsets(2)) == ([0, 1], [])
    stage.ack(stage.take(1))
    assert (stage.offsets(1), stage.offsets(2)) == ([2, 3], [])
    stage.detach(1)
    assert stage.offsets(2) == [2, 3]
    stage.publish(1)
    assert stage.offsets(2) == [2, 3, 4]
    stage.queue.check()


def test_a_paused_view_hands_out_nothing_and_stays_paused_over_a_restart() -> None:
    stage = Stage()
    stage.attach()
    stage.publish(2)
    stage.decided(stage.queue.pause(stage.now))
    stage.publish(2)
    assert stage.offsets() == [0, 1]
    assert stage.ack(stage.take()) == [None, None]
    stage.start()
    assert stage.queue.is_paused
    stage.attach()
    assert stage.offsets() == []
    stage.decided(stage.queue.unpause(stage.now))
    assert stage.offsets() == [2, 3]
    stage.start()
    assert not stage.queue.is_paused


def test_the_heap_of_deadlines_is_swept() -> None:
    stage = Stage()
    stage.attach(credit=1)
    for _ in range(1_000):
        stage.publish()
        stage.ack(stage.take())
    assert len(stage.queue._leases._deadlines) < 200


def test_several_streams_are_read_in_turns() -> None:
    stage = Stage(streams=3)
    for stream in range(3):
        stage.publish(120, stream=stream)
    stage.attach(credit=150)
    assert {place >> 48 for place in stage.places()} == {0, 1, 2}
    for _ in range(10):
        stage.ack(stage.take())
    assert stage.numbers() == (0, 0, 360)
    assert [stage.queue.floor(stream) for stream in range(3)] == [120] * 3
    stage.queue.check()


def test_acks_out_of_order_across_streams() -> None:
    stage = Stage(streams=2)
    stage.publish(3, stream=0)
    stage.publish(3, stream=1)
    stage.attach()
    leases = sorted(stage.take(), key=lambda lease: -lease.place)
    stage.ack(leases[::2])
    assert (stage.statuses(0), stage.statuses(1)) == ("oxo", "xox")
    stage.start()
    assert (stage.statuses(0), stage.statuses(1)) == (".x.", "x.x")
    stage.queue.check()
