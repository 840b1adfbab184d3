"""Spark: topics as sources, sinks and tables. Nothing outside this room and the command line knows Spark.

`session` makes a Spark session that suits, `source` is the data source, and `register` makes it known to a session by
hand; a session that runs where this package is installed finds it by itself.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Let this session know the format `penstock`."""
    from penstock.pipeline.source import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)
