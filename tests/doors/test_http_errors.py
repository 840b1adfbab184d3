"""Every error has a status and a page to read; every way of asking wrongly gets a problem that says what is wrong."""

import http.client
import inspect
import json

import httpx
import pytest

from penstock.doors.http.errors import HTTP_ERRORS, STATUSES, problem_of
from penstock.model import errors
from penstock.testing.server import Server

NOUNS = [
    noun
    for _, noun in inspect.getmembers(errors, inspect.isclass)
    if issubclass(noun, errors.PenstockError) and noun is not errors.PenstockError
]


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.__name__)
def test_every_noun_has_a_status_of_its_own(noun: type[errors.PenstockError]) -> None:
    problem = problem_of(noun("what to do"))
    assert problem.status == STATUSES[noun]
    assert 400 <= problem.status < 600
    assert (problem.code, problem.detail, problem.type) == (noun.__name__, "what to do", f"/docs#{noun.__name__}")
    assert problem.retriable is noun.retriable


def test_every_problem_leads_to_its_place_on_the_page(http: httpx.Client) -> None:
    page = http.get("/docs").text
    for noun in [*NOUNS, *HTTP_ERRORS]:
        assert f"id={noun.__name__}>" in page


def test_an_error_of_an_unknown_kind_is_the_servers_fault() -> None:
    class Surprise(errors.PenstockError):
        pass

    assert problem_of(Surprise("?")).status == 500
    assert problem_of(errors.PenstockError("?")).status == 500


def refused(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["title"] and problem["detail"]
    return answer.status_code, problem["code"]


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/", "/v1/topics/", "/v1/topics/a/", "/topics", "/v1/topics/a/b/c/d", "/%00"]
)
def test_a_path_that_is_not_there(http: httpx.Client, path: str) -> None:
    assert refused(http.get(path)) == (404, "NoSuchPath")


def test_a_method_that_a_path_does_not_take(http: httpx.Client, topic: str) -> None:
    answer = http.put("/v1/topics")
    assert refused(answer) == (405, "MethodNotAllowed")
    assert answer.headers["allow"] == "GET, POST"
    assert refused(http.request("BREW", "/healthz"))[0] in (400, 405)
    assert http.head("/healthz").status_code == 200
    assert refused(http.get(f"/v1/topics/{topic}/stream")) == (404, "NoSuchPath")  # it speaks WebSocket only


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b'{"value": nul}', "byte 11"),
        (b'{"value": 1} and more', "trailing characters"),
        (b"[1, 2]", "Expected `object`"),
        (b'"text"', "Expected `object`"),
        (b'{"value": 1, "colour": "red"}', "`colour`"),
        (b'{"key": "k"}', "`value`"),
        (b'{"value": 1, "key": 5}', "`$.key`"),
        (b'{"value": 1, "partition": -1}', "`$.partition`"),
        (b'{"value": 1, "partition": "0"}', "`$.partition`"),
        (b'{"value": 1, "priority": 10}', "`$.priority`"),
        (b'{"value": 1, "headers": {"a": 1}}', "`$.headers"),
        (b'{"value": 1, "timestamp_ms": 99999999999999999999}', "`$.timestamp_ms`"),
        (b'{"value": {"base64": "*"}}', "base64"),
        (b'{"value": 1, "key": {"base64": "a"}}', "`$.key"),
        (b'{"records": [{"value": 1}, {"valeu": 2}]}', "`$.records[1]`"),
        (b'{"records": [], "value": 1}', "not both"),
        (b'{"value": "\xff"}', "UTF-8"),
        (b'{"value": {"a": "\xff"}}', "UTF-8"),
        (b'{"value": 1, "key": "\xff"}', "UTF-8"),
        (b'{"value": "\\ud800"}', "truncated"),
        ('{"value": 1}'.encode("utf-16"), "byte 0"),
        (b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_a_body_that_makes_no_sense_is_told_where(http: httpx.Client, topic: str, body: bytes, where: str) -> None:
    answer = http.post(f"/v1/topics/{topic}/records", content=body, headers={"content-type": "application/json"})
    assert refused(answer) == (400, "MalformedBody")
    assert where in answer.json()["detail"]


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "multipart/form-data", "x"])
def test_a_content_type_that_is_not_taken(http: httpx.Client, topic: str, kind: str) -> None:
    answer = http.post(f"/v1/topics/{topic}/records", content=b'{"value": 1}', headers={"content-type": kind})
    assert refused(answer) == (415, "UnsupportedMediaType")


@pytest.mark.parametrize(
    "query",
    [
        "offset=-1", "offset=x", "max_records=0", "wait_ms=999999999", "colour=red", "offset=1&offset=2",
        "offset=%ff", "max_bytes=", "&".join(f"a{n}=1" for n in range(1_000)), "offset=99999999999999999999",
    ],
)  # fmt: skip
def test_a_query_that_makes_no_sense(http: httpx.Client, topic: str, query: str) -> None:
    http.post("/v1/topics", json={"name": topic})
    status, code = refused(http.get(f"/v1/topics/{topic}/partitions/0/records?{query}"))
    assert (status, code) in [(400, "MalformedRequest"), (400, "InvalidRequest")]


def test_a_page_from_elsewhere_may_not_write(http: httpx.Client, topic: str) -> None:
    path, body = f"/v1/topics/{topic}/records", {"value": "x"}
    for origin in ("http://elsewhere.example", "null", "http://127.0.0.1:1"):
        assert refused(http.post(path, json=body, headers={"origin": origin})) == (403, "NotAllowed")
    own = str(http.base_url).rstrip("/")
    assert http.post(path, json=body, headers={"origin": own}).status_code == 200
    assert http.get("/healthz", headers={"origin": "http://elsewhere.example"}).status_code == 200


def test_numbers_of_a_producer_beyond_what_is_kept_are_refused(http: httpx.Client, topic: str) -> None:
    body = {"value": "x", "producer": "p", "sequence": (1 << 62) - 1}
    assert refused(http.post(f"/v1/topics/{topic}/records", json=body))[0] == 400


def test_a_path_that_is_not_utf8(http: httpx.Client) -> None:
    assert refused(http.get("/v1/topics/%ff")) == (400, "MalformedRequest")


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(server: Server, topic: str) -> None:
    host, port = server.doors["http"].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    connection.putrequest("POST", f"/v1/topics/{topic}/records")
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", str(10 << 30))
    connection.endheaders()
    answer = connection.getresponse()  # although nothing of the body was sent
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert json.loads(answer.read())["code"] == "BodyTooLarge"


def test_a_body_that_grows_too_large_chunk_by_chunk_is_refused(server: Server, topic: str) -> None:
    def endless():  # type: ignore[no-untyped-def]
        for _ in range(1_000):
            yield b"x" * 65_536

    with httpx.Client(base_url=server.http, timeout=20) as client:
        try:
            answer = client.post(f"/v1/topics/{topic}/records", content=endless())
        except httpx.WriteError:
            return  # the server has closed the connection before it was read from
        assert refused(answer) == (413, "BodyTooLarge")
