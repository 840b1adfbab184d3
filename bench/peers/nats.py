"""NATS JetStream as Debian packages it, with file storage.

    nats          the defaults: the file system is told to sync every 2 minutes
    nats-synced   the same, in a directory whose files are written synchronously (`chattr +S`)

Debian's 2.9 knows no setting for the interval (2.10 brought `sync_interval`, whose `always` syncs each message that is
written), so the file system does what the setting would: each write returns when the disk has it. Where the file system
knows no such flag, there is no synced peer.
"""

import subprocess
import tempfile
from pathlib import Path

from bench.peers.process import ServerProcess, asked


class Nats(ServerProcess):
    client = "nats"

    def __init__(self, mode: str = "nats", directory: Path | None = None) -> None:
        self.name = mode
        super().__init__(directory)
        if mode == "nats-synced":
            subprocess.run(["chattr", "+S", self.data], check=True)
        self._settings = self.home / "nats.conf"
        self._settings.write_text(f'listen: "{self.address}"\njetstream {{ store_dir: "{self.data}" }}\n')

    def command(self) -> list[str]:
        return ["nats-server", "-c", str(self._settings)]

    def answers(self) -> bool:
        # The listener opens last, when the streams are recovered; the greeting tells whether JetStream runs.
        return b'"jetstream":true' in asked(self.port, b"")

    def version(self) -> str:
        said = subprocess.run(["nats-server", "--version"], capture_output=True, text=True, check=True).stdout
        settings = "file storage, defaults" if self.name == "nats" else "file storage in a directory with `chattr +S`"
        return f"NATS {said.rpartition('v')[2].strip()}, {settings}"


def can_be_synced(directory: Path | None = None) -> bool:
    with tempfile.TemporaryDirectory(dir=directory) as trial:
        try:
            return subprocess.run(["chattr", "+S", trial], capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False
