"""A Delta table, written without Spark's connector: tasks write files, one commit of the log shows them.

The batch id is the version of the application's transaction in that same commit, which Delta keeps for ever; the mark
stands in the commit's own words, which the table's history keeps for as long as its log is kept (30 days by default).
Two processes that publish the same batch at once: Delta lets one of them through.

deltalake does not sync what it writes, so the commit is synced here as soon as it is made, before anybody is told.
"""

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.model.errors import Conflict
from penstock.pipeline.errors import PipelineError, SchemaMismatch
from penstock.pipeline.tables.durable import local_path, sync_file
from penstock.pipeline.tables.table import (
    MARKS_REMEMBERED,
    Compacted,
    DataFile,
    Mark,
    check_partition,
    is_repeat,
    merged_schema,
    plain_schema,
)

try:
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, RemoveAction
except ImportError as missing:
    raise PipelineError("Delta tables need deltalake; run: pip install 'penstock[delta]'") from missing

MARK, BATCH, APPLICATION = "penstock.mark", "penstock.batch", "penstock.application"
ATTEMPTS = 5  # at a commit that others were quicker with


class DeltaLakeTable:
    keeps_partition_columns = False
    spreads = True

    def __init__(self, location: str) -> None:
        self.location = local_path(location, "the Delta table's directory")

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        check_partition(schema, partition_by)
        if not DeltaTable.is_deltatable(self.location):
            DeltaTable.create(self.location, schema, partition_by=list(partition_by), mode="ignore")
        table = DeltaTable(self.location)
        have = list(table.metadata().partition_columns)
        if have != list(partition_by):
            raise SchemaMismatch(
                f"{self.location} is partitioned by {have or 'nothing'}, not by {list(partition_by) or 'nothing'}"
            )
        old = _schema(table)
        merged = merged_schema(old, plain_schema(schema), self.location)
        if len(merged) > len(old):
            new = pa.schema(list(merged)[len(old) :])
            table.alter.add_columns(list(Schema.from_arrow(new).fields))
        self._sync()
        return merged

    def schema(self) -> pa.Schema | None:
        return _schema(DeltaTable(self.location)) if DeltaTable.is_deltatable(self.location) else None

    def folder(self, application: str, batch: int) -> str:
        return ""

    def publish(self, files: Sequence[DataFile], mark: Mark) -> bool:
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.path, file.size_bytes, dict(file.partition), now_ms, True, json.dumps({"numRecords": file.rows})
            )
            for file in files
        ]
        for attempt in range(ATTEMPTS):
            table = DeltaTable(self.location)
            if self._is_published(table, mark):
                return False
            try:
                table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=table.schema(),
                    partition_by=list(table.metadata().partition_columns),
                    commit_properties=CommitProperties(
                        custom_metadata={MARK: mark.text, BATCH: str(mark.batch), APPLICATION: mark.application},
                        app_transactions=[Transaction(mark.application, mark.batch, now_ms)],
                    ),
                    # A log that is cleaned up early would forget the marks.
                    post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
                )
                break
            except CommitFailedError:
                if attempt == ATTEMPTS - 1:
                    raise
        self._sync()
        return True

    def is_published(self, mark: Mark) -> bool:
        return self._is_published(DeltaTable(self.location), mark)

    def _is_published(self, table: DeltaTable, mark: Mark) -> bool:
        last = table.transaction_version(mark.application)
        remembered: dict[int, str] = {}
        if last is not None and mark.batch <= last:
            for commit in table.history(limit=MARKS_REMEMBERED):
                if commit.get(APPLICATION) == mark.application:
                    remembered.setdefault(int(commit[BATCH]), commit[MARK])
        return is_repeat(mark, last, remembered, f"the table {self.location}")

    def last_batch(self, application: str) -> int | None:
        if not DeltaTable.is_deltatable(self.location):
            return None
        last: int | None = DeltaTable(self.location).transaction_version(application)
        return last

    def compact(self, below_bytes: int, target_bytes: int) -> Compacted:
        """Delta puts together what is smaller than the target."""
        table = DeltaTable(self.location)
        try:
            done: dict[str, Any] = table.optimize.compact(target_size=target_bytes)
        except CommitFailedError as error:
            raise Conflict(f"{self.location} was written to meanwhile: {error}") from None
        self._sync()
        table.vacuum(dry_run=False)  # what no version of the last week names, files of failed attempts among it
        return Compacted(done["numFilesRemoved"], done["numFilesAdded"])

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        return DeltaTable(self.location).to_pyarrow_table(columns=None if columns is None else list(columns))

    def _sync(self) -> None:
        """The newest commits, the folder that names them, and the files of a compaction, which deltalake wrote."""
        log = os.path.join(self.location, "_delta_log")
        newest = sorted(name for name in os.listdir(log) if name.endswith(".json"))[-2:]
        for name in newest:
            path = os.path.join(log, name)
            with open(path, "rb") as file:
                for line in file:
                    added = json.loads(line).get("add")
                    if added is not None and os.path.exists(data := os.path.join(self.location, added["path"])):
                        sync_file(data)
            sync_file(path)
        sync_file(log)
        sync_file(self.location)


def _schema(table: DeltaTable) -> pa.Schema:
    return plain_schema(pa.schema(table.schema().to_arrow()))
