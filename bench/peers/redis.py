"""Redis as Debian packages it, at its defaults and with its append-only file.

redis            the defaults: snapshots now and then; what came since the last one is lost with the process
redis-everysec   the append-only file, synced once a second: what most people choose who want to keep their data
redis-always     the append-only file, synced before each answer
"""

import subprocess
from pathlib import Path

from bench.peers.process import ServerProcess, asked

MODES = {
    "redis": [],
    "redis-everysec": ["--appendonly", "yes", "--appendfsync", "everysec"],
    "redis-always": ["--appendonly", "yes", "--appendfsync", "always"],
}


class Redis(ServerProcess):
    client = "redis"

    def __init__(self, mode: str = "redis", directory: Path | None = None) -> None:
        self.name = mode
        super().__init__(directory)

    def command(self) -> list[str]:
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.data)]
        return ["redis-server", *where, *MODES[self.name]]

    def answers(self) -> bool:
        # While it loads its data Redis answers every command with an error.
        return asked(self.port, b"PING\r\n").startswith(b"+PONG")

    def version(self) -> str:
        said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        version = said.partition("v=")[2].split()[0]
        settings = " ".join(MODES[self.name]).replace("--", "") or "defaults: snapshots only"
        return f"Redis {version}, {settings}"
