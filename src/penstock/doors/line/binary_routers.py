"""Routers and their bindings."""

from typing import cast, get_args

import msgspec

from penstock.broker.route import Binding, Kind, RouterInfo
from penstock.doors.line.binary_api import Call, handles
from penstock.model.errors import InvalidRequest
from penstock.wire.native.messages import (
    Bind,
    BindingFields,
    CreateRouter,
    DeleteRouter,
    Done,
    ListRouters,
    Router,
    Routers,
    Unbind,
)

KINDS: tuple[str, ...] = get_args(Kind)


@handles(CreateRouter)
async def create_router(call: Call, request: CreateRouter) -> Routers:
    if request.kind not in KINDS:
        raise InvalidRequest(f"kind is {request.kind!r}; allowed are {', '.join(KINDS)}")
    return _routers(await call.broker.routers.create(call.principal, request.name, cast(Kind, request.kind)))


@handles(DeleteRouter)
async def delete_router(call: Call, request: DeleteRouter) -> Done:
    await call.broker.routers.delete(call.principal, request.name)
    return Done()


@handles(Bind)
async def bind(call: Call, request: Bind) -> Routers:
    return _routers(await call.broker.routers.bind(call.principal, request.router, _binding(request.binding)))


@handles(Unbind)
async def unbind(call: Call, request: Unbind) -> Routers:
    return _routers(await call.broker.routers.unbind(call.principal, request.router, _binding(request.binding)))


@handles(ListRouters)
async def list_routers(call: Call, request: ListRouters) -> Routers:
    return _routers(*call.broker.routers.routers(call.principal))


def _binding(fields: BindingFields) -> Binding:
    return Binding(**msgspec.structs.asdict(fields))


def _routers(*infos: RouterInfo) -> Routers:
    return Routers(
        [
            Router(
                info.name,
                info.kind,
                [BindingFields(bound.to, bound.key, bound.headers, bound.any_header) for bound in info.bindings],
            )
            for info in infos
        ]
    )
