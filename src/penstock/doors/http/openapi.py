"""/v1/openapi.json, made from the table of routes, and /docs, made from the same for people. Nothing is written twice:
paths, parameters, bodies and answers come from the routes, shapes from the types, errors from the table of statuses.
"""

import functools
import html
import re
from importlib.metadata import version
from typing import Any

import msgspec

from penstock.doors.http.call import Call, Reply, encode
from penstock.doors.http.errors import HTTP_ERRORS, PROBLEM, STATUSES, Problem, title_of
from penstock.doors.http.fetch import READING
from penstock.doors.http.groups import GROUPS
from penstock.doors.http.health import SERVER
from penstock.doors.http.mbroker import MBROKER
from penstock.doors.http.publish import PUBLISHING
from penstock.doors.http.queues import QUEUES
from penstock.doors.http.routers import ROUTERS
from penstock.doors.http.routing import JSON, ROUTES, SOCKET, Route, route
from penstock.doors.http.streams import EVENTS
from penstock.doors.http.topics import TOPICS

REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_WHOLE = {"partition", "offset"}  # parts of paths that are numbers

SECTIONS = (SERVER, TOPICS, PUBLISHING, READING, GROUPS, QUEUES, ROUTERS, MBROKER)  # in the order they are told

TITLE = "Penstock over HTTP"
INTRODUCTION = (
    "Publish, read and queue messages. A value is text as a JSON string, any other JSON value, or bytes as "
    '{"base64": "..."}. What is acknowledged is durable. Errors are application/problem+json.'
)


@route("GET", "/v1/openapi.json", SERVER, "This interface as an OpenAPI document", reads=True)
async def openapi(call: Call) -> Reply:
    return Reply(encode(document()))


@route("GET", "/docs", SERVER, "This interface for people", reads=True)
async def docs(call: Call) -> Reply:
    return Reply(page().encode(), "text/html; charset=utf-8")


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
        "parameters": [*_path_parameters(one), *_query_parameters(one)],
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


def _answer(one: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    if one.socket:
        return {"description": "Use a WebSocket handshake (101)."}
    answer: dict[str, Any] = {"description": one.summary}
    if one.reply is not None:
        content = {EVENTS if one.stream else JSON: {"schema": schemas[one.reply]}}
        content.update({kind: {"schema": {"type": "string", "format": "binary"}} for kind in one.other_replies})
        answer["content"] = content
    return answer


# -- for people ---------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #888; --mark: #2a7; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line) }
code { font: 14px/1.45 ui-monospace, monospace }
details { border: 1px solid var(--line); border-radius: 4px; margin: .4rem 0; padding: .3rem .6rem }
summary { cursor: pointer } summary b { color: var(--mark); display: inline-block; min-width: 6.5rem }
summary span { color: var(--quiet) }
table { border-collapse: collapse } td, th { text-align: left; padding: .15rem .8rem .15rem 0 }
"""


@functools.cache
def page() -> str:
    spec = document()
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{TITLE}</title><style>{_STYLE}</style><h1>{TITLE}</h1>",
        f"<p>{html.escape(INTRODUCTION)}</p><p>For programs: <a href=/v1/openapi.json>/v1/openapi.json</a></p>",
    ]
    section = ""
    for one in told():
        if one.section != section:
            section = one.section
            parts.append(f"<h2>{html.escape(section)}</h2>")
        parts.append(_entry(one, spec))
    parts.append("<h2>Errors</h2><table><tr><th>code<th>status<th>meaning")
    nouns: list[tuple[type[Exception], int]] = [*STATUSES.items(), *((e, e.status) for e in HTTP_ERRORS)]
    for noun, status in sorted(nouns, key=lambda item: item[0].__name__):
        meaning = html.escape(" ".join((noun.__doc__ or title_of(noun)).split()))
        parts.append(f"<tr id={noun.__name__}><td><code>{noun.__name__}</code><td>{status}<td>{meaning}")
    parts.append("</table></html>")
    return "".join(parts)


def _entry(one: Route, spec: dict[str, Any]) -> str:
    method = "get" if one.method == SOCKET else one.method.lower()
    operation = spec["paths"][one.path][method]
    shown = [f"<details><summary><b>{one.method}</b> <code>{html.escape(one.path)}</code> "]
    shown.append(f"<span>{html.escape(one.summary)}</span></summary>")
    if one.detail:
        shown.append(f"<p>{html.escape(one.detail)}</p>")
    rows = [_row(p["name"], p["schema"], p["required"]) for p in operation["parameters"] if p["in"] == "query"]
    if rows:
        note = html.escape(" ".join((one.query.__doc__ or "").split()))
        shown.append(f"<p>Query. {note}</p><table>{''.join(rows)}</table>")
    for title, kind in (("Body", one.body), ("Answer", one.reply)):
        if kind is not None:
            shown.append(_shape(title, kind, spec))
    for title, kinds in (("Other bodies", one.other_bodies), ("Other answers", one.other_replies)):
        if kinds:
            shown.append(f"<p>{title}: {', '.join(f'<code>{kind}</code>' for kind in kinds)}</p>")
    return "".join(shown) + "</details>"


def _shape(title: str, kind: Any, spec: dict[str, Any]) -> str:
    schema = spec["components"]["schemas"].get(getattr(kind, "__name__", ""))
    if schema is None or "properties" not in schema:
        return ""
    note = (
        html.escape(" ".join((kind.__doc__ or "").split()))
        if not (kind.__doc__ or "").startswith(kind.__name__)
        else ""
    )
    required = schema.get("required", ())
    rows = "".join(_row(name, field, name in required) for name, field in schema["properties"].items())
    return f"<p>{title}. {note}</p><table>{rows}</table>"


def _row(name: str, field: dict[str, Any], required: bool) -> str:
    told = field.get("description", "")
    must = (
        "required" if required else f"default {field['default']}" if field.get("default") not in (None, [], {}) else ""
    )
    return (
        f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(_kind(field))}<td>{html.escape(str(must))}"
        f"<td>{html.escape(told)}"
    )


def _kind(field: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "prefixItems" in field:
        return "[" + ", ".join(_kind(each) for each in field["prefixItems"]) + "]"
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_kind(each) for each in field["anyOf"]))
    if "enum" in field:
        return " | ".join(str(each) for each in field["enum"])
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    low, high = field.get("minimum"), field.get("maximum")
    bounds = f" {low} to {high}" if low is not None and high is not None and high < 1 << 40 else ""
    return str(field.get("type", "any")) + bounds
