"""`penstock pipeline …`: run, new, list, status, stop; the built-in pipelines are beside this file."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options, pipeline_jobs, pipeline_tools
from penstock.cli.options import connect
from penstock.cli.pipeline_options import (
    DEFAULT_MASTER,
    Checkpoint,
    Conf,
    Environment,
    Master,
    Name,
    Place,
    Quick,
    Trigger,
    Verbose,
    home_of,
    perform,
    seconds_of,
    spark_interval,
)
from penstock.cli.pipeline_starter import STARTERS, starter
from penstock.cli.terminal import CommandFailed, confirm, console, done, guarded, print_json, print_table, working
from penstock.client.pipelines import Pipeline
from penstock.model.errors import UnknownPipeline

if TYPE_CHECKING:
    from penstock.pipeline.files import PipelineFile

app = typer.Typer(no_args_is_help=True, help="Run data pipelines on Apache Spark, and look after those that run.")

PipelineName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline; 'pipeline list' shows them.")]
ENDED = ("stopped", "failed", "lost")
DEFAULT_EVERY = "10 seconds"  # between two runs of a declarative pipeline that goes on
POLL_S = 0.2
BUILT_IN = "Built-in pipelines"


@app.command("run")
@guarded
def run(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A .py, .sql or spark-pipeline.yml file; 'pipeline new' writes one.")
    ],
    master: Master = DEFAULT_MASTER,
    server: options.Server = options.DEFAULT_SERVER,
    name: Name = None,
    checkpoint: Checkpoint = None,
    once: Annotated[
        bool | None,
        typer.Option(
            "--once/--continuous",
            help="Stop when everything that is there is read, or go on until it is stopped.",
            show_default="plain: continuous; declarative: once",
        ),
    ] = None,
    trigger: Trigger = None,
    full_refresh: Annotated[
        bool, typer.Option("--full-refresh", help="Of a declarative pipeline: compute everything anew.")
    ] = False,
    conf: Conf = None,
    environment: Environment = None,
    quick: Quick = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, in a terminal too.")] = False,
    verbose: Verbose = False,
) -> None:
    """Run a pipeline: continuous queries of a Python file, or a declarative pipeline in Python or SQL.

    Ends by itself, by Ctrl-C, or by 'penstock pipeline stop NAME'. The same command again goes on where it ended.
    """
    if once and trigger is not None:
        raise typer.BadParameter("an interval is for a pipeline that goes on: leave out --once or --trigger")
    from penstock.pipeline.files import Kind, open_file

    opened = open_file(file)
    place = Place(name or opened.default_name, server, master, conf, environment, quick, verbose, as_json)
    home = home_of(place.name, checkpoint, opened.path.parent)
    if opened.kind is Kind.declared:
        every = None if trigger is None and once is not False else seconds_of(trigger or DEFAULT_EVERY)
        _run_declared(place, opened, home, every, full_refresh)
        return
    if full_refresh:
        raise typer.BadParameter("only declarative pipelines are refreshed; for a plain one choose a new --checkpoint")
    asked = once is not None or trigger is not None
    _run_plain(place, opened, home, bool(once), spark_interval(trigger) if trigger else None, asked)


def _run_plain(place: Place, file: "PipelineFile", home: Path, once: bool, interval: str | None, asked: bool) -> None:
    from penstock.pipeline.files import InvalidPipeline, load_plain

    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": interval or "0 seconds"}
    offers = {
        "server": place.server,
        "checkpoint": str(home),
        "trigger": trigger,
        "name": place.name,
        "once": once,
    }

    def work(run: Any, spark: Any) -> None:
        plain = load_plain(file.path, list(offers))
        if asked and not {"trigger", "once"} & set(plain.wants):
            raise InvalidPipeline(
                f"--once, --continuous and --trigger are for files that ask: let {file.path.name} have "
                "'def pipeline(spark, trigger)' and write '.trigger(**trigger)'"
            )
        _tell(spark, place)
        run.wait(plain.start(spark, offers))

    settings = {"spark.sql.streaming.checkpointLocation": str(home)}
    perform(place, work, about={"kind": "plain", "file": file.path.name}, settings=settings)


def _run_declared(place: Place, file: "PipelineFile", home: Path, every_s: float | None, full_refresh: bool) -> None:
    from penstock.pipeline.declared import read_declaration, run_declared, settings_of

    def work(run: Any, spark: Any) -> int:
        _tell(spark, place)
        return run_declared(
            run,
            spark,
            read_declaration(file, home),
            server=place.server,
            every_s=every_s,
            full_refresh=full_refresh,
        )

    perform(
        place,
        work,
        about={"kind": "declarative", "file": file.path.name},
        settings=settings_of(home),
        declared=True,
    )


def _tell(spark: Any, place: Place) -> None:
    """Files find out where the broker is, in Python and in SQL: `${penstock.server}`."""
    spark.conf.set("penstock.server", place.server)


@app.command("new")
@guarded
def new(
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help=f"Where to: {', '.join(STARTERS)} decide what is written.")
    ] = "pipeline.py",
    declarative: Annotated[
        bool, typer.Option("--declarative", help="Of a .py file: datasets and flows that Spark puts in order.")
    ] = False,
    topic: Annotated[str, typer.Option("--topic", help="The topic that it reads.")] = "orders",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if there is one.")] = False,
) -> None:
    """Write a commented pipeline to begin with. It runs as it is."""
    path = Path(file).expanduser()
    text = starter(path, declarative, topic)
    if path.exists() and not force:
        raise CommandFailed(f"{file} is there already; add --force to overwrite it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"cannot write {file}: {error.strerror}") from None
    done(f"wrote {file}; run it with 'penstock pipeline run {file}'")


# -- those that run -----------------------------------------------------------------------------------------


@app.command("list")
@guarded
def list_(
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """List the pipelines that the broker has heard of, and how they do."""
    with connect(server, timeout_s) as client, working("Asking for pipelines"):
        found = client.pipelines.list()
    if as_json:
        print_json([_told(one) for one in found])
    elif found:
        rows = [
            [
                one.name,
                one.state,
                one.report.get("batch"),
                one.report.get("rows", one.report.get("done")),
                one.report.get("rows_per_s"),
                one.report.get("lag"),
                _age(one.since_ms),
                _host(one),
            ]
            for one in found
        ]
        print_table(["Pipeline", "State", "#Batch", "#Rows", "#Rows/s", "#Lag", "Since", "Where"], rows)
    else:
        done("no pipeline has reported; start one with 'penstock pipeline run FILE'")


@app.command("status")
@guarded
def status(
    name: PipelineName,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Show all that a pipeline reports. Exit code 1 if it failed or is lost."""
    with connect(server, timeout_s) as client, working("Asking for the pipeline"):
        found = [one for one in client.pipelines.list() if one.name == name]
    if not found:
        raise UnknownPipeline(f"nothing was heard of a pipeline {name!r}")
    if as_json:
        print_json([_told(one) for one in found])
    else:
        for one in found:
            done(f"{one.name}   {one.state}   run {one.run}   since {_age(one.since_ms)}, heard {_age(one.heard_ms)}")
            print_table(
                ["What", "Value"], [[key, _value(key, value)] for key, value in one.report.items() if value is not None]
            )
    if found[-1].state in ("failed", "lost"):
        raise typer.Exit(1)


