"""Queue views as a whole: making, changing, looking at and emptying them."""

from dataclasses import asdict
from typing import Literal, cast

import msgspec

from penstock.broker.queues import QueueSettings, ViewInfo
from penstock.doors.line.binary_api import Call, handles
from penstock.doors.line.binary_push import fields_as, matches_of
from penstock.model.errors import InvalidRequest
from penstock.wire.native.messages import (
    ConfigureView,
    CreateView,
    DeleteView,
    Done,
    ListViews,
    MatchFields,
    Message,
    PauseView,
    PurgeView,
    RedriveView,
    Settings,
    View,
    Views,
)


@handles(CreateView)
async def create_view(call: Call, request: CreateView) -> Views:
    if request.start not in ("earliest", "latest"):
        raise InvalidRequest(f"start is {request.start!r}; allowed are earliest, latest")
    view = await call.broker.queues.create(
        call.principal,
        request.topic,
        request.view,
        fields_as(QueueSettings, request.settings),
        matches=matches_of(request.matches),
        start=cast(Literal["earliest", "latest"], request.start),
        or_existing=request.or_existing,
    )
    return Views([_view(view)])


@handles(ConfigureView)
async def configure_view(call: Call, request: ConfigureView) -> Views:
    """Settings that are not named stay as they are."""
    queues = call.broker.queues
    present = queues.describe(call.principal, request.topic, request.view).settings
    view = await queues.configure(
        call.principal,
        request.topic,
        request.view,
        fields_as(QueueSettings, {**_settings(present), **request.settings}),
        None if request.matches is None else matches_of(request.matches),
    )
    return Views([_view(view)])


@handles(DeleteView)
async def delete_view(call: Call, request: DeleteView) -> Done:
    await call.broker.queues.delete(call.principal, request.topic, request.view)
    return Done()


@handles(ListViews)
async def list_views(call: Call, request: ListViews) -> Views:
    queues = call.broker.queues
    if request.view is None:
        return Views([_view(view) for view in queues.views(call.principal, request.topic)])
    if request.topic is None:
        raise InvalidRequest("a view is named together with its topic")
    return Views([_view(queues.describe(call.principal, request.topic, request.view))])


@handles(PauseView)
async def pause_view(call: Call, request: PauseView) -> Done:
    await call.broker.queues.pause(call.principal, request.topic, request.view, paused=request.paused)
    return Done()


@handles(PurgeView)
async def purge_view(call: Call, request: PurgeView) -> object:
    async def purge() -> Message:
        return Done(await call.broker.queues.purge(call.principal, request.topic, request.view))

    return purge()


@handles(RedriveView)
async def redrive_view(call: Call, request: RedriveView) -> object:
    if request.limit < 0:
        raise InvalidRequest(f"limit is {request.limit}; it must not be negative")

    async def redrive() -> Message:
        return Done(await call.broker.queues.redrive(call.principal, request.topic, request.view, request.limit))

    return redrive()


def _view(info: ViewInfo) -> View:
    return View(
        info.topic,
        info.name,
        _settings(info.settings),
        [
            (source.topic, [cast(MatchFields, msgspec.to_builtins(match)) for match in source.matches])
            for source in info.sources
        ],
        info.paused,
        asdict(info.counts),
    )


def _settings(settings: QueueSettings) -> Settings:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}
