"""mbroker's calls beyond the README's story: values, compaction, other doors, bad cookies."""

import uuid

import httpx
import pytest
from http_sse import Events, events

from penstock.testing.server import Server


def subscriber_of(stream: Events) -> dict[str, str]:
    """The cookie as a header to send."""
    return {"cookie": f"subscriber_id={stream.answer.cookies['subscriber_id']}"}


@pytest.mark.parametrize(
    "data", ["text", "", "two\nlines", {"order": [1, 2.5, None]}, [], 12, False, None, {"base64": "AP8="}]
)
def test_data_arrives_as_the_value_that_was_published(http: httpx.Client, topic: str, data: object) -> None:
    with events(http, f"/topics/{topic}/subscribe") as stream:
        published = http.post(f"/topics/{topic}/publish", json={"key": "k", "data": data})
        assert published.status_code == 200
        (event,) = stream.take(1)
        assert event.data == {"message_id": published.json()["message_id"], "key": "k", "data": data}
        assert event.id == event.data["message_id"]
        assert type(event.data["data"]) is type(data)


def test_bytes_of_another_door_come_as_base64_and_say_so(http: httpx.Client, topic: str) -> None:
    with events(http, f"/topics/{topic}/subscribe") as stream:
        kind = {"content-type": "application/octet-stream"}
        http.post(f"/v1/topics/{topic}/records", content=b"\x00\xff", headers=kind)
        (event,) = stream.take(1)
        assert event.data == {"message_id": "0-0", "key": None, "data": "AP8=", "encoding": "base64"}


def test_everyone_who_subscribed_gets_everything(http: httpx.Client, topic: str) -> None:
    path = f"/topics/{topic}/subscribe"
    with events(http, path) as one, httpx.Client(base_url=http.base_url) as another, events(another, path) as other:
        assert one.answer.cookies["subscriber_id"] != other.answer.cookies["subscriber_id"]
        for n in range(20):
            http.post(f"/topics/{topic}/publish", json={"key": None, "data": n})
        assert [event.data["data"] for event in one.take(20)] == list(range(20))
        assert [event.data["data"] for event in other.take(20)] == list(range(20))


def test_more_comes_than_a_window_holds_without_any_commit(http: httpx.Client, topic: str) -> None:
    with events(http, f"/topics/{topic}/subscribe") as stream:
        records = [{"value": str(n)} for n in range(5_000)]
        assert http.post(f"/v1/topics/{topic}/records", json={"records": records}).status_code == 200
        assert [event.data["data"] for event in stream.take(5_000)] == [str(n) for n in range(5_000)]


def test_the_newest_stream_of_a_subscriber_is_the_one_it_reads(http: httpx.Client, topic: str) -> None:
    path = f"/topics/{topic}/subscribe"
    with events(http, path) as first:
        http.post(f"/topics/{topic}/publish", json={"data": "a"})
        assert first.take(1)[0].data["data"] == "a"
        with events(http, path, headers=subscriber_of(first)) as second:
            assert second.take(1)[0].data["data"] == "a"  # it was not committed
            assert first.take(1) == []


def test_a_commit_by_the_id_of_a_former_stream_counts(http: httpx.Client, topic: str) -> None:
    path = f"/topics/{topic}/subscribe"
    with events(http, path) as stream:
        cookie = subscriber_of(stream)
        for data in "ab":
            http.post(f"/topics/{topic}/publish", json={"data": data})
        former = [event.data["message_id"] for event in stream.take(2)]
    away = http.post(f"/topics/{topic}/commit", json={"message_id": former[0]}, headers=cookie)
    assert away.status_code == 200
    with events(http, path, headers=cookie) as stream:
        assert [event.data["data"] for event in stream.take(1)] == ["b"]
        there = http.post(f"/topics/{topic}/commit", json={"message_id": former[1]}, headers=cookie)
        assert there.status_code == 200
        twice = http.post(f"/topics/{topic}/commit", json={"message_id": former[1]}, headers=cookie)
        assert twice.status_code == 200
    with events(http, path, headers=cookie) as stream:
        http.post(f"/topics/{topic}/publish", json={"data": "c"})
        assert stream.take(1)[0].data["data"] == "c"


def test_what_is_wrong_with_a_subscriber_is_said(http: httpx.Client, topic: str) -> None:
    http.post(f"/topics/{topic}", json={})
    known = {"cookie": f"subscriber_id={uuid.uuid4()}"}
    for verb, body in (("commit", {"message_id": "0-0"}), ("unsubscribe", None)):
        path = f"/topics/{topic}/{verb}"
        http.post(f"/topics/{topic}/publish", json={"data": "x"})
        for headers, status, code in (
            ({}, 404, "NoSuchSubscriber"),
            (known, 404, "NoSuchSubscriber"),
            ({"cookie": "subscriber_id=me"}, 400, "MalformedRequest"),
            ({"cookie": "other=1"}, 404, "NoSuchSubscriber"),
        ):
            refused = http.post(path, json=body, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (status, code), (verb, headers)
    with events(http, f"/topics/{topic}/subscribe") as stream:
        cookie = subscriber_of(stream)
        for message_id in ("", "x", "0", "0-99", "7-0", "-1-0"):
            refused = http.post(f"/topics/{topic}/commit", json={"message_id": message_id}, headers=cookie)
            assert (refused.status_code, refused.json()["code"]) == (400, "InvalidRequest"), message_id


def test_a_subscriber_is_a_queue_view_of_its_own(http: httpx.Client, server: Server, topic: str) -> None:
    with events(http, f"/topics/{topic}/subscribe") as stream:
        (view,) = http.get(f"/v1/topics/{topic}/queues").json()["queues"]
        assert view["name"] == f"subscriber-{stream.answer.cookies['subscriber_id']}"
        assert view["counts"]["consumers"] == 1
        assert http.post(f"/topics/{topic}/unsubscribe", headers=subscriber_of(stream)).status_code == 200
        assert stream.take(1) == []
    assert http.get(f"/v1/topics/{topic}/queues").json()["queues"] == []
