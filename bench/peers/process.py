"""A peer that is one process of somebody else's server: started on a free port, weighed, and ended by its own id."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from penstock.testing.server import process_cpu_seconds, process_rss_bytes, process_tree

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0


class ServerProcess:
    """What `command()` starts, in a directory of its own that disappears with `close`."""

    name: str

    def __init__(self, directory: Path | None = None) -> None:
        self.home = Path(tempfile.mkdtemp(prefix=f"{self.name}-peer-", dir=directory))
        self.data = self.home / "data"
        self.data.mkdir()
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether the server is ready for work; asked again and again, so it must be cheap."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with (self.home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.home
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self.home / "server.log").read_text(errors="replace")[-500:]
                self.close()
                raise RuntimeError(f"{self.name} did not start: {said}")
            time.sleep(0.002)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def rss_bytes(self) -> int:
        assert self._process is not None
        return sum(process_rss_bytes(pid) for pid in process_tree(self._process.pid))

    def cpu_seconds(self) -> float:
        assert self._process is not None
        return sum(process_cpu_seconds(pid) for pid in process_tree(self._process.pid))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def asked(port: int, question: bytes, timeout_s: float = 5.0) -> bytes:
    """The first bytes that a server on this machine says, after a question if there is one; none if it is not there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            if question:
                connection.sendall(question)
            return connection.recv(4096)
    except OSError:
        return b""


class PeakMemory:
    """The most that this process, and another with everything it started, had resident together while watched."""

    def __init__(self, pid: int, every_s: float = 0.25) -> None:
        self._pid = pid
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._every_s):
            pids = {os.getpid(), *process_tree(self._pid)}
            self.peak_bytes = max(self.peak_bytes, sum(map(process_rss_bytes, pids)))
