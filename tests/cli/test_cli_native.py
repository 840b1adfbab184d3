"""The commands that use the Python client, against a real server process: publish, subscribe, queue, router."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.testing import Server

TIMEOUT_S = 30

runner = CliRunner()


def start(server: Server, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_NATIVE": server.line},
    )


def run(server: Server, *arguments: str, given: str = "", code: int = 0) -> str:
    """Standard output of a command that ends with this exit code; standard error instead when that is not 0."""
    process = start(server, *arguments)
    try:
        out, error = process.communicate(given, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == code, (out, error)
    assert "Traceback" not in error
    return error if code else out


def run_json(server: Server, *arguments: str) -> Any:
    return json.loads(run(server, *arguments, "--json"))


def printed(server: Server, topic: str, *arguments: str) -> list[dict[str, Any]]:
    lines = run(server, "subscribe", topic, "--exit-at-end", "--json", *arguments).splitlines()
    return [json.loads(line) for line in lines]


def texts(server: Server, topic: str, *arguments: str) -> list[str]:
    return [line["value"] for line in printed(server, topic, *arguments)]


# -- publish and subscribe ----------------------------------------------------------------------------------


def test_values_are_published_and_read_back(server: Server, topic: str) -> None:
    said = run(server, "publish", topic, "one", "two", "--key", "k", "-H", "a=1", "--delay", "1.5", "--priority", "3")
    assert said.startswith("2 messages in ")
    assert said.endswith("partition 0 to offset 1\n")
    one, two = printed(server, topic)
    assert (one["value"], one["key"], one["offset"]) == ("one", "k", 0)
    assert {header["name"]: header["value"] for header in two["headers"]} == {
        "a": "1", "penstock-delay-ms": "1500", "penstock-priority": "3",
    }  # fmt: skip


def test_lines_of_the_input_are_messages(server: Server, topic: str, tmp_path: Path) -> None:
    assert run(server, "publish", topic, given="a\nb\nc\n").startswith("3 messages")
    file = tmp_path / "messages"
    file.write_text("k1:d\nk2:e\n")
    told = run_json(server, "publish", topic, "--file", str(file), "--key-separator", ":")
    assert told == {
        "topic": topic,
        "records": 2,
        "partitions": [{"partition": 0, "first_offset": 3, "last_offset": 4, "records": 2}],
    }
    lines = printed(server, topic)
    assert [line["value"] for line in lines] == ["a", "b", "c", "d", "e"]
    assert [line["key"] for line in lines] == [None, None, None, "k1", "k2"]


def test_what_subscribe_writes_publish_reads(server: Server, topic: str) -> None:
    run(server, "publish", topic, "x", "y", "--key", "k", "-H", "a=1")
    written = run(server, "subscribe", topic, "-e", "--json")
    run(server, "publish", f"{topic}-copy", "--input", "json", given=written)
    interesting = ("key", "value", "headers", "timestamp_ms")
    copied = [{name: line[name] for name in interesting} for line in printed(server, f"{topic}-copy")]
    assert copied == [{name: line[name] for name in interesting} for line in printed(server, topic)]


def test_a_log_begins_where_one_says(server: Server, topic: str) -> None:
    run(server, "publish", topic, *map(str, range(20)))
    assert texts(server, topic, "--from", "15") == ["15", "16", "17", "18", "19"]
    assert texts(server, topic, "--from", "-3") == ["17", "18", "19"]
    assert texts(server, topic, "--from", "end") == []
    assert texts(server, topic, "--from", "1h", "--max", "2") == ["0", "1"]
    assert run(server, "subscribe", topic, "-e", "--raw", "--from", "18") == "18\n19\n"
    pretty = run(server, "subscribe", topic, "-n", "1")
    assert f"{topic}-0 @0" in pretty
    assert pretty.endswith("\n0\n")


def test_a_group_goes_on_where_it_stopped(server: Server, topic: str, group: str) -> None:
    run(server, "publish", topic, *map(str, range(10)))
    assert texts(server, topic, "--group", group, "--max", "4") == ["0", "1", "2", "3"]
    assert texts(server, topic, "--group", group) == ["4", "5", "6", "7", "8", "9"]


def test_filters_are_the_servers(server: Server, topic: str) -> None:
    for number in range(6):
        run(server, "publish", topic, str(number), "--key", f"eu.{number % 2}", "-H", f"third={number % 3}")
    assert texts(server, topic, "--key", "eu.1") == ["1", "3", "5"]
    assert texts(server, topic, "--pattern", "eu.*", "--header", "third=0") == ["0", "3"]


def test_a_queue_is_consumed_and_what_is_not_acknowledged_stays(server: Server, topic: str) -> None:
    run(server, "publish", topic, *map(str, range(10)))
    assert texts(server, topic, "--view", "queue", "--no-ack", "--max", "3") == ["0", "1", "2"]
    assert sorted(texts(server, topic, "--view", "queue", "--no-ack")) == [str(number) for number in range(10)]
    assert texts(server, topic, "--view", "queue", "--max", "4") == ["0", "1", "2", "3"]
    assert texts(server, topic, "--view", "queue") == ["4", "5", "6", "7", "8", "9"]
    assert texts(server, topic, "--view", "queue") == []
    assert len(texts(server, topic, "--view", "queue", "--name", "other")) == 10


@pytest.mark.parametrize("view", ["pubsub", "log"])
def test_a_follower_sees_what_comes_until_it_is_interrupted(server: Server, topic: str, view: str) -> None:
    run(server, "publish", topic, "before")
    process = start(server, "subscribe", topic, "--view", view, "--raw", *(["--from", "end"] if view == "log" else []))
    try:
        assert process.stdout is not None
        deadline = time.monotonic() + TIMEOUT_S
        seen = b""
        while b"news\n" not in seen:  # what is published before it subscribed is not its news
            assert time.monotonic() < deadline
            run(server, "publish", topic, "news")
            if select.select([process.stdout], [], [], 0)[0]:
                seen += os.read(process.stdout.fileno(), 1000)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
        assert b"before" not in seen
    finally:
        process.kill()
        process.communicate()


# -- queues -------------------------------------------------------------------------------------------------


def test_a_queue_lives_and_dies(server: Server, topic: str) -> None:
    view = f"{topic}/mail"
    assert (
        run(server, "queue", "create", view, "--set", "max_attempts=3", "--set", "lease-ms=5000") == f"created {view}\n"
    )
    assert "already" in run(server, "queue", "create", view, code=1)
    run(server, "queue", "create", view, "--if-not-exists")
    run(server, "publish", topic, *map(str, range(5)))
    told = run_json(server, "queue", "show", view)
    assert (told["topic"], told["queue"], told["paused"]) == (topic, "mail", False)
    assert told["settings"]["max_attempts"] == 3
    assert told["counts"]["pending"] == 5
    assert "max_attempts" in run(server, "queue", "show", view)
    run(server, "queue", "alter", view, "--set", "max_attempts=4")
    assert run_json(server, "queue", "show", view)["settings"]["max_attempts"] == 4

    [listed] = run_json(server, "queue", "list", topic)
    assert listed["queue"] == "mail"
    assert view in run(server, "queue", "list")
    peeked = run(server, "queue", "peek", view, "--max", "2", "--json").splitlines()
    assert [json.loads(line)["value"] for line in peeked] == ["0", "1"]
    assert f"{topic}-0 @0" in run(server, "queue", "peek", view)

    assert run(server, "queue", "pause", view) == f"paused {view}\n"
    assert run_json(server, "queue", "show", view)["paused"] is True
    assert texts(server, topic, "--view", "queue", "--name", "mail") == []
    assert run(server, "queue", "resume", view) == f"resumed {view}\n"
    assert "nobody to ask" in run(server, "queue", "purge", view, code=1)
    assert run(server, "queue", "purge", view, "--yes") == f"purged 5 messages of {view}\n"
    assert run(server, "queue", "redrive", view) == f"0 dead letters back in {view}\n"
    assert run(server, "queue", "delete", view, "--yes") == f"deleted {view}\n"
    assert "penstock: " in run(server, "queue", "show", view, code=1)


def test_dead_letters_come_back(server: Server, topic: str) -> None:
    run(server, "publish", topic, "x")
    with server.sync_client() as client, client.subscribe(topic, "queue") as subscription:
        next(subscription).reject()
        assert client.subscribe(f"{topic}.queue.dead").take(timeout_s=TIMEOUT_S)
    assert run_json(server, "queue", "redrive", topic) == {"topic": topic, "queue": "queue", "redriven": 1}
    assert texts(server, topic, "--view", "queue") == ["x"]


def test_a_wrong_setting_is_named(server: Server, topic: str) -> None:
    assert "max_attempts" in run(server, "queue", "create", topic, "--set", "max_attempts=-1", code=1)
    assert "no_such_thing" in run(server, "queue", "create", topic, "--set", "no_such_thing=1", code=1)


# -- routers ------------------------------------------------------------------------------------------------


def test_a_router_routes(server: Server, topic: str) -> None:
    assert run(server, "router", "create", topic, "--kind", "topic") == f"created {topic}\n"
    assert topic in run(server, "router", "create", topic, "--kind", "direct", code=1)
    run(server, "router", "bind", topic, f"{topic}-eu/mail", "--key", "eu.#")
    [listed] = [one for one in run_json(server, "router", "list") if one["router"] == topic]
    assert listed["kind"] == "topic"
    assert [(one["to"], one["key"]) for one in listed["bindings"]] == [(f"{topic}-eu/mail", "eu.#")]
    assert f"{topic}-eu/mail" in run(server, "router", "list")
    run(server, "publish", topic, "hello", "--key", "eu.order")
    run(server, "publish", topic, "howdy", "--key", "us.order")
    assert texts(server, f"{topic}-eu", "--view", "queue", "--name", "mail") == ["hello"]
    run(server, "router", "unbind", topic, f"{topic}-eu/mail", "--key", "eu.#")
    assert run(server, "router", "delete", topic, "--yes") == f"deleted {topic}\n"
    assert "penstock: " in run(server, "router", "bind", topic, "elsewhere", code=1)


# -- errors and usage ---------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_one_line(server: Server) -> None:
    for arguments in (["queue", "list"], ["publish", "t", "x"], ["subscribe", "t"]):
        error = run(server, *arguments, "--server", "127.0.0.1:1", code=1)
        assert error.startswith("penstock: cannot reach 127.0.0.1:1: ")
        assert error.count("\n") == 1
    assert "host:port" in run(server, "queue", "list", "--server", "nowhere:at:all", code=2)


def test_the_wrong_door_is_told(server: Server) -> None:
    for door in (server.kafka, server.http.removeprefix("http://")):
        error = run(server, "queue", "list", "--server", door, "--timeout", "2", code=1)
        assert error.startswith("penstock: ")
        assert door in error


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "t", "x", "--file", "f"],
        ["publish", "t", "--key", "k", "--key-separator", ":"],
        ["publish", "t", "x", "--priority", "10"],
        ["subscribe", "t", "--json", "--raw"],
        ["subscribe", "t", "--view", "queue", "--from", "end"],
        ["subscribe", "t", "--view", "pubsub", "--exit-at-end"],
        ["subscribe", "t", "--from", "never"],
        ["queue", "alter", "t"],
        ["queue", "create", "/mail"],
        ["router", "create", "t", "--kind", "random"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_told_before_anything_happens(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize(
    "path",
    [
        ["publish"],
        ["subscribe"],
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
