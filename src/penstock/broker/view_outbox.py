"""The way out: leases become deliveries here, with the records they stand for, in the order they were decided.

Most records are still on the shelf from when they were seen; then a delivery is a plain call. What must be read from
the log is read in order by one task per view, and everything behind it waits for it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from penstock.broker.view import Delivery, Home, View
from penstock.broker.view_records import read_offsets
from penstock.delivery.places import OFFSET_BITS, OFFSET_MASK
from penstock.delivery.queue_events import Deliver, Lease, Outcome, Receipt
from penstock.log.topics import Topics
from penstock.model.errors import PenstockError
from penstock.model.record import Record

LOT_BYTES = 4 << 20  # of messages that are read from the log at once
FIRST_LOT, MAX_LOT = 64, 5_000  # messages of it

_log = logging.getLogger(__name__)
_new = tuple.__new__  # a named tuple without the call that names its fields: the hottest loop of a queue is here


class Outbox:
    """Of one view."""

    __slots__ = ("_busy", "_home", "_lot", "_pending", "_task", "_view")

    def __init__(self, home: Home, view: View) -> None:
        self._home = home
        self._view = view
        self._pending: deque[Deliver] = deque()
        self._busy = False  # somebody further up, or the task, is sending: others queue up behind it
        self._task: asyncio.Task[None] | None = None
        self._lot = FIRST_LOT

    @property
    def empty(self) -> bool:
        return not self._pending

    def holds(self, consumer: int) -> bool:
        return any(effect.consumer == consumer for effect in self._pending)

    def deliver(self, effect: Deliver) -> None:
        self._pending.append(effect)
        if not self._busy:
            self._busy = True
            self._send_shelved()
            if self._pending:
                self._task = self._home.spawn(self._run())
            else:
                self._busy = False

    def stop(self) -> None:
        self._pending.clear()
        if self._task is not None:
            self._task.cancel()

    def _send_shelved(self) -> None:
        while self._pending and self._send(self._pending[0]):
            self._pending.popleft()

    def _send(self, effect: Deliver) -> bool:
        """Deliver what is on the shelf as a whole; False when some of it must be read first."""
        view = self._view
        consumer = view.consumers.get(effect.consumer)
        if consumer is None:
            self._give_back(effect.leases)
            return True
        take, streams = view.shelf.take, view.streams
        deliveries: list[Delivery] = []
        number = -1
        topic, partition = "", 0
        for at, (place, lease_number, attempt, _) in enumerate(effect.leases):
            record = take(place)
            if record is None:
                if deliveries:
                    self._tell(effect.consumer, deliveries)
                effect.leases = effect.leases[at:]
                return False
            if place >> OFFSET_BITS != number:
                number = place >> OFFSET_BITS
                stream = streams.get(number)
                if stream is None:  # no longer read; the machine knows, and its leases are nobody's
                    continue
                topic, partition = stream.topic.name, stream.index
            receipt = _new(Receipt, (place, lease_number))
            deliveries.append(_new(Delivery, (topic, partition, record, receipt, attempt)))
        if deliveries:
            self._tell(effect.consumer, deliveries)
        return True

    def _tell(self, number: int, deliveries: Sequence[Delivery]) -> None:
        view = self._view
        consumer = view.consumers.get(number)
        if consumer is None:
            self._home.settle_quietly(view, Outcome.RELEASE, [delivery.receipt for delivery in deliveries])
            return
        try:
            consumer.deliver(deliveries)
        except Exception:
            _log.exception("a consumer of %s failed to take %d messages and is closed", view.address, len(deliveries))
            self._home.detach(view, number)

    def _give_back(self, leases: Sequence[Lease]) -> None:
        """They were leased to somebody who has left before they came."""
        receipts = [Receipt(lease.place, lease.number) for lease in leases]
        self._home.settle_quietly(self._view, Outcome.RELEASE, receipts)

    # -- from the log -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._pending and self._view.gone is None:
                first = self._pending[0]
                if first.consumer not in self._view.consumers:
                    self._pending.popleft()
                    self._give_back(first.leases)
                    continue
                lot = first.leases[: self._lot]
                try:
                    found = await self._read([lease.place for lease in lot])
                except PenstockError as error:
                    # Not handed out, so not failed either: it goes back, and comes again.
                    _log.warning("view %s cannot read what it would deliver: %s", self._view.address, error)
                    self._pending.popleft()
                    await asyncio.sleep(1)
                    self._give_back(first.leases)
                    continue
                first.leases = first.leases[len(lot) :]
                if not first.leases:
                    self._pending.popleft()
                self._fit_lot(len(lot), found)
                self._send_found(first.consumer, lot, found)
                self._send_shelved()
        finally:
            self._busy, self._task = False, None
            self._view.wake()

    async def _read(self, places: Sequence[int]) -> dict[int, Record]:
        return await read_places(self._home.topics, self._view, places)

    def _fit_lot(self, count: int, found: dict[int, Record]) -> None:
        """Read about as many at once as fill LOT_BYTES, however large the messages are."""
        size_bytes = sum(len(record.value or b"") for record in found.values())
        if size_bytes > LOT_BYTES:
            self._lot = max(1, count // 2)
        elif size_bytes < LOT_BYTES // 4:
            self._lot = min(MAX_LOT, max(self._lot, 2 * count))

    def _send_found(self, consumer: int, leases: Sequence[Lease], found: dict[int, Record]) -> None:
        view = self._view
        deliveries, gone = [], []
        for lease in leases:
            receipt = Receipt(lease.place, lease.number)
            record = found.get(lease.place)
            stream = view.streams.get(lease.place >> OFFSET_BITS)
            if stream is None:
                continue
            if record is None:
                gone.append(receipt)
            else:
                deliveries.append(Delivery(stream.topic.name, stream.index, record, receipt, lease.attempt))
        if gone:
            view.gone_records += len(gone)
            _log.info("%d messages of %s were removed from the log before they were processed", len(gone), view.address)
            self._home.settle_quietly(view, Outcome.ACK, gone)
        if deliveries:
            self._tell(consumer, deliveries)


async def read_places(topics: Topics, view: View, places: Sequence[int], *, leave: bool = False) -> dict[int, Record]:
    """The records that these places stand for, from the shelf or the log; those that are gone are missing.

    `leave`: what is on the shelf stays there.
    """
    found: dict[int, Record] = {}
    by_stream: dict[int, list[int]] = {}
    for place in places:
        record = view.shelf.look(place) if leave else view.shelf.take(place)
        if record is not None:
            found[place] = record
        else:
            by_stream.setdefault(place >> OFFSET_BITS, []).append(place & OFFSET_MASK)
    for number, offsets in by_stream.items():
        stream = view.streams.get(number)
        if stream is not None:
            partition = stream.partition or await topics.open(stream.topic, stream.index)
            if stream.again:
                view.look(stream, partition)
            records = await read_offsets(partition, offsets)
            high = number << OFFSET_BITS
            found.update((high | offset, record) for offset, record in records.items())
    return found
