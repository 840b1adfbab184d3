"""Whether the hot leaves run as machine code or as the Python they are written in.

Python prefers a binary to the source beside it. PENSTOCK_PURE=1 in the environment turns that round for this package,
so that one tree runs, and is tested, both ways.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType

A_LEAF = "penstock.model.batch"


class SourceOnly:
    """A finder that sees the package's .py files and nothing else."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not fullname.startswith("penstock."):
            return None
        for folder in path:
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(fullname, target)
            if spec is not None and spec.loader is not None:
                return spec
        return None


def obey_environment() -> None:
    """Install the finder if the environment asks for it. Must run before the first leaf is imported."""
    if os.environ.get("PENSTOCK_PURE", "0") not in ("", "0") and SourceOnly not in sys.meta_path:
        sys.meta_path.insert(0, SourceOnly)


def compiled() -> bool:
    """True if the leaves are machine code in this process."""
    spec = find_spec(A_LEAF)
    return spec is not None and isinstance(spec.loader, ExtensionFileLoader)
