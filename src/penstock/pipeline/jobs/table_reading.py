"""Tables as Spark frames without any jar: the table's own library tells which files it has, Spark reads them.

The files are those of one version, known before anything is read, so what is written meanwhile is not seen by halves.
"""

from typing import TYPE_CHECKING, Any, Final

from penstock.pipeline.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("parquet", "delta", "iceberg")

RECORD: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_PLACES: Final = ("topic", "partition", "offset", "timestamp")
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

    tasks = IcebergTable(path, catalog).files()
    if any(task.delete_files for task in tasks):
        raise InvalidOption(f"the Iceberg table {path} has delete files, which cannot be read here")
    return [task.file.file_path for task in tasks]


def record_columns(frame: "DataFrame") -> dict[str, str]:
    """What this table calls the columns of a record, as far as it has them.

    values in columns of their own, by the table job    _topic, _partition, _offset, _timestamp, _key
    values as they are, by the table job                the same with an underscore but for key, value and headers
    a topic written as it is read                       the names that the source has; the value is binary
    any other table                                     none: all columns are the value's
    """
    have = dict(frame.dtypes)
    if "_key" in have:
        names = {name: f"_{name}" for name in (*_PLACES, "key")}
    elif "_offset" in have:
        names = {name: f"_{name}" for name in _PLACES} | {name: name for name in ("key", "value", "headers")}
    elif have.get("value") == "binary":
        names = {name: name for name in RECORD}
    else:
        names = {}
    return {name: column for name, column in names.items() if column in have}


def as_records(frame: "DataFrame") -> "DataFrame":
    """The table's rows as records: key, value, headers and timestamp, and topic, partition and offset where it keeps
    them. Without a column for the value, the value is a JSON object of the table's own columns."""
    from pyspark.sql import functions as f

    names = record_columns(frame)
    own = [name for name in frame.columns if name not in names.values()]
    columns = {
        "key": f.col(names["key"]).cast("binary") if "key" in names else f.lit(None).cast("binary"),
        "headers": f.col(names["headers"]).cast(HEADERS) if "headers" in names else f.lit(None).cast(HEADERS),
        "timestamp": f.col(names["timestamp"]).cast("timestamp")
        if "timestamp" in names
        else f.lit(None).cast("timestamp"),
    }
    if "value" in names:
        columns["value"] = f.col(names["value"]).cast("binary")
    elif own:
        columns["value"] = f.to_json(f.struct(*(f.col(f"`{name}`") for name in own))).cast("binary")
    else:
        raise InvalidOption("the table has no column that could be a record's value")
    if "partition" in names and "offset" in names:
        columns["topic"] = f.col(names["topic"]) if "topic" in names else f.lit("")
        columns["partition"] = f.col(names["partition"]).cast("int")
        columns["offset"] = f.col(names["offset"]).cast("bigint")
    return frame.select(*(column.alias(name) for name, column in columns.items()))
