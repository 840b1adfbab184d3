"""The document that describes the interface, and the page made of it."""

import re

import httpx

from penstock.doors.http.door import ROUTE_MODULES
from penstock.doors.http.routing import ROUTES


def test_every_route_is_described(http: httpx.Client) -> None:
    assert ROUTE_MODULES
    document = http.get("/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    page = http.get("/docs").text
    for route in ROUTES:
        method = "get" if route.socket else route.method.lower()
        operation = document["paths"][route.path][method]
        assert operation["summary"] == route.summary
        assert route.path in page
        named = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"]
        assert named == re.findall(r"\{(\w+)\}", route.path)
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids))


def test_every_reference_leads_somewhere(http: httpx.Client) -> None:
    document = http.get("/v1/openapi.json")
    references = set(re.findall(r'"\$ref":"#/([^"]+)"', document.text))
    assert references
    for reference in references:
        found = document.json()
        for part in reference.split("/"):
            found = found[part]


def test_the_page_needs_nothing_from_elsewhere(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"(src|href)=['\"]?(https?:)?//", page.text)
    assert "<script" not in page.text
    links, places = re.findall(r"href=#([\w-]+)", page.text), re.findall(r"\bid=([\w-]+)", page.text)
    assert set(links) <= set(places)


def test_the_root_names_what_there_is(http: httpx.Client) -> None:
    links = http.get("/").json()
    assert links.pop("name") == "penstock"
    for link in links.values():
        assert http.get(link).status_code == 200, link
    assert http.get("/healthz").json() == {"status": "alive"}
    assert http.get("/readyz").json() == {"status": "ready"}
