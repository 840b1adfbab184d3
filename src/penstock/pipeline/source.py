"""The data source `penstock`: what Spark calls, in the words that Spark uses. What is done is done elsewhere.

Spark makes these objects in processes of its own and pickles them from one to the other: one that finds the schema, one
that plans a batch read, one that plans every micro-batch of a stream for as long as it runs, and one for each task.

A stream's progress is what it says in `latestOffset`: everything before `start` has been written by then. Spark says
so in `commit` too, but a moment later, and after the last batch of a query that reads what is available it does not.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.pipeline.errors import DataLost, InvalidOption
from penstock.pipeline.identity import Ids, replaced, replacement
from penstock.pipeline.link import Link
from penstock.pipeline.offsets import Ends, Json, from_json, ids_from_json, to_json
from penstock.pipeline.options import SourceOptions, source_options
from penstock.pipeline.planning import LOSS_ADVICE, Limits, Planner, Range, share, split
from penstock.pipeline.reading import Assembler, read_near, read_range
from penstock.pipeline.schemas import Column, check_schema, spark_schema


class PenstockDataSource(DataSource):
    """Topics of a Penstock server: `spark.read.format("penstock")`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType | str:
        return spark_schema(source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options, stream=False)
        return BatchReader(options, check_schema(options, schema), to_arrow_schema(schema, timezone="UTC"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = source_options(self.options, stream=True)
        return StreamReader(options, check_schema(options, schema), to_arrow_schema(schema, timezone="UTC"))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.pipeline.sink import batch_writer

        writer: DataSourceWriter = batch_writer(self.options, schema, overwrite)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from penstock.pipeline.sink import stream_writer

        writer: DataSourceStreamWriter = stream_writer(self.options, schema, overwrite)
        return writer


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, part: Range) -> None:
        super().__init__(str(part))
        self.part = part


# -- batch --------------------------------------------------------------------------------------------------


class BatchReader(DataSourceReader):
    """Takes no filters, although it could read less for them: Spark keeps what a reader planned with the frame, filters
    and all, and gives it to the frame's next query, which has others. What to leave out is said in options.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[Column], schema: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Link(options.server, timeout_s=options.timeout_s) as link:
            planner = Planner(options, link)
            found = planner.find()
            limits = planner.limits(found.partitions)
            starts = planner.resolve(options.starting, limits, found.ids)
            ends = planner.resolve(options.ending, limits, found.ids, ending=True)
            if options.starting.kind == options.ending.kind == "offsets":
                _check_order(starts, ends)
            ranges = [Range(*one, starts[one], ends[one], found.ids[one[0]]) for one in sorted(limits)]
            parts = split(ranges, options.min_partitions, options.max_partition_records)
        # Spark makes one task of an empty list, and hands it no partition.
        return [Part(part) for part in parts] or [Part(Range("", 0, 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return read_near(self._options, Assembler(self._options, self._columns, self._schema), partition.part)


def _check_order(starts: Ends, ends: Ends) -> None:
    for one, start in starts.items():
        if start > ends[one]:
            raise InvalidOption(
                f"startingOffsets begins {one[0]}[{one[1]}] at {start}, behind {ends[one]}, where endingOffsets ends it"
            )


# -- stream -------------------------------------------------------------------------------------------------


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, columns: Sequence[Column], schema: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._schema = schema
        self._link: Link | None = None
        self._target: Ends | None = None  # beyond which a query that reads what is available does not go
        self._told: Ends = {}  # to the group

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_link": None}

    @property
    def _planner(self) -> Planner:
        if self._link is None:
            self._link = Link(self._options.server, timeout_s=self._options.timeout_s)
        return Planner(self._options, self._link)

    def initialOffset(self) -> Json:  # noqa: N802
        planner = self._planner
        found = planner.find()
        return to_json(planner.resolve(self._options.starting, planner.limits(found.partitions), found.ids), found.ids)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_records is not None:
            return ReadMaxRows(options.max_records)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        _, limits = self._there()
        self._target = {one: limit.end for one, limit in limits.items()}

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        ids, limits = self._there()
        return to_json({one: limit.end for one, limit in limits.items()}, ids)

    def _there(self) -> tuple[Ids, dict[tuple[str, int], Limits]]:
        """All partitions there are now; a topic that has been deleted has none, and `_reachable` says so."""
        found = self._planner.find(missing_ok=True)
        return found.ids, self._planner.limits(found.partitions)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        planner = self._planner
        ids, limits = self._there()
        anew = self._replaced(ids_from_json(start), ids)
        begun = {one: at for one, at in from_json(start).items() if one[0] not in anew}
        # What was read of a topic that is replaced is no place in the new one: there the group stays where it is.
        self._tell(planner, begun)
        moved = {one: limits.pop(one) for one in list(limits) if one[0] in anew}
        ends = self._reachable(begun, limits)
        if not isinstance(limit, ReadAllAvailable):
            ends = self._admitted(
                planner, {one: max(begun.get(one, 0), limits[one].start) for one in limits}, ends, limit
            )
        # A batch that ends where a new topic begins reads nothing of it, so repeating it cannot read it otherwise.
        return to_json(ends | (planner.begin_anew(moved) if moved else {}), ids)

    def _replaced(self, before: Ids, now: Ids) -> list[str]:
        """Topics whose names stand for others now; an error if that is one."""
        names = replaced(before, now)
        if names and self._options.fail_on_data_loss:
            raise replacement(names[0], before[names[0]], now[names[0]])
        return names

    def _reachable(self, begun: Ends, limits: dict[tuple[str, int], Limits]) -> Ends:
        ends = {one: limit.end for one, limit in limits.items()}
        if self._target is not None:
            # What was not there when the query began is not available to it; what it has begun stays in its offsets.
            ends = {one: min(end, self._target[one]) for one, end in ends.items() if one in self._target}
        for one, at in begun.items():
            there = limits.get(one)
            if there is None or there.end < at:
                self._lost(one, at, there)
                ends[one] = there.end if there is not None else 0
            else:
                ends[one] = max(ends.get(one, at), at)
        return ends

    def _lost(self, one: tuple[str, int], at: int, there: Limits | None) -> None:
        if self._options.fail_on_data_loss:
            found = "is not there any more" if there is None else f"now ends at {there.end}"
            raise DataLost(f"{one[0]}[{one[1]}] was read up to offset {at} and {found}; {LOSS_ADVICE}")

    def _admitted(self, planner: Planner, begun: Ends, ends: Ends, limit: ReadLimit) -> Ends:
        """As far as the limits allow: each partition by its backlog."""
        ranges = [Range(*one, begun[one], end) for one, end in ends.items() if end > begun.get(one, end)]
        sizes = {(one.topic, one.partition): one.size for one in ranges}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if max_bytes is not None and ranges:
            by_bytes = max(1, int(max_bytes / planner.record_bytes(ranges)))
            most = by_bytes if most is None else min(most, by_bytes)
        if most is None:
            return ends
        shares = share(most, sizes)
        return {one: begun[one] + shares[one] if one in shares else end for one, end in ends.items()}

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        begun, ends = from_json(start), from_json(end)
        before, planned = ids_from_json(start), ids_from_json(end)
        changed = replaced(before, planned)
        moved = [one for one in ends if ends[one] != begun.get(one, 0) or one[0] in changed]
        ids = self._planner.ids(topic for topic, _ in moved)
        gone = self._replaced({topic: planned[topic] for topic in ids if topic in planned}, ids)
        # What replaces a topic begins with the next batch, and what was replaced since this one was planned is gone.
        wanted = sorted(one for one in moved if one[0] not in {*changed, *gone})
        # Known to be the same topic, and to end before the batch begins: the tail of the log was lost, and the rest is
        # read; or the first batch is repeated, and its beginning is the latest again.
        same = {topic for topic in planned if planned[topic] == before.get(topic)}
        wanted = [one for one in wanted if one[0] not in same or ends[one] > begun.get(one, 0)]
        limits = self._planner.limits(wanted)
        ranges = [self._range(one, begun.get(one, 0), ends[one], limits.get(one), ids.get(one[0])) for one in wanted]
        kept = [one for one in ranges if one is not None]
        return [Part(part) for part in split(kept, self._options.min_partitions, self._options.max_partition_records)]

    def _range(
        self, one: tuple[str, int], start: int, end: int, there: Limits | None, topic_id: str | None
    ) -> Range | None:
        """What is to be read, as far as it is still there."""
        if there is None:
            self._lost(one, start, there)
            return None
        if end < start:  # made anew since; all that it holds is new
            return Range(*one, there.start, end, topic_id)
        if start < there.start and self._options.fail_on_data_loss:
            raise DataLost(
                f"offsets {start}..{min(end, there.start)} of {one[0]}[{one[1]}] were not read yet, and are gone; "
                f"{LOSS_ADVICE}"
            )
        return Range(*one, max(start, there.start), end, topic_id)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return read_range(self._options, Assembler(self._options, self._columns, self._schema), partition.part)

    def commit(self, end: Json) -> None:
        """Spark says so after it has asked for the latest offset, where the group was told already."""

    def _tell(self, planner: Planner, done: Ends) -> None:
        if self._options.group is not None and done != self._told:
            planner.commit(done)
            self._told = done

    def stop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
