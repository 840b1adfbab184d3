"""Pulling over HTTP: by offset, by group, with a long poll; and the offsets that groups commit."""

import threading
import time

import httpx
import pytest

from penstock.testing.server import Server

WAIT_MS = 20_000


def publish(http: httpx.Client, topic: str, *values: str, **more: object) -> None:
    records = [{"value": value, **more} for value in values]
    assert http.post(f"/v1/topics/{topic}/records", json={"records": records}).status_code == 200


def values(answer: httpx.Response) -> list[object]:
    assert answer.status_code == 200, answer.text
    return [record["value"] for record in answer.json()["records"]]


def test_a_partition_is_read_from_an_offset_on(http: httpx.Client, topic: str) -> None:
    publish(http, topic, *"abcdef")
    path = f"/v1/topics/{topic}/partitions/0/records"
    assert values(http.get(path)) == list("abcdef")
    part = http.get(path, params={"offset": 2, "max_records": 3})
    assert values(part) == list("cde")
    assert part.json()["next"] == [{"partition": 0, "offset": 5}]
    assert values(http.get(path, params={"offset": "latest"})) == []
    assert values(http.get(path, params={"offset": 6})) == []
    small = http.get(path, params={"max_bytes": 1})
    assert values(small) == ["a"]  # at least one, however little is allowed
    beyond = http.get(path, params={"offset": 7})
    assert (beyond.status_code, beyond.json()["code"]) == (416, "OffsetOutOfRange")
    nowhere = http.get(f"/v1/topics/{topic}/partitions/1/records")
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "UnknownPartition")


@pytest.mark.parametrize("accept", ["application/json", "application/vnd.penstock.batch"])
def test_a_long_poll_returns_when_something_comes(http: httpx.Client, server: Server, topic: str, accept: str) -> None:
    publish(http, topic, "old")
    answers: list[httpx.Response] = []

    def poll() -> None:
        path = f"{server.http}/v1/topics/{topic}/partitions/0/records"
        params = {"offset": 1, "wait_ms": WAIT_MS}
        answers.append(httpx.get(path, params=params, headers={"accept": accept}, timeout=60))

    waiting = threading.Thread(target=poll)
    waiting.start()
    publish(http, topic, "new")
    waiting.join(timeout=30)
    (answer,) = answers
    if accept == "application/json":
        assert values(answer) == ["new"]
    else:
        assert answer.headers["penstock-next-offset"] == "2"
        assert b"new" in answer.content


def test_a_long_poll_ends_empty_when_its_time_is_over(http: httpx.Client, topic: str) -> None:
    publish(http, topic, "old")
    began = time.monotonic()
    answer = http.get(f"/v1/topics/{topic}/partitions/0/records", params={"offset": 1, "wait_ms": 200})
    assert values(answer) == []
    assert time.monotonic() - began >= 0.2
    assert answer.json()["next"] == [{"partition": 0, "offset": 1}]


def test_produce_consume_and_commit_offset_of_the_database_design(http: httpx.Client, topic: str, group: str) -> None:
    for sequence, value in enumerate(["a", "b", "c"]):
        body = {"topic": topic, "value": value, "producer": "p", "sequence": sequence}
        assert http.post("/v1/produce", json=body).status_code == 200
        assert http.post("/v1/produce", json=body).status_code == 200  # a repeat stores nothing
    ask = {"topic": topic, "group": group, "max_records": 2}
    first = http.post("/v1/consume", json=ask)
    assert values(first) == ["a", "b"]
    assert values(http.post("/v1/consume", json=ask)) == ["a", "b"]  # nothing is committed by reading
    (place,) = first.json()["next"]
    committed = http.post("/v1/commit-offset", json={"group": group, "topic": topic, **place})
    assert committed.status_code == 204
    assert values(http.post("/v1/consume", json=ask)) == ["c"]
    assert values(http.get(f"/v1/topics/{topic}/records", params={"group": group})) == ["c"]
    other = {"topic": topic, "group": group + "-2"}
    assert values(http.post("/v1/consume", json=other)) == ["a", "b", "c"]
    assert values(http.post("/v1/consume", json={**other, "reset": "latest"})) == []


