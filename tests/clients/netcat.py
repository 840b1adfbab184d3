"""`nc` as a person uses it: piped into, or open in a terminal. Nothing here waits for ever."""

import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from types import TracebackType

NC = shutil.which("nc") or "nc"  # where it is missing the tests fail: make test installs it
PATIENCE_S = 20.0


def pipe(address: str, given: bytes, *options: str) -> bytes:
    """Everything that is answered to what is piped into nc; -N closes our side after it."""
    host, port = address.rsplit(":", 1)
    done = subprocess.run(
        [NC, *(options or ("-N",)), host, port], input=given, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


class Netcat:
    """An nc that stays open, with what it has printed so far and nobody has read yet."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._process = subprocess.Popen([NC, host, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._pieces: queue.Queue[bytes] = queue.Queue()
        self._unread = b""
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        assert self._process.stdout is not None
        while piece := self._process.stdout.read1(65536):  # type: ignore[attr-defined]
            self._pieces.put(piece)
        self._pieces.put(b"")

    def say(self, text: str | bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() if isinstance(text, str) else text)
        self._process.stdin.flush()

    def exactly(self, size_bytes: int) -> bytes:
        self._fill(lambda: len(self._unread) >= size_bytes)
        taken, self._unread = self._unread[:size_bytes], self._unread[size_bytes:]
        return taken

    def line(self) -> str:
        self._fill(lambda: b"\n" in self._unread)
        line, _, self._unread = self._unread.partition(b"\n")
        assert line.endswith(b"\r"), line
        return line[:-1].decode()

    def message(self) -> tuple[str, str]:
        """A delivery: its id and payload."""
        kind, name, size = self.line().split(" ")[:3]
        assert kind == "MSG"
        payload = self.exactly(int(size)).decode()
        assert self.exactly(2) == b"\r\n"
        return name, payload

    def _fill(self, enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not enough():
            piece = self._pieces.get(timeout=max(0.0, deadline - time.monotonic()))
            assert piece, f"the connection ended after {self._unread!r}"
            self._unread += piece

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def __enter__(self) -> "Netcat":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
