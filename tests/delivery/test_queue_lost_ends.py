"""A partition that lost its end in a crash, as its topic allows: what comes instead is new, what is left is not."""

import pytest
from queue_stage import Stage, offset_of

from penstock.delivery.queue_events import Outcome


class Loser(Stage):
    """Starts anew with a log that ends earlier."""

    ends_at: int | None = None

    def grew(self, stream: int) -> None:
        if self.ends_at is None:
            super().grew(stream)

    def lose(self, end: int) -> None:
        del self.logs[0][end:]
        self.ends_at = end
        self.start()
        self.queue.reopened(0, end)
        self.ends_at = None
        self.grew(0)
        self.queue.check()
        self.decided(self.queue.tick(self.now))


ACKED = [(), (0, 1, 2, 3, 4), (8, 9), (0, 1, 2, 8, 9), tuple(range(10))]


@pytest.mark.parametrize("end", [0, 1, 4, 6, 9, 10])
@pytest.mark.parametrize("acked", ACKED)
@pytest.mark.parametrize("before", [0, 1020])  # around the end of a chunk
def test_what_comes_after_the_loss_is_handed_out(before: int, acked: tuple[int, ...], end: int) -> None:
    stage = Loser()
    stage.publish(before + 10)
    stage.attach(credit=2000)
    leases = stage.take()
    stage.ack([*leases[:before], *(leases[before + offset] for offset in acked)])
    stage.lose(before + end)
    stage.publish(20 - end)
    stage.attach(credit=2000)
    assert stage.offsets() == [before + at for at in range(20) if at >= end or at not in acked]
    stage.ack(stage.take())
    assert stage.numbers() == (0, 0, before + 20)
    stage.start()
    stage.attach(credit=2000)
    assert stage.offsets() == []


def test_what_failed_or_was_dying_in_the_lost_end_is_forgotten() -> None:
    stage = Loser(max_attempts=2, retry_initial_ms=60_000)
    stage.publish(4)
    stage.attach(credit=10)
    leases = stage.take()
    stage.settle(Outcome.NACK, leases[1:3])
    stage.buries = False
    stage.settle(Outcome.REJECT, [leases[3]])
    stage.lose(2)
    stage.buries = True
    stage.advance(5_000)
    assert stage.queue.counts().processing == 0
    stage.publish(3)
    stage.attach(credit=10)
    assert [(offset_of(lease.place), lease.attempt) for lease in stage.take()] == [(0, 1), (2, 1), (3, 1), (4, 1)]
    stage.advance(70_000)
    assert [(offset_of(lease.place), lease.attempt) for lease in stage.held.get(1, [])][:1] == [(1, 2)]
