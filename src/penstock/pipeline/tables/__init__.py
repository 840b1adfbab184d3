"""Tables that batches of rows are added to exactly once."""

from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.tables.table import Compacted, DataFile, Mark, Table

__all__ = ["FORMATS", "Compacted", "DataFile", "Mark", "Table", "open_table"]

FORMATS = ("parquet", "delta", "iceberg")


def open_table(format: str, location: str, *, catalog: str | None = None) -> Table:  # noqa: A002
    """The table at this place, which need not be there yet. Each format's library is asked for when it is needed."""
    if format == "parquet":
        from penstock.pipeline.tables.parquet import ParquetTable

        return ParquetTable(location)
    if format == "delta":
        from penstock.pipeline.tables.delta import DeltaLakeTable

        return DeltaLakeTable(location)
    if format == "iceberg":
        from penstock.pipeline.tables.iceberg import IcebergTable

        return IcebergTable(location, catalog)
    raise InvalidOption(f"no table format {format!r}; there are {', '.join(FORMATS)}")
