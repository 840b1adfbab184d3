"""Which topics a consumer's metadata names. The only glance the broker takes into what the clients tell each other.

The metadata of protocol type `consumer` (Kafka's ConsumerProtocolSubscription) begins, in every version, with

    int16 version | int32 topic count | count x (int16 length, UTF-8 bytes) | ... what we never read
"""

import struct
from collections.abc import Iterable

CONSUMER_PROTOCOL_TYPE = "consumer"

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics named, or None when this is not a subscription we can read."""
    if len(metadata) < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(metadata)
    position = _HEAD.size
    if version < 0 or count < 0 or count * _LENGTH.size > len(metadata) - position:
        return None
    topics = []
    for _ in range(count):
        if position + _LENGTH.size > len(metadata):
            return None
        (length,) = _LENGTH.unpack_from(metadata, position)
        position += _LENGTH.size
        if length < 0 or position + length > len(metadata):
            return None
        try:
            topics.append(metadata[position : position + length].decode())
        except UnicodeDecodeError:
            return None
        position += length
    return frozenset(topics)


def all_subscribed_topics(metadatas: Iterable[bytes]) -> frozenset[str] | None:
    """The union, or None when any of them cannot be read: then every topic may be subscribed."""
    union: set[str] = set()
    for metadata in metadatas:
        topics = subscribed_topics(metadata)
        if topics is None:
            return None
        union |= topics
    return frozenset(union)


def same_subscription(old: bytes, new: bytes) -> bool:
    """Whether a member that comes back wants what it had.

    Sticky assignors also write what they own into the metadata, and a restarted member owns nothing: only the topics
    count, where they can be read.
    """
    if old == new:
        return True
    old_topics = subscribed_topics(old)
    return old_topics is not None and old_topics == subscribed_topics(new)
