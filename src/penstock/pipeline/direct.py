"""Reading a log's files without the server, for tasks on its machine: the same records, and none of its time.

The server tells once, at the beginning of a range, which files hold it and which transactions were aborted. The files
are opened at once: what retention removes later stays readable for whoever has it open. Each batch's checksum is
checked. What is wrong with a file is no reason to fail: whatever it does not give is asked of the server.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from penstock.model.batch import HEADER_BYTES, LENGTH_END, whole_batches
from penstock.model.column_reader import NONE_ABORTED, Aborted
from penstock.model.errors import CorruptBatch, OffsetOutOfRange, UnknownPartition, UnknownTopic
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.identity import check_range
from penstock.pipeline.link import Link
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.planning import Range
from penstock.wire.native.messages import LocateLog, LogFile, LogLocation

READ_BYTES: Final = 4 << 20
OPEN_FILES_MAX: Final = 64  # of a range; what lies in further ones is located again


class Unreadable(Exception):
    """These files do not give what they should; the message says why."""


class Gone(Unreadable):
    """The server has not got it either."""


def direct_range(options: SourceOptions, link: Link, part: Range) -> Iterator[tuple[bytes, int, int, Aborted]]:
    """Stored batches of the range, the offset to begin at in them, the one after them, and what of them was aborted.

    Raises Unreadable where the files end before the range does: go on with the server from there.
    """
    at = part.start
    while at < part.end:
        location = _located(link, replace(part, start=at))
        check_range(link, part)  # these files are the planned topic's, whatever happens to its name from now on
        aborted = Aborted(location.aborted) if options.committed else NONE_ABORTED
        files = location.files[:OPEN_FILES_MAX]
        begun = at
        for piece, begin, after in _pieces(files, at, part.end):
            yield piece, begin, after, aborted
            at = after
        if at == begun:
            raise Unreadable(f"the files of {part.topic}[{part.partition}] hold nothing from offset {at} on")


def refuse_broker(part: Range, reason: Unreadable) -> InvalidOption:
    return InvalidOption(
        f"read=direct: {part} cannot be read from files: {reason}; set the option read to auto or broker"
    )


def _located(link: Link, part: Range) -> LogLocation:
    try:
        location: LogLocation = link.ask(LocateLog(part.topic, part.partition, part.start, part.end))
    except (OffsetOutOfRange, UnknownTopic, UnknownPartition) as error:
        raise Gone(str(error)) from None
    if not location.files:
        raise Unreadable(
            "the server names none; it is on another machine, or the topic is in memory, compacted, or elsewhere"
        )
    return location


def _pieces(files: Sequence[LogFile], at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Whole batches, the offset to begin at in them, and the one after them."""
    with ExitStack() as opened:
        handles: list[int] = []
        for file in files:
            try:
                handle = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if not handles:
                    raise Unreadable(f"{file.path}: {error.strerror}") from None
                break  # those before it are good for something; the rest is located again
            opened.callback(os.close, handle)
            handles.append(handle)
        for handle, file in zip(handles, files, strict=False):
            os.posix_fadvise(handle, file.position, file.size_bytes - file.position, os.POSIX_FADV_SEQUENTIAL)
            for piece, next_offset in _batches(handle, file, at, end):
                yield piece, at, next_offset
                at = next_offset
                if at >= end:
                    return
            if file.end_offset > at:  # read to its end, where offsets may be missing
                yield b"", at, min(file.end_offset, end)
                at = file.end_offset


def _batches(handle: int, file: LogFile, at: int, end: int) -> Iterator[tuple[bytes, int]]:
    position = file.position
    wanted_bytes = READ_BYTES
    while position < file.size_bytes:
        held = os.pread(handle, min(wanted_bytes, file.size_bytes - position), position)
        if not held:
            raise Unreadable(f"{file.path} is shorter than it should be")
        try:
            start, stop, next_offset = whole_batches(held, at, end, True)
        except CorruptBatch as error:
            raise Unreadable(f"{file.path}: {error}") from None
        if stop == 0 and start == 0:
            size_bytes = _first_batch_bytes(held)
            if len(held) >= size_bytes:
                return  # it begins behind the end
            if size_bytes <= wanted_bytes:  # as much was asked for, and did not come
                raise Unreadable(f"{file.path} ends within a batch")
            wanted_bytes = size_bytes
            continue
        if stop > start:
            yield (held if start == 0 and stop == len(held) else held[start:stop]), next_offset
            at = next_offset
        position += stop
        wanted_bytes = READ_BYTES
        if at >= end:
            return


def _first_batch_bytes(held: bytes) -> int:
    if len(held) < HEADER_BYTES:
        return HEADER_BYTES
    return int.from_bytes(held[8:LENGTH_END], "big", signed=True) + LENGTH_END
