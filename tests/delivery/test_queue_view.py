"""Stories of a view as a whole: counting, purging, reading on, retention, settings, facts, and what it costs."""

import tracemalloc
from collections.abc import Callable

import pytest
from queue_stage import VIEW, Stage

from penstock.delivery.decision import Moment
from penstock.delivery.places import place_of
from penstock.delivery.queue import Queue
from penstock.delivery.queue_events import Arrival, Deliver, Outcome, QueueSettings, Receipt
from penstock.delivery.queue_facts import view_of
from penstock.delivery.queue_intake import LOOK_AHEAD

MILLION = 1_000_000
NOW = Moment(0, 1_700_000_000_000)

# -- reading on -------------------------------------------------------------------------------------------------


def test_nothing_is_seen_before_somebody_wants_it() -> None:
    stage = Stage()
    stage.publish(10_000)
    assert stage.queue.wants() == []
    stage.attach(credit=5)
    seen = 10_000 - stage.queue._progress.streams[0].seen
    assert seen >= 9_900, "only as far as consumers want"
    assert stage.numbers() == (9_995, 5, 0)


def test_the_look_ahead_has_a_bound() -> None:
    queue = Queue(VIEW, QueueSettings(), lease_seed=1)
    queue.add_stream(0, 0)
    queue.grew(0, 0, MILLION)
    queue.attach(NOW, 1, 100_000)
    seen = 0
    while queue.wants():
        queue.arrived(NOW, 0, [Arrival(offset, 0) for offset in range(seen, seen + 500)], seen + 500)
        seen += 500
    assert 100_000 + LOOK_AHEAD <= seen <= 100_000 + LOOK_AHEAD + 500


def test_what_a_filter_passes_over_is_settled_without_being_processed() -> None:
    stage = Stage()
    stage.publish_elsewhere(3)
    stage.publish(1)
    stage.publish_elsewhere(2)
    stage.attach()
    assert stage.offsets() == [3]
    assert stage.numbers() == (0, 1, 0)
    stage.ack(stage.take())
    assert stage.numbers() == (0, 0, 1)
    assert stage.queue.floor(0) == 6
    stage.start()
    assert stage.numbers() == (0, 0, 1)
    stage.queue.check()


def test_a_long_stretch_that_is_passed_over_is_remembered() -> None:
    stage = Stage()
    stage.attach()
    stage.publish_elsewhere(5_000)
    assert stage.queue.floor(0) > 3_000
    assert len(stage.ledger) == 1


def test_what_retention_removed_is_passed_over() -> None:
    stage = Stage()
    stage.publish(20)
    stage.attach(credit=2)
    stage.retention(10)
    assert stage.statuses() == "oo" + "x" * 8 + "." * 10
    assert stage.numbers() == (10, 2, 0)
    stage.ack(stage.take())
    assert stage.offsets() == [10, 11]
    assert stage.queue.floor(0) == 10
    stage.queue.check()


def test_a_partition_that_lost_everything_begins_anew() -> None:
    stage = Stage()
    stage.publish(5)
    stage.attach()
    stage.ack(stage.take())
    stage.logs[0].clear()
    stage.start()
    stage.publish(2)
    stage.attach()
    assert stage.offsets() == [0, 1]
    stage.queue.check()


def test_a_topic_that_is_deleted_takes_its_messages_along() -> None:
    stage = Stage(streams=2, ordered_by_key=True)
    stage.publish(3, stream=0, key_hash=1)
    stage.publish(3, stream=1, key_hash=1)
    stage.publish(2, stream=0)
    stage.attach(credit=3)
    late = stage.take()
    stage.settle(Outcome.NACK, late[1:2])
    stage.decided(stage.queue.remove_stream(0))
    stage.advance(1)
    assert stage.places() == [place_of(1, 0)]
    assert all(result is None for result in stage.ack(late)), "what is gone needs no ack"
    assert not [key for key in stage.ledger if key[:1] == b"t"]
    stage.queue.check()


