"""A driver to be killed: one Spark process that brings a topic into another topic and into a table of each kind.

`python spark_mill.py '{...}'`. Every query goes on until somebody kills the process or puts the file `stop` beside it;
one that fails, because the broker or a worker was killed, is begun again from its checkpoint, as an operator would.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.pipeline import register
from penstock.pipeline.jobs import table
from penstock.pipeline.session import spark_session

FORMATS = ("parquet", "delta", "iceberg")
RECORDS_PER_BATCH = 1_500
MAX_FAILURES = 500  # of one query, in one life of the driver
PAUSE_S = 0.5


class Mill:
    def __init__(self, spark: SparkSession, told: dict[str, str]) -> None:
        self._spark = spark
        self._told = told
        self._home = Path(told["home"])
        self._running: dict[str, StreamingQuery] = {}

    @property
    def _stopping(self) -> bool:
        return (self._home / "stop").exists()

    def run(self) -> None:
        works: dict[str, Callable[[], None]] = {"topic": self._fill_topic}
        works |= {name: lambda name=name: self._fill_table(name) for name in FORMATS}
        threads = [threading.Thread(target=self._keep, args=(name, work)) for name, work in works.items()]
        for thread in threads:
            thread.start()
        while not self._stopping:
            time.sleep(PAUSE_S)
        for query in list(self._running.values()):
            query.stop()
        for thread in threads:
            thread.join()

    def _keep(self, name: str, work: Callable[[], None]) -> None:
        for _ in range(MAX_FAILURES):
            try:
                work()
            except Exception as error:  # whatever the death of another process looks like from here
                print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            if self._stopping:
                return
            time.sleep(PAUSE_S)
        print(f"{name}: gave up", flush=True)

    def _fill_topic(self) -> None:
        told = self._told
        register(self._spark)
        source = self._spark.readStream.format("penstock").options(server=told["server"], topics=told["source"])
        source = source.option("startingOffsets", "earliest").option("maxRecordsPerTrigger", RECORDS_PER_BATCH)
        writer = source.load().selectExpr("key", "value").writeStream.format("penstock")
        writer = writer.options(server=told["server"], topic=told["target"], group=told["source"])
        query = writer.option("checkpointLocation", str(self._home / "checkpoint-topic")).start()
        self._running["topic"] = query
        query.awaitTermination()

    def _fill_table(self, name: str) -> None:
        options = table.TableOptions(
            server=self._told["server"],
            topics=[self._told["source"]],
            target=str(self._home / "tables" / "mill" / name),
            checkpoint=str(self._home / f"checkpoint-{name}"),
            format=name,
            schema="id BIGINT",
            trigger="continuous",
            max_records_per_trigger=RECORDS_PER_BATCH,
            compact_every=5,
        )
        table.run(self._spark, options, started=lambda query: self._running.__setitem__(name, query))


def main(told: dict[str, str]) -> None:
    home = Path(told["home"])
    spark = spark_session(
        "penstock-mill",
        "local[2]",
        quick=True,
        class_archive=told.get("class_archive"),
        **{
            "spark.local.dir": str(home / "spark-local"),
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.driver.memory": "1g",
            "spark.log.level": "OFF",
        },
    )
    print("ready", flush=True)
    Mill(spark, told).run()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
