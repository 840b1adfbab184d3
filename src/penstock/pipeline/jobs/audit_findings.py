"""What an audit gathers on its way: how many differences of each kind, and the first few of each."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.pipeline.jobs.audit_proof import Difference

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Found(NamedTuple):
    counts: dict[str, int]
    samples: list[Difference]


class Findings:
    def __init__(self, samples: int, counts: Mapping[str, int] | None = None) -> None:
        self._limit = samples
        self._counts = dict(counts or {})
        self._samples: list[Difference] = []

    def count(self, kind: str, rows: "DataFrame") -> int:
        self._counts[kind] = self._counts.get(kind, 0) + rows.count()
        return self._counts[kind]

    def show(self, kind: str, rows: "DataFrame", partition: str, offset: str, detail: str) -> None:
        first = rows.select(partition, offset).orderBy(partition, offset).limit(self._limit).collect()
        self._samples += [Difference(kind, row[0], row[1], detail) for row in first]

    def tell(self, kind: str, rows: "DataFrame", partition: str, offset: str, detail: str) -> None:
        """Count them, and show some if there are any."""
        if self.count(kind, rows):
            self.show(kind, rows, partition, offset, detail)

    def result(self) -> Found:
        return Found({kind: count for kind, count in self._counts.items() if count}, self._samples)


def by_partition(numbers: Mapping[int, int], otherwise: int, column: str = "partition") -> "Column":
    """The number of the row's partition."""
    from pyspark.sql import functions as f

    if not numbers:
        return f.lit(otherwise)
    pairs = [f.lit(each) for item in numbers.items() for each in item]
    return f.coalesce(f.create_map(*pairs)[f.col(column)], f.lit(otherwise))
