"""One Spark session for all tests of a process, ended with it.

A session is a Java process of a gigabyte that takes seconds to start. `tests/conftest.py` sees to it that of several
test processes only one runs the tests of this folder.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.session import spark_session

HERE = Path(__file__).parent
CLASS_ARCHIVE = HERE.parents[1] / ".make" / "spark-classes.jsa"
CONNECTOR_JARS = HERE.parents[1] / ".make" / "jars-spark-kafka"  # Spark's own Kafka connector
STOP_WITHIN_S = 30.0


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    home = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "penstock-tests",
        "local[2]",
        quick=True,
        class_archive=CLASS_ARCHIVE if CLASS_ARCHIVE.exists() and CLASS_ARCHIVE.stat().st_size else None,
        **{
            "spark.local.dir": str(home / "local"),
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.driver.memory": "1g",
            "spark.jars": ",".join(str(jar) for jar in sorted(CONNECTOR_JARS.glob("*.jar"))),
            "spark.log.level": "ERROR",  # a failed task is a test's business, and told there
        },
    )
    gateway = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    try:
        yield session
    finally:
        for query in session.streams.active:
            query.stop()
        session.stop()
        _end(gateway.pid)


def _end(pid: int) -> None:
    """The Java process would end with this one; a test run that goes on wants its memory back now."""
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_WITHIN_S
    while time.monotonic() < deadline:
        done, _ = os.waitpid(pid, os.WNOHANG)
        if done:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
