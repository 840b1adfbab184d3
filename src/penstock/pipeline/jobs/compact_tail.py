"""The last stretch: what came to a topic while Spark worked, if it is little, is carried over by the driver itself.

A job of Spark takes a second, in which a busy topic grows again; this takes milliseconds. What it holds is bounded by
TAIL_RECORDS; a longer tail is Spark's work, too.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.client.errors import error_of
from penstock.model.batch import TRANSACTIONAL, decode_batch, encode_batch, walk
from penstock.model.partitioner import partition_for_key
from penstock.model.record import Record
from penstock.pipeline.jobs.compact_frames import Position
from penstock.pipeline.jobs.desk import Desk, TopicFacts
from penstock.pipeline.jobs.reading import Range
from penstock.wire.native import messages as wire

TAIL_RECORDS: Final = 20_000
FETCH_BYTES: Final = 4 << 20
BATCH_BYTES: Final = 256 << 10


class Moved(NamedTuple):
    """A record that was carried over: where it was and where it is."""

    partition: int
    offset: int
    to: int
    at: int


def carry_over(
    desk: Desk, topic: TopicFacts, work: TopicFacts, ranges: Sequence[Range], step: str, epoch: int
) -> list[Moved]:
    """The committed records of these ranges, one range for each partition, into the work topic as one step."""
    waiting: dict[int, list[tuple[int, Record]]] = defaultdict(list)
    for partition, (start, end) in enumerate(ranges):
        for record in _read(desk, topic.name, partition, start, end):
            waiting[_new_partition(topic, work, partition, record)].append((partition, record))
    if topic.partitions != work.partitions:
        for records in waiting.values():
            _merge(records)
    moved: list[Moved] = []
    writers: list[int] = []
    if waiting:
        writer: wire.Writer = desk.ask(wire.OpenWriter(step, epoch, "catching up"))
        for to, records in waiting.items():
            moved += _write(desk, work, to, records, writer)
        writers = [writer.producer_id]
    desk.ask(wire.CommitStep(step, epoch, writers, "caught up"))
    return moved


def first_unread(moved: Sequence[Moved], positions: Sequence[Position]) -> dict[tuple[str, int], int]:
    """For each group and new partition the offset of the first of these that it has not read."""
    found: dict[tuple[str, int], int] = {}
    by_partition: Mapping[int, list[Position]] = _by_partition(positions)
    for each in moved:
        for position in by_partition.get(each.partition, ()):
            if each.offset >= position.offset:
                place = (position.group, each.to)
                found[place] = min(each.at, found.get(place, each.at))
    return found


def _by_partition(positions: Sequence[Position]) -> dict[int, list[Position]]:
    found: dict[int, list[Position]] = defaultdict(list)
    for position in positions:
        found[position.partition].append(position)
    return found


def _read(desk: Desk, topic: str, partition: int, start: int, end: int) -> list[Record]:
    found: list[Record] = []
    while start < end:
        fetched: wire.Fetched = desk.ask(wire.Fetch(topic, partition, start, FETCH_BYTES, 0))
        for header in walk(fetched.batches):
            found += [
                record for record in decode_batch(fetched.batches, header.position) if start <= record.offset < end
            ]
        if fetched.next_offset <= start:
            break  # what is left is not decided yet; the swap will say so
        start = fetched.next_offset
    return found


def _new_partition(topic: TopicFacts, work: TopicFacts, partition: int, record: Record) -> int:
    if topic.partitions == work.partitions:
        return partition
    if record.key is None:
        return partition % work.partitions
    return partition_for_key(record.key, work.partitions)


def _merge(records: list[tuple[int, Record]]) -> None:
    """By time, as far as the order of each old partition allows: as Spark sorts them."""
    latest: dict[int, int] = {}
    times: dict[tuple[int, int], int] = {}
    for partition, record in records:  # of one partition they come in order
        latest[partition] = max(record.timestamp_ms, latest.get(partition, -1))
        times[partition, record.offset] = latest[partition]
    records.sort(key=lambda each: (times[each[0], each[1].offset], each[0], each[1].offset))


def _write(
    desk: Desk, work: TopicFacts, to: int, records: Sequence[tuple[int, Record]], writer: wire.Writer
) -> list[Moved]:
    """One batch after another, each answered before the next: there are few."""
    moved: list[Moved] = []
    limit = min(BATCH_BYTES, int(work.settings.get("max.message.bytes", BATCH_BYTES)))
    first = 0
    while first < len(records):
        stop, size = first, 0
        while stop < len(records) and (stop == first or size + _size(records[stop][1]) <= limit):
            size += _size(records[stop][1])
            stop += 1
        some = records[first:stop]
        batch = encode_batch(
            [Record(at, each.timestamp_ms, each.key, each.value, each.headers) for at, (_, each) in enumerate(some)],
            producer_id=writer.producer_id,
            producer_epoch=writer.producer_epoch,
            base_sequence=first,
            attributes=TRANSACTIONAL,
        )
        stored: wire.Stored = desk.ask(wire.Publish(-1, [wire.Batch(work.name, to, bytes(batch))])).results[0]
        if stored.error is not None:
            raise error_of(stored.error, stored.message, stored.retriable)
        moved += [
            Moved(partition, record.offset, to, stored.base_offset + at) for at, (partition, record) in enumerate(some)
        ]
        first = stop
    return moved


def _size(record: Record) -> int:
    headers = sum(len(name) * 3 + len(value or b"") + 20 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + 40
