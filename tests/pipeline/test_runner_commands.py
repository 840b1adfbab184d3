"""The built-in pipelines by their commands: options arrive where they should, and results are shown.

The commands run in this process, with the tests' session in place of one of their own.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.pipeline import launch
from penstock.testing import Server

pytestmark = pytest.mark.timeout(500)

Command = Callable[..., str]


@pytest.fixture
def command(spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setattr(launch, "launch", lambda *given, **options: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0, stderr: bool = False) -> str:
        result = CliRunner().invoke(app, ["pipeline", *arguments, "--server", server.line])
        assert result.exit_code == code, result.output
        return result.stderr if stderr else result.stdout

    return run


def published(server: Server, topic: str, count: int) -> None:
    with server.sync_client() as client:
        client.create_topic(topic, 2)
        for number in range(count):
            client.publish(topic, {"id": number, "amount": number / 2}, key=f"k{number % 10}")


def records(server: Server, topic: str) -> list[Any]:
    with server.sync_client() as client:
        partitions = client.topic(topic).partitions
        bounds = client.bounds([(topic, index) for index in range(partitions)])
        with client.subscribe(topic, "log") as subscription:
            taken: list[Any] = []
            while batch := subscription.take(1_000, 1.0):
                taken += batch
                if all(subscription.read_to(index) >= one.end for (_, index), one in bounds.items()):
                    break
    return taken


def test_a_topic_becomes_a_table_that_an_audit_finds_right(
    command: Command, server: Server, topic: str, tmp_path: Path
) -> None:
    published(server, topic, 40)
    lines = [json.loads(line) for line in command("table", topic, "--to", "table", "--json").splitlines()]
    assert (lines[-1]["state"], lines[-1]["rows"]) == ("done", 40)
    assert (tmp_path / ".penstock" / "table-table").is_dir()
    proof = json.loads(command("audit", topic, "--table", "table", "--json"))
    assert proof
    published(server, f"{topic}.other", 39)
    assert "lost" in command("audit", topic, "--mirror", f"{topic}.other", code=1)


def test_a_range_goes_into_another_topic_once(command: Command, server: Server, topic: str) -> None:
    published(server, topic, 30)
    given = ("replay", "--topic", topic, "--into", f"{topic}.again", "--run", topic, "--json")
    first = json.loads(command(*given, "--partition", "0", "--from", "0"))
    assert first["rows"] == len(records(server, f"{topic}.again"))
    assert 0 < first["rows"] < 30
    assert json.loads(command(*given, "--partition", "0", "--from", "0"))["skipped"] is True
    whole = json.loads(command("replay", "--topic", topic, "--into", f"{topic}.again", "--dry-run", "--json"))
    assert (whole["rows"], whole["dry_run"]) == (30, True)


def test_a_statement_by_its_command(command: Command, server: Server, topic: str) -> None:
    published(server, topic, 10)
    statement = "SELECT id, amount * 2 AS twice FROM o WHERE id >= 5"
    command("sql", statement, "--topic", f"o={topic}", "--into", f"{topic}.twice", "--key", "id", "--name", topic)
    found = sorted((message.key, json.loads(message.value)) for message in records(server, f"{topic}.twice"))
    assert found == [(str(n).encode(), {"id": n, "twice": float(n)}) for n in range(5, 10)]


def test_a_topic_is_compacted_and_dead_letters_are_reported(
    command: Command, server: Server, topic: str, tmp_path: Path
) -> None:
    published(server, topic, 30)
    told = json.loads(command("compact", topic, "--yes", "--json"))
    assert (told["records_before"], told["records_after"]) == (30, 10)
    assert sorted(json.loads(message.value)["id"] for message in records(server, topic)) == list(range(20, 30))
    published(server, f"{topic}.dead", 3)
    assert json.loads(command("dead-letters", f"{topic}.dead", "--json", "--html", "page.html"))
    assert "<html" in (tmp_path / "page.html").read_text().lower()
    assert (
        json.loads(command("dead-letters", "--redrive", "--dry-run", "--reason", "nothing like it", "--json"))["count"]
        == 0
    )


def test_a_file_that_fails_is_one_sentence_on_standard_error(command: Command, topic: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "def pipeline(spark, server, checkpoint):\n"
        f"    reader = spark.readStream.format('penstock').option('server', server).option('topics', '{topic}')\n"
        "    return reader.load().writeStream.format('noop').option('checkpointLocation', checkpoint).start()\n"
    )
    error = command("run", "odd.py", code=1, stderr=True)
    assert error.startswith(f"penstock: odd failed: there is no topic '{topic}'")
    assert len(error.splitlines()) == 1
    asked = command("run", "odd.py", "--once", code=1, stderr=True)
    assert "let odd.py have 'def pipeline(spark, trigger)'" in asked
