"""What a pipeline's file is, told by reading it and before anything of it runs.

file.py with a function `pipeline`         a plain pipeline: it is handed the session and returns streaming queries
file.py that imports `pyspark.pipelines`   a declarative pipeline in Python
file.sql                                   a declarative pipeline in SQL
file.yml, or a directory with one          a declarative pipeline of several files: Spark's own specification
"""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from penstock.pipeline.errors import PipelineError

FUNCTION: Final = "pipeline"
DECLARATIVE: Final = "pyspark.pipelines"
SPECIFICATIONS: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
LARGEST_BYTES: Final = 10 << 20  # nobody writes more by hand

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


class InvalidPipeline(PipelineError):
    """A file that is no pipeline, or one that does not do what a pipeline must."""


class Kind(StrEnum):
    plain = "plain"
    declared = "declared"


@dataclass(frozen=True)
class PipelineFile:
    path: Path
    kind: Kind

    @property
    def default_name(self) -> str:
        stem = self.path.parent.name if self.path.name in SPECIFICATIONS else self.path.stem
        return name_of(stem)


def name_of(text: str) -> str:
    """The text as a name that may stand in paths and on the broker."""
    return _NOT_IN_NAMES.sub("-", text).strip("-.") or "pipeline"


def open_file(given: str) -> PipelineFile:
    path = Path(given).expanduser()
    if path.is_dir():
        found = [path / name for name in SPECIFICATIONS if (path / name).is_file()]
        if not found:
            raise InvalidPipeline(f"there is no {SPECIFICATIONS[0]} in the directory {given}")
        path = found[0]
    if not path.is_file():
        raise InvalidPipeline(f"there is no file {given}; 'penstock pipeline new {given}' writes one to begin with")
    if path.stat().st_size > LARGEST_BYTES:
        raise InvalidPipeline(f"{given} has more than {LARGEST_BYTES >> 20} MB: it is no pipeline's file")
    path = path.resolve()
    if path.suffix == ".sql" or path.suffix in (".yml", ".yaml"):
        return PipelineFile(path, Kind.declared)
    if path.suffix == ".py":
        return PipelineFile(path, _kind_of_python(path))
    raise InvalidPipeline(f"{given} is neither a .py, a .sql nor a .yml file")


def _kind_of_python(path: Path) -> Kind:
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise InvalidPipeline(f"{path.name}, line {error.lineno}: {error.msg}") from None
    if FUNCTION in _defined(tree):
        return Kind.plain
    if _imports_declarative(tree):
        return Kind.declared
    raise InvalidPipeline(
        f"{path.name} has neither a function '{FUNCTION}(spark)' that returns streaming queries nor an import of "
        f"{DECLARATIVE}; 'penstock pipeline new' writes a file to begin with"
    )


def _defined(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom) and node.module != "pyspark":
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def _imports_declarative(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(alias.name == DECLARATIVE for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (
            node.module == DECLARATIVE or (node.module == "pyspark" and any(a.name == "pipelines" for a in node.names))
        ):
            return True
    return False


# -- plain pipelines ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """The function of a plain pipeline, and which of the things on offer it wants."""

    path: Path
    function: Callable[..., Any]
    wants: Sequence[str]

    def start(self, spark: Any, offers: Mapping[str, object]) -> list[Any]:
        """Call it; the streaming queries that it started."""
        given = self.function(spark, **{name: offers[name] for name in self.wants})
        queries = [given] if hasattr(given, "awaitTermination") else list(given or ())
        strangers = [one for one in queries if not hasattr(one, "awaitTermination")]
        if strangers:
            raise InvalidPipeline(
                f"{FUNCTION}() of {self.path.name} returned a {type(strangers[0]).__name__}; it is to return streaming "
                "queries, which is what writeStream...start() returns"
            )
        # Queries that it forgot to return run all the same.
        known = {one.id for one in queries}
        queries += [one for one in spark.streams.active if one.id not in known]
        if not queries:
            raise InvalidPipeline(
                f"{FUNCTION}() of {self.path.name} started no streaming query; end it with "
                "'return ....writeStream...start()'"
            )
        return queries


def load_plain(path: Path, offered: Sequence[str]) -> Plain:
    function = getattr(load_module(path), FUNCTION)
    if not callable(function):
        raise InvalidPipeline(f"'{FUNCTION}' of {path.name} is not a function")
    names = list(inspect.signature(function).parameters.values())
    if not names:
        raise InvalidPipeline(f"{FUNCTION}() of {path.name} takes nothing; its first parameter is the Spark session")
    wants = []
    for parameter in names[1:]:
        if parameter.name in offered:
            wants.append(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            raise InvalidPipeline(
                f"{FUNCTION}() of {path.name} wants {parameter.name!r}; what can be had is {', '.join(offered)}"
            )
    return Plain(path, function, wants)


def load_module(path: Path, **names: object) -> ModuleType:
    """Run the file as a module that knows these names. What lies beside it can be imported by it."""
    name = f"penstock_pipeline_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    _carry(module)
    return module


def _carry(module: ModuleType) -> None:
    """Functions of the file that run in workers travel with the query: no worker could import the file by its name."""
    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
    cloudpickle.register_pickle_by_value(module)
