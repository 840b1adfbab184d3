"""What a micro-batch was made of, by the word of the query's own checkpoint.

A batch's number alone does not tell: when a checkpoint loses its last entries, Spark uses their numbers again for other
rows. `<checkpoint>/offsets/<batch>` holds where each source ended, and it is written before the batch runs:

    v1                                    the version of the format
    {"batchWatermarkMs":0, ...}           Spark's own notes, different in every attempt at planning it
    {"orders":{"0":100,"1":97,"id":"…"}}  a line per source, as the source spells it; - for one that has nothing yet

Files that Spark reads as a stream it merely counts there ({"logOffset":3}); which ones they are stands in
`<checkpoint>/sources/<number>/<count>`, and belongs to what the batch was made of.

Spark does not sync it. It is synced here, with its directory, before anything is published by it: or a power failure
could take back the numbers of a batch whose rows are there.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any, Final

from penstock.pipeline.errors import InvalidOption, PipelineError
from penstock.pipeline.offsets import from_json, ids_from_json, is_ours
from penstock.pipeline.tables.durable import local_path, sync_file

SUMMARY_CHARS: Final = 240
NO_SOURCE: Final = "-"


class CheckpointBroken(PipelineError):
    """A query's checkpoint is not there, or does not hold what Spark keeps in it."""


@dataclass(frozen=True)
class Ends:
    """Where the sources of one batch end."""

    sources: tuple[Any, ...]  # as each source spells it
    files: tuple[str, ...] = ()  # a digest for each source of files

    @property
    def mark(self) -> str:
        """A digest, and so much of it that a person can tell two apart."""
        text = json.dumps(self.sources, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256("\n".join((text, *self.files)).encode()).hexdigest()[:32]
        summary = text if len(text) <= SUMMARY_CHARS else text[:SUMMARY_CHARS] + "…"
        return f"{digest} {summary}"

    @property
    def topics(self) -> list[tuple[str, int, int]]:
        """What topics were read up to, from those sources that are ours: topic, partition, next offset."""
        found: dict[tuple[str, int], int] = {}
        for source in self.sources:
            if is_ours(source):
                for place, offset in from_json(source).items():
                    # Two sources of one query may read the same topic: what both have read is done.
                    found[place] = min(offset, found.get(place, offset))
        return [(topic, partition, offset) for (topic, partition), offset in sorted(found.items())]

    @property
    def ids(self) -> dict[str, str]:
        """Of those topics, where the sources tell."""
        return {
            topic: one for source in self.sources if is_ours(source) for topic, one in ids_from_json(source).items()
        }


def read_ends(checkpoint: str | None, batch: int) -> Ends:
    """The ends of this batch, durable from now on."""
    if not checkpoint:
        raise InvalidOption(
            "a query that writes exactly once needs its checkpoint's place as an option of the writer: "
            '.option("checkpointLocation", "...")'
        )
    if "://" in checkpoint and not checkpoint.startswith("file:"):
        text = _read_remote(checkpoint, batch)
    else:
        home = local_path(checkpoint, "checkpointLocation")
        path = os.path.join(home, "offsets", str(batch))
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            sync_file(path)
            sync_file(os.path.dirname(path))
        except FileNotFoundError:
            raise CheckpointBroken(
                f"{path} is not there, and without it nobody can tell what batch {batch} was made of; "
                "do not clean up the checkpoint of a running query"
            ) from None
        ends = parse_ends(text, batch)
        return Ends(ends.sources, tuple(_files(home, number, source) for number, source in enumerate(ends.sources)))
    return parse_ends(text, batch)


def parse_ends(text: str, batch: int) -> Ends:
    version, *lines = text.strip().split("\n")
    if version != "v1" or not lines:
        raise CheckpointBroken(
            f"the offsets of batch {batch} are of format {version[:20]!r}; v1 is known "
            "(spark.sql.streaming.offsetLog.formatVersion=1)"
        )
    try:
        return Ends(tuple(None if line == NO_SOURCE else json.loads(line) for line in lines[1:]))
    except ValueError as error:
        raise CheckpointBroken(f"the offsets of batch {batch} are damaged: {error}") from None


def _files(home: str, number: int, source: Any) -> str:
    """Which files a batch was made of, if its source is one of files."""
    if not isinstance(source, dict) or set(source) != {"logOffset"}:
        return ""
    count = source["logOffset"]
    names = []
    for name in (f"{count}", f"{count}.compact"):
        path = os.path.join(home, "sources", str(number), name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                for line in file.read().split("\n")[1:]:
                    entry = json.loads(line)
                    if entry.get("batchId") == count:
                        names.append(f"{entry.get('path')} {entry.get('timestamp')}")
            sync_file(path)
            sync_file(os.path.dirname(path))
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def read_query_id(checkpoint: str | None) -> str | None:
    """Who runs here, if that can be told: the id that the query keeps from run to run."""
    if not checkpoint or ("://" in checkpoint and not checkpoint.startswith("file:")):
        return None
    try:
        with open(os.path.join(local_path(checkpoint, "checkpointLocation"), "metadata"), encoding="utf-8") as file:
            return str(json.load(file)["id"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _read_remote(checkpoint: str, batch: int) -> str:
    """From a store that keeps what it has taken: there is nothing to sync."""
    from pyarrow import fs

    files, path = fs.FileSystem.from_uri(checkpoint)
    try:
        with files.open_input_stream(f"{path.rstrip('/')}/offsets/{batch}") as stream:
            return bytes(stream.read()).decode()
    except FileNotFoundError:
        raise CheckpointBroken(f"{checkpoint}/offsets/{batch} is not there") from None
