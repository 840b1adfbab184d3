"""What a streaming query says of itself, as numbers that people want: rows, rows a second, lag, batch, state.

Spark keeps the reports of the newest batches. A meter takes those that it has not seen, so each batch counts once,
however rarely somebody looks. Works on classic and Connect queries alike, and needs no listener in the JVM.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

State = Literal["starting", "running", "idle", "stopping", "stopped", "failed"]
Told = Mapping[str, Any]


class Query(Protocol):
    """What is asked of a streaming query here; classic and Connect ones have it."""

    @property
    def id(self) -> Any: ...
    @property
    def name(self) -> Any: ...
    @property
    def isActive(self) -> bool: ...  # noqa: N802
    @property
    def status(self) -> Any: ...
    @property
    def lastProgress(self) -> Any: ...  # noqa: N802
    @property
    def recentProgress(self) -> Any: ...  # noqa: N802
    def exception(self) -> Any: ...
    def stop(self) -> None: ...
    def awaitTermination(self, timeout: Any = None) -> Any: ...  # noqa: N802


@dataclass(frozen=True)
class Reading:
    """A query at one moment."""

    query: str
    state: State = "starting"
    batch: int | None = None
    batches: int = 0  # that had rows
    rows: int = 0  # since the query was started here
    rows_per_s: float = 0.0  # of the newest batch
    lag: int | None = None  # records between what is read and what is there; None: the source does not tell
    duration_ms: int | None = None  # of the newest batch
    state_rows: int | None = None  # kept by windows, joins and the like
    message: str = ""

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Meter:
    """Reads one query."""

    def __init__(self, query: Query, before: Reading | None = None) -> None:
        """`before`: what was read of the same query before it was started anew."""
        self.query = query
        self.reading = before or Reading(query.name or f"query {str(query.id)[:8]}")
        self._seen: tuple[int, str] = (-1, "")
        self._had_rows = False  # the newest report; Spark makes one without rows when nothing came for a while

    def read(self, stopping: bool = False) -> Reading:
        """Ask the query. After it has ended, what it said last still counts."""
        before = self._seen
        newest = _plain(self.query.lastProgress)
        if newest is not None and _place(newest) != before:
            missed = newest["batchId"] > before[0] + 1
            self._take([_plain(one) for one in self.query.recentProgress] if missed else [newest])
        self._judge(stopping)
        return self.reading

    def _take(self, reports: Sequence[Told | None]) -> None:
        for report in reports:
            if report is not None and _place(report) > self._seen:
                self._seen = _place(report)
                self._had_rows = bool(_total(report, "numInputRows"))
                self.reading = counted(self.reading, report)

    def _judge(self, stopping: bool) -> None:
        reading, message = self.reading, self.reading.message
        rows_per_s = reading.rows_per_s
        if not self.query.isActive:
            state: State = "failed" if self.query.exception() is not None else "stopped"
            rows_per_s = 0.0
        else:
            status = self.query.status
            message = status["message"]
            if stopping:
                state = "stopping"
            elif (status["isTriggerActive"] and status["isDataAvailable"]) or self._had_rows or reading.lag:
                state = "running"
            else:
                state = "idle" if reading.batch is not None else "starting"
        self.reading = Reading(**{**vars(reading), "state": state, "message": message, "rows_per_s": rows_per_s})


def counted(reading: Reading, report: Told) -> Reading:
    """The reading with one more report of Spark's."""
    rows = int(_total(report, "numInputRows"))
    states = report.get("stateOperators") or []
    return Reading(
        query=reading.query,
        state=reading.state,
        batch=report["batchId"],
        batches=reading.batches + (rows > 0),
        rows=reading.rows + rows,
        rows_per_s=_total(report, "processedRowsPerSecond"),
        lag=lag_of(report),
        duration_ms=int((report.get("durationMs") or {}).get("triggerExecution") or report.get("batchDuration") or 0),
        state_rows=sum(int(one.get("numRowsTotal") or 0) for one in states) if states else None,
        message=reading.message,
    )


def _total(report: Told, name: str) -> float:
    """Of the whole query; a Connect session tells it of its sources only."""
    if report.get(name) is not None:
        return _number(report[name])
    return round(sum(_number(source.get(name)) for source in report.get("sources") or []), 1)


def lag_of(report: Told) -> int | None:
    """Records that the sources have and the query has not read, of all sources that tell."""
    lags = [
        _behind(_offsets(source.get("endOffset")), _offsets(source.get("latestOffset")))
        for source in report.get("sources") or []
    ]
    told = [lag for lag in lags if lag is not None]
    return sum(told) if told else None


def _behind(end: Any, latest: Any) -> int | None:
    """Offsets are whole numbers in tables in tables, in the same shape on both sides: `{"orders": {"0": 120}}`.
    What else stands there, such as the id of a topic, is nothing to be behind of.
    """
    if end is None or latest is None:
        return None
    if isinstance(latest, dict):
        parts = [_behind(end.get(place, 0) if isinstance(end, dict) else 0, latest[place]) for place in latest]
        return sum(part for part in parts if part is not None)
    if isinstance(latest, int) and isinstance(end, int | dict):
        return max(0, latest - (end if isinstance(end, int) else 0))
    return None


def _offsets(told: Any) -> Told | None:
    """Spark hands a source's offsets through as it got them, or as the text of them."""
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return None
    return told if isinstance(told, dict) else None


def _number(told: Any) -> float:
    """Spark writes rates that are not finite as text."""
    return (
        round(float(told), 1) if isinstance(told, int | float) and told == told and abs(told) != float("inf") else 0.0
    )


def _plain(progress: Any) -> Told | None:
    if progress is None:
        return None
    text = getattr(progress, "json", None)
    plain: Told = json.loads(text) if isinstance(text, str) else progress
    return plain


def _place(report: Told) -> tuple[int, str]:
    return report["batchId"], str(report["timestamp"])


def summed(readings: Sequence[Reading]) -> Reading:
    """Several queries as one, for whoever has one line only."""
    lags = [one.lag for one in readings if one.lag is not None]
    states = {one.state for one in readings}
    order: tuple[State, ...] = ("failed", "stopping", "running", "starting", "idle", "stopped")
    batches = [one.batch for one in readings if one.batch is not None]
    return Reading(
        query=", ".join(one.query for one in readings),
        state=next((state for state in order if state in states), "starting"),
        batch=max(batches, default=None),
        batches=sum(one.batches for one in readings),
        rows=sum(one.rows for one in readings),
        rows_per_s=round(sum(one.rows_per_s for one in readings), 1),
        lag=sum(lags) if lags else None,
        duration_ms=max((one.duration_ms for one in readings if one.duration_ms is not None), default=None),
        message=next((one.message for one in readings if one.state == "failed"), ""),
    )
