"""A place: one message of a view as one whole number, so that a million of them stay small.

place = stream << 48 | offset          stream: the view's own number for one partition of one of its topics
"""

OFFSET_BITS = 48
OFFSET_MASK = (1 << OFFSET_BITS) - 1
MAX_STREAMS = 1 << 14


def place_of(stream: int, offset: int) -> int:
    return stream << OFFSET_BITS | offset


def stream_of(place: int) -> int:
    return place >> OFFSET_BITS


def offset_of(place: int) -> int:
    return place & OFFSET_MASK
