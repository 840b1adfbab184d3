"""What a task does for a table: rows into Parquet files, one set of them per value of the partition column.

Everything is bounded: rows wait in memory until a row group is full, the open files are few (the one longest unused is
closed for a new one), and a file that has become large is followed by another. A file counts when it is closed and
synced; what a failed task leaves behind, nobody names.
"""

import os
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.tables.durable import make_folders, sync_folders
from penstock.pipeline.tables.table import DataFile

ROW_GROUP_ROWS: Final = 256 << 10
ROW_GROUP_BYTES: Final = 32 << 20
BUFFERED_BYTES: Final = 128 << 20  # of all files together
OPEN_FILES: Final = 64
TARGET_FILE_BYTES: Final = 256 << 20
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"


class _File:
    def __init__(self, path: str, schema: pa.Schema, partition: dict[str, str | None]) -> None:
        self.path = path
        self.partition = partition
        self.waiting: list[pa.RecordBatch] = []
        self.waiting_rows = 0
        self.waiting_bytes = 0
        self.rows = 0
        self._schema = schema
        self._sink = open(path, "xb")  # noqa: SIM115
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd", compression_level=1)

    @property
    def size_bytes(self) -> int:
        return self._sink.tell()

    def flush(self) -> None:
        if self.waiting:
            self._writer.write_table(pa.Table.from_batches(self.waiting, self._schema), row_group_size=ROW_GROUP_ROWS)
            self.rows += self.waiting_rows
            self.waiting, self.waiting_rows, self.waiting_bytes = [], 0, 0

    def close(self) -> None:
        self.flush()
        self._writer.close()
        self._sink.flush()
        os.fsync(self._sink.fileno())
        self._sink.close()

    def abandon(self) -> None:
        self._writer.close()
        self._sink.close()
        os.unlink(self.path)


class FileWriter:
    """One task's files, in `folder` of the table at `location`. `hive`: in folders named by partition."""

    def __init__(
        self,
        location: str,
        folder: str,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        *,
        keep_partition_columns: bool,
        prefix: str = "part",
        target_bytes: int = TARGET_FILE_BYTES,
        hive: bool = False,
    ) -> None:
        self._location = location
        self._folder = folder
        self._partition_by = list(partition_by)
        self._kept = [
            index for index, name in enumerate(schema.names) if keep_partition_columns or name not in self._partition_by
        ]
        self._schema = pa.schema([schema.field(index) for index in self._kept])
        self._full_schema = schema
        self._prefix = prefix
        self._target_bytes = target_bytes
        self._hive = hive
        self._open: dict[tuple[str | None, ...], _File] = {}  # least recently used first
        self._done: list[DataFile] = []
        self._buffered_bytes = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        if not self._partition_by:
            self._put((), batch)
            return
        columns = [partition_text(batch.column(self._full_schema.get_field_index(name))) for name in self._partition_by]
        for values, rows in _groups(columns, batch.num_rows):
            self._put(values, batch if rows is None else batch.take(rows))

    def close(self) -> list[DataFile]:
        """Everything written and synced; what it became."""
        for file in list(self._open.values()):
            self._finish(file)
        self._open.clear()
        if self._done:
            sync_folders(os.path.dirname(os.path.join(self._location, file.path)) for file in self._done)
        return self._done

    def abandon(self) -> None:
        """Leave nothing behind."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()
        for done in self._done:
            os.unlink(os.path.join(self._location, done.path))
        self._done = []

    def _put(self, values: tuple[str | None, ...], batch: pa.RecordBatch) -> None:
        file = self._open.pop(values, None)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                oldest = next(iter(self._open))
                self._finish(self._open.pop(oldest))
            file = self._begin(values)
        self._open[values] = file
        part = pa.RecordBatch.from_arrays([batch.column(index) for index in self._kept], schema=self._schema)
        file.waiting.append(part)
        file.waiting_rows += part.num_rows
        file.waiting_bytes += part.nbytes
        self._buffered_bytes += part.nbytes
        if file.waiting_rows >= ROW_GROUP_ROWS or file.waiting_bytes >= ROW_GROUP_BYTES:
            self._buffered_bytes -= file.waiting_bytes
            file.flush()
            if file.size_bytes >= self._target_bytes:
                del self._open[values]
                self._finish(file)
        elif self._buffered_bytes > BUFFERED_BYTES:
            for each in self._open.values():
                each.flush()
            self._buffered_bytes = 0

    def _begin(self, values: tuple[str | None, ...]) -> _File:
        folder = os.path.join(self._location, self._folder)
        if self._hive and values:
            folder = os.path.join(folder, hive_folder(self._partition_by, values))
        make_folders(folder)
        path = os.path.join(folder, f"{self._prefix}-{uuid4().hex}.parquet")
        return _File(path, self._schema, dict(zip(self._partition_by, values, strict=True)))

    def _finish(self, file: _File) -> None:
        self._buffered_bytes -= file.waiting_bytes
        file.close()
        path = os.path.relpath(file.path, self._location)
        self._done.append(DataFile(path, file.rows, os.path.getsize(file.path), file.partition))


def hive_folder(names: Sequence[str], values: Sequence[str | None]) -> str:
    """date=2026-01-31/country=NL, as Spark and Arrow read it."""
    return os.path.join(
        *(
            f"{name}={NULL_PARTITION if value is None else quote(value, safe=' -_.+@,')}"
            for name, value in zip(names, values, strict=True)
        )
    )


def partition_text(column: pa.Array) -> pa.Array:
    """Values as a table's log and folders spell them. An empty string is a null there, as for everybody's tables."""
    text = column.cast(pa.string())
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _groups(columns: Sequence[pa.Array], rows: int) -> list[tuple[tuple[str | None, ...], Any]]:
    """Which rows have which values; None for all of them."""
    encoded = [column.dictionary_encode(null_encoding="encode") for column in columns]
    if all(len(part.dictionary) == 1 for part in encoded):
        return [(tuple(part.dictionary[0].as_py() for part in encoded), None)]
    codes = pa.array([0] * rows, pa.int64())
    for part in encoded:
        codes = pc.add(pc.multiply(codes, len(part.dictionary)), part.indices.cast(pa.int64()))
    groups = []
    for code in pc.unique(codes).to_pylist():
        chosen = pc.indices_nonzero(pc.equal(codes, code))
        first = chosen[0].as_py()
        groups.append((tuple(part.dictionary[part.indices[first].as_py()].as_py() for part in encoded), chosen))
    return groups
