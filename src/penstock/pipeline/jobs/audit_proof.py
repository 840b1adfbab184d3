"""A proof: what was counted and summed on both sides of an audit, and every kind of difference with samples.

The verdict is made of the differences alone; the counts and digests are there to be believed, and to be kept.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

# Every kind of difference, and what it means.
KINDS: Final = {
    "lost": "in the topic, not in the target",
    "doubled": "in the target more often than in the topic",
    "foreign": "in the target, and never a record of the topic",
    "changed": "at the same place, with another content",
    "out of order": "behind a record that it should come before",
}
SHOWN_PARTITIONS: Final = 64


@dataclass(frozen=True)
class Side:
    """One partition on one side (or all of them, where the sides are partitioned differently)."""

    records: int
    first_offset: int  # -1: none
    last_offset: int
    digest: str  # a sum of the records' hashes, whatever their order
    order_digest: str = ""  # the same with each record's place; empty: the order was looked at otherwise


NOTHING: Final = Side(0, -1, -1, "0" * 32)


@dataclass(frozen=True)
class PartitionProof:
    partition: int  # -1: all
    source: Side
    target: Side
    start: int  # of the source's log
    end: int
    unused: int  # offsets that hold no record: markers, aborted transactions, what compaction took

    @property
    def holds(self) -> bool:
        """Records, their contents and (where the order has a digest) their order are the same on both sides."""
        mine, other = self.source, self.target
        return (mine.records, mine.digest, mine.order_digest) == (other.records, other.digest, other.order_digest)


@dataclass(frozen=True)
class Difference:
    kind: str  # one of KINDS
    partition: int
    offset: int  # in the source; in the target where the source has no such record
    detail: str


@dataclass(frozen=True)
class Proof:
    source: str
    target: str
    method: str  # how they were compared, for people
    compared: list[str]  # columns
    partitions: list[PartitionProof]
    lost: int = 0
    doubled: int = 0
    foreign: int = 0  # in the target only
    changed: int = 0
    out_of_order: int = 0
    behind: int = 0  # not there yet (where that is allowed)
    quarantined: int = 0
    beyond_retention: int = 0  # in the target; the source no longer has them, so nothing can be said
    differences: list[Difference] = field(default_factory=list)  # samples, bounded
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        return not any(count for _, count in self.found())

    def found(self) -> list[tuple[str, int]]:
        """Every kind of difference and how many there are."""
        counts = (self.lost, self.doubled, self.foreign, self.changed, self.out_of_order)
        return list(zip(KINDS, counts, strict=True))

    def verdict(self) -> str:
        if self.holds:
            records = sum(partition.source.records for partition in self.partitions)
            told = [f"{self.behind:,} not there yet"] * bool(self.behind)
            told += [f"{self.quarantined:,} in quarantine"] * bool(self.quarantined)
            told += [f"{self.beyond_retention:,} that the topic no longer has"] * bool(self.beyond_retention)
            return f"holds: {records:,} records, nothing lost, doubled or out of order" + "".join(
                f"; {each}" for each in told
            )
        return "does not hold: " + ", ".join(f"{count:,} {kind}" for kind, count in self.found() if count)

    def as_dict(self) -> dict[str, Any]:
        return {"holds": self.holds, "verdict": self.verdict(), **asdict(self)}

    def table(self) -> RenderableType:
        shown = Table(
            title=f"{self.source} and {self.target}\n{self.method}; compared: {', '.join(self.compared)}",
            title_justify="left",
        )
        for name in (
            "partition",
            "log",
            "no record",
            "records",
            "in target",
            "offsets",
            "digest",
            "digest of target",
            "",
        ):
            left = name in ("", "digest", "digest of target")
            shown.add_column(name, justify="left" if left else "right", overflow="fold")
        for each in self.partitions[:SHOWN_PARTITIONS]:
            mine, other = each.source, each.target
            shown.add_row(
                "all" if each.partition < 0 else str(each.partition),
                f"{each.start:,} to {each.end:,}",
                f"{each.unused:,}",
                f"{mine.records:,}",
                f"{other.records:,}",
                f"{mine.first_offset:,} to {mine.last_offset:,}" if mine.records else "none",
                mine.digest,
                other.digest,
                Text("=", style="green") if each.holds else Text("≠", style="red"),
            )
        parts: list[RenderableType] = [shown]
        if len(self.partitions) > SHOWN_PARTITIONS:
            parts.append(Text(f"and {len(self.partitions) - SHOWN_PARTITIONS} more partitions"))
        if self.differences:
            samples = Table(title="Differences (samples)", title_justify="left")
            for name in ("kind", "partition", "offset", "detail"):
                samples.add_column(name, overflow="fold")
            for difference in self.differences:
                samples.add_row(
                    difference.kind, str(difference.partition), str(difference.offset), Text(difference.detail)
                )
            parts.append(samples)
        parts.append(Text(self.verdict(), style="bold green" if self.holds else "bold red"))
        return Group(*parts)
