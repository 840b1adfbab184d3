"""What is to be read: topics to partitions, words and times to offsets, ranges to tasks. All of the driver's questions
to the server are asked here.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from penstock.model.errors import PenstockError, UnknownTopic
from penstock.pipeline.errors import DataLost, InvalidOption
from penstock.pipeline.identity import Ids, described, replaced, replacement, topic_ids
from penstock.pipeline.link import Link
from penstock.pipeline.offsets import Ends, Partition
from penstock.pipeline.options import EARLIEST, LATEST, Bound, SourceOptions
from penstock.wire.native import messages as wire

SAMPLE_BYTES: Final = 64 << 10
USUAL_RECORD_BYTES: Final = 1024.0  # where there is nothing to judge by
LOSS_ADVICE: Final = (
    "they were deleted by retention, or with their topic; to read on with what is there, set the option "
    "failOnDataLoss to false"
)


class Limits(NamedTuple):
    """Of a partition: its first offset, and the one after the last that may be read."""

    start: int
    end: int


class Found(NamedTuple):
    """What there is to read, and the ids of the topics."""

    partitions: list[Partition]
    ids: Ids


@dataclass(frozen=True)
class Range:
    """Offsets of one partition, the last excluded."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None  # of the topic that they are offsets of; None: of whichever has the name

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.start}..{self.end}"


class Planner:
    """The driver's side of a read."""

    def __init__(self, options: SourceOptions, link: Link) -> None:
        self._options = options
        self._link = link

    # -- partitions and their ends --------------------------------------------------------------------------------

    def find(self, *, missing_ok: bool = False) -> Found:
        """All that the options name, as of now. `missing_ok`: a topic that is gone has no partitions."""
        options = self._options
        if options.pattern is not None:
            wanted = re.compile(options.pattern)
            listed = self._link.ask(wire.ListTopics()).topics
            there = described(self._link, [topic.name for topic in listed if wanted.fullmatch(topic.name)])
        else:
            there = described(self._link, options.topics or options.assigned)
            for name in options.topics or options.assigned:
                if name not in there and not missing_ok:
                    raise UnknownTopic(
                        f"there is no topic {name!r} at {options.server}; create it ('penstock topic create {name}'), "
                        "or correct the option topics"
                    )
        ids = {name: topic.topic_id for name, topic in there.items()}
        counts = {name: len(topic.partitions) for name, topic in there.items()}
        if not options.assigned:
            return Found([(name, one) for name, count in counts.items() for one in range(count)], ids)
        assigned = [(name, one) for name, indexes in options.assigned.items() for one in indexes]
        for name, index in assigned:
            if index >= counts.get(name, 0) and not missing_ok:
                raise InvalidOption(
                    f"option assign names partition {index} of {name!r}, which has {counts[name]}, from 0 on"
                )
        return Found([(name, one) for name, one in assigned if one < counts.get(name, 0)], ids)

    def ids(self, topics: Iterable[str]) -> Ids:
        """Of those that are there."""
        return topic_ids(self._link, topics)

    def limits(self, partitions: Iterable[Partition]) -> dict[Partition, Limits]:
        """Of those that are there; a topic may be deleted at any time."""
        wanted = list(partitions)
        try:
            found = self._link.ask_all([wire.ListOffsets(topic, index) for topic, index in wanted])
        except UnknownTopic:
            return self._limits_one_by_one(wanted)
        return {one: self._limits(offsets) for one, offsets in zip(wanted, found, strict=True)}

    def _limits_one_by_one(self, partitions: list[Partition]) -> dict[Partition, Limits]:
        found = {}
        for topic, index in partitions:
            try:
                found[topic, index] = self._limits(self._link.ask(wire.ListOffsets(topic, index)))
            except UnknownTopic:
                continue
        return found

    def _limits(self, offsets: wire.Offsets) -> Limits:
        end = offsets.stable if self._options.committed and offsets.stable >= 0 else offsets.end
        return Limits(offsets.start, max(end, offsets.start))

    # -- from words to offsets ------------------------------------------------------------------------------------

    def resolve(
        self, bound: Bound, limits: Mapping[Partition, Limits], ids: Mapping[str, str], *, ending: bool = False
    ) -> Ends:
        """An offset for each partition, within what is there. What is not named begins at the earliest and ends at the
        latest; so does what is named by the offsets of another topic, if loss is no failure.
        """
        if bound.kind in ("time", "times"):
            return self._at_times(bound, limits, ending)
        resolved = {
            one: limit.end if ending or bound.kind == "latest" else limit.start for one, limit in limits.items()
        }
        others = replaced(bound.ids, ids)
        if others and self._options.fail_on_data_loss:
            raise replacement(others[0], bound.ids[others[0]], ids[others[0]])
        if bound.kind == "committed":
            named = self._committed(limits)
        else:
            named = _named(bound, limits, "endingOffsets" if ending else "startingOffsets")
        for one, offset in named.items():
            if one[0] not in others:
                resolved[one] = self._held(one, offset, limits[one], ending)
        return resolved

    def begin_anew(self, limits: Mapping[Partition, Limits]) -> Ends:
        """Where to go on in topics that have taken the place of others: where the group stands, which a compaction has
        seen to, else at the earliest. A place that is not there is none of theirs.
        """
        begun = {one: limit.start for one, limit in limits.items()}
        if self._options.group is not None:
            begun |= {
                one: offset
                for one, offset in self._committed(limits).items()
                if limits[one].start <= offset <= limits[one].end
            }
        return begun

    def _committed(self, limits: Mapping[Partition, Limits]) -> Ends:
        held = self._link.ask(wire.Committed(self._options.group or "")).offsets
        return {(topic, index): offset for topic, index, offset in held if (topic, index) in limits}

    def _held(self, partition: Partition, offset: int, limit: Limits, ending: bool) -> int:
        if offset in (EARLIEST, LATEST):
            return limit.start if offset == EARLIEST else limit.end
        if limit.start <= offset <= limit.end:
            return offset
        if self._options.fail_on_data_loss:
            side = "endingOffsets" if ending else "startingOffsets"
            raise DataLost(
                f"{side}: offset {offset} of {partition[0]}[{partition[1]}] is out of range, there is "
                f"{limit.start}..{limit.end}; choose one of these, earliest or latest, or set failOnDataLoss to false "
                "to take the nearest"
            )
        return min(max(offset, limit.start), limit.end)

    def _at_times(self, bound: Bound, limits: Mapping[Partition, Limits], ending: bool) -> Ends:
        times = dict.fromkeys(limits, bound.time_ms)
        if bound.kind == "times":
            times = _named(bound, limits, "endingOffsetsByTimestamp" if ending else "startingOffsetsByTimestamp")
        asked = list(times)
        found = self._link.ask_all([wire.ListOffsets(topic, index, times[topic, index]) for topic, index in asked])
        resolved = {one: limit.end if ending else limit.start for one, limit in limits.items()}
        for one, offsets in zip(asked, found, strict=True):
            at = offsets.found if offsets.found >= 0 else offsets.end
            resolved[one] = min(max(at, limits[one].start), limits[one].end)
        return resolved

    # -- groups ---------------------------------------------------------------------------------------------------

    def commit(self, ends: Ends) -> None:
        """Let the group stand here. What it tells is for people and tools; the checkpoint is what counts."""
        group = self._options.group
        if group is None or not ends:
            return
        offsets = [(topic, index, end) for (topic, index), end in sorted(ends.items())]
        try:
            self._link.ask(wire.Commit(group, offsets))
        except UnknownTopic:
            return  # deleted meanwhile; what is read of it next will tell
        except PenstockError as error:
            if error.retriable:
                raise
            raise InvalidOption(
                f"progress cannot be committed to group {group!r}: {error}; choose a name for the option group that no "
                "consumer uses"
            ) from None

    # -- how much ---------------------------------------------------------------------------------------------------

    def record_bytes(self, ranges: Iterable[Range]) -> float:
        """How large a stored record is, judged by the first few of each range."""
        size, records = 0, 0
        wanted = [wire.Fetch(one.topic, one.partition, one.start, SAMPLE_BYTES, 0) for one in ranges]
        for fetch, fetched in zip(wanted, self._link.ask_all(wanted), strict=True):
            size += len(fetched.batches)
            records += max(fetched.next_offset - fetch.offset, 0) if fetched.batches else 0
        return size / records if records else USUAL_RECORD_BYTES


