"""Faulty files: a disk that is full, slow to take bytes, lying, or gone. Stands in for the disk engine's system calls.

`FaultyFiles` does what it is told to at the call it is told to, and a crash is final: every later call fails, as if the
process were dead. `PowerLossFiles` also keeps the books of a strict disk, on which a byte survives only if its file was
synced, and a name only if its directory was; `after_power_loss` writes down what such a disk holds.
"""

import errno
import os
import random
import threading
from collections.abc import Sequence

from penstock.storage.disk.files import Files
from penstock.storage.engine import Buffer


class Crash(Exception):
    """The process died here. Not an OSError: nobody may handle it as a fault of the disk."""


class FaultyFiles(Files):
    """The operating system's files, with faults by order.

    crash_at         the number of the changing call (the first is 1) that dies; a write dies half way through
    free_bytes       so much may still be written, then ENOSPC; None: enough
    max_write_bytes  a single write takes no more than this

    Syncs are counted, and fail, but sync nothing: that would only be slow.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.crash_at = 0
        self.crashed = False
        self.free_bytes: int | None = None
        self.max_write_bytes: int | None = None
        self._faults: dict[str, list[int]] = {}
        self._guard = threading.RLock()

    def fail(self, method: str, error_number: int, times: int = 1) -> None:
        """Let the next calls of this method fail so."""
        self._faults.setdefault(method, []).extend([error_number] * times)

    def heal(self) -> None:
        """No more faults, and space enough."""
        with self._guard:
            self._faults.clear()
            self.free_bytes = self.max_write_bytes = None

    def _before(self, method: str) -> bool:
        """Count a changing call; True if this is the one to die in."""
        if self.crashed:
            raise Crash(method)
        self.calls += 1
        faults = self._faults.get(method)
        if faults:
            number = faults.pop(0)
            raise OSError(number, os.strerror(number))
        if self.calls == self.crash_at:
            self.crashed = True
            return True
        return False

    def _change(self, method: str) -> None:
        if self._before(method):
            raise Crash(method)

    def open(self, path: str, flags: int) -> int:
        with self._guard:
            if flags & os.O_CREAT:
                self._change("open")
            elif self.crashed:
                raise Crash("open")
            return super().open(path, flags)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        with self._guard:
            dies = self._before("pwritev")
            data = b"".join(bytes(buffer) for buffer in buffers)
            if dies:
                super().pwritev(fd, [data[: len(data) // 2]], position)
                raise Crash("pwritev")
            if self.max_write_bytes is not None:
                data = data[: self.max_write_bytes]
            if self.free_bytes is not None:
                if data and not self.free_bytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                data = data[: self.free_bytes]
                self.free_bytes -= len(data)
            return super().pwritev(fd, [data], position)

    def fdatasync(self, fd: int) -> None:
        with self._guard:
            self._change("fdatasync")

    def truncate(self, fd: int, size: int) -> None:
        with self._guard:
            self._change("truncate")
            if self.free_bytes is not None:
                self.free_bytes += max(0, self.size(fd) - size)
            super().truncate(fd, size)

    def mkdir(self, path: str) -> None:
        with self._guard:
            self._change("mkdir")
            super().mkdir(path)

    def rename(self, source: str, target: str) -> None:
        with self._guard:
            self._change("rename")
            super().rename(source, target)

    def unlink(self, path: str) -> None:
        with self._guard:
            self._change("unlink")
            super().unlink(path)

    def rmdir(self, path: str) -> None:
        with self._guard:
            self._change("rmdir")
            super().rmdir(path)

    def sync_directory(self, path: str) -> None:
        with self._guard:
            self._change("sync_directory")


class _File:
    """What a strict disk knows of a file."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.written: bytes | None = None  # what was in it when its last name went


class _Directory:
    """Names as they are, as they are on the disk, and the steps from there to here."""

    def __init__(self) -> None:
        self.names: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.steps: list[dict[str, _Node]] = []  # the names after each change since the last sync

    def changed(self) -> None:
        self.steps.append(dict(self.names))

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.steps.clear()


_Node = _File | _Directory


