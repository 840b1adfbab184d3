"""Everything that is printed and everything that ends a command: tables for people, JSON for scripts, quiet ends.

Results go to standard output. Progress, notes and errors go to standard error, so that a pipe carries results only.
"""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn, ParamSpec

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from penstock.model.errors import (
    GroupNotEmpty,
    PenstockError,
    TopicExists,
    UnknownGroup,
    UnknownRouter,
    UnknownTopic,
    UnknownView,
    ViewExists,
)

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
# A pipe has no width: never wrap or cut what a script might read.
PIPE_WIDTH = 10_000

# What to do about it, where the error itself does not say.
HINTS: dict[type[PenstockError], str] = {
    UnknownTopic: "'penstock topic create' makes one, 'penstock topic list' shows what there is",
    TopicExists: "'penstock topic alter' changes it",
    UnknownGroup: "'penstock group list' shows what there is",
    GroupNotEmpty: "stop its consumers first; 'penstock group describe' shows them",
    UnknownView: "'penstock queue list' shows what there is",
    ViewExists: "'penstock queue alter' changes it",
    UnknownRouter: "'penstock router list' shows what there is",
}

P = ParamSpec("P")


class CommandFailed(PenstockError):
    """What a command has to say by itself, in one line."""


def console(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PIPE_WIDTH)


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """A command whose known failures are one line, whose Ctrl-C is silent and whose reader may leave early."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except PenstockError as error:
            fail(told(error))
        except BrokenPipeError:
            _silence(sys.stdout.fileno())  # the interpreter flushes once more on its way out
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None

    return run


def told(error: PenstockError) -> str:
    """The error, with what to do about it."""
    hint = HINTS.get(type(error))
    return f"{error}; {hint}" if hint else str(error)


def _silence(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def fail(message: str) -> NoReturn:
    line = Text("penstock: ", style="bold red")
    line.append(message, style="not bold default")
    console(stderr=True).print(line, soft_wrap=True)
    raise typer.Exit(EXIT_FAILED)


def note(message: str) -> None:
    console(stderr=True).print(Text(message, style="dim"), soft_wrap=True)


def done(message: str) -> None:
    console().print(Text(message), soft_wrap=True)


def confirm(question: str, yes: bool) -> None:
    """Go on only if the person agrees, or has agreed beforehand."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail("nothing was changed: there is nobody to ask; add --yes to go ahead")
    if not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(EXIT_FAILED)


# -- results ------------------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """Columns whose name begins with `#` hold numbers and stand to the right."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        number = column.startswith("#")
        table.add_column(column.lstrip("#"), justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in rows:
        table.add_row(*map(cell, row))
    console().print(table)


def cell(value: object) -> Text:
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int):
        return Text(f"{value:,}")
    return Text(str(value))


# -- progress -----------------------------------------------------------------------------------------------


def working(what: str) -> AbstractContextManager[object]:
    """A spinner while something takes its time; nothing where nobody looks."""
    return console(stderr=True).status(what)


def counting(unit: str, *, in_bytes: bool = False, shown: bool = True) -> Progress:
    """A bar (or, without a total, a count) on standard error; nothing where nobody looks."""
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    amount = [DownloadColumn()] if in_bytes else [MofNCompleteColumn(), TextColumn(unit)]
    screen = console(stderr=True)
    hidden = not (shown and screen.is_terminal)
    return Progress(*columns, *amount, TimeElapsedColumn(), console=screen, transient=True, disable=hidden)