def _named(bound: Bound, limits: Mapping[Partition, Limits], option: str) -> Ends:
    """The offsets of a bound, by partition; a partition that is not there is a mistake."""
    named: Ends = {}
    for topic, offsets in bound.offsets.items():
        for index, offset in offsets.items():
            if (topic, index) not in limits:
                there = sorted(part for name, part in limits if name == topic)
                raise InvalidOption(
                    f"{option} names partition {index} of {topic!r}, which is not read here"
                    + (f"; those of {topic!r} are {_few(there)}" if there else "; the topic is none of those to read")
                )
            named[topic, index] = offset
    return named


def _few(numbers: list[int]) -> str:
    return f"{numbers[0]}..{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


def share(limit: int, sizes: Mapping[Partition, int]) -> dict[Partition, int]:
    """At most `limit` in all, each according to its size; the sum is `limit` or all there is."""
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    shares = {one: limit * size // total for one, size in sizes.items()}
    left = limit - sum(shares.values())
    by_remainder = sorted(sizes, key=lambda one: (-(limit * sizes[one] % total), one))
    for one in by_remainder[:left]:
        shares[one] += 1
    return shares


def split(ranges: list[Range], min_partitions: int | None, max_records: int | None) -> list[Range]:
    """The same ranges in more pieces, each in its order."""
    ranges = [one for one in ranges if one.size > 0]
    total = sum(one.size for one in ranges)
    pieces: list[Range] = []
    for one in ranges:
        parts = 1
        if max_records is not None:
            parts = -(-one.size // max_records)
        if min_partitions is not None and min_partitions > len(ranges):
            parts = max(parts, -(-min_partitions * one.size // total))
        parts = max(1, min(parts, one.size))
        cuts = [one.start + one.size * part // parts for part in range(parts + 1)]
        pieces += [replace(one, start=low, end=high) for low, high in pairwise(cuts)]
    return pieces
