"""The file-system seam: every call that decides what survives a crash goes through here, and nothing else does.

Tests put a faulty twin in its place (`penstock.testing.files`), so a method is as small as the system call it stands
for: no retries, no policy, no caching. Partial writes are the caller's business.
"""

import errno
import os
from collections.abc import Sequence

from penstock.storage.engine import Buffer

# Linux accepts at most this many buffers in one pwritev.
IOV_MAX = min(1024, os.sysconf("SC_IOV_MAX")) if hasattr(os, "sysconf") else 16

_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_WOULD_WAIT = (errno.EAGAIN, errno.EWOULDBLOCK)


class Files:
    """The operating system's files as they are."""

    def __init__(self) -> None:
        # Not every file system can say whether a read would wait; once one could not, we no longer ask.
        self._knows_nowait = bool(_NOWAIT)

    # -- descriptors ----------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    # -- reading --------------------------------------------------------------------------------------------

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return os.pread(fd, size, position)

    def preadv_cached(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        """Read what the page cache holds, without waiting for a disk; -1 when a thread had better do it."""
        if not self._knows_nowait:
            return -1
        try:
            return os.preadv(fd, [buffer], position, _NOWAIT)
        except OSError as error:
            if error.errno in _WOULD_WAIT:
                return -1
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                self._knows_nowait = False
                return -1
            raise

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        return os.preadv(fd, [buffer], position)

    # -- writing --------------------------------------------------------------------------------------------

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    # -- names ----------------------------------------------------------------------------------------------

    def mkdir(self, path: str) -> None:
        os.mkdir(path, 0o755)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        """Make the names in this directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_whole(files: Files, fd: int, buffers: Sequence[Buffer], position: int) -> int:
    """Write all of the buffers, however little each call takes; return the position after them."""
    for first in range(0, len(buffers), IOV_MAX):
        rest = [buffer for buffer in buffers[first : first + IOV_MAX] if len(buffer)]
        while rest:
            written = files.pwritev(fd, rest, position)
            if written <= 0:
                raise OSError(errno.EIO, "a write made no progress")
            position += written
            while rest and written >= len(rest[0]):
                written -= len(rest[0])
                del rest[0]
            if written:
                rest[0] = memoryview(rest[0])[written:]
    return position


def read_file(files: Files, path: str) -> bytes | None:
    """All of a small file, or None when there is none."""
    try:
        fd = files.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        size = files.size(fd)
        data = files.pread(fd, size, 0)
        while len(data) < size and (more := files.pread(fd, size - len(data), len(data))):
            data += more
        return data
    finally:
        files.close(fd)


def replace_file(files: Files, path: str, data: bytes, *, durable: bool) -> None:
    """Put a small file in place of another so that a crash leaves one of the two whole (if durable) or a stub."""
    temporary = path + ".tmp"
    fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_whole(files, fd, [data], 0)
        if durable:
            files.fdatasync(fd)
    finally:
        files.close(fd)
    files.rename(temporary, path)
    if durable:
        files.sync_directory(os.path.dirname(path))
