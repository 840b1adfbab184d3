"""Streams on disk: segment files, a sparse index, group commit, recovery. `engine` says which file does what."""

from penstock.storage.disk.engine import DiskEngine

__all__ = ["DiskEngine"]
