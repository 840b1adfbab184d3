"""Offsets as Spark keeps them in its checkpoints: `{"orders": {"0": 120, "1": 98}}`, the next to read of each.

Spark compares them as text, so the same offsets are always written in the same order. A sink that commits a group's
progress together with what it writes takes it from here: `read_checkpoint(checkpoint, batch_id)`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from penstock.pipeline.errors import PipelineError

Partition = tuple[str, int]
Ends = dict[Partition, int]

Json = dict[str, dict[str, int]]


def to_json(ends: Mapping[Partition, int]) -> Json:
    written: Json = {}
    for topic, partition in sorted(ends):
        written.setdefault(topic, {})[str(partition)] = ends[topic, partition]
    return written


def from_json(written: Mapping[str, Mapping[str, int]]) -> Ends:
    return {(topic, int(partition)): end for topic, ends in written.items() for partition, end in ends.items()}


def is_ours(written: object) -> bool:
    """Whether these are offsets of this source: another source's may stand in the same checkpoint."""
    return isinstance(written, dict) and all(
        isinstance(ends, dict) and all(part.isdigit() and isinstance(end, int) for part, end in ends.items())
        for ends in written.values()
    )


def read_checkpoint(checkpoint: str | os.PathLike[str], batch_id: int) -> list[Ends]:
    """Where each of our sources stands after this batch, as `<checkpoint>/offsets/<batch id>` of a local checkpoint has
    it: a version, a line of metadata, then a line for each source.
    """
    path = Path(str(checkpoint).removeprefix("file://")) / "offsets" / str(batch_id)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PipelineError(f"the offsets of batch {batch_id} cannot be read: {error}") from None
    found = []
    for line in lines[2:]:
        try:
            written = json.loads(line)
        except ValueError:
            continue  # `-`, or what another kind of source writes
        if is_ours(written):
            found.append(from_json(written))
    return found
