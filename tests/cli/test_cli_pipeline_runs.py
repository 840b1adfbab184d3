"""Whole runs as a person starts them: a process with a Spark of its own. Few, for each takes its time to start."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pytest
from cli_command import run, run_json, texts

from penstock.testing import Server

WITHIN_S = 240.0

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]


@contextmanager
def pipeline(server: Server, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "pipeline", *arguments, "--master", "local[2]", "--quick"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_SERVER": server.line},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def finished(server: Server, *arguments: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """The lines that a run wrote, and what it said on standard error."""
    with pipeline(server, *arguments) as process:
        out, error = process.communicate(timeout=WITHIN_S)
    assert process.returncode == code, (out, error)
    assert "Traceback" not in error
    return [json.loads(line) for line in out.splitlines()], error


def eventually(check: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WITHIN_S
    while not (found := check()):
        assert time.monotonic() < deadline, f"{what} did not happen within {WITHIN_S} s"
        time.sleep(0.1)
    return found


def test_the_starter_runs_as_it_is_until_it_is_told_to_stop(server: Server, topic: str, tmp_path: Path) -> None:
    file = str(tmp_path / "sales.py")
    run(server, "pipeline", "new", file, "--topic", topic)
    with pipeline(server, "run", file, "--name", topic, "--trigger", "1s") as process:

        def rows() -> int:
            assert process.poll() is None, process.communicate()
            mine = [one for one in run_json(server, "pipeline", "list") if one["pipeline"] == topic]
            return int(mine[0]["report"].get("rows") or 0) if mine else 0

        eventually(lambda: rows() >= 2_000, "both queries reading 1,000 rows")
        assert run(server, "pipeline", "stop", topic, "--no-wait") == f"asked {topic} to stop\n"
        out, error = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, error) == (0, "")
    last = json.loads(out.splitlines()[-1])
    assert (last["state"], last["rows"]) == ("stopped", 2_000)
    orders = [json.loads(text) for text in texts(server, topic)]
    large = [json.loads(text) for text in texts(server, f"{topic}.large")]
    assert sorted(one["order_id"] for one in large) == [one["order_id"] for one in orders if one["amount"] >= 150]
    totals = {one["country"]: one for one in map(json.loads, texts(server, f"{topic}.revenue"))}
    assert sum(one["orders"] for one in totals.values()) == 1_000
    assert sum(one["revenue"] for one in totals.values()) == sum(one["amount"] for one in orders)
    assert run_json(server, "group", "describe", "sales")["group"] == "sales"


def test_a_declarative_pipeline_of_several_files_goes_on_where_it_ended(
    server: Server, topic: str, tmp_path: Path
) -> None:
    run(server, "pipeline", "new", str(tmp_path / "spark-pipeline.yml"))
    python, statements = tmp_path / "transformations" / "orders.py", tmp_path / "transformations" / "sales.sql"
    run(server, "pipeline", "new", str(python), "--declarative", "--topic", topic)
    run(server, "pipeline", "new", str(statements), "--topic", f"{topic}.sql")
    # Each runs as it is; together they must not have two things of one name.
    statements.write_text(
        statements.read_text().replace("VIEW revenue", "VIEW takings").replace("VIEW large", "VIEW big")
    )
    statements.write_text(statements.read_text().replace(".large from large", ".large from big"))
    with server.sync_client() as client:
        orders = [{"order_id": number, "country": "NL", "amount": float(number)} for number in range(200)]
        client.publish_many(f"{topic}.sql", orders)
        lines, _ = finished(server, "run", str(tmp_path), "--name", topic)
        assert lines[-1]["state"] == "done"
        assert {line.get("query") for line in lines} >= {"orders", "revenue", "all_orders", "takings", "big_to_topic"}
        client.publish(f"{topic}.sql", {"order_id": 200, "country": "NL", "amount": 200.0})
    finished(server, "run", str(tmp_path), "--name", topic)
    large = [json.loads(text)["order_id"] for text in texts(server, f"{topic}.sql.large")]
    assert sorted(large) == list(range(150, 201))
    warehouse = tmp_path / ".penstock" / topic / "warehouse"
    takings = dataset.dataset(sorted(map(str, (warehouse / "takings").glob("*.parquet")))).to_table().to_pylist()
    assert takings == [{"country": "NL", "revenue": float(sum(range(201))), "orders": 201}]
    amounts = [json.loads(text)["amount"] for text in texts(server, topic)]
    found = [json.loads(text)["amount"] for text in texts(server, f"{topic}.large")]
    assert sorted(found) == sorted(amount for amount in amounts if amount >= 150)
    assert [one["state"] for one in run_json(server, "pipeline", "list") if one["pipeline"] == topic] == ["stopped"]


def test_ctrl_c_ends_a_run_well(server: Server, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "calm.py"
    file.write_text(
        "def pipeline(spark):\n"
        "    return spark.readStream.format('rate').load().writeStream.queryName('q').format('noop').start()\n"
    )
    with pipeline(server, "run", str(file), "--name", topic) as process:

        def runs() -> bool:
            assert process.poll() is None, process.communicate()
            mine = [one for one in run_json(server, "pipeline", "list") if one["pipeline"] == topic]
            return bool(mine and mine[0]["report"].get("queries"))

        eventually(runs, "a query that runs")
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, error) == (0, "")
    assert json.loads(out.splitlines()[-1])["state"] == "stopped"
