"""Named producers while writes fail: whoever repeats in order what failed finds each message stored once, in order."""

import asyncio
from pathlib import Path

from broker_house import BrokerHouse
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import OutOfOrderSequence, StorageFailed
from penstock.model.ids import StreamId
from penstock.model.message import Outgoing
from penstock.security.principal import ANONYMOUS
from penstock.storage.engine import Chunk, Engine, Grant
from penstock.storage.memory import MemoryEngine


class LateEngine(MemoryEngine):
    """Appends to one topic become durable, or fail together with all that follow, when the test says so."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._late: dict[StreamId, list[tuple[Chunk, Grant]]] = {}

    def append(self, stream: StreamId, chunk: Chunk) -> asyncio.Future[None]:
        if stream.topic != self._topic:
            return super().append(stream, chunk)
        future = Grant(loop=asyncio.get_running_loop())
        self._late.setdefault(stream, []).append((chunk._replace(data=bytes(chunk.data)), future))
        return future

    def land(self) -> None:
        late, self._late = self._late, {}
        for stream, appends in late.items():
            for chunk, future in appends:
                super().append(stream, chunk)
                future.set_result(None)

    def fail(self) -> None:
        late, self._late = self._late, {}
        for appends in late.values():
            for _, future in appends:
                future.set_exception(StorageFailed("the disk says no"))


class LateHouse(BrokerHouse):
    def _engine(self) -> Engine:
        self.late = LateEngine("orders")
        return self.late


class Sender:
    """A client that numbers its messages, has several publishes under way, and repeats in order what failed."""

    def __init__(self, house: LateHouse, name: str, keys: int) -> None:
        self.house, self.name, self.keys = house, name, keys
        self.sent = 0
        self.waiting: list[tuple[int, int, asyncio.Future]] = []  # first number, count

    async def send(self, count: int) -> None:
        await self._publish(self.sent, count)
        self.sent += count

    async def _publish(self, first: int, count: int) -> None:
        target = await self.house.gatherer.target(ANONYMOUS, "orders")
        messages = [Outgoing(self._key(i), b"%s %d" % (self.name.encode(), i)) for i in range(first, first + count)]
        self.waiting.append((first, count, target.publish(messages, producer=self.name, sequence=first)))

    def _key(self, number: int) -> bytes | None:
        return b"%d" % (number % self.keys) if self.keys else None

    def was_told_of_a_failure(self) -> bool:
        return any(future.done() and future.exception() is not None for _, _, future in self.waiting)

    async def look(self, cut: int) -> None:
        """Repeat from the first failure on, in pieces of another size than before."""
        while self.waiting and self.waiting[0][2].done() and self.waiting[0][2].exception() is None:
            self.waiting.pop(0)
        if not self.was_told_of_a_failure():
            return
        again = self.waiting
        self.waiting = []
        for _, _, future in again:
            await asyncio.wait([future], timeout=10)
            error = future.exception()
            assert error is None or isinstance(error, StorageFailed | OutOfOrderSequence)
        first, stop = again[0][0], again[-1][0] + again[-1][1]
        while first < stop:
            count = min(cut, stop - first)
            await self._publish(first, count)
            first += count


STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "send", "tick", "land", "fail", "look"]), st.integers(0, 1), st.integers(1, 7)),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS, partitions=st.integers(1, 3), keys=st.sampled_from([0, 2, 5]))
async def test_numbers_are_stored_once_and_in_order_however_writes_fail(steps, partitions: int, keys: int) -> None:
    house = await LateHouse("late", Path()).open()
    await house.create("orders", partitions, max_message_bytes="400")
    senders = [Sender(house, name, keys) for name in ("one", "two")]
    for action, who, count in steps:
        if action == "send":
            await senders[who].send(count)
        elif action == "tick":
            await asyncio.sleep(0)
        elif action == "look":
            house.gatherer.flush()
            if senders[who].was_told_of_a_failure():
                house.late.fail()  # it hears of all that is under way before it repeats anything
            await senders[who].look(count)
        else:
            house.gatherer.flush()
            if action == "land":
                house.late.land()
            else:
                house.late.fail()
            await asyncio.sleep(0)
    for _ in range(50):
        house.gatherer.flush()
        house.late.land()
        await asyncio.sleep(0)
        for sender in senders:
            await sender.look(3)
    for sender in senders:
        assert sender.waiting == []
        stored = []
        for index in range(partitions):
            values = [v for v in await house.values("orders", index) if v and v.startswith(sender.name.encode())]
            numbers = [int(value.split()[1]) for value in values]
            assert numbers == sorted(numbers)
            stored += numbers
        assert sorted(stored) == list(range(sender.sent))
    await house.close()
