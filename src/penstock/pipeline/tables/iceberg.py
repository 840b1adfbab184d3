"""An Iceberg table in a SQL catalog: tasks write files, one transaction shows them and remembers the batch.

`location` is <warehouse>/<namespace>/<table>; the catalog is SQLite in the warehouse unless a URI says otherwise. The
property `penstock.<application>` holds the newest batches and their marks. Two processes that publish at once: the
catalog lets one through, and the other looks again before it tries again, so pyiceberg's own repeats, which do not,
are switched off.
"""

import os
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa

from penstock.model.errors import Conflict
from penstock.pipeline.errors import InvalidOption, PipelineError, SchemaMismatch
from penstock.pipeline.tables.durable import local_path, make_folders
from penstock.pipeline.tables.table import (
    Compacted,
    DataFile,
    Mark,
    check_partition,
    is_repeat,
    merged_schema,
    plain_schema,
)
from penstock.pipeline.tables.writer import FileWriter

try:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
    from pyiceberg.io.pyarrow import parquet_files_to_data_files
    from pyiceberg.table import Table as Loaded
except ImportError as missing:
    raise PipelineError("Iceberg tables need pyiceberg; run: pip install 'penstock[iceberg]'") from missing

MARKS_IN_PROPERTY = 20  # the property is written with every version of the metadata
ATTEMPTS = 5  # at a commit that others were quicker with
IO = "penstock.pipeline.tables.synced_io.SyncedFileIO"


class Remembered(msgspec.Struct):
    marks: dict[int, str]


