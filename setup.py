"""Builds the compiled leaves with mypyc, or leaves them as the plain Python that they are.

Without a compiler, without mypyc or with PENSTOCK_PURE=1 the result is a pure install, which does the same, slower.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# The hot loops. Each file also runs uncompiled, and passes the same tests.
LEAVES = [
    "src/penstock/model/record.py",
    "src/penstock/model/batch.py",
    "src/penstock/model/partitioner.py",
    "src/penstock/model/outgoing.py",
    "src/penstock/model/column_reader.py",
    "src/penstock/model/column_writer.py",
    "src/penstock/wire/kafka/plan.py",
    "src/penstock/wire/kafka/reader.py",
    "src/penstock/wire/kafka/writer.py",
]


def fall_back(reason: str) -> None:
    """Say so, and see to it that no binary of an earlier build stands in for a source that has changed since."""
    print(f"penstock: not compiled ({reason}); the pure Python modules are used instead", file=sys.stderr)
    for source in [*map(Path, LEAVES), Path("src/penstock__mypyc")]:
        for binary in source.parent.glob(f"{source.stem}.*.so"):
            binary.unlink()


def compiled_leaves() -> list[Extension]:
    if os.environ.get("PENSTOCK_PURE", "0") not in ("", "0"):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        fall_back("mypyc is not installed")
        return []
    try:
        extensions: list[Extension] = mypycify(
            [leaf for leaf in LEAVES if Path(leaf).exists()], group_name="penstock", debug_level="0"
        )
    except SystemExit as refusal:  # how mypyc reports that it cannot translate a source
        fall_back(f"mypyc gave up: {refusal}")
        return []
    for extension in extensions:
        if sys.platform == "linux":
            extension.extra_compile_args.append("-fno-semantic-interposition")  # lets the small helpers be inlined
    return extensions


class BuildLeaves(build_ext):
    """All leaves or none: a half-built set would not import."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as failure:  # whatever the compiler, the linker or their absence raised
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            fall_back(f"{type(failure).__name__}: {failure}")
            self.extensions = []


setup(ext_modules=compiled_leaves(), cmdclass={"build_ext": BuildLeaves})
