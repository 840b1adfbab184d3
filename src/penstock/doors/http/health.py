"""Is the server alive, is it ready, and where to go from here."""

from penstock.doors.http.call import Call, Reply, reply
from penstock.doors.http.errors import Stopping
from penstock.doors.http.routing import route

SERVER = "Server"

LINKS = {
    "name": "penstock",
    "docs": "/docs",
    "openapi": "/v1/openapi.json",
    "topics": "/v1/topics",
    "groups": "/v1/groups",
    "routers": "/v1/routers",
    "pipelines": "/v1/pipelines",
    "health": "/healthz",
    "readiness": "/readyz",
}


@route("GET", "/", SERVER, "Where to go from here", reply=dict[str, str], reads=True)
async def root(call: Call) -> Reply:
    return reply(LINKS)


@route("GET", "/healthz", SERVER, "Whether the server is alive", reply=dict[str, str], reads=True)
async def health(call: Call) -> Reply:
    return reply({"status": "alive"})


@route("GET", "/readyz", SERVER, "Whether the server takes work", reply=dict[str, str], reads=True)
async def ready(call: Call) -> Reply:
    if call.connection.house.draining:
        raise Stopping("the server is stopping")
    return reply({"status": "ready"})
