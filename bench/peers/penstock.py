"""Penstock as `penstock serve` starts it, once per durability; everything else stays at its default."""

import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.testing.server import Server


class Penstock:
    client = "penstock"

    def __init__(self, durability: str, directory: Path | None = None) -> None:
        self.name = f"penstock-{durability}"
        self._home = tempfile.TemporaryDirectory(prefix="penstock-peer-", dir=directory)
        self._server = Server(
            Path(self._home.name) / "data",
            start_timeout_s=120,
            stop_timeout_s=120,
            durability=durability,
            group_initial_rebalance_delay_ms=0,
        )

    @property
    def kafka(self) -> str:
        return self._server.kafka

    @property
    def address(self) -> str:
        """Where its own client connects."""
        return self._server.line

    @property
    def http(self) -> str:
        return self._server.http.removeprefix("http://")

    @property
    def data(self) -> Path:
        return self._server.data

    def version(self) -> str:
        asked = subprocess.run(
            [sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True
        )
        return asked.stdout.strip()

    def start(self) -> None:
        if self._server.doors:
            self._server.restart()
        else:
            self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        self._server.kill()

    def close(self) -> None:
        self._server.close()
        self._home.cleanup()

    def rss_bytes(self) -> int:
        return self._server.rss_bytes()

    def cpu_seconds(self) -> float:
        return self._server.cpu_seconds()
