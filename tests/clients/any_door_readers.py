"""Every way out of a topic. A reader is opened before anything is published, and then asked for so many messages."""

import json
import shlex
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import confluent_kafka
import httpx
import websockets.sync.client
from any_door_writers import PATIENCE_S, Seen

import penstock
from penstock.testing.server import Server

Read = Callable[[int], list[Seen]]
Reader = Callable[[Server, str], AbstractContextManager[Read]]


@contextmanager
def with_kafka(server: Server, topic: str) -> Iterator[Read]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.kafka, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])

    def read(count: int) -> list[Seen]:
        found = []
        while len(found) < count:
            message = consumer.poll(PATIENCE_S)
            assert message is not None and message.error() is None, message and message.error()
            headers = dict(message.headers() or [])
            found.append(Seen(message.value(), message.key(), headers, message.timestamp()[1]))
        return found

    try:
        yield read
    finally:
        consumer.close()


def _python_client(kind: Any, **options: Any) -> Reader:
    @contextmanager
    def reader(server: Server, topic: str) -> Iterator[Read]:
        with penstock.SyncClient(server.line) as client, client.subscribe(topic, kind, **options) as subscription:
            subscription.start()

            def read(count: int) -> list[Seen]:
                found: list[Seen] = []
                while len(found) < count:
                    messages = subscription.take(count - len(found), timeout_s=PATIENCE_S)
                    assert messages, f"{len(found)} of {count} came"
                    found += [Seen(m.value or b"", m.key, dict(m.headers), m.timestamp_ms) for m in messages]
                    if kind == "queue":
                        subscription.ack(messages)
                return found

            yield read

    return reader


def _of_json(record: dict[str, Any]) -> Seen:
    key, headers = record["key"], record["headers"]
    return Seen(
        record["value"].encode(),
        key.encode() if key is not None else None,
        {name: value.encode() for name, value in headers.items()},
        record["timestamp_ms"],
    )


@contextmanager
def with_http_fetch(server: Server, topic: str) -> Iterator[Read]:
    def read(count: int) -> list[Seen]:
        found: list[Seen] = []
        while len(found) < count:
            path = f"{server.http}/v1/topics/{topic}/partitions/0/records"
            wanted = {"offset": len(found), "wait_ms": int(PATIENCE_S * 1000)}
            records = httpx.get(path, params=wanted, timeout=2 * PATIENCE_S).json()["records"]
            assert records, f"{len(found)} of {count} came"
            found += map(_of_json, records)
        return found

    yield read


@contextmanager
def with_http_lease(server: Server, topic: str) -> Iterator[Read]:
    path = f"{server.http}/v1/topics/{topic}/queues"
    assert httpx.post(path, json={"name": "matrix"}).status_code == 201

    def read(count: int) -> list[Seen]:
        found: list[Seen] = []
        while len(found) < count:
            wanted = {"limit": count, "wait_ms": int(PATIENCE_S * 1000)}
            messages = httpx.post(f"{path}/matrix/lease", json=wanted, timeout=2 * PATIENCE_S).json()["messages"]
            assert messages, f"{len(found)} of {count} came"
            found += map(_of_json, messages)
            httpx.post(f"{path}/matrix/ack", json={"receipts": [m["receipt"] for m in messages]}).raise_for_status()
        return found

    yield read


def _events(view: str) -> Reader:
    @contextmanager
    def reader(server: Server, topic: str) -> Iterator[Read]:
        path = f"{server.http}/v1/topics/{topic}/events?view={view}"
        with httpx.stream("GET", path, timeout=PATIENCE_S) as answer:
            lines = answer.iter_lines()
            while not next(lines).startswith("id: "):
                pass  # it begins here, the server says

            def read(count: int) -> list[Seen]:
                found: list[Seen] = []
                for line in lines:
                    if line.startswith("data: "):
                        found.append(_of_json(json.loads(line[6:])))
                        if len(found) == count:
                            break
                return found

            yield read

    return reader


