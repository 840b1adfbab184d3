"""Who holds what: consumers, their credit, and the leases they were granted.

One hand-out is one `Grant`: its leases share a consumer and a deadline, so a deadline costs per batch, not per message.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from penstock.delivery.queue_backlog import PLACE_MASK

SWEEP_ABOVE = 64  # grants that are over stay in the heap of deadlines until they are the larger part


class Consumer:
    __slots__ = ("grants", "lease_ms", "limit", "name", "used")

    def __init__(self, name: int, limit: int, lease_ms: int | None) -> None:
        self.name = name
        self.limit = limit
        self.used = 0
        self.lease_ms = lease_ms  # None: as the view says
        self.grants: dict[Grant, None] = {}  # the open ones, oldest first

    @property
    def free(self) -> int:
        return self.limit - self.used


class Grant:
    """Messages handed out together. It is open while any of them is leased under it."""

    __slots__ = ("consumer", "deadline_ms", "messages", "open", "settled")

    def __init__(
        self, consumer: Consumer | None, messages: Sequence[int], count: int, deadline_ms: int, settled: bool
    ) -> None:
        self.consumer = consumer  # None: it left, and its leases were lent beyond its life
        self.messages = messages
        self.open = count
        self.deadline_ms = deadline_ms  # monotonic; 0: none
        self.settled = settled  # at most once: settled when handed out, held for the credit only


Held = tuple[int, Grant, int]  # number, grant, message


class Leases:
    def __init__(self) -> None:
        self.held: dict[int, Held] = {}  # by place
        self.consumers: dict[int, Consumer] = {}  # in the order they came
        self.hungry: dict[int, Consumer] = {}  # with free credit, whose turn is next first
        self.limit = 0  # credit of all, given
        self.used = 0  # and taken
        self.settled_count = 0  # held for the credit only
        self._open_grants = 0
        self._deadlines: list[tuple[int, int, Grant]] = []
        self._tie = 0

    # -- consumers ----------------------------------------------------------------------------------------------

    def attach(self, name: int, credit: int, lease_ms: int | None) -> None:
        assert name not in self.consumers, "a consumer attaches once"
        consumer = self.consumers[name] = Consumer(name, 0, lease_ms)
        self.add_credit(consumer, credit)

    def add_credit(self, consumer: Consumer, credit: int) -> None:
        credit = max(credit, -consumer.limit)
        consumer.limit += credit
        self.limit += credit
        if consumer.free > 0:
            self.hungry.setdefault(consumer.name, consumer)
        else:
            self.hungry.pop(consumer.name, None)

    def detach(self, consumer: Consumer) -> None:
        """It is gone; what it held is still held, by nobody."""
        del self.consumers[consumer.name]
        self.hungry.pop(consumer.name, None)
        self.limit -= consumer.limit
        self.used -= consumer.used
        for grant in consumer.grants:
            grant.consumer = None

    # -- grants -------------------------------------------------------------------------------------------------

    def open(
        self, consumer: Consumer | None, messages: Sequence[int], count: int, deadline_ms: int, *, settled: bool
    ) -> Grant:
        grant = Grant(consumer, messages, count, deadline_ms, settled)
        self._open_grants += 1
        if settled:
            self.settled_count += count
        if consumer is not None:
            consumer.grants[grant] = None
            consumer.used += count
            self.used += count
            if consumer.used >= consumer.limit:
                self.hungry.pop(consumer.name, None)
        if deadline_ms:
            self._tie += 1
            heappush(self._deadlines, (deadline_ms, self._tie, grant))
            if len(self._deadlines) > SWEEP_ABOVE and len(self._deadlines) > 2 * self._open_grants:
                self._deadlines = [entry for entry in self._deadlines if entry[2].open]
                heapify(self._deadlines)
        return grant

    def give_back(self, grant: Grant, count: int) -> None:
        """So many of its leases ended: their credit is free again."""
        grant.open -= count
        if grant.settled:
            self.settled_count -= count
        consumer = grant.consumer
        if consumer is not None:
            consumer.used -= count
            self.used -= count
            if consumer.used < consumer.limit:
                self.hungry.setdefault(consumer.name, consumer)
        if not grant.open:
            self._open_grants -= 1
            grant.messages = ()
            if consumer is not None:
                del consumer.grants[grant]

    def end(self, place: int, held: Held) -> None:
        del self.held[place]
        self.give_back(held[1], 1)

    def of_grant(self, grant: Grant) -> list[tuple[int, Held]]:
        """What is still leased under it, with the places."""
        held = self.held
        found = []
        for message in grant.messages:
            place = message & PLACE_MASK
            lease = held.get(place)
            if lease is not None and lease[1] is grant:
                found.append((place, lease))
        return found

    def due(self, now_ms: int) -> Iterator[Grant]:
        """Open grants whose time is over."""
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            yield heappop(self._deadlines)[2]

    def next_deadline_ms(self) -> int | None:
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].open:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def discard(self, doomed: Callable[[int], bool]) -> list[int]:
        """End the leases of these places, whoever holds them; returns their messages."""
        messages = []
        for place in [place for place in self.held if doomed(place)]:
            held = self.held[place]
            self.end(place, held)
            messages.append(held[2])
        return messages

    # -- looking ------------------------------------------------------------------------------------------------

    @property
    def processing(self) -> int:
        return len(self.held) - self.settled_count

    def check(self) -> None:
        grants: dict[Grant, int] = {}
        for place, (_, grant, message) in self.held.items():
            assert message & PLACE_MASK == place
            grants[grant] = grants.get(grant, 0) + 1
        for grant, count in grants.items():
            assert grant.open == count, "a grant knows how many of its leases are open"
            assert grant.consumer is None or grant in grant.consumer.grants
        assert self._open_grants == len(grants)
        assert self.settled_count == sum(count for grant, count in grants.items() if grant.settled)
        for name, consumer in self.consumers.items():
            assert consumer.name == name
            assert consumer.used == sum(grants[grant] for grant in consumer.grants)
            assert (name in self.hungry) == (consumer.free > 0)
        assert self.used == sum(consumer.used for consumer in self.consumers.values())
        assert self.limit == sum(consumer.limit for consumer in self.consumers.values())
        timed = {grant for grant in grants if grant.deadline_ms}
        assert timed <= {grant for _, _, grant in self._deadlines}, "no deadline is forgotten"
