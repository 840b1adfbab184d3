"""Pipelines: how those do that run, and asking one to stop. They report through the line door."""

import msgspec

from penstock.doors.http.call import Call, Reply, reply
from penstock.doors.http.routing import route

PIPELINES = "Pipelines"


class Pipeline(msgspec.Struct):
    """One run of a pipeline. `state` is its own word, or `lost` when it has not been heard of for a while."""

    name: str
    run: str
    state: str
    report: dict[str, str | int | float | bool | None]
    since_ms: int
    heard_ms: int


class PipelineList(msgspec.Struct):
    pipelines: list[Pipeline]


class Stopping(msgspec.Struct):
    runs: int  # how many were told to stop


@route("GET", "/v1/pipelines", PIPELINES, "List pipelines", reply=PipelineList, reads=True)
async def list_pipelines(call: Call) -> Reply:
    found = call.broker.pipelines.pipelines(call.principal)
    return reply(PipelineList([Pipeline(*one[:3], dict(one.report), one.since_ms, one.heard_ms) for one in found]))


@route("POST", "/v1/pipelines/{name}/stop", PIPELINES, "Ask a pipeline to stop", reply=Stopping, status=202)
async def stop_pipeline(call: Call) -> Reply:
    """It finishes what it has begun, then reports that it has stopped."""
    return reply(Stopping(call.broker.pipelines.stop(call.principal, call["name"])), 202)
