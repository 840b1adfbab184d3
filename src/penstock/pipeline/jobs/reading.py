"""How the jobs read topics: ranges that are fixed before, of one topic or several."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.pipeline.jobs.desk import Desk, TopicFacts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "penstock"
Range = tuple[int, int]  # from, to behind the last


def read(
    spark: "SparkSession",
    server: str,
    ranges: Mapping[str, Sequence[Range]],
    columns: Sequence[str] = (),
    *,
    may_go: bool = False,
) -> "DataFrame":
    """The committed records of these ranges: for each topic one of each partition, in their order.

    `may_go`: what retention removes meanwhile is not missed.
    """
    reader = spark.read.format(FORMAT).option("server", server).option("topics", ",".join(ranges))
    reader = reader.option("startingOffsets", _offsets(ranges, 0)).option("endingOffsets", _offsets(ranges, 1))
    if may_go:
        reader = reader.option("failOnDataLoss", "false")
    if columns:
        reader = reader.option("columns", ",".join(columns))
    return reader.load()


def whole(desk: Desk, topic: TopicFacts) -> list[Range]:
    """All that is decided by now."""
    return [(bounds.start, bounds.stable) for bounds in desk.bounds(topic)]


def _offsets(ranges: Mapping[str, Sequence[Range]], which: int) -> str:
    return json.dumps(
        {topic: {str(at): each[which] for at, each in enumerate(given)} for topic, given in ranges.items()}
    )