def test_a_view_may_begin_anywhere() -> None:
    stage = Stage()
    stage.queue = Queue(VIEW, QueueSettings(), lease_seed=1)
    stage.logs[0] = [Arrival(offset, 0) for offset in range(10)]
    stage.queue.add_stream(0, 7)
    stage.grew(0)
    stage.attach()
    assert stage.offsets() == [7, 8, 9]
    stage.ack(stage.take()[:1])
    assert stage.numbers() == (0, 2, 1)


def test_waiting_tells_who_is_next() -> None:
    stage = Stage(max_priority=5)
    stage.publish(3)
    stage.publish(priority=4)
    stage.publish(due_ms=stage.clock.wall_ms() + 1_000)
    assert stage.queue.waiting(3) == [3, 0, 1]
    plain = Stage()
    plain.publish(4)
    assert plain.queue.waiting(2) == [0, 1], "also when nobody looked at them yet"
    plain.attach(credit=1)
    assert plain.queue.waiting(10) == [1, 2, 3]


# -- the whole view ---------------------------------------------------------------------------------------------


def test_a_purge_settles_all_but_what_is_leased() -> None:
    stage = Stage(retry_initial_ms=60_000)
    stage.publish(5_000)
    stage.attach(credit=3)
    stage.settle(Outcome.NACK, stage.take()[:1])
    assert stage.purge() == 4_997
    assert stage.statuses() == "xooo" + "x" * 4_996
    assert stage.numbers() == (0, 3, 4_997)
    stage.start()
    assert stage.statuses() == "x..." + "x" * 4_996
    stage.attach()
    assert stage.offsets() == [1, 2, 3]
    stage.ack(stage.take())
    assert stage.queue.floor(0) == 5_000
    assert {key[:1] for key in stage.ledger} == {b"f"}, "one floor says it all"
    stage.queue.check()


def test_a_purge_of_an_idle_view_is_one_fact() -> None:
    stage = Stage()
    stage.publish(50_000)
    assert stage.purge() == 50_000
    assert len(stage.ledger) == 1 and stage.queue.floor(0) == 50_000
    stage.publish(1)
    stage.attach()
    assert stage.offsets() == [50_000]


def test_a_purge_of_a_backlog_with_priorities_and_keys() -> None:
    stage = Stage(max_priority=9, ordered_by_key=True)
    stage.attach(credit=1)
    for n in range(50):
        stage.publish(priority=n % 10, key_hash=n % 3, due_ms=stage.clock.wall_ms() + n % 2)
    assert stage.purge() == 49
    stage.ack(stage.take())
    assert stage.take() == [] and stage.numbers() == (0, 0, 50)
    stage.queue.check()


def test_new_settings_hold_for_what_waits() -> None:
    stage = Stage(ttl_ms=1_000_000)
    for priority in (0, 3, 5):
        stage.publish(priority=priority)
    stage.attach(credit=1)
    stage.settings = QueueSettings(max_priority=9)
    stage.decided(stage.queue.configure(stage.now, stage.settings))
    stage.ack(stage.take())
    assert stage.offsets() == [2]
    stage.settings = QueueSettings(delay_ms=10_000)
    stage.decided(stage.queue.configure(stage.now, stage.settings))
    stage.ack(stage.take())
    assert stage.offsets() == []
    stage.advance(10_000)
    assert stage.offsets() == [1]
    stage.queue.check()


def test_a_deleted_view_leaves_no_fact() -> None:
    stage = Stage(streams=2, retry_initial_ms=0)
    stage.publish(3_000)
    stage.publish(10, stream=1)
    stage.attach(credit=3_010)
    leases = stage.take()
    stage.ack(leases[:2] + leases[5::7])
    stage.settle(Outcome.NACK, leases[6::7])
    stage.step("one", leases[7:8])
    stage.performs = stage.buries = False
    stage.step("two", leases[8:9])
    stage.settle(Outcome.REJECT, leases[14:15])
    stage.decided(stage.queue.pause(stage.now))
    assert {key[:1] for key in stage.ledger} == {b"f", b"c", b"t", b"s", b"p"}
    stage.write(stage.queue.tombstones())
    assert stage.ledger == {}


