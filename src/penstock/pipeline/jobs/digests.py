"""Hashes of records in Spark, and sums of them that do not depend on the order in which they are added.

A record's digest is two 64-bit hashes of its columns, nulls told apart from empty values. A set's digest is the sum of
each over its records, modulo 2^64: equal sums and equal counts mean equal multisets, but for an accident of about one
in 2^64. It proves against mishaps, not against somebody who forges records.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS: Final = ("key", "value", "timestamp", "headers")
_MODULUS: Final = 1 << 64


def with_digest(frame: "DataFrame", columns: Sequence[str]) -> "DataFrame":
    """The frame with the columns `h1` and `h2`, the hashes of these columns of a record."""
    from pyspark.sql import functions as f

    parts: list[Column] = []
    for name in columns:
        if name == "headers":
            headers = f.col("headers")
            parts += [f.coalesce(f.size(headers), f.lit(0)), headers]
        elif name == "timestamp":
            parts.append(f.unix_millis(f.col("timestamp").cast("timestamp")))
        else:
            given = f.col(name).cast("binary")
            parts += [given.isNull(), given]
    return frame.withColumns({"h1": f.xxhash64(f.lit(1), *parts), "h2": f.xxhash64(f.lit(2), *parts)})


def hash_sum(*columns: "Column") -> "Column":
    """Of one 64-bit hash of these over all rows. A wider type than theirs, since Spark's sums may not overflow."""
    from pyspark.sql import functions as f

    hashed = columns[0] if len(columns) == 1 else f.xxhash64(*columns)
    return f.coalesce(f.sum(hashed.cast("decimal(20,0)")), f.lit(0).cast("decimal(30,0)"))


def hex_of(*sums: object) -> str:
    """Sums as Spark gave them, as people compare them."""
    return "".join(f"{int(str(each)) % _MODULUS:016x}" for each in sums)
