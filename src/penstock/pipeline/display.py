"""How a run is shown: live in a terminal, as JSON lines anywhere else.

A line is written when something has changed: a batch, a state, a stage. The last line tells how the run ended.
"""

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import IO, Any, Protocol

import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.pipeline.jobs.job import Progress
from penstock.pipeline.progress import Reading

STYLES = {"running": "green", "failed": "bold red", "stopping": "yellow", "starting": "cyan"}
REDRAWS_PER_S = 4
FLOWS_SHOWN = 20


class Display(Protocol):
    def show(self, state: str, readings: Sequence[Reading], stage: Progress | None) -> None: ...
    def note(self, text: str) -> None: ...
    def end(self, told: dict[str, Any]) -> None: ...


class Silent:
    """For libraries and tests."""

    def show(self, state: str, readings: Sequence[Reading], stage: Progress | None) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def end(self, told: dict[str, Any]) -> None:
        pass


class Lines:
    """One JSON object a line."""

    def __init__(self, pipeline: str, out: IO[str] | None = None) -> None:
        self._pipeline = pipeline
        self._out = out if out is not None else sys.stdout
        self._shown: dict[str, tuple[Any, ...]] = {}

    def show(self, state: str, readings: Sequence[Reading], stage: Progress | None) -> None:
        for one in readings:
            self._changed(one.query, (one.state, one.batch, one.rows), one.as_dict())
        if stage is not None:
            self._changed("", tuple(stage), {"state": state, **stage._asdict()})
        if not readings and stage is None:
            self._changed("", (state,), {"state": state})

    def note(self, text: str) -> None:
        self._write({"note": text})

    def end(self, told: dict[str, Any]) -> None:
        self._write(told)

    def _changed(self, what: str, mark: tuple[Any, ...], told: dict[str, Any]) -> None:
        if self._shown.get(what) != mark:
            self._shown[what] = mark
            self._write(told)

    def _write(self, told: dict[str, Any]) -> None:
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "pipeline": self._pipeline, **told}
        self._out.write(msgspec.json.encode(line).decode() + "\n")
        self._out.flush()


class Screen:
    """A table that redraws itself, of a run; notes scroll by above it."""

    def __init__(self, pipeline: str, console: Console) -> None:
        self._pipeline = pipeline
        self._console = console
        self._began = time.monotonic()
        self._state = "starting"
        self._readings: Sequence[Reading] = ()
        self._stage: Progress | None = None
        self._live = Live(
            get_renderable=self._render, console=console, refresh_per_second=REDRAWS_PER_S, transient=True
        )
        self._live.start()

    def show(self, state: str, readings: Sequence[Reading], stage: Progress | None) -> None:
        self._state, self._readings, self._stage = state, readings, stage

    def note(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))

    def end(self, told: dict[str, Any]) -> None:
        self._state = str(told.get("state", self._state))
        self._live.stop()
        if self._readings:
            self._console.print(self._render())

    def _render(self) -> RenderableType:
        seconds = int(time.monotonic() - self._began)
        head = Text.assemble(
            (self._pipeline, "bold"),
            "   ",
            (self._state, STYLES.get(self._state, "dim")),
            (f"   {seconds // 60}:{seconds % 60:02}", "dim"),
        )
        if self._stage is not None:
            head.append(f"   {staged(self._stage)}")
        return Group(head, readings_table(self._readings)) if self._readings else head


def staged(stage: Progress) -> str:
    of = f" of {stage.total:,}" if stage.total is not None else ""
    return f"{stage.stage}   {stage.done:,}{of} rows"


def readings_table(readings: Sequence[Reading]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("Query", "State"):
        table.add_column(column, overflow="fold")
    for column in ("Batch", "Rows", "Rows/s", "Lag", "Batch ms"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in readings:
        table.add_row(
            Text(one.query),
            Text(one.state, style=STYLES.get(one.state, "dim")),
            _shown(one.batch),
            _shown(one.rows),
            _shown(round(one.rows_per_s)),
            _shown(one.lag),
            _shown(one.duration_ms),
        )
    return table


def _shown(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
