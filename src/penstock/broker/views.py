"""What a queue view is, as a fact: its name, its settings, the topics it reads and the numbers of their partitions.

    key of a definition     "V" and the view's id, 8 bytes
    key of the counter      "N": the last id that was given; an id is never given twice, so neither is a place
    key of the life         "L": where lease numbers began when the server started last; they begin higher each time

The facts of the view's machine stand beside them, under keys of their own (`delivery/queue_facts.py`).

A view numbers the partitions it reads as streams. A number is never used again, so that a place stays what it was when
a topic is no longer read, or comes back.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.delivery.filters import Match
from penstock.delivery.queue_events import Counts, QueueSettings
from penstock.model.errors import InvalidSetting, InvalidTopicName, InvalidViewName
from penstock.model.ids import check_topic_name, is_internal

DEFINITION = b"V"
COUNTER_KEY = b"N"
LIFE_KEY = b"L"
ID_BYTES = 8

VIEW_NAME_MAX_CHARS = 249
OWN_PREFIX = "__"  # views that begin so are the broker's own: not listed, not made from outside
_VIEW_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topic that a view reads, and what of it."""

    topic: str
    matches: tuple[Match, ...] = ()


class ViewInfo(NamedTuple):
    topic: str
    name: str
    settings: QueueSettings
    sources: tuple[Source, ...]
    paused: bool
    counts: Counts


class StreamFact(msgspec.Struct, frozen=True, array_like=True):
    """One partition under the view's own number for it, and where the view began to read it."""

    number: int
    topic: str
    topic_id: str
    partition: int
    start_offset: int


class ViewFact(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: str
    topic_id: str
    name: str
    settings: QueueSettings
    sources: tuple[Source, ...]
    streams: tuple[StreamFact, ...]
    created_ms: int
    next_stream: int = 0

    @property
    def address(self) -> str:
        return address_of(self.topic, self.name)

    def source(self, topic: str) -> Source | None:
        return next((source for source in self.sources if source.topic == topic), None)

    def with_streams(self, added: Sequence[StreamFact]) -> "ViewFact":
        if not added:
            return self
        numbers = self.next_stream + len(added)
        return msgspec.structs.replace(self, streams=(*self.streams, *added), next_stream=numbers)

    def with_source(self, source: Source) -> "ViewFact":
        """Another source, or other matches of one that is there."""
        if self.source(source.topic) is None:
            return msgspec.structs.replace(self, sources=(*self.sources, source))
        return msgspec.structs.replace(
            self, sources=tuple(source if known.topic == source.topic else known for known in self.sources)
        )

    def without_topic(self, topic: str) -> "ViewFact":
        return msgspec.structs.replace(
            self,
            sources=tuple(source for source in self.sources if source.topic != topic),
            streams=tuple(stream for stream in self.streams if stream.topic != topic),
        )


def address_of(topic: str, name: str) -> str:
    return f"{topic}/{name}"


def definition_key(view_id: int) -> bytes:
    return DEFINITION + view_id.to_bytes(ID_BYTES, "big")


def encode_definition(definition: ViewFact) -> bytes:
    return msgspec.json.encode(definition)


def decode_definition(value: bytes) -> ViewFact:
    return msgspec.json.decode(value, type=ViewFact)


def check_view_name(name: str) -> str:
    if not name or name in (".", "..") or len(name) > VIEW_NAME_MAX_CHARS or not _VIEW_NAME.fullmatch(name):
        raise InvalidViewName(
            f"a view's name has 1 to {VIEW_NAME_MAX_CHARS} letters, digits, '.', '_' and '-'; {name[:300]!r} has not"
        )
    return name


def check_settings(topic: str, name: str, settings: QueueSettings | None) -> None:
    """Whether these settings make sense, and the topic that they name for dead letters."""
    chosen = settings or QueueSettings()
    chosen.check()
    if chosen.dead_letter == "":
        return
    if chosen.dead_letter == topic:
        raise InvalidSetting("dead_letter is the view's own topic: what failed would come back for ever")
    letters = f"{topic}.{name}.dead" if chosen.dead_letter is None else chosen.dead_letter
    try:
        check_topic_name(letters)
    except InvalidTopicName as error:
        raise InvalidSetting(f"dead_letter: {error}") from None
    if is_internal(letters):
        raise InvalidSetting(f"dead_letter: topic {letters!r} is the broker's own")
