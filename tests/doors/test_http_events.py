"""Server-sent events: who gets what, and where a client that comes back goes on."""

import socket
from contextlib import ExitStack

import httpx
import pytest
from http_sse import events

from penstock.testing.server import Server


def publish(http: httpx.Client, topic: str, *values: str, **more: object) -> None:
    body = {"records": [{"value": value, **more} for value in values]}
    assert http.post(f"/v1/topics/{topic}/records", json=body).status_code == 200


def test_pubsub_brings_what_comes_from_now_on_to_everyone(http: httpx.Client, topic: str) -> None:
    publish(http, topic, "before")
    with events(http, f"/v1/topics/{topic}/events") as one, events(http, f"/v1/topics/{topic}/events") as other:
        one.begun(), other.begun()
        publish(http, topic, "a", key="k", headers={"h": "1"}, timestamp_ms=5)
        publish(http, topic, "b")
        (first, second) = one.take(2)
        assert first.data == {
            "partition": 0, "offset": 1, "timestamp_ms": 5, "key": "k", "value": "a", "headers": {"h": "1"},
        }  # fmt: skip
        assert (first.id, second.id, second.data["value"]) == ("0:1", "0:2", "b")
        assert other.values(2) == ["a", "b"]


def test_the_log_is_read_from_where_one_likes(http: httpx.Client, topic: str) -> None:
    publish(http, topic, "a", timestamp_ms=1_000)
    publish(http, topic, "b", timestamp_ms=2_000)
    publish(http, topic, "c", timestamp_ms=3_000)
    path = f"/v1/topics/{topic}/events"
    for start, expected in (("earliest", "abc"), ("0:1", "bc"), ("@1500", "bc"), ("@3000", "c"), (None, "abc")):
        params = {"view": "log"} if start is None else {"view": "log", "start": start}
        with events(http, path, params=params) as stream:
            assert stream.values(len(expected)) == list(expected), start
    with events(http, path, params={"view": "log", "start": "latest"}) as stream:
        stream.begun()
        publish(http, topic, "d")
        assert stream.values(1) == ["d"]


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("view", ["log", "pubsub"])
def test_a_client_that_comes_back_misses_nothing(http: httpx.Client, topic: str, partitions: int, view: str) -> None:
    http.post("/v1/topics", json={"name": topic, "partitions": partitions})
    path = f"/v1/topics/{topic}/events"
    seen: list[object] = []
    last_id = None
    for turn in range(4):
        headers = {} if last_id is None else {"last-event-id": last_id}
        with events(http, path, params={"view": view}, headers=headers) as stream:
            stream.begun()
            publish(http, topic, *(f"{turn}.{p}" for p in range(partitions)), key=f"k{turn}")
            missed = partitions if turn else 0  # published while it was away
            seen += stream.values(partitions + missed)
            last_id = stream.last_id
        publish(http, topic, *(f"away {turn}.{p}" for p in range(partitions)), key=f"other{turn}")
    assert len(seen) == len(set(seen)) == 7 * partitions


def test_partitions_that_came_meanwhile_are_read_from_their_beginning(http: httpx.Client, topic: str) -> None:
    publish(http, topic, "a")
    with events(http, f"/v1/topics/{topic}/events?view=log") as stream:
        assert stream.values(1) == ["a"]
        http.patch(f"/v1/topics/{topic}", json={"partitions": 2})
        publish(http, topic, "b", partition=0)
        (event,) = stream.take(1)
        seen = event.id
    publish(http, topic, "c", partition=1)
    assert seen is not None
    with events(http, f"/v1/topics/{topic}/events", headers={"last-event-id": "0:1"}) as stream:
        assert stream.values(1) == ["c"]
    with events(http, f"/v1/topics/{topic}/events", headers={"last-event-id": seen}) as stream:
        assert stream.values(1) == ["c"]


def test_filters_pass_what_matches(http: httpx.Client, topic: str) -> None:
    _made(http, topic)
    with events(http, f"/v1/topics/{topic}/events?view=log&pattern=a.%23") as stream:
        publish(http, topic, "1", key="a.b.c")
        publish(http, topic, "2", key="b.c")
        publish(http, topic, "3", key="a")
        assert stream.values(2) == ["1", "3"]


def _made(http: httpx.Client, topic: str) -> bool:
    return http.post("/v1/topics", json={"name": topic}).status_code == 201


def small_socket(server: Server) -> socket.socket:
    """One whose kernel keeps little for a reader that does not read."""
    host, port = server.doors["http"].split(":")
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    small.settimeout(60)
    small.connect((host, int(port)))
    return small


