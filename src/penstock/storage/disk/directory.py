"""The data directory as a whole: who owns it, how it was left, and which topics are in it."""

import fcntl
import logging
import os

from penstock.model.errors import StorageFailed
from penstock.model.ids import TopicId
from penstock.storage.disk import layout
from penstock.storage.disk.files import Files

log = logging.getLogger(__name__)


class DataDirectory:
    """Locked from construction to release(); `was_clean` says whether the last owner closed it properly."""

    def __init__(self, path: str, files: Files) -> None:
        self.path = os.path.abspath(path)
        self._files = files
        self._lock_fd = -1
        try:
            os.makedirs(f"{self.path}/{layout.TOPICS}", exist_ok=True)
            self._lock_fd = self._lock()
            files.sync_directory(self.path)
            self.was_clean = self._take_clean_mark()
        except BaseException as error:
            self.unlock()
            if isinstance(error, OSError):
                raise StorageFailed(f"cannot use data directory {self.path}: {error.strerror or error}") from error
            raise

    def release(self, *, clean: bool) -> None:
        """Let the next owner in, and tell it whether everything is synced."""
        try:
            if clean:
                fd = self._files.open(f"{self.path}/{layout.CLEAN}", os.O_WRONLY | os.O_CREAT)
                self._files.close(fd)
                self._files.sync_directory(self.path)
        except OSError as error:
            log.warning("the next start reads the ends of all logs: cannot mark the shutdown as clean: %s", error)
        finally:
            self.unlock()

    def unlock(self) -> None:
        """What the end of the process does too."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def remove_topic(self, topic_id: TopicId) -> None:
        """First the name, at once and for good; then what was under it."""
        for name in os.listdir(f"{self.path}/{layout.TOPICS}"):
            if layout.topic_id_of(name) == topic_id:
                self._remove(name, topic_id)

    def retain_only(self, topic_ids: frozenset[TopicId]) -> None:
        for name in os.listdir(f"{self.path}/{layout.TOPICS}"):
            topic_id = layout.topic_id_of(name)
            if name.endswith(layout.DELETED):
                self._remove_tree(f"{self.path}/{layout.TOPICS}/{name}")
            elif topic_id is not None and topic_id not in topic_ids:
                log.info("removing %s, which belongs to no topic any more", name)
                self._remove(name, topic_id)

    def _lock(self) -> int:
        fd = os.open(f"{self.path}/{layout.LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise StorageFailed(f"data directory {self.path} is already in use by process {owner}") from None
        except OSError:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def _take_clean_mark(self) -> bool:
        """The mark must be gone, for good, before anything is written."""
        try:
            self._files.unlink(f"{self.path}/{layout.CLEAN}")
        except FileNotFoundError:
            return False
        self._files.sync_directory(self.path)
        return True

    def _remove(self, name: str, topic_id: TopicId) -> None:
        topics = f"{self.path}/{layout.TOPICS}"
        target = layout.deleted_directory(self.path, topic_id)
        self._files.rename(f"{topics}/{name}", target)
        self._files.sync_directory(topics)
        self._remove_tree(target)

    def _remove_tree(self, path: str) -> None:
        for parent, directories, names in os.walk(path, topdown=False):
            for name in names:
                self._files.unlink(f"{parent}/{name}")
            for name in directories:
                self._files.rmdir(f"{parent}/{name}")
        self._files.rmdir(path)