@contextmanager
def with_mbrokers_events(server: Server, topic: str) -> Iterator[Read]:
    with httpx.stream("GET", f"{server.http}/topics/{topic}/subscribe", timeout=PATIENCE_S) as answer:
        cookies = {"subscriber_id": answer.cookies["subscriber_id"]}

        def read(count: int) -> list[Seen]:
            found: list[Seen] = []
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    data = json.loads(line[6:])
                    key = data["key"]
                    found.append(Seen(data["data"].encode(), key.encode() if key is not None else None))
                    body = {"message_id": data["message_id"]}
                    done = httpx.post(f"{server.http}/topics/{topic}/commit", json=body, cookies=cookies)
                    assert done.is_success, done.text
                    if len(found) == count:
                        break
            return found

        yield read


def _web_socket(view: str) -> Reader:
    @contextmanager
    def reader(server: Server, topic: str) -> Iterator[Read]:
        address = f"{server.http.replace('http', 'ws', 1)}/v1/topics/{topic}/stream?view={view}"
        with websockets.sync.client.connect(address) as web_socket:
            web_socket.send('{"type": "ping"}')
            assert json.loads(web_socket.recv(timeout=PATIENCE_S))["type"] == "pong"

            def read(count: int) -> list[Seen]:
                found: list[Seen] = []
                while len(found) < count:
                    said = json.loads(web_socket.recv(timeout=PATIENCE_S))
                    if said["type"] == "settled":
                        continue
                    messages = said["messages" if view == "queue" else "records"]
                    found += map(_of_json, messages)
                    if view == "queue":
                        receipts = [message["receipt"] for message in messages]
                        web_socket.send(json.dumps({"type": "ack", "receipts": receipts}))
                return found

            yield read

    return reader


class _Lines:
    """The text protocol, spoken over a plain socket."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self.file = self.socket.makefile("rwb")

    def say(self, text: str) -> None:
        self.file.write(text.encode() + b"\r\n")
        self.file.flush()

    def hear(self) -> str:
        return self.file.readline().decode().rstrip("\r\n")

    def message(self, first_line: str) -> tuple[str, Seen]:
        kind, name, size, *options = shlex.split(first_line)
        assert kind == "MSG", first_line
        value = self.file.read(int(size))
        assert self.file.read(2) == b"\r\n"
        fields = dict(option.split("=", 1) for option in options)
        headers = {n.removeprefix("header."): v.encode() for n, v in fields.items() if n.startswith("header.")}
        key = fields["key"].encode() if "key" in fields else None
        return name, Seen(value, key, headers, int(fields["timestamp"]))


def _subscribe(kind: str) -> Reader:
    @contextmanager
    def reader(server: Server, topic: str) -> Iterator[Read]:
        lines = _Lines(server.line)
        lines.say(f"SUBSCRIBE {topic}/{kind} meta=yes")
        assert lines.hear() == f"OK {topic}/{kind}"

        def read(count: int) -> list[Seen]:
            found = []
            while len(found) < count:
                heard = lines.hear()
                if heard != "OK":  # of an ACK
                    name, seen = lines.message(heard)
                    found.append(seen)
                    if kind == "queue":
                        lines.say(f"ACK {name}")
            return found

        with lines.socket:
            yield read

    return reader


@contextmanager
def with_fetch(server: Server, topic: str) -> Iterator[Read]:
    lines = _Lines(server.line)

    def read(count: int) -> list[Seen]:
        lines.say(f"FETCH {topic} 0 count={count} wait={int(PATIENCE_S * 1000)} meta=yes")
        found: list[Seen] = []
        while not (heard := lines.hear()).startswith("END"):
            found.append(lines.message(heard)[1])
        if len(found) < count:  # the wait is for the first message
            return read(count)
        return found

    with lines.socket:
        yield read


READERS: dict[str, Reader] = {
    "kafka": with_kafka,
    "python log": _python_client("log"),
    "python queue": _python_client("queue"),
    "python pubsub": _python_client("pubsub"),
    "http fetch": with_http_fetch,
    "http lease": with_http_lease,
    "events log": _events("log"),
    "events pubsub": _events("pubsub"),
    "mbroker events": with_mbrokers_events,
    "web socket log": _web_socket("log"),
    "web socket queue": _web_socket("queue"),
    "web socket pubsub": _web_socket("pubsub"),
    "line fetch": with_fetch,
    "line log": _subscribe("log"),
    "line queue": _subscribe("queue"),
    "line pubsub": _subscribe("pubsub"),
}
