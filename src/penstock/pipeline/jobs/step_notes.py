"""Notes that jobs leave with the broker, in the marks of named steps: what a run set out to do, and how far it is.

They are there as long as the broker remembers the step's name, and cannot be lost with a checkpoint directory. A mark
is short, so a long note is cut into pieces, one for each epoch.
"""

import base64
import json
import zlib
from typing import Any, Final

from penstock.model.errors import UnknownTransaction
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.jobs.desk import Desk
from penstock.wire.native import messages as wire

PIECE_CHARS: Final = 1_000  # of 1,024 that a mark may have
MAX_PIECES: Final = 90  # of 100 epochs that a name remembers


class NoteTooLong(PipelineError):
    """A run has more partitions than can be noted."""


def write_note(desk: Desk, step: str, note: dict[str, Any]) -> None:
    """What was noted under this name before is forgotten."""
    packed = base64.b64encode(zlib.compress(json.dumps(note, separators=(",", ":")).encode(), 9)).decode()
    pieces = [packed[at : at + PIECE_CHARS] for at in range(0, len(packed), PIECE_CHARS)]
    if len(pieces) > MAX_PIECES:
        raise NoteTooLong(f"{step}: too many partitions for one run; give it fewer at a time")
    forget(desk, step)
    for epoch, piece in enumerate(pieces):
        desk.ask(wire.CommitStep(step, epoch, [], f"{len(pieces)}:{piece}"))


def read_note(desk: Desk, step: str) -> dict[str, Any] | None:
    """None if there is none, or whoever began to write it did not come to its end."""
    marks = marks_of(desk, step)
    if not marks:
        return None
    count = int(marks[0][1].partition(":")[0])
    if [epoch for epoch, _ in marks] != list(range(count)):
        return None
    packed = "".join(mark.partition(":")[2] for _, mark in marks)
    note: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return note


def marks_of(desk: Desk, step: str) -> list[tuple[int, str]]:
    """Epoch and mark of what was committed under this name, as far as it is remembered, oldest first."""
    try:
        committed: list[tuple[int, str]] = desk.ask(wire.DescribeStep(step)).committed
    except UnknownTransaction:
        return []
    return committed


def forget(desk: Desk, step: str) -> None:
    """Whatever is known of this name."""
    try:
        desk.ask(wire.ForgetStep(step))
    except UnknownTransaction:
        return
