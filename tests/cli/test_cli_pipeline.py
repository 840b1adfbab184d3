"""`penstock pipeline …` as people meet it, without a Spark that has to start."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_command import run, run_json
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.pipeline_options import home_of, seconds_of, spark_interval
from penstock.pipeline.files import Kind, open_file
from penstock.testing import Server

runner = CliRunner()
PLAIN = "def pipeline(spark):\n    return []\n"


def penstock(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    "command",
    ["run", "new", "list", "status", "stop", "table", "sql", "replay", "dead-letters", "audit", "compact"],
)
def test_every_command_explains_itself(command: str) -> None:
    result = runner.invoke(app, ["pipeline", command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_the_command_line_starts_without_spark() -> None:
    code = (
        "import sys, penstock.cli.main; "
        "print([name for name in ('pyspark', 'pyarrow', 'pandas', 'grpc') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "[]\n"


# -- new ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "more", "kind"),
    [
        ("sales.py", [], Kind.plain),
        ("sales.py", ["--declarative"], Kind.declared),
        ("sales.sql", [], Kind.declared),
        ("deep/er/spark-pipeline.yml", [], Kind.declared),
    ],
)
def test_new_writes_a_pipeline_of_the_kind_its_name_says(
    tmp_path: Path, name: str, more: list[str], kind: Kind
) -> None:
    path = tmp_path / name
    result = runner.invoke(app, ["pipeline", "new", str(path), "--topic", "eu.orders", *more])
    assert result.exit_code == 0
    assert f"penstock pipeline run {path}" in result.stdout.replace("\n", "")
    assert open_file(str(path)).kind is kind
    text = path.read_text()
    assert not {word for word in ("@TOPIC@", "@FILE@", "@NAME@", "@STORAGE@", "@EXAMPLES@") if word in text}
    if path.suffix == ".py":
        ast.parse(text)
        assert "eu.orders" in text


def test_new_does_not_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("mine")
    result = penstock("new", str(path))
    assert (result.returncode, result.stdout) == (1, "")
    assert "is there already; add --force" in result.stderr
    assert path.read_text() == "mine"
    assert penstock("new", str(path), "--force").returncode == 0
    assert path.read_text() != "mine"
    assert "ends in .py, .sql, .yml" in penstock("new", str(tmp_path / "mine.txt")).stderr


# -- list, status, stop -------------------------------------------------------------------------------------


def test_pipelines_are_listed_shown_and_asked_to_stop(server: Server, topic: str) -> None:
    with server.sync_client() as client:
        report = {"rows": 1234, "rows_per_s": 56.7, "lag": 8, "batch": 3, "pid": 12345, "host": "here", "file": "a.py"}
        assert client.pipelines.report(topic, "run-1", "running", report) is False
        assert topic in run(server, "pipeline", "list")
        assert [one["report"] for one in run_json(server, "pipeline", "list") if one["pipeline"] == topic] == [report]
        shown = run(server, "pipeline", "status", topic)
        assert "1,234" in shown
        assert "12345" in shown
        assert run(server, "pipeline", "stop", topic, "--no-wait") == f"asked {topic} to stop\n"
        assert client.pipelines.report(topic, "run-1", "stopping", report) is True
        client.pipelines.report(topic, "run-1", "stopped", report)
        assert "does not run" in run(server, "pipeline", "stop", topic, code=1)
        client.pipelines.report(topic, "run-2", "failed", {"message": "no such column"})
    assert penstock("status", topic, "--server", server.line).returncode == 1


def test_a_pipeline_that_nobody_has_heard_of_is_an_error(server: Server) -> None:
    assert "nothing was heard of a pipeline 'nobody'" in run(server, "pipeline", "status", "nobody", code=1)
    assert "nothing was heard of a pipeline 'nobody'" in run(server, "pipeline", "stop", "nobody", code=1)


def test_an_idle_broker_says_how_to_begin(fresh_server: Server) -> None:
    assert "penstock pipeline run FILE" in run(fresh_server, "pipeline", "list")
    assert run_json(fresh_server, "pipeline", "list") == []


# -- what is wrong is told before Spark starts --------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "sales.py"
    path.write_text(PLAIN)
    return str(path)


def test_a_missing_java_is_one_sentence_that_says_what_to_do(server: Server, file: str) -> None:
    result = penstock("run", file, PENSTOCK_SERVER=server.line, JAVA_HOME="/nowhere")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "JAVA_HOME is /nowhere" in result.stderr
    assert "install" in result.stderr
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert told[-1]["state"] == "failed"


def test_a_missing_pyspark_is_one_sentence_that_says_what_to_do(server: Server, file: str, tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ImportError('no')\n")
    result = penstock("run", file, PENSTOCK_SERVER=server.line, PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "pip install 'penstock[spark]'" in result.stderr


def test_a_server_that_is_not_there_is_told_at_once(file: str) -> None:
    result = penstock("run", file, PENSTOCK_SERVER="127.0.0.1:1")
    assert (result.returncode, result.stdout) == (1, "")
    assert "cannot reach 127.0.0.1:1" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_connect_server_that_is_not_there_is_told_at_once(server: Server, file: str) -> None:
    result = penstock("run", file, "--master", "sc://127.0.0.1:1", PENSTOCK_SERVER=server.line)
    assert result.returncode == 1
    assert "cannot reach a Spark Connect server at 127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "FILE", "--once", "--trigger", "1s"], "leave out --once or --trigger"),
        (["run", "FILE", "--trigger", "soon"], "is not an interval such as"),
        (["run", "FILE", "--full-refresh"], "only declarative pipelines are refreshed"),
        (["run", "FILE", "--conf", "shuffle=2"], "settings of Spark begin with"),
        (["run", "FILE", "--conf", "spark.x"], "is not of the form"),
        (["sql", "SELECT 1"], "with either --into or --into-table"),
        (["sql", "@nowhere.sql", "--into", "t"], "No such file"),
        (["replay", "--into", "t"], "with either --topic or --table"),
        (["replay", "--into", "t", "--table", "d", "--from", "5"], "are for a topic"),
        (["audit", "t"], "with either --table or --mirror"),
        (["dead-letters", "--limit", "3"], "are for --redrive"),
        (["dead-letters", "--since", "17"], "is not a time such as"),
    ],
)
def test_wrong_usage_is_told_in_the_option_s_own_words(
    server: Server, file: str, arguments: list[str], said: str
) -> None:
    given = ["pipeline", *[argument.replace("FILE", file) for argument in arguments], "--server", server.line]
    result = runner.invoke(app, given, env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10 seconds", 10), ("5m", 300), ("500 ms", 0.5), ("3", 3), ("2 hours", 7200), ("1 minute", 60), ("1.5s", 1.5)],
)
def test_intervals_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert spark_interval(text) == f"{round(seconds * 1000)} milliseconds"


def test_a_pipeline_s_home_lies_beside_its_file(tmp_path: Path) -> None:
    assert home_of("sales", None, tmp_path) == tmp_path / ".penstock" / "sales"
    assert home_of("sales", str(tmp_path / "here")) == tmp_path / "here"
