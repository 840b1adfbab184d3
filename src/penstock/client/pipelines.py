"""Pipelines: how a running one tells how it does, and how others find it and ask it to stop."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

from penstock.client.background import Background
from penstock.wire.native import messages as wire

PipelineState = Literal["starting", "running", "idle", "stopping", "stopped", "failed"]
ReportValue = str | int | float | bool | None


class Pipeline(NamedTuple):
    """One run of a pipeline."""

    name: str
    run: str
    state: str  # as it said last, or lost
    report: Mapping[str, ReportValue]
    since_ms: int
    heard_ms: int


class Pipelines:
    """`client.pipelines`. Repeating any of these after a lost answer is safe."""

    def __init__(self, call: Callable[[wire.Message], Awaitable[Any]]) -> None:
        self._call = call

    async def report(
        self, name: str, run: str, state: PipelineState, report: Mapping[str, ReportValue] | None = None
    ) -> bool:
        """Tell how this run does; to be repeated every few seconds. Whether it is to stop."""
        answer = await self._call(wire.ReportPipeline(name, run, state, dict(report or {})))
        return bool(answer.stop)

    async def list(self) -> list[Pipeline]:
        answer = await self._call(wire.ListPipelines())
        return [
            Pipeline(one.name, one.run, one.state, one.report, one.since_ms, one.heard_ms) for one in answer.pipelines
        ]

    async def stop(self, name: str) -> int:
        """Ask all runs of this pipeline to stop; how many were asked. Raises UnknownPipeline."""
        answer = await self._call(wire.StopPipeline(name))
        return int(answer.count)


class SyncPipelines:
    """The same with calls that wait."""

    def __init__(self, inner: Pipelines, loop: Background) -> None:
        self.inner = inner
        self._loop = loop

    def report(
        self, name: str, run: str, state: PipelineState, report: Mapping[str, ReportValue] | None = None
    ) -> bool:
        return self._loop.wait(self.inner.report(name, run, state, report))

    def list(self) -> list[Pipeline]:
        return self._loop.wait(self.inner.list())

    def stop(self, name: str) -> int:
        return self._loop.wait(self.inner.stop(name))