def test_who_reads_too_slowly_is_told_how_much_it_missed(http: httpx.Client, server: Server, topic: str) -> None:
    _made(http, topic)
    with small_socket(server) as slow:
        slow.sendall(f"GET /v1/topics/{topic}/events?max_behind=20 HTTP/1.0\r\nHost: x\r\n\r\n".encode())
        received = slow.recv(1 << 16)
        while b"\nid: " not in received:
            received += slow.recv(1 << 16)
        for _ in range(100):  # more than the socket's and the transport's buffers take
            publish(http, topic, *["x" * 50_000] * 10)
        publish(http, topic, "the last one")
        while b"the last one" not in received:
            more = slow.recv(1 << 20)
            assert more, "the stream ended"
            received += more
    gaps = [line for line in received.split(b"\n") if line.startswith(b'data: {"dropped"')]
    dropped = sum(int(gap.split(b":")[2].rstrip(b"}")) for gap in gaps)
    assert dropped > 0
    assert dropped + received.count(b'"offset":') == 1_001


def test_who_would_rather_leave_than_miss_something_is_told_why(http: httpx.Client, server: Server, topic: str) -> None:
    _made(http, topic)
    with small_socket(server) as slow:
        path = f"/v1/topics/{topic}/events?max_behind=20&overflow=disconnect"
        slow.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
        received = slow.recv(1 << 16)
        for _ in range(100):
            publish(http, topic, *["x" * 50_000] * 10)
        while more := slow.recv(1 << 20):  # until it ends
            received += more
    assert b"event: error" in received
    assert b"SlowSubscriber" in received.rpartition(b"event: error")[2]


def test_a_stream_ends_with_its_topic(http: httpx.Client, topic: str) -> None:
    publish(http, topic, "a")
    with events(http, f"/v1/topics/{topic}/events?view=log") as stream:
        assert stream.values(1) == ["a"]
        http.delete(f"/v1/topics/{topic}")
        (last,) = stream.take(1)
        assert (last.name, last.data["code"]) == ("error", "UnknownTopic")
        assert stream.take(1) == []


def test_what_is_wrong_is_said_before_the_stream_begins(http: httpx.Client, topic: str) -> None:
    _made(http, topic)
    path = f"/v1/topics/{topic}/events"
    for params, headers, status, code in (
        ({"view": "queue"}, {}, 400, "MalformedRequest"),
        ({"start": "earliest"}, {}, 400, "InvalidRequest"),
        ({"view": "log", "start": "soon"}, {}, 400, "MalformedRequest"),
        ({}, {"last-event-id": "0"}, 400, "MalformedRequest"),
        ({}, {"last-event-id": "0:99"}, 400, "MalformedRequest"),
        ({}, {"last-event-id": "7:0"}, 400, "MalformedRequest"),
    ):
        answer = http.get(path, params=params, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (params, headers)
    nothing = http.get(f"/v1/topics/{topic}-none/events")
    assert (nothing.status_code, nothing.json()["code"]) == (404, "UnknownTopic")
    head = http.head(path)
    assert head.status_code == 405


def test_a_thousand_subscribers_get_everything(server: Server, topic: str) -> None:
    """Each has a socket of its own; they read after everything was published, so nothing depends on their speed."""
    host, port = server.doors["http"].split(":")
    with httpx.Client(base_url=server.http, timeout=60) as http, ExitStack() as stack:
        _made(http, topic)
        subscribers = []
        for _ in range(1_000):
            subscriber = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            subscriber.sendall(f"GET /v1/topics/{topic}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            subscribers.append(subscriber)
        for subscriber in subscribers:
            received = b""
            while b"\nid: " not in received:
                received += subscriber.recv(1 << 16)
        for n in range(10):
            publish(http, topic, *(f"<{n}.{i}>" for i in range(10)))
        for subscriber in subscribers:
            received = b""
            while b"<9.9>" not in received:
                more = subscriber.recv(1 << 16)
                assert more
                received += more
            assert received.count(b'"offset":') == 100


def test_streams_end_at_once_when_the_server_stops(fresh_server: Server) -> None:
    with httpx.Client(base_url=fresh_server.http, timeout=60) as http:
        http.post("/v1/topics", json={"name": "t"})
        with (
            events(http, "/v1/topics/t/events") as plain,
            events(http, "/topics/t/subscribe") as subscriber,
        ):
            plain.begun()
            publish(http, "t", "a")
            assert plain.values(1) == ["a"]
            assert subscriber.take(1)[0].data["data"] == "a"
            fresh_server.stop()
            assert plain.take(1) == []
            assert subscriber.take(1) == []
    assert "still had requests under way" not in fresh_server.log_text()
    assert "Traceback" not in fresh_server.log_text()
