"""A message on its way in, from a door that has messages rather than batches, and the headers that tell how it is to
be delivered. All values of these headers are decimal digits, so that every client can set them."""

from typing import NamedTuple

from penstock.model.record import Headers, Record

PRIORITY = "penstock-priority"  # 0 to 9
DELAY_MS = "penstock-delay-ms"  # from the record's timestamp on
DELIVER_AT_MS = "penstock-deliver-at-ms"  # wall clock; wins over the delay
TTL_MS = "penstock-ttl-ms"  # from the record's timestamp on
ONLY_FOR = "penstock-only-for"  # `<topic>/<view>`: other queue views pass it over (a redriven dead letter)

DEAD_REASON = "penstock-dead-reason"
DEAD_ATTEMPTS = "penstock-dead-attempts"
DEAD_FIRST_FAILURE_MS = "penstock-dead-first-failure-ms"
DEAD_LAST_FAILURE_MS = "penstock-dead-last-failure-ms"
DEAD_TOPIC = "penstock-dead-topic"
DEAD_PARTITION = "penstock-dead-partition"
DEAD_OFFSET = "penstock-dead-offset"
DEAD_VIEW = "penstock-dead-view"


class Outgoing(NamedTuple):
    """One message to be published."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = -1  # -1: now
    partition: int = -1  # -1: by the key, or wherever the others of this tick go


class Placed(NamedTuple):
    """Where a message went."""

    partition: int
    offset: int


class Incoming(NamedTuple):
    """One message on its way out, and where it stands."""

    topic: str
    partition: int
    record: Record
