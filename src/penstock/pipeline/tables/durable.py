"""Files that are there after the power failed: written, synced, and their directories synced too."""

import contextlib
import os
from collections.abc import Iterable
from urllib.parse import unquote, urlparse

from penstock.pipeline.errors import InvalidOption


def local_path(location: str, what: str) -> str:
    """The path behind a path or a file: address; InvalidOption for anything else."""
    if "://" not in location and not location.startswith("file:"):
        return os.path.abspath(os.path.expanduser(location))
    address = urlparse(location)
    if address.scheme != "file":
        raise InvalidOption(f"{what} is {location!r}; a path or a file: address on this machine is needed")
    return unquote(address.path)


def sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folders(paths: Iterable[str]) -> None:
    for path in sorted(set(paths)):
        sync_file(path)


def make_folders(path: str) -> None:
    """As makedirs, and the folders are still there after a crash."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # somebody else was quicker
            os.mkdir(folder)
        sync_file(os.path.dirname(folder))


def write_file(path: str, data: bytes) -> None:
    """All of it under this name, or nothing."""
    temporary = f"{path}.{os.getpid()}.new"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_file(os.path.dirname(path))
