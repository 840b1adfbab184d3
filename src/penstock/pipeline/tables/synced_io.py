"""Iceberg's metadata as durable as its catalog: every local file is synced when it is closed."""

import os
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from penstock.pipeline.tables.durable import sync_file


class _SyncedStream:
    """A file that is being written."""

    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> "_SyncedStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._stream.closed:
            self._stream.close()
            sync_file(self._path)
            sync_file(os.path.dirname(self._path))


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        return _SyncedStream(super().create(overwrite), self._path)


class SyncedFileIO(PyArrowFileIO):
    def new_output(self, location: str) -> PyArrowFile:
        scheme, host, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _SyncedFile(fs=self.fs_by_scheme(scheme, host), location=location, path=path)
