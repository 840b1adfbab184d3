"""A topic over WebSocket: pub/sub, log and queue, and publishing."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from penstock.testing.server import Server

WAIT_S = 20.0


class Talk:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def say(self, **message: object) -> None:
        self.socket.send(json.dumps(message))

    def hear(self, kind: str) -> dict[str, Any]:
        """The next message, which is of this kind."""
        message: dict[str, Any] = json.loads(self.socket.recv(timeout=WAIT_S))
        assert message["type"] == kind, message
        return message

    def ask(self, kind: str, **message: object) -> dict[str, Any]:
        self.say(**message)
        return self.hear(kind)

    def values(self, count: int) -> list[object]:
        found: list[object] = []
        while len(found) < count:
            found += [record["value"] for record in self.hear("records")["records"]]
        return found


@contextmanager
def talk(server: Server, topic: str, query: str = "") -> Iterator[Talk]:
    address = server.http.replace("http://", "ws://")
    with connect(f"{address}/v1/topics/{topic}/stream?{query}", open_timeout=WAIT_S, close_timeout=5) as socket:
        yield Talk(socket)


@pytest.fixture(autouse=True)
def made(http: httpx.Client, topic: str) -> None:
    http.post("/v1/topics", json={"name": topic})


def publish(http: httpx.Client, topic: str, *values: str) -> None:
    http.post(f"/v1/topics/{topic}/records", json={"records": [{"value": value} for value in values]})


def test_publishing_and_reading_on_one_socket(server: Server, topic: str) -> None:
    with talk(server, topic, "view=pubsub") as socket:
        records = [{"value": "a", "key": "k"}, {"value": {"b": 1}}]
        socket.say(type="publish", id=7, records=records)
        heard = [json.loads(socket.socket.recv(timeout=WAIT_S)) for _ in range(2)]
        by_type = {message["type"]: message for message in heard}
        offsets = [{"partition": 0, "offset": 0}, {"partition": 0, "offset": 1}]
        assert by_type["published"] == {"type": "published", "id": 7, "offsets": offsets}
        assert [(r["key"], r["value"]) for r in by_type["records"]["records"]] == [("k", "a"), (None, {"b": 1})]
        assert by_type["records"]["gap"] == 0


def test_the_log_from_its_beginning(http: httpx.Client, server: Server, topic: str) -> None:
    publish(http, topic, "a", "b")
    with talk(server, topic, "view=log") as socket:
        assert socket.values(2) == ["a", "b"]
        publish(http, topic, "c")
        assert socket.values(1) == ["c"]
    with talk(server, topic, "view=log&last_event_id=0:1") as socket:
        assert socket.values(1) == ["c"]


def test_a_queue_with_acknowledgements(http: httpx.Client, server: Server, topic: str) -> None:
    path = f"/v1/topics/{topic}/queues/work"
    http.put(path)
    publish(http, topic, "a", "b", "c")
    with talk(server, topic, "view=queue&queue=work&credit=2") as socket:
        messages = socket.hear("messages")["messages"]
        while len(messages) < 2:
            messages += socket.hear("messages")["messages"]
        assert [(message["value"], message["attempt"]) for message in messages] == [("a", 1), ("b", 1)]
        socket.say(type="ack", id="x", receipts=[messages[0]["receipt"]])
        heard = {}
        while len(heard) < 2:
            message = json.loads(socket.socket.recv(timeout=WAIT_S))
            heard[message["type"]] = message
        assert heard["settled"]["results"] == [{"receipt": messages[0]["receipt"], "ok": True}]
        assert [message["value"] for message in heard["messages"]["messages"]] == ["c"]
    with talk(server, topic, "view=queue&queue=work") as other:  # what was not settled comes again
        again = other.hear("messages")["messages"]
        while len(again) < 2:
            again += other.hear("messages")["messages"]
        assert sorted(message["value"] for message in again) == ["b", "c"]
        receipts = [message["receipt"] for message in again]
        results = other.ask("settled", type="ack", receipts=receipts)["results"]
        assert [result["ok"] for result in results] == [True, True]
    assert http.get(path).json()["counts"]["processed"] == 3


def test_publishing_keeps_its_order(http: httpx.Client, server: Server, topic: str) -> None:
    with talk(server, topic, "view=none") as socket:
        for n in range(300):
            socket.say(type="publish", id=n, records=[{"value": str(n)}])
        answers = {}
        while len(answers) < 300:
            message = socket.hear("published")
            answers[message["id"]] = message["offsets"][0]["offset"]
        assert answers == {n: n for n in range(300)}


def test_a_named_producer_over_a_socket(server: Server, topic: str) -> None:
    with talk(server, topic, "view=none") as socket:
        ask = {"type": "publish", "records": [{"value": "x"}], "producer": "p", "sequence": 4}
        assert socket.ask("published", **ask) == socket.ask("published", **ask)


def test_an_error_of_a_request_names_it_and_the_socket_goes_on(server: Server, topic: str) -> None:
    with talk(server, topic, "view=none") as socket:
        refused = socket.ask("error", type="ack", id=1, receipts=["1-2"])
        assert (refused["id"], refused["problem"]["code"]) == (1, "InvalidRequest")
        refused = socket.ask("error", type="publish", id=2, records=[{"value": "x", "partition": 9}])
        assert (refused["id"], refused["problem"]["code"]) == (2, "UnknownPartition")
        assert socket.ask("pong", type="ping", id=3)["id"] == 3


@pytest.mark.parametrize("text", ["{", '{"type": "dance"}', '{"type": "ack"}', "[]", '{"type":"ping","more":1}', ""])
def test_what_makes_no_sense_closes_that_socket_and_says_why(server: Server, topic: str, text: str) -> None:
    with talk(server, topic, "view=none") as fine, talk(server, topic, "view=none") as broken:
        broken.socket.send(text)
        assert broken.hear("error")["problem"]["code"] == "MalformedBody"
        with pytest.raises(ConnectionClosed) as closed:
            broken.socket.recv(timeout=WAIT_S)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
        fine.ask("pong", type="ping")


def test_what_is_wrong_with_the_address_is_a_status(server: Server, topic: str) -> None:
    for query, where, status, code in (
        ("view=dance", topic, 400, "MalformedRequest"),
        ("view=pubsub", topic + "-none", 404, "UnknownTopic"),
        ("view=queue&queue=none", topic, 404, "UnknownView"),
    ):
        with pytest.raises(InvalidStatus) as refused, talk(server, where, query):
            pass
        response = refused.value.response
        assert (response.status_code, json.loads(response.body or b"")["code"]) == (status, code)
    with pytest.raises(InvalidStatus) as refused, connect(server.http.replace("http", "ws") + "/v1/topics"):
        pass
    assert refused.value.response.status_code == 405


def test_a_page_from_elsewhere_may_not_listen(server: Server, topic: str) -> None:
    address = server.http.replace("http", "ws") + f"/v1/topics/{topic}/stream"
    with pytest.raises(InvalidStatus) as refused, connect(address, origin="http://elsewhere.example"):  # type: ignore[arg-type]
        pass
    assert refused.value.response.status_code == 403


def test_a_message_larger_than_a_body_may_be_closes_the_socket(start_server: Any) -> None:
    small: Server = start_server(max_body_bytes=2_000)
    httpx.post(f"{small.http}/v1/topics", json={"name": "t"})
    with talk(small, "t", "view=none") as socket:
        socket.say(type="publish", records=[{"value": "x" * 5_000}])
        with pytest.raises(ConnectionClosed) as closed:
            socket.socket.recv(timeout=WAIT_S)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


def test_a_view_that_is_deleted_ends_its_sockets(http: httpx.Client, server: Server, topic: str) -> None:
    http.put(f"/v1/topics/{topic}/queues/gone")
    with talk(server, topic, "view=queue&queue=gone") as socket:
        http.delete(f"/v1/topics/{topic}/queues/gone")
        assert socket.hear("error")["problem"]["code"] == "UnknownView"


def test_a_client_that_goes_without_a_word_leaves_no_trace(fresh_server: Server) -> None:
    httpx.post(f"{fresh_server.http}/v1/topics", json={"name": "t"})
    for view in ("pubsub", "queue", "log", "none"):
        with talk(fresh_server, "t", f"view={view}") as socket:
            for n in range(50):
                socket.say(type="publish", id=n, records=[{"value": "x" * 1_000}])
            socket.socket.socket.close()
    with talk(fresh_server, "t", "view=queue") as socket:  # everything that was begun is there, for somebody else
        socket.hear("messages")
    fresh_server.stop()
    assert "Traceback" not in fresh_server.log_text()


def test_sockets_end_at_once_when_the_server_stops(fresh_server: Server) -> None:
    httpx.post(f"{fresh_server.http}/v1/topics", json={"name": "t"})
    with talk(fresh_server, "t", "view=pubsub") as socket:
        socket.ask("pong", type="ping")
        fresh_server.stop()
        with pytest.raises(ConnectionClosed) as closed:
            socket.socket.recv(timeout=WAIT_S)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
    assert "Traceback" not in fresh_server.log_text()
