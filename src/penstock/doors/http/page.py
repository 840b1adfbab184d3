"""/docs: the OpenAPI document for people, on one page that needs nothing from elsewhere."""

import functools
import html
import re
from typing import Any

from penstock.doors.http.call import Call, Reply
from penstock.doors.http.errors import HTTP_ERRORS, STATUSES, title_of
from penstock.doors.http.health import SERVER
from penstock.doors.http.openapi import INTRODUCTION, TITLE, document, told
from penstock.doors.http.routing import SOCKET, Route, route


@route("GET", "/docs", SERVER, "This interface for people", reads=True)
async def docs(call: Call) -> Reply:
    return Reply(page().encode(), "text/html; charset=utf-8")


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
    parts.append("<h2>Shapes</h2>")
    for name, schema in sorted(spec["components"]["schemas"].items()):
        if "properties" in schema:
            parts.append(f"<h3 id=shape-{name}>{name}</h3>{_table(schema)}")
        elif "enum" in schema:
            parts.append(f"<h3 id=shape-{name}>{name}</h3><p>{html.escape(_kind(schema))}</p>")
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
    for name, place, what in one.carried:
        shown.append(f"<p>{place.capitalize()} <code>{name}</code>: {html.escape(what)}.</p>")
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
    told = kind.__doc__ or ""
    note = "" if told.startswith(kind.__name__) else html.escape(" ".join(told.split()))
    return f"<p>{title}. {note}</p>{_table(schema)}"


def _table(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    return (
        f"<table>{''.join(_row(name, field, name in required) for name, field in schema['properties'].items())}</table>"
    )


def _row(name: str, field: dict[str, Any], required: bool) -> str:
    told = field.get("description", "")
    must = (
        "required" if required else f"default {field['default']}" if field.get("default") not in (None, [], {}) else ""
    )
    return (
        f"<tr><td><code>{html.escape(name)}</code><td>{_linked(_kind(field))}<td>{html.escape(str(must))}"
        f"<td>{html.escape(told)}"
    )


def _linked(kind: str) -> str:
    """Names of shapes begin with a capital letter, and nothing else in a kind does."""
    return re.sub(r"\b[A-Z]\w+", lambda name: f"<a href=#shape-{name[0]}>{name[0]}</a>", html.escape(kind))


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
