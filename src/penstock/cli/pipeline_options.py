"""What the pipeline commands share: options, where a pipeline's files go, and how a run is shown and ends.

Spark is imported by the run itself, never by the command line: `penstock --help` must not wait for it.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from penstock.cli.options import pairs
from penstock.cli.terminal import EXIT_INTERRUPTED, CommandFailed, console, note, print_json
from penstock.client.blocking import BlockingConnection
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.display import Display
    from penstock.pipeline.runner import Outcome, Run


class Format(StrEnum):
    parquet = "parquet"
    delta = "delta"
    iceberg = "iceberg"


DEFAULT_MASTER = "local[*]"
CHECK_S = 10.0
HOME = ".penstock"  # beside the pipeline's file: checkpoints, catalogue, tables

Master = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="PENSTOCK_MASTER",
        help="Where Spark runs: local[*], spark://…, k8s://…, yarn, or sc://host:port.",
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="The name that the broker shows and 'pipeline stop' takes.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="What was done so far. The same place again goes on there.",
        show_default=f"{HOME}/NAME",
    ),
]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark. Repeatable.")]
Environment = Annotated[
    str | None,
    typer.Option(
        "--environment", metavar="FILE", help="A packed Python environment (.tar.gz) for executors without penstock."
    ),
]
Once = Annotated[
    bool,
    typer.Option(
        "--once/--continuous", help="Stop when everything that is there is read, or go on until it is stopped."
    ),
]
Trigger = Annotated[
    str | None,
    typer.Option("--trigger", metavar="INTERVAL", help="Begin a batch every so often, such as '10 seconds'."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Start sooner and run slower: for little data.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show what Spark and Java say, and stack traces.")]

TableFormat = Annotated[Format, typer.Option("--format", help="What kind of table it is.")]
Catalog = Annotated[
    str | None,
    typer.Option(
        "--catalog", metavar="URI", help="Of Iceberg: the SQL catalog.", show_default="sqlite in the warehouse"
    ),
]

_INTERVAL = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?|d|days?)?\s*")
_UNITS = {"ms": 0.001, "mi": 60.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

T = TypeVar("T")


def seconds_of(interval: str, option: str = "--trigger") -> float:
    """`10 seconds`, `5m`, `500 ms`, `3`."""
    found = _INTERVAL.fullmatch(interval.lower())
    if not found or not float(found[1]):
        raise typer.BadParameter(f"{interval!r} is not an interval such as '10 seconds'", param_hint=option)
    unit = found[2] or "s"
    if unit == "ms" or unit.startswith("milli"):
        return float(found[1]) / 1000
    return float(found[1]) * _UNITS[unit[0]]


def spark_interval(interval: str, option: str = "--trigger") -> str:
    return f"{round(seconds_of(interval, option) * 1000)} milliseconds"


@dataclass(frozen=True)
class Place:
    """Where Spark runs, and with what."""

    name: str
    server: str
    master: str = DEFAULT_MASTER
    conf: list[str] | None = None
    environment: str | None = None
    quick: bool = False
    verbose: bool = False
    as_json: bool = False
    result_matters: bool = False  # standard output is for the result, progress goes to standard error

    def settings(self) -> dict[str, str]:
        given = pairs(self.conf, "--conf")
        wrong = [name for name in given if not name.startswith("spark.")]
        if wrong:
            raise typer.BadParameter(f"{wrong[0]!r}: settings of Spark begin with 'spark.'", param_hint="--conf")
        return given


def home_of(name: str, checkpoint: str | None, beside: Path | None = None) -> Path:
    """The directory of a pipeline. By default it lies beside its file, so that it does not matter where one stands."""
    if checkpoint is not None:
        return Path(checkpoint).expanduser().absolute()
    return (beside or Path.cwd()).absolute() / HOME / name


def perform(
    place: Place,
    work: "Callable[[Run, SparkSession], T]",
    *,
    about: dict[str, Any] | None = None,
    settings: dict[str, str] | None = None,
    declared: bool = False,
) -> T | None:
    """Start Spark, do the work, show how it goes; ends the command with exit code 1 if it failed."""
    given = place.settings()
    # Later the broker may come and go; a wrong address is better told now than when Spark has started.
    BlockingConnection(place.server, timeout_s=CHECK_S, client="penstock-cli").close()
    from penstock.pipeline.launch import launch
    from penstock.pipeline.runner import Run

    run = Run(
        place.name,
        server=place.server,
        display=_display(place),
        about={"master": place.master, **(about or {})},
    )

    def begin(run: "Run") -> T:
        spark = launch(
            place.name,
            place.master,
            verbose=place.verbose,
            declared=declared,
            environment=place.environment,
            quick=place.quick,
            settings={**(settings or {}), **given},
        )
        run.at_end = spark.stop
        run.take_signals()
        run.check()
        run.cancel = lambda: _cancel(spark)
        return run.insist(lambda: work(run, spark), lambda: _stop_all(spark))

    return ended(run.perform(begin, signals=True), place)


def _cancel(spark: Any) -> None:
    """End batch jobs; queries were stopped before."""
    if hasattr(spark, "interruptAll") and not hasattr(spark, "_jsparkSession"):
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()


def _stop_all(spark: Any) -> None:
    for query in spark.streams.active:
        query.stop()


def _display(place: Place) -> "Display":
    from penstock.pipeline.display import Lines, Screen, Silent

    stream = sys.stderr if place.result_matters else sys.stdout
    if stream.isatty() and not (place.as_json and not place.result_matters):
        return Screen(place.name, console(stderr=place.result_matters))
    return Silent() if place.result_matters else Lines(place.name)


def ended(outcome: "Outcome[T]", place: Place) -> T | None:
    if outcome.state == "failed":
        if place.verbose and outcome.error is not None:
            import traceback

            traceback.print_exception(outcome.error)
        error = outcome.error
        raise (
            error
            if isinstance(error, PenstockError)
            else CommandFailed(
                f"{place.name} failed: {outcome.message}{'' if place.verbose else '; --verbose shows more'}"
            )
        )
    if outcome.state == "stopped" and place.result_matters:
        # Nobody is to take half a result for a whole one.
        note("it was stopped before it was done")
        raise typer.Exit(EXIT_INTERRUPTED)
    return outcome.result


def show(result: Any, as_json: bool) -> None:
    """A job's result that knows how to show itself."""
    if as_json:
        print_json(result.as_dict())
    else:
        console().print(result.table())
