"""Commands as a person runs them: a process of their own, with the server's address in the environment."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.testing import Server

TIMEOUT_S = 30

T = TypeVar("T")


def start(server: Server, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_SERVER": server.line},
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


def run_json(server: Server, *arguments: str, given: str = "") -> Any:
    return json.loads(run(server, *arguments, "--json", given=given))


def printed(server: Server, topic: str, *arguments: str) -> list[dict[str, Any]]:
    lines = run(server, "subscribe", topic, "--exit-at-end", "--json", *arguments).splitlines()
    return [json.loads(line) for line in lines]


def texts(server: Server, topic: str, *arguments: str) -> list[str]:
    return [line["value"] for line in printed(server, topic, *arguments)]


def eventually(check: Callable[[], T]) -> T:
    deadline = time.monotonic() + TIMEOUT_S
    while not (result := check()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return result
