"""Tables as Spark frames without any jar: the table's own library tells which files it has, Spark reads them.

The files are those of one version, known before anything is read, so what is written meanwhile is not seen by halves.
"""

from typing import TYPE_CHECKING, Any, Final

from penstock.pipeline.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("parquet", "delta", "iceberg")

# Columns of records, by the names that tables have for them: the table job's, and those of a topic written as it is.
NAMES: Final = {
    "topic": ("_topic", "topic"),
    "partition": ("_partition", "partition"),
    "offset": ("_offset", "offset"),
    "timestamp": ("_timestamp", "timestamp"),
    "key": ("_key", "key"),
    "value": ("_value", "value"),
    "headers": ("_headers", "headers"),
}
HEADERS: Final = "array<struct<key: string, value: binary>>"


def read_table(spark: "SparkSession", path: str, kind: str, catalog: str | None = None) -> "DataFrame":
    if kind not in FORMATS:
        raise InvalidOption(f"the table's format is {kind!r}; it must be {', '.join(FORMATS)}")
    if kind == "parquet":
        return _loaded(lambda: spark.read.option("mergeSchema", "true").parquet(path), path)
    files = _delta_files(path) if kind == "delta" else _iceberg_files(path, catalog)
    if not files:
        raise InvalidOption(f"the table {path} has no rows yet")
    reader = spark.read.option("mergeSchema", "true")
    if kind == "delta":
        reader = reader.option("basePath", path)
    return _loaded(lambda: reader.parquet(*files), path)


def _loaded(load: Any, path: str) -> "DataFrame":
    from pyspark.errors import AnalysisException

    try:
        frame: DataFrame = load()
    except AnalysisException as error:
        raise InvalidOption(f"{path} cannot be read as a table: {error.getCondition() or error}") from None
    return frame


def _delta_files(path: str) -> list[str]:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        raise InvalidOption(f"there is no Delta table at {path}") from None
    features = set(table.protocol().reader_features or ())
    unreadable = features & {"deletionVectors", "columnMapping"}
    if unreadable:
        raise InvalidOption(f"the Delta table {path} uses {', '.join(sorted(unreadable))}, which cannot be read here")
    return list(table.file_uris())


def _iceberg_files(path: str, catalog: str | None) -> list[str]:
    from penstock.pipeline.tables.iceberg import IcebergTable

    with IcebergTable(path, catalog)._catalog() as opened:
        table = IcebergTable(path, catalog)._load(opened)
        tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise InvalidOption(f"the Iceberg table {path} has delete files, which cannot be read here")
    return [task.file.file_path for task in tasks]


def column_of(frame: "DataFrame", name: str) -> str | None:
    """What this table calls this column of a record; None if it has none."""
    return next((known for known in NAMES[name] if known in frame.columns), None)


def as_records(frame: "DataFrame") -> "DataFrame":
    """The table's rows as records: key, value, headers and timestamp, and topic, partition and offset where it keeps
    them. Without a column for the value, the value is a JSON object of the table's own columns."""
    from pyspark.sql import functions as f

    names = {name: column_of(frame, name) for name in NAMES}
    own = [name for name in frame.columns if name not in names.values()]
    columns = {
        "key": f.col(names["key"]).cast("binary") if names["key"] else f.lit(None).cast("binary"),
        "headers": f.col(names["headers"]).cast(HEADERS) if names["headers"] else f.lit(None).cast(HEADERS),
        "timestamp": f.col(names["timestamp"]).cast("timestamp")
        if names["timestamp"]
        else f.lit(None).cast("timestamp"),
    }
    if names["value"]:
        columns["value"] = f.col(names["value"]).cast("binary")
    elif own:
        columns["value"] = f.to_json(f.struct(*(f.col(f"`{name}`") for name in own))).cast("binary")
    else:
        raise InvalidOption("the table has no column that could be a record's value")
    if names["partition"] and names["offset"]:
        columns["topic"] = f.col(names["topic"]) if names["topic"] else f.lit("")
        columns["partition"] = f.col(names["partition"]).cast("int")
        columns["offset"] = f.col(names["offset"]).cast("bigint")
    return frame.select(*(column.alias(name) for name, column in columns.items()))
