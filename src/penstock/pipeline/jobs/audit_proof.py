"""A proof: what was counted and summed on both sides of an audit, and every kind of difference with samples."""

from dataclasses import dataclass, field
from typing import Any

from rich.console import RenderableType


@dataclass(frozen=True)
class Side:
    """One partition on one side (or all of them, where the sides are partitioned differently)."""

    records: int
    first_offset: int  # -1: none
    last_offset: int
    digest: str  # a sum of the records' hashes, whatever their order


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
        return self.source.records == self.target.records and self.source.digest == self.target.digest


@dataclass(frozen=True)
class Difference:
    kind: str  # lost, doubled, foreign, changed, out of order
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
        return not (self.lost or self.doubled or self.foreign or self.changed or self.out_of_order)

    def as_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def table(self) -> RenderableType:
        raise NotImplementedError
