"""A driver in a process of its own, for tests that kill it or want another master: `python sink_driver.py '{...}'`.

It leads a group of its own: whoever kills that group kills the script and its Java, as kill -9 of a driver does.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from pyspark.sql import SparkSession
from sink_stories import FaultySource, FaultyTableSource

from penstock.pipeline import table_sink
from penstock.pipeline.jobs import table
from penstock.pipeline.session import spark_session


def main(told: dict[str, str]) -> None:
    home = Path(told["home"])
    spark = spark_session(
        "penstock-tests",
        told.get("master", "local[2]"),
        quick=True,
        class_archive=told.get("class_archive"),
        **{
            "spark.local.dir": str(home / "spark-local"),
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.driver.memory": "1g",
            "spark.log.level": "ERROR",
        },
    )
    run(spark, told, {"fault": told.get("fault", ""), "flag": str(home / "flag"), "kill": str(os.getpgrp())})
    print("done", flush=True)
    spark.stop()


def run(spark: SparkSession, told: dict[str, str], fault: dict[str, str]) -> None:
    """Bring what is in the source to the target: a topic, or a table if a format is told."""
    checkpoint = str(Path(told["home"]) / "checkpoint")
    if "format" in told:
        FaultyTableSource.fault = fault
        table_sink.TableDataSource = FaultyTableSource  # type: ignore[misc]
        options = table.TableOptions(
            server=told["server"],
            topics=[told["source"]],
            target=told["target"],
            checkpoint=checkpoint,
            format=told["format"],
            schema="id BIGINT, name STRING",
            max_records_per_trigger=100,
        )
        table.run(spark, options)
        return
    spark.dataSource.register(FaultySource)
    records = spark.readStream.format("penstock").options(server=told["server"], topics=told["source"])
    frame = records.option("startingOffsets", "earliest").option("maxRecordsPerTrigger", 100).load()
    if "stumble" in told:
        frame = frame.selectExpr("key", "value").mapInPandas(_stumbling(told["stumble"]), "key binary, value binary")
    writer = frame.selectExpr("key", "value").writeStream.format("penstock_faulty").options(**fault)
    writer = writer.options(server=told["server"], topic=told["target"]).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def _stumbling(marks: str):  # type: ignore[no-untyped-def]
    """Every task fails in its first two attempts, each after it has handed over some rows."""

    def stumble(frames):  # type: ignore[no-untyped-def]
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for frame in frames:
            yield frame.head(len(frame) // 2)
            Path(marks, f"{context.taskAttemptId()}").touch()
            if context.attemptNumber() < 2:
                raise RuntimeError("this attempt stumbles")
            yield frame.tail(len(frame) - len(frame) // 2)

    return stumble


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