def test_a_group_reads_every_partition_and_shows_its_lag(http: httpx.Client, topic: str, group: str) -> None:
    http.post("/v1/topics", json={"name": topic, "partitions": 3})
    for partition in range(3):
        publish(http, topic, "x", "y", partition=partition)
    answer = http.get(f"/v1/topics/{topic}/records", params={"group": group})
    assert sorted((r["partition"], r["value"]) for r in answer.json()["records"]) == [
        (p, v) for p in range(3) for v in "xy"
    ]
    places = [{"topic": topic, **place} for place in answer.json()["next"]]
    places[1]["offset"] -= 1
    assert http.post(f"/v1/groups/{group}/offsets", json={"offsets": places}).status_code == 204
    standing = http.get(f"/v1/groups/{group}/offsets").json()["offsets"]
    lags = {each["partition"]: each["lag"] for each in standing}
    assert lags == {0: 0, 1: 0, 2: 0} | {places[1]["partition"]: 1}
    assert len(values(http.get(f"/v1/topics/{topic}/records", params={"group": group}))) == 1
    only = http.get(f"/v1/topics/{topic}/records", params={"partition": [0, 2]})
    assert {record["partition"] for record in only.json()["records"]} == {0, 2}


def test_a_committed_offset_that_is_gone_falls_back_to_what_is_there(
    http: httpx.Client, topic: str, group: str
) -> None:
    publish(http, topic, "a")
    commit = {"group": group, "topic": topic, "partition": 0, "offset": 99}
    assert http.post("/v1/commit-offset", json=commit).status_code == 204
    assert values(http.post("/v1/consume", json={"group": group, "topic": topic})) == ["a"]


def test_filters_pass_what_matches(http: httpx.Client, topic: str) -> None:
    publish(http, topic, "1", key="orders.new.eu", headers={"kind": "a"})
    publish(http, topic, "2", key="orders.paid.us", headers={"kind": "b"})
    path = f"/v1/topics/{topic}/records"
    assert values(http.get(path, params={"pattern": "orders.*.eu"})) == ["1"]
    assert values(http.get(path, params={"key": "orders.paid.us"})) == ["2"]
    assert values(http.get(path, params={"header": "kind:b"})) == ["2"]
    assert http.get(path, params={"header": "kind"}).json()["code"] == "InvalidRequest"


def test_groups_are_listed_described_and_deleted(http: httpx.Client, topic: str, group: str) -> None:
    publish(http, topic, "a")
    unknown = http.get(f"/v1/groups/{group}")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "UnknownGroup")
    http.post("/v1/commit-offset", json={"group": group, "topic": topic, "offset": 1})
    assert group in [each["group"] for each in http.get("/v1/groups").json()["groups"]]
    assert http.get(f"/v1/groups/{group}").json()["state"] == "Empty"
    assert http.delete(f"/v1/groups/{group}").status_code == 204
    assert http.get(f"/v1/groups/{group}").status_code == 404
    slashed = {"group": group + "/with a slash", "topic": topic, "offset": 1}
    assert http.post("/v1/commit-offset", json=slashed).status_code == 204
    assert http.get(f"/v1/groups/{group}%2Fwith%20a%20slash").json()["group"] == group + "/with a slash"


def test_offsets_of_nothing_are_refused(http: httpx.Client, topic: str, group: str) -> None:
    refused = http.post("/v1/commit-offset", json={"group": group, "topic": topic + "-none", "offset": 1})
    assert (refused.status_code, refused.json()["code"]) == (404, "UnknownTopic")
    empty = http.post(f"/v1/groups/{group}/offsets", json={"offsets": []})
    assert (empty.status_code, empty.json()["code"]) == (400, "InvalidRequest")
