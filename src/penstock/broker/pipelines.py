"""Pipelines: who runs, how it does, and who was asked to stop. All of it is told by the pipelines themselves.

Nothing here is durable: a pipeline reports every few seconds, so after a restart the next reports tell it all again,
but for orders to stop that were not taken yet. There is no timer: what time brings is decided when somebody asks.

    reported            shown as it says
    silent for 30 s     shown as lost, unless its last word was that it had ended
    silent for a day    forgotten; earlier, when there is no room or another run of its name begins
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from penstock.model.clock import Clock
from penstock.model.errors import InvalidRequest, LimitReached, UnknownPipeline
from penstock.security.acl import Authorizer, Operation, Resource
from penstock.security.principal import Principal

MAX_RUNS = 1_000
MAX_NAME_CHARS = 249
MAX_REPORT_VALUES = 64
MAX_REPORT_BYTES = 8 << 10
LOST_AFTER_MS = 30_000
FORGOTTEN_AFTER_MS = 24 * 3600 * 1000

STATES = ("starting", "running", "idle", "stopping", "stopped", "failed")
ENDED = ("stopped", "failed")
LOST = "lost"

Value = str | int | float | bool | None


class RunInfo(NamedTuple):
    """One run of a pipeline, as people see it."""

    name: str
    run: str
    state: str
    report: Mapping[str, Value]
    since_ms: int  # when its first report came, wall clock
    heard_ms: int  # and its last


@dataclass(slots=True)
class _Run:
    state: str
    report: Mapping[str, Value]
    since_ms: int
    heard_ms: int
    heard: int  # the same by the clock that never goes back
    told_to_stop: bool = False

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


class Pipelines:
    def __init__(self, clock: Clock, authorizer: Authorizer) -> None:
        self._clock = clock
        self._authorizer = authorizer
        self._runs: dict[tuple[str, str], _Run] = {}  # the one heard of longest ago comes first

    def report(self, principal: Principal, name: str, run: str, state: str, report: Mapping[str, Value]) -> bool:
        """A run tells how it does. Whether it is to stop."""
        self._authorizer.check(principal, Operation.WRITE, Resource.PIPELINE, name)
        _check(name, run, state, report)
        self._forget_old()
        known = self._runs.pop((name, run), None)
        if known is None:
            self._make_room(name)
        wall_ms, now = self._clock.wall_ms(), self._clock.monotonic_ms()
        since_ms, told = (wall_ms, False) if known is None else (known.since_ms, known.told_to_stop)
        self._runs[name, run] = _Run(state, dict(report), since_ms, wall_ms, now, told)
        return told

    def pipelines(self, principal: Principal) -> list[RunInfo]:
        """All runs that the principal may see, by name, the oldest of a name first."""
        self._forget_old()
        shown = [
            RunInfo(name, run, LOST if self._is_lost(kept) else kept.state, kept.report, kept.since_ms, kept.heard_ms)
            for (name, run), kept in self._runs.items()
            if self._authorizer.allows(principal, Operation.DESCRIBE, Resource.PIPELINE, name)
        ]
        return sorted(shown, key=lambda one: (one.name, one.since_ms, one.run))

    def stop(self, principal: Principal, name: str) -> int:
        """Every run of this name that goes on is told to stop with its next report. How many that are."""
        self._authorizer.check(principal, Operation.ALTER, Resource.PIPELINE, name)
        self._forget_old()
        runs = [kept for (known, _), kept in self._runs.items() if known == name]
        if not runs:
            raise UnknownPipeline(f"nothing was heard of a pipeline {name!r}")
        going_on = [kept for kept in runs if not kept.has_ended]
        for kept in going_on:
            kept.told_to_stop = True
        return len(going_on)

    # -- within -----------------------------------------------------------------------------------------------

    def _is_lost(self, kept: _Run) -> bool:
        return not kept.has_ended and self._clock.monotonic_ms() - kept.heard > LOST_AFTER_MS

    def _forget_old(self) -> None:
        oldest = self._clock.monotonic_ms() - FORGOTTEN_AFTER_MS
        while self._runs:
            first = next(iter(self._runs))
            if self._runs[first].heard >= oldest:
                break
            del self._runs[first]

    def _make_room(self, name: str) -> None:
        """For a run that is new: those before it under its name are history, unless they still go on."""
        over = [key for key, kept in self._runs.items() if kept.has_ended or self._is_lost(kept)]
        for key in over:
            if key[0] == name:
                del self._runs[key]
        if len(self._runs) >= MAX_RUNS:
            given_up = next((key for key in over if key in self._runs), None)
            if given_up is None:
                raise LimitReached(f"the server knows at most {MAX_RUNS} running pipelines")
            del self._runs[given_up]


def _check(name: str, run: str, state: str, report: Mapping[str, Value]) -> None:
    for what, text in (("name", name), ("run", run)):
        if not 1 <= len(text) <= MAX_NAME_CHARS:
            raise InvalidRequest(f"the {what} of a pipeline has 1 to {MAX_NAME_CHARS} characters, not {len(text)}")
    if state not in STATES:
        raise InvalidRequest(f"a pipeline reports that it is {', '.join(STATES)}, not {state[:100]!r}")
    if len(report) > MAX_REPORT_VALUES:
        raise InvalidRequest(f"a report has at most {MAX_REPORT_VALUES} values, not {len(report)}")
    size_bytes = len(msgspec.msgpack.encode(report))
    if size_bytes > MAX_REPORT_BYTES:
        raise InvalidRequest(f"a report has at most {MAX_REPORT_BYTES} bytes, not {size_bytes}")
