"""Where things are: every name in a data directory is made and read here.

<data>/lock                                     held while a server runs; holds its process id
<data>/clean                                    exists only between a clean close and the next start
<data>/topics/<topic>.<topic id>/<partition>/   a stream; no directory before its first append
    00000000000000000000.log                    a segment: whole chunks back to back, named by its base offset
    00000000000000000000.index                  its sparse index; can be made again from the log
    00000000000000000000.cleaned                the new segment of a rewrite under way; void after a crash
    00000000000000000000-00000000000000000900.swap   a rewrite that is decided: takes the place of this range
    00000000000000000000-4711.cut               what recovery cut off a log at this byte, kept for a person to look at
    state                                       the start offset
    checkpoint                                  what the layer above wants back at the next open
<data>/topics/<topic id>.deleted/               a topic on its way out
"""

import os
import uuid
from typing import NamedTuple

from penstock.model.ids import StreamId, TopicId

LOCK = "lock"
CLEAN = "clean"
TOPICS = "topics"
STATE = "state"
CHECKPOINT = "checkpoint"
LOG = ".log"
INDEX = ".index"
CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
TEMPORARY = ".tmp"

OFFSET_DIGITS = 20
# A topic's name may have 249 characters and a file's 255 bytes; the id tells topics apart, the name is for people.
TOPIC_NAME_SHOWN_CHARS = 200


def topic_directory(data_dir: str, topic: str, topic_id: TopicId) -> str:
    return f"{data_dir}/{TOPICS}/{topic[:TOPIC_NAME_SHOWN_CHARS]}.{topic_id.hex}"


def stream_directory(data_dir: str, stream: StreamId) -> str:
    return f"{topic_directory(data_dir, stream.topic, stream.topic_id)}/{stream.partition}"


def deleted_directory(data_dir: str, topic_id: TopicId) -> str:
    return f"{data_dir}/{TOPICS}/{topic_id.hex}{DELETED}"


def topic_id_of(directory_name: str) -> TopicId | None:
    """The topic a directory in `topics/` belongs to, or None for one that is deleted or not ours."""
    _, _, tail = directory_name.rpartition(".")
    if len(tail) != 32:
        return None
    try:
        return uuid.UUID(hex=tail)
    except ValueError:
        return None


def log_name(base_offset: int) -> str:
    return f"{base_offset:0{OFFSET_DIGITS}d}{LOG}"


def index_name(base_offset: int) -> str:
    return f"{base_offset:0{OFFSET_DIGITS}d}{INDEX}"


def cleaned_name(base_offset: int) -> str:
    return f"{base_offset:0{OFFSET_DIGITS}d}{CLEANED}"


def swap_name(base_offset: int, end_offset: int) -> str:
    return f"{base_offset:0{OFFSET_DIGITS}d}-{end_offset:0{OFFSET_DIGITS}d}{SWAP}"


def cut_name(base_offset: int, position: int) -> str:
    return f"{base_offset:0{OFFSET_DIGITS}d}-{position}.cut"


class Swap(NamedTuple):
    """A decided rewrite found on disk."""

    name: str
    base_offset: int
    end_offset: int


class Contents:
    """What a stream's directory holds, sorted into kinds by name."""

    __slots__ = ("has_checkpoint", "has_state", "indexes", "logs", "swaps", "voids")

    def __init__(self, directory: str) -> None:
        self.logs: list[int] = []
        self.indexes: set[int] = set()
        self.swaps: list[Swap] = []
        self.voids: list[str] = []
        self.has_state = False
        self.has_checkpoint = False
        for name in os.listdir(directory):
            stem, suffix = os.path.splitext(name)
            if name == STATE:
                self.has_state = True
            elif name == CHECKPOINT:
                self.has_checkpoint = True
            elif suffix in (CLEANED, TEMPORARY):
                self.voids.append(name)
            elif suffix == LOG and stem.isdigit():
                self.logs.append(int(stem))
            elif suffix == INDEX and stem.isdigit():
                self.indexes.add(int(stem))
            elif suffix == SWAP:
                base, _, end = stem.partition("-")
                if base.isdigit() and end.isdigit():
                    self.swaps.append(Swap(name, int(base), int(end)))
        self.logs.sort()
        self.swaps.sort(key=lambda swap: swap.base_offset)
