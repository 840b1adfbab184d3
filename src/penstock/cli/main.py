"""Gathers the commands, and makes the options of `serve` from the table of settings."""

import inspect
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import penstock
from penstock.cli import groups, pipeline, queue, router, topics
from penstock.cli.publish import publish
from penstock.cli.serve import run_server
from penstock.cli.settings import settings
from penstock.cli.subscribe import subscribe
from penstock.config import Setting, section_of, table, text_of

SERVER, MESSAGES, ADMINISTRATION, PIPELINES = "Server", "Messages", "Administration", "Pipelines"
HELP = "One durable log, every protocol. Start a server with [bold]penstock serve[/bold]."

app = typer.Typer(
    no_args_is_help=True,
    help=HELP,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def version_line() -> str:
    """Which Penstock this is, and whether its hot leaves are machine code."""
    kind = "compiled" if penstock.compiled() else "pure Python"
    return f"penstock {penstock.__version__} ({kind}, Python {sys.version.split()[0]})"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version_line())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


# -- serve --------------------------------------------------------------------------------------------------


def _serve(config: str | None, **given: Any) -> None:
    flags = {name: value for name, value in ((name, _texts(value)) for name, value in given.items()) if value}
    raise typer.Exit(run_server(flags, config))


def _texts(value: object) -> list[str]:
    if isinstance(value, list):
        return value
    if isinstance(value, bool):
        return ["true" if value else "false"]
    return [] if value is None else [str(value)]


def _parameter(setting: Setting) -> inspect.Parameter:
    """The setting as a parameter that typer makes an option of."""
    kind: Any = str | None
    flag = setting.flag
    if isinstance(setting.default, bool):
        kind, flag = bool | None, f"{flag}/--no-{flag[2:]}"
    elif isinstance(setting.default, dict):
        kind = list[str] | None
    option = typer.Option(
        flag,
        help=setting.doc.replace("`", "'"),
        metavar=None if isinstance(setting.default, bool) else setting.kind.word,
        show_default=text_of(setting.default) or False,
        rich_help_panel=section_of(setting.name),
    )
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _make_serve() -> None:
    config = typer.Option("--config", "-c", metavar="FILE", help="File of settings: .toml, .json, .yaml or .yml.")
    parameters = [
        inspect.Parameter(
            "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, config]
        ),
        *map(_parameter, table().values()),
    ]
    _serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    _serve.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(
        "serve",
        rich_help_panel=SERVER,
        help="Start the server.\n\nEvery option is also an environment variable (--log-level: PENSTOCK_LOG_LEVEL) and "
        "a key in the file (log_level). Options win over the environment, which wins over the file.",
    )(_serve)


_make_serve()
app.command("settings", rich_help_panel=SERVER)(settings)
app.command("publish", rich_help_panel=MESSAGES)(publish)
app.command("subscribe", rich_help_panel=MESSAGES)(subscribe)
app.add_typer(topics.app, name="topic", rich_help_panel=ADMINISTRATION)
app.add_typer(groups.app, name="group", rich_help_panel=ADMINISTRATION)
app.add_typer(queue.app, name="queue", rich_help_panel=ADMINISTRATION)
app.add_typer(router.app, name="router", rich_help_panel=ADMINISTRATION)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=PIPELINES)


# Names that people know from elsewhere, and that these commands once had.
RENAMED = {"produce": "publish", "consume": "subscribe"}


def _tell_new_name(context: typer.Context) -> None:
    old = context.info_name or ""
    print(f"penstock: 'penstock {old}' is now 'penstock {RENAMED[old]}'; see its --help", file=sys.stderr)
    raise typer.Exit(2)


for _name in RENAMED:
    app.command(
        _name,
        hidden=True,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(_tell_new_name)


def run(arguments: Sequence[str]) -> int:
    """The exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    try:
        app(list(arguments), prog_name="penstock")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    return 0
