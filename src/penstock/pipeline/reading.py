"""A task's part of a read: one range of one partition, from the server to Arrow record batches.

The next bytes are asked for before those that came are opened, so the server and the task work side by side. At any
time a task holds what one fetch returned, and what it opens to; nothing else grows.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from penstock.client.blocking import BlockingConnection
from penstock.client.errors import Disconnected, Unreachable
from penstock.client.session import pause_s
from penstock.model import column_reader
from penstock.model.column_reader import NONE_ABORTED, Aborted, Columns, read_columns
from penstock.model.errors import CorruptBatch, OffsetOutOfRange, PenstockError, StorageFailed, TimedOut, UnknownTopic
from penstock.pipeline import arrow
from penstock.pipeline.decoding import CORRUPT, Decoded, Decoder, corrupt_column
from penstock.pipeline.direct import Gone, Unreadable, direct_range, refuse_broker
from penstock.pipeline.errors import DataLost, SchemaMismatch
from penstock.pipeline.identity import check_range
from penstock.pipeline.link import Link
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.planning import LOSS_ADVICE, Range
from penstock.pipeline.schemas import Column
from penstock.wire.native.messages import Fetch, Fetched, ListOffsets

CLIENT: Final = "penstock-spark-task"
FETCH_BYTES: Final = 4 << 20
OPENED_BYTES: Final = 32 << 20  # of one record batch, before its last batch is opened
BATCH_ROWS: Final = 50_000
NOTHING_WAIT_MS: Final = 1_000  # for what the plan has seen and the server does not show yet

_NEEDS: Final = {
    "key": column_reader.KEY,
    "value": column_reader.VALUE,
    "offset": column_reader.OFFSET,
    "timestamp": column_reader.TIMESTAMP,
    "headers": column_reader.HEADERS,
}


class Assembler:
    """Makes record batches of what was read, with the columns that are wanted and nothing for those that are not."""

    def __init__(self, options: SourceOptions, columns: Sequence[Column], schema: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._schema = schema
        self._typed = [place for place, one in enumerate(columns) if one.source is None]
        self._decoder = None
        self.wanted = sum({_NEEDS[one.source] for one in columns if one.source in _NEEDS})
        faults = any(one.source == CORRUPT for one in columns)
        if self._typed or faults:
            fields = pa.schema([schema.field(place) for place in self._typed])
            self._decoder = Decoder(options.value_format or "json", fields, options.schema)
            self.wanted |= column_reader.VALUE
        if not options.permissive and self._decoder is not None:
            self.wanted |= column_reader.OFFSET  # to say which record does not fit

    def batches(self, columns: Columns, part: Range) -> Iterator[pa.RecordBatch]:
        if columns.rows == 0:
            return
        whole = self._assembled(columns, part)
        for start in range(0, columns.rows, BATCH_ROWS):
            yield whole.slice(start, BATCH_ROWS) if columns.rows > BATCH_ROWS else whole

    def _assembled(self, columns: Columns, part: Range) -> pa.RecordBatch:
        values = arrow.values(columns) if self.wanted & column_reader.VALUE else None
        decoded = Decoded([], {})
        if self._decoder is not None:
            decoded = self._decoder.decode(values)
            if decoded.reasons and not self._options.permissive:
                raise _mismatch(columns, decoded, part)
        typed = iter(decoded.columns)
        arrays: list[Any] = []
        for place, column in enumerate(self._columns):
            kind = self._schema.field(place).type
            match column.source:
                case None:
                    arrays.append(next(typed))
                case "key":
                    arrays.append(arrow.keys(columns))
                case "value":
                    arrays.append(values)
                case "topic":
                    arrays.append(arrow.constant(part.topic, columns.rows, kind))
                case "partition":
                    arrays.append(arrow.constant(part.partition, columns.rows, kind))
                case "offset":
                    arrays.append(arrow.offsets(columns))
                case "timestamp":
                    arrays.append(arrow.times(columns))
                case "timestampType":
                    arrays.append(arrow.time_types(columns))
                case "headers":
                    arrays.append(arrow.headers(columns, kind))
                case _:
                    arrays.append(corrupt_column(columns.rows, decoded.reasons))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _mismatch(columns: Columns, decoded: Decoded, part: Range) -> SchemaMismatch:
    row = min(decoded.reasons)
    offset = arrow.offsets(columns)[row].as_py()
    return SchemaMismatch(
        f"the value at offset {offset} of {part.topic}[{part.partition}] does not fit the schema: "
        f"{decoded.reasons[row]}; correct the option schema, or set the option mode to permissive, which reads on and "
        f"says in the column {CORRUPT} what is wrong"
    )


def read_near(options: SourceOptions, assembler: Assembler, part: Range) -> Iterator[pa.RecordBatch]:
    """Every record of the range that is there, from the log's own files where that can be; what they do not give, and
    with read=broker everything, through the server.
    """
    at = part.start
    if options.read != "broker" and part.size > 0:
        try:
            with Link(options.server, timeout_s=options.timeout_s, first_s=options.timeout_s, client=CLIENT) as link:
                for batches, begin, at, aborted in direct_range(options, link, part):  # noqa: B007
                    yield from open_batches(assembler, part, batches, begin, aborted)
        except Gone:
            pass  # the server says so again below, in the words for it
        except Unreadable as reason:
            if options.read == "direct":
                raise refuse_broker(part, reason) from None
    yield from read_range(options, assembler, replace(part, start=at))


def read_range(options: SourceOptions, assembler: Assembler, part: Range) -> Iterator[pa.RecordBatch]:
    """Every record of the range that is there, through the server."""
    for batches, at in fetch_range(options, part):
        yield from open_batches(assembler, part, batches, at)


def open_batches(
    assembler: Assembler, part: Range, batches: bytes, at: int, aborted: Aborted = NONE_ABORTED
) -> Iterator[pa.RecordBatch]:
    """What these bytes hold of the range from the offset `at` on."""
    position = 0
    while position < len(batches):
        try:
            columns = read_columns(batches, position, at, part.end, assembler.wanted, BATCH_ROWS, OPENED_BYTES, aborted)
            yield from assembler.batches(columns, part)
        except CorruptBatch as error:
            raise CorruptBatch(f"{part.topic}[{part.partition}], after offset {at}: {error}") from None
        position = columns.position


def fetch_range(options: SourceOptions, part: Range) -> Iterator[tuple[bytes, int]]:
    """Stored batches of the range, and the offset to begin at in them. A connection that breaks is sought again.

    A fetch names its topic and not the id of it, so that is asked once more after the last. If it is another, this
    raises.
    """
    if part.size <= 0:
        return
    with Link(options.server, timeout_s=options.timeout_s, first_s=options.timeout_s, client=CLIENT) as link:
        yield from _fetched_patiently(link, options, part)
        check_range(link, part)


def _fetched_patiently(link: Link, options: SourceOptions, part: Range) -> Iterator[tuple[bytes, int]]:
    at = part.start
    patience = _Patience(options.timeout_s)
    while at < part.end:
        try:
            for fetched, begin in _fetched(link.connection(), options, part, at):
                patience.renew()
                yield fetched.batches, begin
                at = fetched.next_offset
            return
        except (Disconnected, TimedOut, Unreachable, StorageFailed) as error:
            link.close()
            patience.spend(error)
        except OffsetOutOfRange as error:
            check_range(link, part)
            at = _after_loss(link, options, part, at, error)
        except UnknownTopic:
            if options.fail_on_data_loss:
                raise DataLost(f"topic {part.topic!r} was deleted while it was read; {LOSS_ADVICE}") from None
            return


def _fetched(
    connection: BlockingConnection, options: SourceOptions, part: Range, at: int
) -> Iterator[tuple[Fetched, int]]:
    """Fetches up to the end of the range, one ahead."""

    def ask(offset: int) -> int:
        return connection.send(
            Fetch(part.topic, part.partition, offset, FETCH_BYTES, NOTHING_WAIT_MS, options.committed)
        )

    asked = ask(at)
    while True:
        fetched: Fetched = connection.receive(asked)
        begin, at = at, fetched.next_offset
        if at > begin or fetched.batches:
            if at < part.end:
                asked = ask(at)
            yield fetched, begin
            if at >= part.end:
                return
        elif fetched.end < part.end:
            raise OffsetOutOfRange(f"the log ends at offset {fetched.end}")
        else:
            raise TimedOut(f"nothing was found at offset {at}, although the log ends at {fetched.end}")


def _after_loss(link: Link, options: SourceOptions, part: Range, at: int, error: PenstockError) -> int:
    """Where to go on when what comes next is not there."""
    there = link.ask(ListOffsets(part.topic, part.partition))
    if options.fail_on_data_loss:
        raise DataLost(
            f"offsets {at}..{part.end} of {part.topic}[{part.partition}] were to be read, there is "
            f"{there.start}..{there.end}: {error}; {LOSS_ADVICE}"
        ) from None
    return max(at, int(there.start)) if there.end >= part.end else part.end


class _Patience:
    """Time that a server may be away, anew each time that something came."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.renew()

    def renew(self) -> None:
        self._deadline = time.monotonic() + self._timeout_s
        self._attempt = 0

    def spend(self, error: PenstockError) -> None:
        self._attempt += 1
        wait_s = pause_s(self._attempt)
        if time.monotonic() + wait_s >= self._deadline:
            raise error
        time.sleep(wait_s)
