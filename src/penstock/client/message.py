"""Messages as users see them: what they publish, and what reaches them.

A value is bytes, text (stored as UTF-8), None (a tombstone in a compacted topic), or anything else that JSON can say.
"""

import time
from asyncio import Future
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.model import message as steering
from penstock.model.record import Headers, Record

if TYPE_CHECKING:
    from penstock.client.queue import QueueSubscription

Value = Any  # bytes | str | None | whatever JSON can say
Key = bytes | str | None
HeaderValue = bytes | str | None
GivenHeaders = Mapping[str, HeaderValue] | Sequence[tuple[str, HeaderValue]]

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode


class Outgoing(NamedTuple):
    """One message of `publish_many` that is more than its value."""

    value: Value
    key: Key = None
    headers: GivenHeaders | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    delay_s: float | None = None
    deliver_at_ms: int | None = None
    ttl_s: float | None = None
    priority: int | None = None


def value_bytes(value: Value) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    return _encode_json(value)


def key_bytes(key: Key) -> bytes | None:
    if key is None or type(key) is bytes:
        return key
    return key.encode() if isinstance(key, str) else bytes(key)


def header_pairs(
    given: GivenHeaders | None,
    delay_s: float | None = None,
    deliver_at_ms: int | None = None,
    ttl_s: float | None = None,
    priority: int | None = None,
) -> Headers:
    if not given and delay_s is None and deliver_at_ms is None and ttl_s is None and priority is None:
        return ()
    pairs = list(given.items() if isinstance(given, Mapping) else given or ())
    if delay_s is not None:
        pairs.append((steering.DELAY_MS, str(round(delay_s * 1000))))
    if deliver_at_ms is not None:
        pairs.append((steering.DELIVER_AT_MS, str(deliver_at_ms)))
    if ttl_s is not None:
        pairs.append((steering.TTL_MS, str(round(ttl_s * 1000))))
    if priority is not None:
        pairs.append((steering.PRIORITY, str(priority)))
    return tuple((name, content.encode() if isinstance(content, str) else content) for name, content in pairs)


def record_of(message: Value, now_ms: int) -> tuple[Record, int | None]:
    """A value or an Outgoing as a record, and the partition it asks for."""
    if type(message) is bytes:
        return Record(0, now_ms, None, message), None
    if not isinstance(message, Outgoing):
        return Record(0, now_ms, None, value_bytes(message)), None
    value, key, headers, partition, timestamp_ms, delay_s, deliver_at_ms, ttl_s, priority = message
    pairs = header_pairs(headers, delay_s, deliver_at_ms, ttl_s, priority)
    time_ms = now_ms if timestamp_ms is None else timestamp_ms
    return Record(0, time_ms, key_bytes(key), value_bytes(value), pairs), partition


class Message:
    """One message that arrived. Of a queue it is leased: `ack()` it, or say otherwise, before the lease ends.

    Settling is a plain call that returns a future: the order is fixed when it returns, and what it says is durable
    when the future is awaited. What is settled in one tick of the loop travels together.
    """

    __slots__ = ("_number", "_record", "_stream", "_subscription", "attempt", "partition", "topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        record: Record,
        attempt: int = 1,
        number: int = 0,
        stream: int = 0,
        subscription: "QueueSubscription | None" = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.attempt = attempt  # 1 the first time a queue hands it out
        self._record = record
        self._number = number
        self._stream = stream
        self._subscription = subscription

    # -- what it says -------------------------------------------------------------------------------------------

    @property
    def value(self) -> bytes | None:
        return self._record.value

    @property
    def record(self) -> Record:
        """As it stands in the log."""
        return self._record

    @property
    def key(self) -> bytes | None:
        return self._record.key

    @property
    def offset(self) -> int:
        return self._record.offset

    @property
    def timestamp_ms(self) -> int:
        return self._record.timestamp_ms

    @property
    def headers(self) -> dict[str, bytes | None]:
        """By name; the last one where a name stands twice. `header_list` has them all, in order."""
        return dict(self._record.headers)

    @property
    def header_list(self) -> Headers:
        return self._record.headers

    @property
    def text(self) -> str:
        return (self._record.value or b"").decode()

    def json(self) -> Any:
        return _decode_json(self._record.value or b"null")

    # -- settling -----------------------------------------------------------------------------------------------

    def ack(self) -> "Future[None]":
        """Processed. Raises LeaseLost if the lease ended and somebody else has the message."""
        return self._queue().settle([self], "ack")

    def nack(self, delay_s: float | None = None) -> "Future[None]":
        """Failed: it comes again after the view's back-off (or `delay_s`), or is dead after its last attempt."""
        return self._queue().settle([self], "nack", delay_s=delay_s)

    def reject(self) -> "Future[None]":
        """Failed for good: to the dead letters."""
        return self._queue().settle([self], "reject")

    def release(self) -> "Future[None]":
        """Not tried: back to its place, and the attempt does not count."""
        return self._queue().settle([self], "release")

    def extend(self, lease_s: float | None = None) -> "Future[None]":
        """Still working: the lease begins anew."""
        return self._queue().settle([self], "extend", lease_s=lease_s)

    @property
    def receipt(self) -> tuple[int, int]:
        """What names this delivery to the server: its place in the view and the number of its lease."""
        return self._stream << 48 | self._record.offset, self._number

    def _queue(self) -> "QueueSubscription":
        if self._subscription is None:
            raise TypeError("only messages of a queue are settled; a log is read, and its position committed")
        return self._subscription

    def __repr__(self) -> str:
        return f"Message({self.topic}-{self.partition} @{self.offset}, key={self.key!r}, value={self.value!r})"


def make_record(
    key: Key,
    value: Value,
    headers: GivenHeaders | None,
    timestamp_ms: int | None,
    delay_s: float | None,
    deliver_at_ms: int | None,
    ttl_s: float | None,
    priority: int | None,
) -> Record:
    """A record as it is published, from what users say."""
    plain = headers is None and delay_s is None and deliver_at_ms is None and ttl_s is None and priority is None
    pairs = () if plain else header_pairs(headers, delay_s, deliver_at_ms, ttl_s, priority)
    time_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    return Record(0, time_ms, key_bytes(key), value_bytes(value), pairs)
