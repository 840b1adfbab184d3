"""What a queue sees of a record: whether it is for this view, when it is due, until when, and how important it is.

Nearly all records say nothing about their delivery, and nearly all views ask for nothing: that path is one list
comprehension per chunk. The broker's own views copy messages on in order, so what these say about their delivery is for
those who get the copy.
"""

from collections.abc import Sequence
from operator import attrgetter
from zlib import crc32

from penstock.broker.views import OWN_PREFIX
from penstock.delivery.filters import Test
from penstock.delivery.queue_events import MAX_PRIORITY, WEEKS_MS, Arrival, QueueSettings
from penstock.model.message import DELAY_MS, DELIVER_AT_MS, ONLY_FOR, PRIORITY, TTL_MS
from penstock.model.record import Record

_HAS_KEY = 1 << 32  # so that no key's hash is 0, which means that there is none
_MAX_DIGITS = 15
_headers = attrgetter("headers")


class Sieve:
    """For one source of one view."""

    __slots__ = ("_address", "_delay_ms", "_ordered", "_own", "_plain", "_test", "_ttl_ms")

    def __init__(self, address: str, settings: QueueSettings, test: Test | None) -> None:
        self._address = address.encode()
        self._own = address.partition("/")[2].startswith(OWN_PREFIX)
        self._test = test
        self._delay_ms = settings.delay_ms
        self._ttl_ms = settings.ttl_ms
        self._ordered = settings.ordered_by_key
        self._plain = test is None and not (settings.delay_ms or settings.ttl_ms or settings.ordered_by_key)

    def sift(self, records: Sequence[Record], wall_ms: int) -> tuple[list[Arrival], Sequence[Record]]:
        """What of these is for the view, in order; and those of them that are due, which will be asked for soon."""
        if self._plain and not any(map(_headers, records)):
            return [Arrival(record.offset, record.timestamp_ms) for record in records], records
        arrivals, due = [], []
        for record in records:
            arrival = self.arrival(record)
            if arrival is not None:
                arrivals.append(arrival)
                if arrival.due_ms <= wall_ms:
                    due.append(record)
        return arrivals, due

    def arrival(self, record: Record) -> Arrival | None:
        """None when it is not for this view."""
        if self._test is not None and not self._test(record):
            return None
        timestamp_ms = record.timestamp_ms
        if self._own:
            only_for_others = any(name == ONLY_FOR for name, _ in record.headers)
            return None if only_for_others else Arrival(record.offset, timestamp_ms)
        delay_ms, ttl_ms, due_ms, priority = self._delay_ms, self._ttl_ms, 0, 0
        for name, value in record.headers:
            if not name.startswith("penstock-") or value is None:
                continue
            if name == ONLY_FOR:
                if value != self._address:
                    return None
            elif name == PRIORITY:
                priority = min(_number(value, priority), MAX_PRIORITY)
            elif name == DELAY_MS:
                delay_ms = min(_number(value, delay_ms), WEEKS_MS)
            elif name == DELIVER_AT_MS:
                due_ms = _number(value, due_ms)
            elif name == TTL_MS:
                own_ms = min(_number(value, 0), WEEKS_MS)
                ttl_ms = min(own_ms, ttl_ms) if own_ms and ttl_ms else own_ms or ttl_ms
        if due_ms:
            due_ms = min(due_ms, max(timestamp_ms, 0) + WEEKS_MS)
        elif delay_ms:
            due_ms = max(timestamp_ms, 0) + delay_ms
        expires_ms = timestamp_ms + ttl_ms if ttl_ms and timestamp_ms >= 0 else 0
        key_hash = crc32(record.key) | _HAS_KEY if self._ordered and record.key is not None else 0
        return Arrival(record.offset, timestamp_ms, priority, due_ms, expires_ms, key_hash)


def _number(value: bytes, otherwise: int) -> int:
    """What these digits say; what cannot be read says nothing."""
    return int(value) if value.isdigit() and len(value) <= _MAX_DIGITS else otherwise
