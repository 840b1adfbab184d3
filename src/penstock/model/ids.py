"""Names and numbers that identify things. Nothing here does anything but hold and check them."""

import re
import uuid
from typing import NamedTuple

from penstock.model.errors import InvalidTopicName

TOPIC_NAME_MAX_CHARS = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")

# Names that begin so are the broker's own: readable, never writable from outside.
INTERNAL_PREFIX = "__penstock_"

TopicId = uuid.UUID
NO_TOPIC_ID: TopicId = uuid.UUID(int=0)


class StreamId(NamedTuple):
    """One partition of one incarnation of a topic: what an engine stores bytes under.

    The topic id is part of it, so a topic deleted and created again never meets its former self.
    """

    topic: str
    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def check_topic_name(name: str) -> str:
    """Return the name if Kafka clients could use it, else raise InvalidTopicName."""
    if not name or name in (".", ".."):
        raise InvalidTopicName(f"topic name {name!r} is not allowed")
    if len(name) > TOPIC_NAME_MAX_CHARS:
        raise InvalidTopicName(f"topic name is {len(name)} characters long; at most {TOPIC_NAME_MAX_CHARS} are allowed")
    if not _TOPIC_NAME.fullmatch(name):
        raise InvalidTopicName(f"topic name {name!r} may hold only letters, digits, '.', '_' and '-'")
    return name


def is_internal(name: str) -> bool:
    return name.startswith(INTERNAL_PREFIX)
