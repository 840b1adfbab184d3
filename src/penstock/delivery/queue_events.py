"""What goes into a queue machine and what comes out of it. Nouns only; `delivery/queue.py` holds the rules."""

import enum
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from penstock.delivery.decision import Effect
from penstock.model.errors import InvalidSetting

MAX_PRIORITY = 9
WEEKS_MS = 26 * 7 * 24 * 3600 * 1000  # the longest delay or time to live that is taken: half a year


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a view hands out its messages. Times in ms; `check()` refuses what makes no sense."""

    lease_ms: int = 30_000  # a delivery not settled within it counts as failed; 0: leased until its consumer leaves
    max_attempts: int = 20  # then it goes to the dead letters; 0: tried without end
    retry_initial_ms: int = 1_000
    retry_factor: float = 2.0
    retry_ceiling_ms: int = 300_000
    retry_jitter: float = 0.2  # share of the delay that is added or taken away, by the place and the attempt
    dead_letter: str | None = None  # a topic; None: `<topic>.<view>.dead`; "": what failed for good is dropped
    delay_ms: int = 0  # every message waits so long after its timestamp
    ttl_ms: int = 0  # a message older than this is dead; 0: never
    max_priority: int = 0  # 0: first come, first served; up to 9: higher ones first
    # None is only said to whoever makes a view: what its topic promises.
    guarantee: Literal["at-least-once", "at-most-once", "exactly-once"] | None = None
    single_active: bool = False  # one consumer gets everything, the next one when it leaves
    ordered_by_key: bool = False  # a key is in flight with one consumer at a time, in order
    max_in_flight: int = 100_000  # leased at once, over all consumers
    expires_ms: int = 0  # a view that nobody used for so long is deleted; 0: never

    def check(self) -> None:
        """Raise InvalidSetting, naming the field and what is allowed."""
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:  # also refuses what is no number at all
                raise InvalidSetting(f"{name} is {value}: it must be from {low} to {high}")


_RANGES: dict[str, tuple[float, float]] = {
    "lease_ms": (0, WEEKS_MS),
    "max_attempts": (0, 1_000_000),
    "retry_initial_ms": (0, WEEKS_MS),
    "retry_factor": (1.0, 1_000.0),
    "retry_ceiling_ms": (0, WEEKS_MS),
    "retry_jitter": (0.0, 1.0),
    "delay_ms": (0, WEEKS_MS),
    "ttl_ms": (0, WEEKS_MS),
    "max_priority": (0, MAX_PRIORITY),
    "max_in_flight": (1, 1_000_000),
    "expires_ms": (0, 20 * WEEKS_MS),
}


class Arrival(NamedTuple):
    """One record as the queue sees it. Zero means: none."""

    offset: int
    timestamp_ms: int
    priority: int = 0
    due_ms: int = 0  # not before this wall time
    expires_ms: int = 0  # dead after this wall time
    key_hash: int = 0  # only in views ordered by key; 0: has no key


class Lease(NamedTuple):
    """One message handed to one consumer. The number is never given twice, also across restarts."""

    place: int
    number: int
    attempt: int  # 1 the first time
    deadline_ms: int  # monotonic; 0: until the consumer leaves


class Receipt(NamedTuple):
    """What a consumer names when it settles."""

    place: int
    number: int


class Outcome(enum.Enum):
    ACK = "ack"  # processed
    NACK = "nack"  # failed: again after the back-off, dead after the last attempt
    REJECT = "reject"  # failed for good: dead now
    RELEASE = "release"  # not tried: back in its place, the attempt does not count
    EXTEND = "extend"  # still working: the lease begins anew


class Status(enum.Enum):
    PENDING = "pending"
    PROCESSING = "processing"
    PROCESSED = "processed"


class Reason(enum.Enum):
    """Why a message is dead."""

    REJECTED = "rejected"
    ATTEMPTS = "max-attempts"
    EXPIRED = "expired"


@dataclass(slots=True)
class Counts:
    """A view in numbers. The first three tell of now; the rest since the view was made or the server started."""

    pending: int = 0  # waiting, delayed and to be retried included; what a filter will pass over counts until seen
    processing: int = 0  # leased, or on the way to the dead letters
    processed: int = 0  # settled since the view was made
    delayed: int = 0  # of the pending ones: waiting for their time
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    failed: int = 0  # nacks and lease time-outs
    dead: int = 0  # rejected, or failed once too often
    expired: int = 0
    consumers: int = 0


@dataclass(slots=True)
class Deliver(Effect):
    """Leases are not facts: unless the guarantee is at-most-once, this may be done before the facts are durable."""

    consumer: int
    leases: list[Lease]


@dataclass(slots=True)
class Bury(Effect):
    """Store this message with the dead letters, then tell the machine `buried(place)`."""

    place: int
    reason: Reason
    attempts: int
    first_failure_ms: int  # wall; 0 when it never failed
    last_failure_ms: int


@dataclass(slots=True)
class Perform(Effect):
    """The step's intent is durable: publish its payload (a repeat must store nothing), then `performed(step)`."""

    step: str
    payload: bytes
