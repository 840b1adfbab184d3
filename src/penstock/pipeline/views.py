"""A topic as a table that SQL can ask: its JSON values' fields as columns, and the record around them.

    <fields of the value>                                      by a schema that is given, or inferred from a sample
    _key, _timestamp, _topic, _partition, _offset, _headers    of the record; the key as text

A value that is no JSON object has nulls for its fields: a statement that minds can say so (WHERE amount IS NOT NULL).
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.pipeline.errors import SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SAMPLE_RECORDS: Final = 2_000  # of the newest
SAMPLE_BYTES: Final = 16 << 20
SAMPLE_WAIT_S: Final = 10.0
READ: Final = ("key", "value", "topic", "partition", "offset", "timestamp")


@dataclass(frozen=True)
class TopicView:
    """A topic under a name that SQL can use. `schema` are the fields of its values, as DDL; None: inferred."""

    view: str
    topic: str
    schema: str | None = None
    watermark: tuple[str, str] | None = None  # column, delay


def stream(
    spark: "SparkSession",
    server: str,
    view: TopicView,
    *,
    starting_offsets: str = "earliest",
    headers: bool = False,
    group: str | None = None,
    max_records: int | None = None,
) -> "DataFrame":
    """The topic as a stream, from its beginning on."""
    from pyspark.sql import functions as f

    schema = view.schema or infer(server, view.topic)
    reader = spark.readStream.format("penstock").option("server", server).option("topics", view.topic)
    reader = reader.option("startingOffsets", starting_offsets)
    reader = reader.option("columns", ",".join((*READ, "headers") if headers else READ))
    if group is not None:
        reader = reader.option("group", group)
    if max_records is not None:
        reader = reader.option("maxRecordsPerTrigger", max_records)
    # Nothing here may make Spark look at the plan: declarative pipelines do not allow it.
    record = {name: f.col(name).alias(f"_{name}") for name in READ if name not in ("key", "value")}
    record["key"] = f.col("key").cast("string").alias("_key")
    if headers:
        record["headers"] = f.col("headers").alias("_headers")
    value = f.from_json(f.col("value").cast("string"), schema).alias("value")
    frame = reader.load().select(value, *record.values()).select("value.*", *[f"_{name}" for name in record])
    if view.watermark is not None:
        frame = frame.withWatermark(*view.watermark)
    return frame


# -- inference ----------------------------------------------------------------------------------------------


def infer(server: str, topic: str) -> str:
    """The fields of a topic's JSON values as DDL, by its newest records."""
    import pyarrow as pa
    import pyarrow.json as reader

    from penstock.pipeline.inference import may_be_deep, opened

    values = sample(server, topic)
    if not values:
        raise SchemaMismatch(f"topic {topic!r} is empty, so its fields cannot be inferred; name them with a schema")
    objects = [v for v in values if not may_be_deep(v) and isinstance(next(opened([v]), None), dict)]
    if not objects:
        raise SchemaMismatch(f"the values of topic {topic!r} are no JSON objects; name their fields with a schema")
    lines = b"\n".join(b" ".join(value.splitlines()) for value in objects)
    try:
        schema = reader.read_json(io.BytesIO(lines), reader.ReadOptions(block_size=SAMPLE_BYTES * 2)).schema
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            f"the fields of topic {topic!r} cannot be inferred ({error}); name them with a schema"
        ) from None
    return ddl(schema)


def sample(server: str, topic: str, records: int = SAMPLE_RECORDS) -> list[bytes]:
    """Values of a topic's newest records, from all its partitions."""
    from penstock.client.sync import SyncClient
    from penstock.model.errors import UnknownTopic

    with SyncClient(server, name="penstock-pipeline", connect_timeout_s=0) as client:
        found = next((one for one in client.topics() if one.name == topic), None)
        if found is None:
            raise UnknownTopic(f"there is no topic {topic!r}")
        bounds = client.bounds([(topic, index) for index in range(found.partitions)])
        each = max(1, records // found.partitions)
        start = {index: max(one.start, one.end - each) for (_, index), one in bounds.items() if one.end > one.start}
        if not start:
            return []
        due = sum(one.end - start[index] for (_, index), one in bounds.items() if index in start)
        values: list[bytes] = []
        size = 0
        with client.subscribe(topic, "log", start=start, partitions=list(start), auto_commit=False) as subscription:
            # Offsets may have gaps, so the last ones may never come: what is there comes at once.
            while len(values) < due and size < SAMPLE_BYTES:
                batch = subscription.take(due - len(values), SAMPLE_WAIT_S if not values else 0.2)
                if not batch:
                    break
                values += [message.value for message in batch if message.value]
                size += sum(len(message.value or b"") for message in batch)
        return values


def ddl(schema: "pa.Schema") -> str:
    return ", ".join(f"`{field.name.replace('`', '``')}` {_type(field.type)}" for field in schema)


def _type(kind: Any) -> str:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        inner = ", ".join(f"`{field.name.replace('`', '``')}`: {_type(field.type)}" for field in kind)
        return f"STRUCT<{inner}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{_type(kind.value_type)}>"
    tests: Sequence[tuple[Any, str]] = (
        (pa.types.is_boolean, "BOOLEAN"),
        (pa.types.is_integer, "BIGINT"),
        (pa.types.is_floating, "DOUBLE"),
        (pa.types.is_timestamp, "TIMESTAMP"),
    )
    return next((name for test, name in tests if test(kind)), "STRING")
