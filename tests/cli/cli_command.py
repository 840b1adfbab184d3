"""Commands as a person runs them: a process of their own, with the server's address in the environment."""

import atexit
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from cli_nursery import Nursery

from penstock.testing import Server

TIMEOUT_S = 30

T = TypeVar("T")


_nurseries: list[Nursery] = []


def start(server: Server, *arguments: str) -> "subprocess.Popen[str]":
    """For those who talk to it while it runs."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(server),
    )


def run(server: Server, *arguments: str, given: str = "", code: int = 0) -> str:
    """Standard output of a command that ends with this exit code; standard error instead when that is not 0."""
    found, out, error = _nursery().run(list(arguments), _environment(server), given, TIMEOUT_S)
    assert found == code, (out, error)
    assert "Traceback" not in error
    return error if code else out


def _environment(server: Server) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_SERVER": server.line}


def _nursery() -> Nursery:
    """One for all tests of a worker; gone with it."""
    if not _nurseries or _nurseries[0].closed:
        _nurseries[:] = [Nursery()]
        atexit.register(_nurseries[0].close)
    return _nurseries[0]


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
