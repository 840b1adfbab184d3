"""Routers and their bindings."""

import msgspec

from penstock.broker.route import Binding, Kind, RouterInfo
from penstock.doors.http.call import Call, Reply, nothing, reply
from penstock.doors.http.routing import route

ROUTERS = "Routers"


class NewRouter(msgspec.Struct, forbid_unknown_fields=True):
    """Publish to the topic of the router's name; `kind` tells how bindings choose."""

    name: str
    kind: Kind


class RouterList(msgspec.Struct):
    routers: list[RouterInfo]


@route("GET", "/v1/routers", ROUTERS, "List routers", reply=RouterList, reads=True)
async def list_routers(call: Call) -> Reply:
    return reply(RouterList(call.broker.routers.routers(call.principal)))


@route("POST", "/v1/routers", ROUTERS, "Create a router", body=NewRouter, reply=RouterInfo, status=201)
async def create_router(call: Call) -> Reply:
    """And the topic of its name. The same again changes nothing."""
    new = call.json(NewRouter)
    return reply(await call.broker.routers.create(call.principal, new.name, new.kind), 201)


@route("GET", "/v1/routers/{router}", ROUTERS, "A router and its bindings", reply=RouterInfo, reads=True)
async def get_router(call: Call) -> Reply:
    return reply(call.broker.routers.describe(call.principal, call["router"]))


@route("DELETE", "/v1/routers/{router}", ROUTERS, "Delete a router; its topic stays", status=204)
async def delete_router(call: Call) -> Reply:
    await call.broker.routers.delete(call.principal, call["router"])
    return nothing()


@route("POST", "/v1/routers/{router}/bindings", ROUTERS, "Bind", body=Binding, reply=RouterInfo)
async def bind(call: Call) -> Reply:
    """To a topic, or to a queue view as `<topic>/<view>`; what is not there is made. The same again changes nothing."""
    return reply(await call.broker.routers.bind(call.principal, call["router"], call.json(Binding)))


@route("DELETE", "/v1/routers/{router}/bindings", ROUTERS, "Unbind", body=Binding, reply=RouterInfo)
async def unbind(call: Call) -> Reply:
    """Give the binding as it was made."""
    return reply(await call.broker.routers.unbind(call.principal, call["router"], call.json(Binding)))