@app.command("stop")
@guarded
def stop(
    name: PipelineName,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it has stopped.")] = True,
    yes: options.Yes = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for its end.")
    ] = 90.0,
) -> None:
    """Ask a pipeline to finish its batch and end."""
    with connect(server) as client:
        confirm(f"Stop {name}?", yes or not console().is_terminal)
        asked = client.pipelines.stop(name)
        if not asked:
            raise CommandFailed(f"{name} does not run; 'penstock pipeline status {name}' shows how it ended")
        left = asked
        if wait:
            with working(f"Waiting for {name} to finish its batch"):
                left = _await_end(lambda: [one for one in client.pipelines.list() if one.name == name], timeout_s)
            if left:
                raise CommandFailed(f"{name} has not ended within {timeout_s:g} s; it was asked to, and may end yet")
    if as_json:
        print_json({"pipeline": name, "asked": asked, "running": left})
    else:
        done(f"stopped {name}" if wait else f"asked {name} to stop")


def _await_end(ask: Callable[[], list[Pipeline]], timeout_s: float) -> int:
    """How many of its runs still go on at the end of the time."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = sum(one.state not in ENDED for one in ask())
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(POLL_S)


def _told(one: Pipeline) -> dict[str, object]:
    return {
        "pipeline": one.name,
        "run": one.run,
        "state": one.state,
        "since_ms": one.since_ms,
        "heard_ms": one.heard_ms,
        "report": dict(one.report),
    }


def _age(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone()
    return moment.isoformat(" ", "seconds")[:19]


def _value(key: str, value: object) -> object:
    return str(value) if key == "pid" else value


def _host(one: Pipeline) -> str | None:
    host, pid = one.report.get("host"), one.report.get("pid")
    return f"{host}, process {pid}" if host else None


_JOBS: dict[str, Callable[..., None]] = {
    "table": pipeline_jobs.table,
    "sql": pipeline_jobs.sql,
    "replay": pipeline_tools.replay,
    "dead-letters": pipeline_tools.dead_letters,
    "audit": pipeline_tools.audit,
    "compact": pipeline_tools.compact,
}
for _name, _command in _JOBS.items():
    app.command(_name, rich_help_panel=BUILT_IN)(_command)
