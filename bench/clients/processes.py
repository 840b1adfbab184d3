"""One process of a Python client from start to end, alone in it, so that its processor time is its own.

A held process has imported everything and waits for `release`: what is timed across processes includes no start-up.
"""

import json
import subprocess
import sys
from typing import Any

TIMEOUT_S = 300.0
READY = "ready"


class ClientProcess:
    """`python -m bench.clients.<program> <arguments> <options as JSON>`; its last line of output is its numbers."""

    def __init__(self, program: str, *arguments: str, **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"bench.clients.{program}", *arguments, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._said_first = self._process.stdout.readline().strip()

    def release(self) -> "ClientProcess":
        assert self._process.stdin is not None
        if self._said_first == READY:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return self

    def end(self) -> dict[str, Any]:
        """What it printed, when it has ended by itself."""
        try:
            said, complained = self._process.communicate(timeout=TIMEOUT_S)
        except BaseException:
            self.kill()
            raise
        if self._process.returncode != 0:
            raise RuntimeError(f"{' '.join(self._process.args[2:])}: {complained.strip()[-1500:]}")
        return dict(json.loads(said.splitlines()[-1]))

    def ask(self, line: str) -> dict[str, Any]:
        """A released process that converses: one line in, one line out."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            self.end()
        return dict(json.loads(said))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def run(program: str, *arguments: str, **options: Any) -> dict[str, Any]:
    return ClientProcess(program, *arguments, **options).release().end()


def hold() -> None:
    """In the client's process: everything is imported, wait for the word."""
    print(READY, flush=True)
    sys.stdin.readline()