class IcebergTable:
    keeps_partition_columns = True
    spreads = False

    def __init__(self, location: str, catalog: str | None = None) -> None:
        self.location = local_path(location, "the Iceberg table's directory")
        namespace_folder, self._table = os.path.split(self.location.rstrip("/"))
        warehouse, self._namespace = os.path.split(namespace_folder)
        if not self._table or not self._namespace or "." in self._table or "." in self._namespace:
            raise InvalidOption(
                f"an Iceberg table's target is <warehouse>/<namespace>/<table>, without dots in the last two; "
                f"this is {location!r}"
            )
        self._warehouse = warehouse
        self._uri = catalog or f"sqlite:///{os.path.join(warehouse, 'catalog.db')}"

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        check_partition(schema, partition_by)
        make_folders(self.location)
        with self._catalog() as catalog:
            catalog.create_namespace_if_not_exists(self._namespace)
            try:
                table = catalog.load_table((self._namespace, self._table))
            except NoSuchTableError:
                with (
                    catalog.create_table_transaction(
                        (self._namespace, self._table), schema=schema, location=f"file://{self.location}"
                    ) as making,
                    making.update_spec() as spec,
                ):
                    for name in partition_by:
                        spec.add_identity(name)
                return schema
            have = [part.name for part in table.spec().fields]
            if have != list(partition_by):
                raise SchemaMismatch(
                    f"{self.location} is partitioned by {have or 'nothing'}, not by {list(partition_by) or 'nothing'}"
                )
            old = plain_schema(table.schema().as_arrow())
            merged = merged_schema(old, plain_schema(schema), self.location)
            if len(merged) > len(old):
                with table.update_schema() as update:
                    update.union_by_name(merged)
            return merged

    def schema(self) -> pa.Schema | None:
        if not os.path.isdir(self.location):
            return None
        with self._catalog() as catalog:
            try:
                table = catalog.load_table((self._namespace, self._table))
            except NoSuchTableError:
                return None
            return plain_schema(table.schema().as_arrow())

    def folder(self, application: str, batch: int) -> str:
        return "data"

    def publish(self, files: Sequence[DataFile], mark: Mark) -> bool:
        paths = [f"file://{os.path.join(self.location, file.path)}" for file in files]
        for attempt in range(ATTEMPTS):
            with self._catalog() as catalog:
                table = self._load(catalog)
                remembered = _remembered(table, mark.application)
                if self._is_repeat(mark, remembered):
                    return False
                remembered.marks[mark.batch] = mark.text
                for batch in sorted(remembered.marks)[:-MARKS_IN_PROPERTY]:
                    del remembered.marks[batch]
                words: dict[str, Any] = {f"penstock.{mark.application}": msgspec.json.encode(remembered).decode()}
                try:
                    with table.transaction() as transaction:
                        if paths:
                            # What two tasks wrote has two names: there is nothing to look for.
                            transaction.add_files(paths, check_duplicate_files=False)
                        transaction.set_properties(**words)
                    return True
                except CommitFailedException:
                    if attempt == ATTEMPTS - 1:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def is_published(self, mark: Mark) -> bool:
        with self._catalog() as catalog:
            return self._is_repeat(mark, _remembered(self._load(catalog), mark.application))

    def _is_repeat(self, mark: Mark, remembered: Remembered) -> bool:
        return is_repeat(mark, max(remembered.marks, default=None), remembered.marks, f"the table {self.location}")

    def last_batch(self, application: str) -> int | None:
        if self.schema() is None:
            return None
        with self._catalog() as catalog:
            return max(_remembered(self._load(catalog), application).marks, default=None)

    def compact(self, below_bytes: int, target_bytes: int) -> Compacted:
        with self._catalog() as catalog:
            table = self._load(catalog)
            small: dict[Any, list[Any]] = {}
            for task in table.scan().plan_files():
                if task.file.file_size_in_bytes < below_bytes and not task.delete_files:
                    small.setdefault((task.file.spec_id, _values(task.file.partition)), []).append(task.file)
            groups = [group for files in small.values() if len(group := files) > 1]
            if not groups:
                return Compacted()
            schema = plain_schema(table.schema().as_arrow())
            names = [part.name for part in table.spec().fields]
            written: list[DataFile] = []
            for group in groups:
                writer = FileWriter(
                    self.location,
                    "data",
                    schema,
                    names,
                    keep_partition_columns=True,
                    prefix=f"compacted-{uuid4().hex[:8]}",
                    target_bytes=target_bytes,
                )
                for file in group:
                    for batch in _batches(file.file_path, schema):
                        writer.add(batch)
                written += writer.close()
            paths = (f"file://{os.path.join(self.location, file.path)}" for file in written)
            try:
                with table.transaction() as transaction, transaction.update_snapshot().overwrite() as change:
                    for group in groups:
                        for file in group:
                            change.delete_data_file(file)
                    for file in parquet_files_to_data_files(table.io, transaction.table_metadata, paths):
                        change.append_data_file(file)
            except CommitFailedException as error:
                raise Conflict(f"{self.location} was written to meanwhile: {error}") from None
            return Compacted(sum(map(len, groups)), len(written))

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        with self._catalog() as catalog:
            return self._load(catalog).scan(selected_fields=tuple(columns or ("*",))).to_arrow()

    def files(self) -> list[Any]:
        """What pyiceberg tells of each data file of the newest version. Raises InvalidOption if there is no table."""
        with self._catalog() as catalog:
            try:
                return list(self._load(catalog).scan().plan_files())
            except NoSuchTableError:
                raise InvalidOption(f"there is no Iceberg table at {self.location}") from None

    # -- inside -------------------------------------------------------------------------------------------------

    def _catalog(self) -> "_Catalog":
        return _Catalog(self._uri, self._warehouse)

    def _load(self, catalog: SqlCatalog) -> Loaded:
        table = catalog.load_table((self._namespace, self._table))
        table.metadata.properties["commit.retry.num-retries"] = "0"  # in this process; the table's own are not touched
        return table


class _Catalog:
    """A catalog for as long as it is needed: its connections are closed, so that no file is left open."""

    def __init__(self, uri: str, warehouse: str) -> None:
        options = {"uri": uri, "warehouse": f"file://{warehouse}", "py-io-impl": IO}
        self._catalog = SqlCatalog("penstock", **options)

    def __enter__(self) -> SqlCatalog:
        return self._catalog

    def __exit__(self, *_: object) -> None:
        self._catalog.close()


def _remembered(table: Loaded, application: str) -> Remembered:
    text = table.properties.get(f"penstock.{application}")
    return Remembered({}) if text is None else msgspec.json.decode(text, type=Remembered)


def _values(partition: Any) -> tuple[Any, ...]:
    return tuple(partition[index] for index in range(len(partition)))


def _batches(address: str, schema: pa.Schema) -> Any:
    import pyarrow.dataset as ds

    return ds.dataset(local_path(address, "a file of the table"), schema=schema, format="parquet").to_batches()
