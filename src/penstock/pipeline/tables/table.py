"""What a table is to a batch: a place where files become rows once, and that remembers which batches did.

    prepare      make the table, or add the columns that it lacks, and finish what a killed process left unfinished
    folder       where a batch's tasks put their files; nobody who reads the table sees them there
    publish      show a batch's files, all of them, once, and remember its mark in the same step
    compact      put small files together; the rows stay what they are

A mark says what a batch was made of. The same application, batch and mark again is a repeat, and nothing is stored; the
same batch with another mark means that the checkpoint has forgotten it and used its number for other rows: to skip it
would lose them, to store it might double some, so it stops there and a person decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from penstock.model.errors import StepForgotten, StepMismatch
from penstock.pipeline.errors import SchemaMismatch

MARKS_REMEMBERED = 100  # of each application
MAX_COLUMNS = 2_000

# What a value of a partition column can be written as, and read back from, in every format.
PARTITION_TYPES = (pa.string(), pa.int32(), pa.int64(), pa.date32(), pa.bool_())


class Mark(NamedTuple):
    application: str
    batch: int
    text: str  # a digest of what the batch was made of, and words for people


@dataclass(frozen=True)
class DataFile:
    """A file that a task has written and synced."""

    path: str  # relative to the table's directory
    rows: int
    size_bytes: int
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Compacted:
    removed: int = 0
    added: int = 0


class Table(Protocol):
    location: str  # its directory
    keeps_partition_columns: bool  # whether files hold the columns that the table is partitioned by
    spreads: bool  # whether files lie in folders that are named by their partition

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        """The schema that the table has now: the columns it had, and those of `schema` that are new to it."""

    def schema(self) -> pa.Schema | None:
        """None: there is no such table yet."""

    def folder(self, application: str, batch: int) -> str:
        """Relative to the table's directory."""

    def publish(self, files: Sequence[DataFile], mark: Mark) -> bool:
        """False: this batch was published before. Raises StepMismatch, StepForgotten."""

    def is_published(self, mark: Mark) -> bool:
        """The same question without the answer's consequences."""

    def last_batch(self, application: str) -> int | None: ...

    def compact(self, below_bytes: int, target_bytes: int) -> Compacted:
        """Raises Conflict when another writer was quicker; nothing has changed then."""

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows, for checks."""


def is_repeat(mark: Mark, last: int | None, remembered: Mapping[int, str], where: str) -> bool:
    """Whether this batch was published before; raises when it was, but as something else, or nobody can tell."""
    if last is None or mark.batch > last:
        return False
    text = remembered.get(mark.batch)
    if text == mark.text:
        return True
    name = f"batch {mark.batch} of application {mark.application!r}"
    advice = (
        "The checkpoint has lost entries, and its numbers are used again for other rows. Nothing was written. Either "
        "put the checkpoint back as it was, or, once you know what the table holds, go on under a new application name "
        "and a new checkpoint, with startingOffsets that begin after the last row that is there."
    )
    if text is None:
        raise StepForgotten(
            f"{where} has published {name} before, or a later one (it is at batch {last}), and no longer knows of "
            f"what. {advice}"
        )
    raise StepMismatch(f"{where} has published {name} before, of {text}; now it would be of {mark.text}. {advice}")


def merged_schema(old: pa.Schema | None, new: pa.Schema, where: str) -> pa.Schema:
    """The old columns in their order and after them the new ones; a column never changes its type."""
    if old is None:
        return new
    fields = list(old)
    for column in new:
        index = old.get_field_index(column.name)
        if index < 0:
            fields.append(column.with_nullable(True))
            continue
        have = old.field(index).type
        if plain(have) != plain(column.type):
            raise SchemaMismatch(
                f"column {column.name!r} of {where} is {have}, and now it would be {column.type}; a table's columns "
                "keep their type: give the schema with the old type, another name for the column, or another table"
            )
    if len(fields) > MAX_COLUMNS:
        raise SchemaMismatch(f"{where} would have {len(fields)} columns; at most {MAX_COLUMNS} are made")
    return pa.schema(fields)


def plain(kind: pa.DataType) -> pa.DataType:
    """A type without what formats do to it: large offsets, names of list items, metadata of fields."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", plain(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, plain(part.type)) for part in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(column.name, plain(column.type)) for column in schema])


def check_partition(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    for name in partition_by:
        index = schema.get_field_index(name)
        if index < 0:
            raise SchemaMismatch(f"there is no column {name!r} to partition by; there are {', '.join(schema.names)}")
        if schema.field(index).type not in PARTITION_TYPES:
            raise SchemaMismatch(
                f"column {name!r} is {schema.field(index).type}; a table is partitioned by a string, int, bigint, date "
                "or boolean"
            )
        if name.startswith(("_", ".")):
            raise SchemaMismatch(f"readers pass over folders such as {name}=...: choose another column to partition by")
