"""Pipelines that tell how they do, and people who ask, or ask them to stop."""

from penstock.doors.line.binary_api import Call, handles
from penstock.wire.native.messages import (
    Done,
    ListPipelines,
    Orders,
    PipelineInfo,
    Pipelines,
    ReportPipeline,
    StopPipeline,
)


@handles(ReportPipeline)
async def report_pipeline(call: Call, request: ReportPipeline) -> Orders:
    stop = call.broker.pipelines.report(call.principal, request.name, request.run, request.state, request.report)
    return Orders(stop)


@handles(ListPipelines)
async def list_pipelines(call: Call, request: ListPipelines) -> Pipelines:
    return Pipelines(
        [
            PipelineInfo(one.name, one.run, one.state, dict(one.report), one.since_ms, one.heard_ms)
            for one in call.broker.pipelines.pipelines(call.principal)
        ]
    )


@handles(StopPipeline)
async def stop_pipeline(call: Call, request: StopPipeline) -> Done:
    return Done(call.broker.pipelines.stop(call.principal, request.name))