def test_keys_of_others_are_nobodys() -> None:
    assert view_of(b"v\x00\x00\x00\x07") is None
    assert view_of(b"f\x00") is None
    assert view_of(b"") is None
    assert view_of(b"f\x00\x00\x00\x07\x00\x00") == VIEW


# -- what it costs ----------------------------------------------------------------------------------------------


def test_acks_out_of_order_cost_bits() -> None:
    stage = Stage(retry_initial_ms=0)
    stage.publish(20_000)
    stage.attach(credit=20_000)
    leases = stage.take()
    stage.ack(leases[1::2])
    progress = stage.queue._progress
    assert len(progress.settled) == 20 and not stage.queue._backlog.dropped
    assert sum(map(len, stage.ledger.values())) < 20 * 140
    stage.ack(leases[2::2])
    assert sum(map(len, stage.ledger.values())) < 20 * 140
    assert [value for value in stage.ledger.values() if len(value) == 1], "a full chunk is one byte"
    stage.ack(leases[:1])
    assert len(progress.settled) == 1 and len(stage.ledger) == 1


def test_a_run_of_acks_is_few_facts() -> None:
    stage = Stage()
    stage.publish(1_000)
    stage.attach(credit=1_000)
    receipts = [Receipt(lease.place, lease.number) for lease in stage.take()]
    assert len(stage.queue.settle(stage.now, 1, Outcome.ACK, receipts[:500]).facts) == 1
    assert len(stage.queue.settle(stage.now, 2, Outcome.ACK, receipts[600:]).facts) == 1


@pytest.mark.parametrize(
    ("settings", "arrival", "most_bytes"),
    [
        (QueueSettings(), lambda offset: Arrival(offset, 0), 1),
        (QueueSettings(max_priority=9), lambda offset: Arrival(offset, 0, offset % 10), 12),
        (QueueSettings(max_priority=9, ttl_ms=60_000), lambda o: Arrival(o, NOW.wall_ms, o % 10), 80),
        (QueueSettings(), lambda offset: Arrival(offset, 0, 0, NOW.wall_ms + 1 + offset), 80),
        (QueueSettings(ordered_by_key=True), lambda offset: Arrival(offset, 0, key_hash=7 << 50), 60),
    ],
    ids=["plain", "priorities", "priorities and time to live", "delayed", "behind one key"],
)
def test_a_waiting_message_costs_little(
    settings: QueueSettings, arrival: Callable[[int], Arrival], most_bytes: int
) -> None:
    count = 100_000
    queue = Queue(VIEW, settings, lease_seed=1)
    queue.add_stream(0, 0)
    queue.attach(NOW, 1, 10)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        queue.grew(0, 0, count)
        seen = 0
        while queue.wants() and seen < count:
            queue.arrived(NOW, 0, [arrival(offset) for offset in range(seen, seen + 1_000)], seen + 1_000)
            seen += 1_000
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert queue.counts().pending >= count - 10
    assert (after - before) / count <= most_bytes


def test_a_backlog_with_priorities_is_handed_out_whole() -> None:
    queue = Queue(VIEW, QueueSettings(max_priority=9, max_in_flight=200_000), lease_seed=1)
    queue.add_stream(0, 0)
    queue.arrived(NOW, 0, [Arrival(offset, 0, offset % 10) for offset in range(100_000)], 100_000)
    order: list[int] = []
    decision = queue.attach(NOW, 1, 7_000)
    while leases := [lease for effect in decision.effects if isinstance(effect, Deliver) for lease in effect.leases]:
        order += [lease.place for lease in leases]
        decision = queue.settle(NOW, 1, Outcome.ACK, [Receipt(lease.place, lease.number) for lease in leases])
        queue.recorded(NOW, decision.facts)
    assert order == [offset for priority in range(9, -1, -1) for offset in range(priority, 100_000, 10)]
    queue.check()
