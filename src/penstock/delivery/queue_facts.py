"""What is remembered of a queue view, as keys and values of a compacted topic. Numbers are big-endian.

    key                                          value
    'f' view:4 stream:2                          first:8 floor:8 passed:8     how far one partition is settled
    'c' view:4 chunk:8                           settled bits of 1,024 offsets; chunk = place >> 10
    't' view:4 place:8                           attempts:4 due:8 first:8 last:8 reason:1    a message that failed
    's' view:4 step (UTF-8)                      0 count:4 places:8* payload  under way  |  1 number:8  done
    'p' view:4                                   1                            the view is paused

    settled bits     1                           all of them
                     0 length:1 settled passed   little-endian, bit 0 is the first offset, zero bytes at the end left
                                                 out; `passed` tells which of them were passed over, not handed out

Other first letters are free: the shell keeps what it knows of a view itself under keys of its own.
"""

import struct
from typing import Final, NamedTuple

from penstock.delivery.decision import Fact
from penstock.delivery.queue_events import Reason

FLOOR: Final = b"f"
CHUNK: Final = b"c"
TROUBLE: Final = b"t"
STEP: Final = b"s"
PAUSE: Final = b"p"
KINDS: Final = FLOOR + CHUNK + TROUBLE + STEP + PAUSE

CHUNK_BITS = 10
CHUNK_SIZE = 1 << CHUNK_BITS
FULL_CHUNK = (1 << CHUNK_SIZE) - 1

_floor_key = struct.Struct(">cIH")
_place_key = struct.Struct(">cIQ")  # of chunks, too
_plain_key = struct.Struct(">cI")
_floor_value = struct.Struct(">QQQ")
_trouble_value = struct.Struct(">IQQQB")
_intent_head = struct.Struct(">BI")
_done_value = struct.Struct(">BQ")

_REASONS: Final = (None, Reason.REJECTED, Reason.ATTEMPTS, Reason.EXPIRED)


def view_of(key: bytes) -> int | None:
    """The view that a fact is about; None when it is no fact of a queue machine."""
    if len(key) < _plain_key.size or key[:1] not in KINDS:
        return None
    view: int = _plain_key.unpack_from(key)[1]
    return view


class FloorFact(NamedTuple):
    first: int  # where the view began
    floor: int  # everything before it is settled
    passed: int  # of these, so many were passed over


class Trouble(NamedTuple):
    """What is known of a message that failed at least once, or that dies."""

    attempts: int
    due_ms: int  # wall; not before
    first_failure_ms: int
    last_failure_ms: int
    reason: Reason | None = None  # on its way to the dead letters


class Intent(NamedTuple):
    places: tuple[int, ...]
    payload: bytes


def floor_key(view: int, stream: int) -> bytes:
    return _floor_key.pack(FLOOR, view, stream)


def chunk_key(view: int, chunk: int) -> bytes:
    return _place_key.pack(CHUNK, view, chunk)


def trouble_key(view: int, place: int) -> bytes:
    return _place_key.pack(TROUBLE, view, place)


def step_key(view: int, step: str) -> bytes:
    return _plain_key.pack(STEP, view) + step.encode()


def pause_key(view: int) -> bytes:
    return _plain_key.pack(PAUSE, view)


def key_number(key: bytes) -> int:
    """The stream, the chunk or the place that a key names."""
    return int.from_bytes(key[_plain_key.size :])


def key_step(key: bytes) -> str:
    return key[_plain_key.size :].decode()


def floor_fact(view: int, stream: int, value: FloorFact) -> Fact:
    return Fact(_floor_key.pack(FLOOR, view, stream), _floor_value.pack(*value))


def read_floor(value: bytes) -> FloorFact:
    return FloorFact(*_floor_value.unpack_from(value))


def chunk_fact(view: int, chunk: int, settled: int, passed: int) -> Fact:
    key = _place_key.pack(CHUNK, view, chunk)
    if settled == FULL_CHUNK and not passed:
        return Fact(key, b"\x01")
    length = (settled.bit_length() + 7) >> 3
    value = b"\x00" + bytes((length,)) + settled.to_bytes(length, "little")
    if passed:
        value += passed.to_bytes((passed.bit_length() + 7) >> 3, "little")
    return Fact(key, value)


def read_chunk(value: bytes) -> tuple[int, int]:
    """The bits that are settled, and those of them that were passed over."""
    if value[0]:
        return FULL_CHUNK, 0
    end = 2 + value[1]
    return int.from_bytes(value[2:end], "little"), int.from_bytes(value[end:], "little")


def trouble_fact(view: int, place: int, trouble: Trouble) -> Fact:
    attempts, due_ms, first_ms, last_ms, reason = trouble
    value = _trouble_value.pack(attempts, due_ms, first_ms, last_ms, _REASONS.index(reason))
    return Fact(_place_key.pack(TROUBLE, view, place), value)


def read_trouble(value: bytes) -> Trouble:
    attempts, due_ms, first_ms, last_ms, reason = _trouble_value.unpack_from(value)
    return Trouble(attempts, due_ms, first_ms, last_ms, _REASONS[reason])


def intent_fact(view: int, step: str, intent: Intent) -> Fact:
    places, payload = intent
    head = _intent_head.pack(0, len(places)) + struct.pack(f">{len(places)}Q", *places)
    return Fact(step_key(view, step), head + payload)


def done_fact(view: int, step: str, number: int) -> Fact:
    return Fact(step_key(view, step), _done_value.pack(1, number))


def read_step(value: bytes) -> Intent | int:
    """What is under way, or the number under which it was done."""
    if value[0]:
        number: int = _done_value.unpack_from(value)[1]
        return number
    count: int = _intent_head.unpack_from(value)[1]
    end = _intent_head.size + 8 * count
    return Intent(struct.unpack_from(f">{count}Q", value, _intent_head.size), value[end:])
