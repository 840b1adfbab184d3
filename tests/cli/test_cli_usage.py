"""What the command line says to people who hold it wrong, or only ask."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app
from penstock.config import markdown, table
from penstock.testing import Server

runner = CliRunner()


def penstock_process(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")} | environment,
    )


def test_help_lists_everything() -> None:
    result = penstock_process("--help")
    assert result.returncode == 0
    for command in ("serve", "settings", "publish", "subscribe", "topic", "group", "queue", "router"):
        assert command in result.stdout
    assert "produce" not in result.stdout


@pytest.mark.parametrize(("old", "new"), [("produce", "publish"), ("consume", "subscribe")])
def test_the_old_names_tell_the_new_ones(old: str, new: str) -> None:
    for arguments in ([], ["t", "--value", "x", "-e"], ["--help"]):
        result = penstock_process(old, *arguments)
        said = f"penstock: 'penstock {old}' is now 'penstock {new}'; see its --help\n"
        assert (result.returncode, result.stdout, result.stderr) == (2, "", said)


def test_the_version_tells_whether_it_is_compiled() -> None:
    kind = "compiled" if penstock.compiled() else "pure Python"
    python = sys.version.split()[0]
    result = runner.invoke(app, ["--version"])
    assert result.stdout == f"penstock {penstock.__version__} ({kind}, Python {python})\n"


@pytest.mark.parametrize(
    "path",
    [
        ["serve"],
        ["settings"],
        ["publish"],
        ["subscribe"],
        *(["topic", verb] for verb in ("create", "list", "describe", "alter", "delete")),
        *(["group", verb] for verb in ("list", "describe", "reset", "delete")),
        *(
            ["queue", verb]
            for verb in ("list", "show", "create", "alter", "peek", "pause", "resume", "purge", "redrive", "delete")
        ),
        *(["router", verb] for verb in ("list", "create", "bind", "unbind", "delete")),
    ],
    ids=" ".join,
)
def test_every_command_has_help(path: list[str]) -> None:
    result = runner.invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


def test_the_help_of_serve_shows_every_setting() -> None:
    shown = penstock_process("serve", "--help", COLUMNS="200").stdout
    for setting in table().values():
        assert setting.flag in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frobnicate"], ["frobnicate"]),
        (["topic", "create"], ["TOPIC"]),
        (["topic", "create", "a", "-p", "0"], ["--partitions"]),
        (["topic", "create", "a", "--set", "retention"], ["--set", "NAME=VALUE"]),
        (["topic", "alter", "a"], ["say what to change"]),
        (["publish", "a", "x", "--file", "y"], ["choose one of VALUE and --file"]),
        (["publish", "a", "--key", "x", "--key-separator", ":"], ["choose one of --key and --key-separator"]),
        (["publish", "a", "--key-separator", ""], ["it is empty"]),
        (["publish", "a", "--header", "x"], ["NAME=VALUE"]),
        (["publish", "a", "-z", "rar"], ["zstd"]),
        (["publish", "a", "x", "--priority", "10"], ["--priority"]),
        (["subscribe"], ["TOPIC"]),
        (["subscribe", "a", "--json", "--raw"], ["choose one of --json and --raw"]),
        (["subscribe", "a", "--from", "soon"], ["'soon' is not a position"]),
        (["subscribe", "a", "--view", "queue", "--from", "end"], ["are for a log"]),
        (["subscribe", "a", "--view", "pubsub", "--exit-at-end"], ["has no end"]),
        (["queue", "alter", "a"], ["say what to change"]),
        (["queue", "create", "/mail"], ["names no topic"]),
        (["router", "create", "a", "--kind", "random"], ["fanout"]),
        (["topic", "list", "--server", "a:b"], ["server 'a:b' is not allowed", "host:port"]),
        (["group", "reset", "g"], ["either --to or --shift"]),
        (["group", "reset", "g", "--to", "1", "--shift", "1"], ["either --to or --shift"]),
        (["group", "reset", "g", "--to", "soon"], ["'soon' is not a position"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_wrong_command_line_ends_with_2_and_says_why(arguments: list[str], words: list[str]) -> None:
    result = runner.invoke(app, arguments, terminal_width=200)
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "create", "a"],
        ["topic", "describe", "a"],
        ["topic", "alter", "a", "--partitions", "2"],
        ["topic", "delete", "a", "--yes"],
        ["publish", "a", "x"],
        ["subscribe", "a"],
        ["subscribe", "a", "--group", "g"],
        ["group", "list"],
        ["group", "describe", "g"],
        ["group", "reset", "g", "--to", "end", "--yes"],
        ["group", "delete", "g", "--yes"],
        ["queue", "list"],
        ["router", "list"],
    ],
    ids=" ".join,
)
def test_without_a_server_every_command_says_so_in_one_line(arguments: list[str]) -> None:
    result = runner.invoke(app, [*arguments, "--server", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        "penstock: cannot reach 127.0.0.1:1: connection refused; is the server running ('penstock serve'), "
        "and is this its line door's address?\n"
    )


def test_the_server_may_be_named_by_the_environment() -> None:
    result = runner.invoke(app, ["topic", "list"], env={"PENSTOCK_SERVER": "127.0.0.1:2"})
    assert "cannot reach 127.0.0.1:2" in result.stderr


def test_the_wrong_door_is_told(server: Server) -> None:
    for door, word in ((server.kafka, "Kafka"), (server.http.removeprefix("http://"), "HTTP")):
        result = runner.invoke(app, ["topic", "list", "--server", door])
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"penstock: {door} ")
        assert word in result.stderr
        assert "line door's, which has port 7070 unless told otherwise" in result.stderr
        assert result.stderr.count("\n") == 1


# -- serve and settings -------------------------------------------------------------------------------------


def test_serve_refuses_an_unknown_flag_with_2_and_a_bad_value_with_1() -> None:
    result = penstock_process("serve", "--kafak", "off")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "penstock serve: unknown option --kafak: did you mean '--kafka'?; see 'penstock serve --help'\n"
    )
    result = penstock_process("serve", "--kafka", "here")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("penstock: kafka = 'here' (flag --kafka) is not allowed: allowed is host:port")
    assert "Traceback" not in result.stderr and result.stderr.count("\n") == 1


def test_serve_refuses_a_bad_file_with_1(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("kafka = 'off'\nnode = 1\n")
    result = penstock_process("serve", "--config", str(file))
    assert result.returncode == 1
    assert result.stderr == f"penstock: unknown setting 'node' (in {file}:2): did you mean 'node_id'?\n"


def test_serve_refuses_a_topic_default_that_the_log_does_not_know() -> None:
    result = penstock_process("serve", PENSTOCK_TOPIC_DEFAULTS="retention.sm=5")
    assert result.returncode == 1
    assert "topic_defaults: retention.sm = '5' (environment variable PENSTOCK_TOPIC_DEFAULTS)" in result.stderr


def test_settings_shows_values_and_who_set_them(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("node_id = 3\n")
    environment = {"PENSTOCK_KAFKA": "off", "PENSTOCK_NODE": "1"}
    result = runner.invoke(app, ["settings", "--json", "--config", str(file)], env=environment)
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert (rows["node_id"]["value"], rows["node_id"]["set_by"]) == ("3", f"{file}:1")
    assert (rows["kafka"]["value"], rows["kafka"]["set_by"]) == ("", "environment variable PENSTOCK_KAFKA")
    assert (rows["max_topics"]["value"], rows["max_topics"]["set_by"]) == ("20000", None)
    assert "PENSTOCK_NODE is ignored" in result.stderr
    assert "environment variable PENSTOCK_KAFKA" in runner.invoke(app, ["settings"], env=environment).stdout


def test_settings_prints_the_reference_page_or_refuses_a_bad_file(tmp_path: Path) -> None:
    assert runner.invoke(app, ["settings", "--markdown"]).stdout == markdown()
    result = runner.invoke(app, ["settings", "--config", str(tmp_path / "nope.toml")])
    assert result.exit_code == 1
    assert "cannot read the configuration file" in result.stderr
