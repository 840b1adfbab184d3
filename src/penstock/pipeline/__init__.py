"""Spark: topics as sources, sinks and tables. Nothing outside this room and the command line knows Spark.

`session` makes a Spark session that suits, `source` is the data source, and `register` makes it known to a session by
hand; a session that runs where this package is installed finds it by itself.
"""

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

_registering = Lock()


def register(spark: "SparkSession") -> None:
    """Let this session know the format `penstock`."""
    from penstock.pipeline.source import PenstockDataSource

    register_source(spark, PenstockDataSource)


def register_source(spark: "SparkSession", source: "type[DataSource]") -> None:
    """From any thread, and again and again: Spark itself stumbles over two at once."""
    with _registering:
        spark.dataSource.register(source)
    activate(spark)


def activate(spark: "SparkSession") -> None:
    """Where Spark starts a query it looks for sources written in Python in the calling thread's session; a thread that
    did not make one has none."""
    if hasattr(spark, "_jsparkSession"):  # a session of Connect has no threads in Java to be known to
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
