"""Writes the archive of Java classes that makes the tests' Spark session start sooner: `archive_classes.py FILE`.

Java checks the archive against its own version and the jars each time it starts, and does without it where they differ.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

from penstock.pipeline.session import QUICK_JAVA, spark_session


def main(target: Path) -> None:
    fresh = target.with_suffix(".new")
    with tempfile.TemporaryDirectory() as home:
        java = [*QUICK_JAVA, f"-XX:ArchiveClassesAtExit={fresh.resolve()}"]
        spark = spark_session(
            "classes",
            "local[2]",
            **{
                "spark.driver.extraJavaOptions": " ".join(java),
                "spark.local.dir": home,
                "spark.sql.warehouse.dir": f"{home}/warehouse",
                "spark.log.level": "ERROR",
            },
        )
        process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        spark.range(1000).selectExpr("id % 7 k", "id").groupBy("k").count().orderBy("k").write.parquet(f"{home}/rows")
        spark.read.parquet(f"{home}/rows").collect()
        stream = spark.readStream.format("rate").load().writeStream.format("noop")
        query = stream.option("checkpointLocation", f"{home}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination(60)
        spark.stop()
        os.kill(process.pid, signal.SIGTERM)  # it writes the archive as it ends
        process.wait(120)
    if fresh.exists():
        fresh.replace(target)
    else:
        print("Java wrote no archive of its classes; tests go on without", file=sys.stderr)
        target.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
