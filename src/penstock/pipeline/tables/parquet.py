"""A folder of Parquet files that any reader reads right, though it knows nothing of batches.

    <table>/date=2026-01-31/<batch>-<uuid>.parquet         what readers see
    <table>/_staged/<application>/<batch>/...              written by tasks; readers pass over names that begin with _
    <table>/_penstock/table                                the columns, and what it is partitioned by
    <table>/_penstock/batches/<application>/<batch>.committed  the manifest: these files are rows of the table
    <table>/_penstock/batches/<application>/<batch>.shown      ... and all of them are in their place
    <table>/_penstock/compactions/<uuid>.committed         these files are replaced by that one
    <table>/_penstock/lock                                 held by whoever publishes or compacts

A batch is decided when its manifest is synced under its name. Only then are its files moved to their places, each by a
rename, which may be repeated: whoever finds a manifest that is committed and not shown moves what was not moved. So a
reader may see a part of a batch for a moment, but never a row twice, and never one that was not committed. Compaction
removes the small files before it shows the one that replaces them: for a moment their rows are not seen, and again none
is seen twice. (Readers that need a still picture want Delta or Iceberg.)
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.model.errors import StorageFailed
from penstock.pipeline.errors import SchemaMismatch
from penstock.pipeline.tables.durable import local_path, make_folders, sync_file, sync_folders, write_file
from penstock.pipeline.tables.table import (
    MARKS_REMEMBERED,
    Compacted,
    DataFile,
    Mark,
    check_partition,
    is_repeat,
    merged_schema,
)
from penstock.pipeline.tables.writer import ROW_GROUP_ROWS, hive_folder

COMPACTED_ROWS = 64 << 10  # read at a time


class Move(msgspec.Struct):
    staged: str
    path: str


class Manifest(msgspec.Struct):
    application: str
    batch: int
    mark: str
    moves: list[Move]


class Compaction(msgspec.Struct):
    removed: list[str]
    move: Move


class Description(msgspec.Struct):
    schema: bytes
    partition_by: list[str]


class ParquetTable:
    keeps_partition_columns = False
    spreads = False  # until they are shown

    def __init__(self, location: str) -> None:
        self.location = local_path(location, "the Parquet table's directory")
        self._home = os.path.join(self.location, "_penstock")

    # -- the table ----------------------------------------------------------------------------------------------

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        check_partition(schema, partition_by)
        make_folders(self._home)
        with self._locked():
            self._recover()
            have = self._description()
            if have is None:
                self._write_description(schema, partition_by)
                return schema
            if have.partition_by != list(partition_by):
                raise SchemaMismatch(
                    f"{self.location} is partitioned by {have.partition_by or 'nothing'}, not by "
                    f"{list(partition_by) or 'nothing'}"
                )
            old = _schema(have)
            merged = merged_schema(old, schema, self.location)
            if merged != old:
                self._write_description(merged, partition_by)
            return merged

    def schema(self) -> pa.Schema | None:
        have = self._description()
        return None if have is None else _schema(have)

    def folder(self, application: str, batch: int) -> str:
        return os.path.join("_staged", _name(application), str(batch))

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        schema = self.schema()
        if schema is None:
            raise SchemaMismatch(f"{self.location} is not a table")
        files = ds.dataset(self.location, schema=schema, format="parquet", partitioning=self._partitioning(schema))
        return files.to_table(columns=None if columns is None else list(columns))

    # -- batches ------------------------------------------------------------------------------------------------

    def publish(self, files: Sequence[DataFile], mark: Mark) -> bool:
        names = self._partition_by()
        with self._locked():
            self._recover()
            if self.is_published(mark):
                self._tidy(mark)
                return False
            moves = []
            for file in files:
                folder = hive_folder(names, [file.partition[name] for name in names]) if names else ""
                moves.append(Move(file.path, os.path.join(folder, f"{mark.batch:08}-{uuid4().hex}.parquet")))
            manifest = Manifest(mark.application, mark.batch, mark.text, moves)
            folder = self._batches(mark.application)
            make_folders(folder)
            path = os.path.join(folder, f"{mark.batch:012}.committed")
            write_file(path, msgspec.json.encode(manifest))
            self._show(path, manifest)
            self._tidy(mark)
        return True

    def is_published(self, mark: Mark) -> bool:
        found = self._found(mark.application)
        text = {}
        if mark.batch in found:
            with open(found[mark.batch], "rb") as file:
                text[mark.batch] = msgspec.json.decode(file.read(), type=Manifest).mark
        return is_repeat(mark, max(found, default=None), text, f"the table {self.location}")

    def last_batch(self, application: str) -> int | None:
        return max(self._found(application), default=None)

    def _found(self, application: str) -> dict[int, str]:
        """The manifests of an application, by batch."""
        folder = self._batches(application)
        if not os.path.isdir(folder):
            return {}
        return {
            int(name.partition(".")[0]): os.path.join(folder, name)
            for name in os.listdir(folder)
            if name.endswith((".committed", ".shown"))
        }

    def _show(self, path: str, manifest: Manifest) -> None:
        self._move(manifest.moves)
        os.rename(path, path.replace(".committed", ".shown"))
        sync_file(os.path.dirname(path))

    def _move(self, moves: Sequence[Move]) -> None:
        folders = set()
        for move in moves:
            staged, path = os.path.join(self.location, move.staged), os.path.join(self.location, move.path)
            folders.add(os.path.dirname(path))
            make_folders(os.path.dirname(path))
            try:
                os.rename(staged, path)
            except FileNotFoundError:
                if not os.path.exists(path):
                    raise StorageFailed(
                        f"{move.staged} of {self.location} was committed and is gone: somebody removed it; put it back "
                        "from a copy, or take its line out of the manifest in _penstock to go on without its rows"
                    ) from None
        sync_folders(folders)

    def _tidy(self, mark: Mark) -> None:
        """Drop what failed attempts have left, and the oldest of what is remembered."""
        staged = os.path.join(self.location, "_staged", _name(mark.application))
        if os.path.isdir(staged):
            for name in os.listdir(staged):
                if int(name) <= mark.batch:
                    shutil.rmtree(os.path.join(staged, name), ignore_errors=True)
        found = self._found(mark.application)
        for batch in sorted(found)[:-MARKS_REMEMBERED]:
            os.unlink(found[batch])

    # -- compaction ---------------------------------------------------------------------------------------------

    def compact(self, below_bytes: int, target_bytes: int) -> Compacted:
        removed = added = 0
        with self._locked():
            self._recover()
            for folder, group in self._small_files(below_bytes, target_bytes):
                name = f"compacted-{uuid4().hex}.parquet"
                move = Move(os.path.join("_staged", name), os.path.join(folder, name))
                self._put_together(group, move.staged)
                compactions = os.path.join(self._home, "compactions")
                make_folders(compactions)
                path = os.path.join(compactions, f"{uuid4().hex}.committed")
                compaction = Compaction(group, move)
                write_file(path, msgspec.json.encode(compaction))
                self._replace(path, compaction)
                removed += len(group)
                added += 1
        return Compacted(removed, added)

    def _small_files(self, below_bytes: int, target_bytes: int) -> Iterator[tuple[str, list[str]]]:
        """Groups of at least two files of one folder."""
        for folder, folders, names in os.walk(self.location):
            folders[:] = [name for name in folders if not name.startswith(("_", "."))]
            inside = os.path.relpath(folder, self.location)
            inside = "" if inside == "." else inside
            group: list[str] = []
            group_bytes = 0
            for name in sorted(names):
                size_bytes = os.path.getsize(os.path.join(folder, name))
                if name.startswith(("_", ".")) or not name.endswith(".parquet") or size_bytes >= below_bytes:
                    continue
                if group and group_bytes + size_bytes > target_bytes:
                    if len(group) > 1:
                        yield inside, group
                    group, group_bytes = [], 0
                group.append(os.path.join(inside, name))
                group_bytes += size_bytes
            if len(group) > 1:
                yield inside, group

    def _put_together(self, group: Sequence[str], staged: str) -> None:
        schema = self.schema()
        assert schema is not None
        names = self._partition_by()
        schema = pa.schema([column for column in schema if column.name not in names])
        path = os.path.join(self.location, staged)
        make_folders(os.path.dirname(path))
        with open(path, "wb") as sink:
            with pq.ParquetWriter(sink, schema, compression="zstd", compression_level=1) as writer:
                files = ds.dataset([os.path.join(self.location, file) for file in group], schema=schema)
                waiting: list[pa.RecordBatch] = []
                rows = 0
                for batch in files.to_batches(batch_size=COMPACTED_ROWS):
                    waiting.append(batch)
                    rows += batch.num_rows
                    if rows >= ROW_GROUP_ROWS:
                        writer.write_table(pa.Table.from_batches(waiting, schema))
                        waiting, rows = [], 0
                if rows:
                    writer.write_table(pa.Table.from_batches(waiting, schema))
            sink.flush()
            os.fsync(sink.fileno())
        sync_file(os.path.dirname(path))

    def _replace(self, path: str, compaction: Compaction) -> None:
        folders = set()
        for name in compaction.removed:
            file = os.path.join(self.location, name)
            folders.add(os.path.dirname(file))
            with contextlib.suppress(FileNotFoundError):  # done before a crash
                os.unlink(file)
        sync_folders(folders)
        self._move([compaction.move])
        os.unlink(path)
        sync_file(os.path.dirname(path))

    # -- inside -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time; the lock goes with the process that has it."""
        make_folders(self._home)
        with open(os.path.join(self._home, "lock"), "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _recover(self) -> None:
        """Finish what is committed and was left half shown."""
        batches = os.path.join(self._home, "batches")
        for application in os.listdir(batches) if os.path.isdir(batches) else ():
            folder = os.path.join(batches, application)
            for name in sorted(os.listdir(folder)):
                if name.endswith(".committed"):
                    path = os.path.join(folder, name)
                    with open(path, "rb") as file:
                        manifest = msgspec.json.decode(file.read(), type=Manifest)
                    self._show(path, manifest)
        compactions = os.path.join(self._home, "compactions")
        for name in os.listdir(compactions) if os.path.isdir(compactions) else ():
            if name.endswith(".committed"):
                path = os.path.join(compactions, name)
                with open(path, "rb") as file:
                    compaction = msgspec.json.decode(file.read(), type=Compaction)
                self._replace(path, compaction)
        staged = os.path.join(self.location, "_staged")
        for name in os.listdir(staged) if os.path.isdir(staged) else ():
            if name.endswith(".parquet"):  # of a compaction that did not come to its end
                os.unlink(os.path.join(staged, name))

    def _batches(self, application: str) -> str:
        return os.path.join(self._home, "batches", _name(application))

    def _description(self) -> Description | None:
        try:
            with open(os.path.join(self._home, "table"), "rb") as file:
                return msgspec.json.decode(file.read(), type=Description)
        except FileNotFoundError:
            return None

    def _write_description(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        description = Description(schema.serialize().to_pybytes(), list(partition_by))
        write_file(os.path.join(self._home, "table"), msgspec.json.encode(description))

    def _partition_by(self) -> list[str]:
        have = self._description()
        return [] if have is None else have.partition_by

    def _partitioning(self, schema: pa.Schema) -> ds.Partitioning | None:
        names = self._partition_by()
        if not names:
            return None
        return ds.partitioning(pa.schema([schema.field(name) for name in names]), flavor="hive")


def _schema(have: Description) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(have.schema))


def _name(application: str) -> str:
    """An application's folder: any name will do for it, and this one for a path."""
    return hashlib.sha256(application.encode()).hexdigest()[:24]
