"""A real server process for tests, and only for as long as they need it.

    with Server(auto_create_topics=False) as server:
        client = SomeKafkaClient(server.kafka)
        ...
        server.kill()        # as `kill -9` would
        server.restart()     # same data, same address

Nothing here waits for ever, and nothing that was started here survives its `with` block, whichever way that ends.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.client.sync import SyncClient

READY_LINE = re.compile(r"penstock ready")
DOOR_LINE = re.compile(r"(\w+) listening on (\S+:\d+)")
DOORS = ("kafka", "line", "udp", "http")  # each on a free port unless the test says otherwise
POLL_S = 0.01


class ServerFailed(RuntimeError):
    """The server process did not do what was asked of it; the message carries what it said."""


class Server:
    """`python -m penstock serve` with its own data directory, on ports of its own.

    Keyword arguments become flags: `auto_create_topics=False` is `--auto-create-topics=false`. Without `data` the
    server gets a temporary directory that disappears with it.
    """

    def __init__(
        self,
        data: Path | str | None = None,
        *,
        command: Iterable[str] = (sys.executable, "-m", "penstock"),
        start_timeout_s: float = 30.0,
        stop_timeout_s: float = 30.0,
        environment: dict[str, str] | None = None,
        **settings: object,
    ) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="penstock-"))
        self.data = Path(data) if data is not None else self._home / "data"
        self.doors: dict[str, str] = {}
        self.settings: dict[str, object] = {**dict.fromkeys(DOORS, "127.0.0.1:0"), **settings}
        self._command = list(command)
        self._environment = environment or {}
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._log_path = self._home / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._end_process = weakref.finalize(self, _end, None, self._home)

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> "Server":
        """Start the process and return once it has said that it is ready, or raise with its output."""
        if self._process is not None:
            raise ServerFailed("this server is already running")
        arguments = [flag(name, value) for name, value in self.settings.items()]
        with self._log_path.open("ab") as log:
            said_before = log.tell()
            process = subprocess.Popen(
                [*self._command, "serve", "--data", str(self.data), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._environment},
                cwd=self._home,
            )
        self._process = process
        self._end_process.detach()
        self._end_process = weakref.finalize(self, _end, process, self._home)
        said = self._await_ready(process, said_before)
        self.doors = dict(DOOR_LINE.findall(said))
        return self

    def stop(self) -> None:
        """Ask the server to end as an operator would (SIGTERM), and insist on a clean exit."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"no exit within {self._stop_timeout_s} s of SIGTERM\n{self.log_text()}") from None
        self._process = None
        if code != 0:
            raise ServerFailed(f"exit code {code} after SIGTERM\n{self.log_text()}")

    def kill(self) -> None:
        """End the process at once (SIGKILL): no drain, no last sync, no clean-shutdown marker."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def restart(self, **settings: object) -> "Server":
        """Start again on the same data and the same addresses, with some settings changed; stops first if running."""
        if self._process is not None:
            self.stop()
        self.settings.update(self.doors)
        self.settings.update(settings)
        return self.start()

    def close(self) -> None:
        """End whatever still runs, without judging how, and remove the temporary directory."""
        self._process = None
        self._end_process()

    def __enter__(self) -> "Server":
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._process is not None:
                self.stop()
        finally:
            self.close()

    # -- what it is doing ------------------------------------------------------------------------------------------

    @property
    def kafka(self) -> str:
        """The Kafka door's real address, `host:port`."""
        return self.doors["kafka"]

    @property
    def line(self) -> str:
        """The line door's real address, `host:port`: what `penstock.Client` connects to."""
        return self.doors["line"]

    @property
    def udp(self) -> str:
        return self.doors["udp"]

    @property
    def http(self) -> str:
        """The HTTP door's base address, `http://host:port`."""
        return f"http://{self.doors['http']}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_text(self) -> str:
        """All that the server has said since it was first started."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def rss_bytes(self) -> int:
        """Resident memory of the server and its children, if it has any."""
        return sum(process_rss_bytes(pid) for pid in process_tree(self.pid))

    def cpu_seconds(self) -> float:
        """Processor time, user and system, of the server and its living children."""
        return sum(process_cpu_seconds(pid) for pid in process_tree(self.pid))

    # -- clients ---------------------------------------------------------------------------------------------------

    def client(self, **options: Any) -> "Client":
        """A client of this server, for `async with`."""
        from penstock.client.client import Client

        return Client(self.line, **options)

    def sync_client(self, **options: Any) -> "SyncClient":
        """The same without a loop, for `with`."""
        from penstock.client.sync import SyncClient

        return SyncClient(self.line, **options)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise ServerFailed("this server is not running")
        if (code := self._process.poll()) is not None:
            self._process = None
            raise ServerFailed(f"the server is gone, exit code {code}\n{self.log_text()}")
        return self._process

    def _await_ready(self, process: "subprocess.Popen[bytes]", said_before: int) -> str:
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            exited = process.poll()
            said = self._log_path.read_bytes()[said_before:].decode(errors="replace")
            if READY_LINE.search(said):
                return said
            if exited is not None:
                self._process = None
                raise ServerFailed(f"exit code {exited} before ready\n{said}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"not ready within {self._start_timeout_s} s\n{said}")
            time.sleep(POLL_S)


def flag(name: str, value: object) -> str:
    """A setting as the command line spells it: `max_open_files=9` is `--max-open-files=9`, False is `false`."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"--{name.replace('_', '-')}={text}"


def process_tree(pid: int) -> list[int]:
    """A process and all its living descendants."""
    found, unseen = [pid], [pid]
    while unseen:
        parent = unseen.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            children = [int(child) for child in _read(task).split()]
            found += children
            unseen += children
    return found


def process_rss_bytes(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+) kB", _read(Path(f"/proc/{pid}/status")))
    return int(match[1]) * 1024 if match else 0


def process_cpu_seconds(pid: int) -> float:
    # proc(5): the name in parentheses may hold anything; utime and stime are the 12th and 13th fields after it.
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _read(path: Path) -> str:
    """A file of /proc, or nothing when its process has just ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _end(process: "subprocess.Popen[bytes] | None", home: Path) -> None:
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()
    shutil.rmtree(home, ignore_errors=True)
