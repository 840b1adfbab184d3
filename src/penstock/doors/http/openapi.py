"""/v1/openapi.json, made from the table of routes. Nothing is written twice: paths, parameters, bodies and answers come
from the routes, shapes from the types.
"""

import functools
import re
from importlib.metadata import version
from typing import Any

import msgspec

from penstock.doors.http.call import Call, Reply, encode
from penstock.doors.http.errors import PROBLEM, Problem
from penstock.doors.http.fetch import READING
from penstock.doors.http.groups import GROUPS
from penstock.doors.http.health import SERVER
from penstock.doors.http.mbroker import MBROKER
from penstock.doors.http.pipelines import PIPELINES
from penstock.doors.http.publish import PUBLISHING
from penstock.doors.http.queues import QUEUES
from penstock.doors.http.routers import ROUTERS
from penstock.doors.http.routing import JSON, ROUTES, SOCKET, Route, route
from penstock.doors.http.streams import EVENTS
from penstock.doors.http.topics import TOPICS

REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_WHOLE = {"partition", "offset"}  # parts of paths that are numbers

SECTIONS = (SERVER, TOPICS, PUBLISHING, READING, GROUPS, QUEUES, ROUTERS, PIPELINES, MBROKER)  # in this order

TITLE = "Penstock over HTTP"
INTRODUCTION = (
    "Publish, read and queue messages. A value is text as a JSON string, any other JSON value, or bytes as "
    '{"base64": "..."}. What is acknowledged is durable. Errors are application/problem+json.'
)


@route("GET", "/v1/openapi.json", SERVER, "This interface as an OpenAPI document", reads=True)
async def openapi(call: Call) -> Reply:
    return Reply(encode(document()))


@functools.cache
def document() -> dict[str, Any]:
    schemas, components = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for one in told():
        method = "get" if one.method == SOCKET else one.method.lower()
        paths.setdefault(one.path, {})[method] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": version("penstock"), "description": INTRODUCTION},
        "tags": [{"name": section} for section in SECTIONS],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                "Problem": {"description": "What is wrong", "content": {PROBLEM: {"schema": schemas[Problem]}}}
            },
        },
    }


def told() -> list[Route]:
    return sorted(ROUTES, key=lambda one: SECTIONS.index(one.section))


def _schemas() -> tuple[dict[Any, Any], dict[str, Any]]:
    kinds = [Problem]
    for one in ROUTES:
        kinds += [kind for kind in (one.body, one.reply) if kind is not None and kind not in kinds]
    found, components = msgspec.json.schema_components(kinds, ref_template=REF)
    return dict(zip(kinds, found, strict=True)), components


def _operation(one: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": one.handler.__module__.rpartition(".")[2] + "_" + one.handler.__name__,
        "tags": [one.section],
        "summary": one.summary,
        "parameters": [*_path_parameters(one), *_query_parameters(one), *_carried(one)],
        "responses": {str(one.status): _answer(one, schemas), "default": {"$ref": "#/components/responses/Problem"}},
    }
    if one.detail:
        operation["description"] = one.detail
    if one.body is not None:
        content = {JSON: {"schema": schemas[one.body]}}
        content.update({kind: {"schema": {"type": "string", "format": "binary"}} for kind in one.other_bodies})
        operation["requestBody"] = {"required": not one.optional_body, "content": content}
    return operation


def _path_parameters(one: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer", "minimum": 0} if name in _WHOLE else {"type": "string"},
        }
        for name in _PARAMETER.findall(one.path)
    ]


def _query_parameters(one: Route) -> list[dict[str, Any]]:
    if one.query is None:
        return []
    _, components = msgspec.json.schema_components([one.query])
    schema = components[one.query.__name__]
    parameters = []
    for name, field in schema["properties"].items():
        for ref in re.findall(r"#/\$defs/(\w+)", str(field)):
            field = {**components[ref], **{k: v for k, v in field.items() if k not in ("$ref", "allOf")}}
        parameter = {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": field}
        if "description" in field:
            parameter["description"] = field["description"]
        parameters.append(parameter)
    return parameters


def _carried(one: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": place, "required": False, "schema": {"type": "string"}, "description": what}
        for name, place, what in one.carried
    ]


def _answer(one: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    if one.socket:
        return {"description": "Use a WebSocket handshake (101)."}
    answer: dict[str, Any] = {"description": one.summary}
    if one.reply is not None:
        content = {EVENTS if one.stream else JSON: {"schema": schemas[one.reply]}}
        content.update({kind: {"schema": {"type": "string", "format": "binary"}} for kind in one.other_replies})
        answer["content"] = content
    return answer