class PowerLossFiles(FaultyFiles):
    """Files under `root`, which exists; what is there already is durable."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self._root_path = os.path.abspath(root)
        self._root = self._load(self._root_path)
        self._open_files: dict[int, tuple[_File, str]] = {}

    def after_power_loss(self, target: str, chance: random.Random | None = None) -> None:
        """Write what the disk holds into a new directory.

        Without `chance` all that was not synced is gone; with it, each file keeps some of its unsynced bytes (none,
        all, a part, or a part followed by zeros) and each directory some of its unsynced changes, the oldest first.
        """
        self._store(self._root, self._root_path, target, chance)

    # -- the calls that change something --------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        with self._guard:
            if flags & os.O_ACCMODE == os.O_WRONLY:
                flags = (flags & ~os.O_ACCMODE) | os.O_RDWR  # the books need to read what was written
            fd = super().open(path, flags)
            parent, name = self._parent(path)
            node = parent.names.get(name)
            if not isinstance(node, _File):
                node = parent.names[name] = _File()
                parent.changed()
            self._open_files[fd] = (node, path)
            return fd

    def close(self, fd: int) -> None:
        with self._guard:
            self._open_files.pop(fd, None)
            super().close(fd)

    def fdatasync(self, fd: int) -> None:
        with self._guard:
            super().fdatasync(fd)
            self._open_files[fd][0].durable = os.pread(fd, self.size(fd), 0)

    def mkdir(self, path: str) -> None:
        with self._guard:
            super().mkdir(path)
            parent, name = self._parent(path)
            parent.names[name] = _Directory()
            parent.changed()

    def rename(self, source: str, target: str) -> None:
        with self._guard:
            replaced, replaced_name = self._parent(target)
            self._remember(replaced.names.get(replaced_name), target)
            super().rename(source, target)
            parent, name = self._parent(source)
            replaced.names[replaced_name] = parent.names.pop(name)
            replaced.changed()

    def unlink(self, path: str) -> None:
        with self._guard:
            parent, name = self._parent(path)
            self._remember(parent.names.get(name), path)
            super().unlink(path)
            del parent.names[name]
            parent.changed()

    def rmdir(self, path: str) -> None:
        with self._guard:
            super().rmdir(path)
            parent, name = self._parent(path)
            del parent.names[name]
            parent.changed()

    def sync_directory(self, path: str) -> None:
        with self._guard:
            super().sync_directory(path)
            node: _Node = self._root
            for part in self._parts(path):
                assert isinstance(node, _Directory)
                node = node.names[part]
            assert isinstance(node, _Directory)
            node.sync()

    # -- the books ------------------------------------------------------------------------------------------

    def _parts(self, path: str) -> list[str]:
        relative = os.path.relpath(path, self._root_path)
        return [] if relative == "." else relative.split("/")

    def _parent(self, path: str) -> tuple[_Directory, str]:
        node: _Node = self._root
        *parents, name = self._parts(path)
        for part in parents:
            assert isinstance(node, _Directory)
            node = node.names[part]
        assert isinstance(node, _Directory)
        return node, name

    @staticmethod
    def _remember(node: "_Node | None", path: str) -> None:
        if isinstance(node, _File) and os.path.exists(path):
            with open(path, "rb") as file:
                node.written = file.read()

    def _load(self, path: str) -> _Directory:
        directory = _Directory()
        for entry in os.scandir(path):
            if entry.is_dir():
                directory.names[entry.name] = self._load(entry.path)
            else:
                with open(entry.path, "rb") as file:
                    directory.names[entry.name] = _File(file.read())
        directory.sync()
        return directory

    def _store(self, directory: _Directory, source: str, target: str, chance: random.Random | None) -> None:
        os.makedirs(target, exist_ok=True)
        names = directory.durable
        if chance is not None and directory.steps:
            names = chance.choice([names, *directory.steps])
        for name, node in names.items():
            if isinstance(node, _Directory):
                self._store(node, f"{source}/{name}", f"{target}/{name}", chance)
                continue
            written = node.written
            if written is None:
                written = self._written(directory, node, source)
            with open(f"{target}/{name}", "wb") as file:
                file.write(_survivors(node.durable, written, chance))

    @staticmethod
    def _written(directory: _Directory, node: _File, source: str) -> bytes:
        """What is in a file now, under whatever name it has now."""
        for name, candidate in directory.names.items():
            if candidate is node and os.path.exists(f"{source}/{name}"):
                with open(f"{source}/{name}", "rb") as file:
                    return file.read()
        return node.durable


def _survivors(durable: bytes, written: bytes, chance: random.Random | None) -> bytes:
    if chance is None or written == durable:
        return durable
    if not written.startswith(durable):
        return chance.choice([durable, written])
    kept = chance.randint(len(durable), len(written))
    return chance.choice(
        [durable, written, written[:kept], written[:kept] + bytes(len(written) - kept)],
    )
