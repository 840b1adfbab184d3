"""Drivers that are killed with -9, and tasks that fail and are tried again: each row is there once."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sink_driver import run
from sink_stories import is_stable, records_in, values_in
from source_topics import create, numbered, publish

from penstock.pipeline import table_sink
from penstock.pipeline.tables import open_table
from penstock.testing.server import Server
from thorough import THOROUGH

CLASS_ARCHIVE = Path(__file__).parents[2] / ".make" / "spark-classes.jsa"
DRIVER = Path(__file__).with_name("sink_driver.py")
DRIVER_TIMEOUT_S = 240

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]


def drive(home: Path, **told: str) -> "subprocess.CompletedProcess[str]":
    told = {"home": str(home), **told}
    if CLASS_ARCHIVE.exists():
        told["class_archive"] = str(CLASS_ARCHIVE)
    said = home / "driver.log"  # not a pipe: Spark's workers outlive their driver for a moment, and would hold it open
    with said.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(told)], stdout=log, stderr=log, start_new_session=True
        )
    try:
        process.wait(DRIVER_TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):  # its Java goes with it, if it is still there
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return subprocess.CompletedProcess(process.args, process.returncode, said.read_text(errors="replace")[-5_000:])


@pytest.fixture
def source(topic: str, server: Server) -> str:
    create(server, topic, 2)
    publish(server, topic, numbered(150), 0)
    publish(server, topic, numbered(150, 150), 1)
    return topic


VALUES = sorted(f"v{n}" for n in range(300))


@pytest.mark.parametrize("point", ["before", "after"])
def test_killed_driver_is_started_again(
    spark: SparkSession, server: Server, source: str, tmp_path: Path, point: str
) -> None:
    target = f"{source}-out"
    create(server, target, 2)
    (tmp_path / "flag").touch()
    told = {"server": server.line, "source": source, "target": target, "fault": point}
    killed = drive(tmp_path, **told)
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    assert len(records_in(server, target)) == (0 if point == "before" else 100)
    (tmp_path / "flag").unlink()
    run(spark, {"home": str(tmp_path), **told}, {})
    assert values_in(server, target) == VALUES
    assert all(is_stable(server, target, partition) for partition in (0, 1))


# In the other formats the same is tried within one process, by test_table_job.py and test_table_formats.py.
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"] if THOROUGH else ["parquet"])
def test_driver_killed_between_table_and_topic_is_started_again(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    create(server, topic, 2)
    for partition in (0, 1):
        documents = [{"id": n, "name": f"n{n}"} for n in range(partition * 150, partition * 150 + 150)]
        values = [json.dumps(one).encode() for one in documents]
        records = [
            type(one)(one.offset, one.timestamp_ms, one.key, value)
            for one, value in zip(numbered(151), [b"bad", *values], strict=True)
        ]
        publish(server, topic, records, partition)
    target = str(tmp_path / "lake" / "ns" / "t")
    (tmp_path / "flag").touch()
    told = {"server": server.line, "source": topic, "target": target, "format": kind, "fault": "between"}
    killed = drive(tmp_path, **told)
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    (tmp_path / "flag").unlink()
    monkeypatch.setattr(table_sink, "TableDataSource", table_sink.TableDataSource)  # put back what `run` changes
    run(spark, {"home": str(tmp_path), **told}, {})
    found = open_table(kind, target).read(["id"]).column("id").to_pylist()
    assert sorted(found) == list(range(300))
    assert len(records_in(server, f"{topic}.quarantine")) == 2


def test_tasks_that_fail_are_tried_again_and_count_once(server: Server, source: str, tmp_path: Path) -> None:
    target = f"{source}-out"
    create(server, target, 2)
    marks = tmp_path / "marks"
    marks.mkdir()
    told = {"server": server.line, "source": source, "target": target, "master": "local[2,4]", "stumble": str(marks)}
    done = drive(tmp_path, **told)
    assert done.returncode == 0, done.stdout
    assert len(list(marks.iterdir())) >= 6, "attempts have failed after they had written"
    assert values_in(server, target) == VALUES
    assert all(is_stable(server, target, partition) for partition in (0, 1))
