"""Every way into a topic, each with a client that its users have. A writer returns what its door could carry."""

import json
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import confluent_kafka
import httpx
import websockets.sync.client

import penstock
from penstock.testing.server import Server

PATIENCE_S = 20.0
SHORTLY_AGO_MS = 60_000


UNKNOWN: Any = object()


class Seen(NamedTuple):
    """A message as a door takes or shows it; UNKNOWN where the door has no way to."""

    value: bytes
    key: bytes | None = UNKNOWN
    headers: dict[str, bytes] = UNKNOWN
    timestamp_ms: int = UNKNOWN


Writer = Callable[[Server, str, Sequence[Seen]], list[Seen]]


def by_kafka(server: Server, topic: str, messages: Sequence[Seen]) -> list[Seen]:
    producer = confluent_kafka.Producer({"bootstrap.servers": server.kafka})
    for m in messages:
        producer.produce(topic, m.value, key=m.key, headers=m.headers, timestamp=m.timestamp_ms)
    assert producer.flush(PATIENCE_S) == 0
    return list(messages)


def by_the_python_client(server: Server, topic: str, messages: Sequence[Seen]) -> list[Seen]:
    with penstock.SyncClient(server.line) as client:
        client.publish_many(
            topic,
            [penstock.Outgoing(m.value, key=m.key, headers=m.headers, timestamp_ms=m.timestamp_ms) for m in messages],
        )
    return list(messages)


def _record(m: Seen) -> dict[str, object]:
    return {
        "value": m.value.decode(),
        "key": m.key.decode() if m.key is not None else None,
        "headers": {name: value.decode() for name, value in m.headers.items()},
        "timestamp_ms": m.timestamp_ms,
    }


def by_http(server: Server, topic: str, messages: Sequence[Seen]) -> list[Seen]:
    answer = httpx.post(f"{server.http}/v1/topics/{topic}/records", json={"records": [_record(m) for m in messages]})
    assert answer.status_code == 200, answer.text
    return list(messages)


def by_web_socket(server: Server, topic: str, messages: Sequence[Seen]) -> list[Seen]:
    address = f"{server.http.replace('http', 'ws', 1)}/v1/topics/{topic}/stream?view=none"
    with websockets.sync.client.connect(address) as web_socket:
        web_socket.send(json.dumps({"type": "publish", "records": [_record(m) for m in messages]}))
        assert json.loads(web_socket.recv(timeout=PATIENCE_S))["type"] == "published"
    return list(messages)


def by_mbrokers_call(server: Server, topic: str, messages: Sequence[Seen]) -> list[Seen]:
    for m in messages:
        body = {"key": m.key.decode() if m.key is not None else None, "data": m.value.decode()}
        answer = httpx.post(f"{server.http}/topics/{topic}/publish", json=body)
        assert answer.is_success, answer.text
    return [Seen(m.value, m.key, {}) for m in messages]


def _nc(address: str, said: bytes, *flags: str) -> bytes:
    host, port = address.rsplit(":", 1)
    done = subprocess.run(["nc", *flags, host, port], input=said, capture_output=True, timeout=PATIENCE_S, check=True)
    return done.stdout


def by_pub(server: Server, topic: str, messages: Sequence[Seen]) -> list[Seen]:
    said = b""
    for m in messages:
        options = f"timestamp={m.timestamp_ms}"
        if m.key is not None:
            options += f' key="{m.key.decode()}"'
        for name, value in m.headers.items():
            options += f' header.{name}="{value.decode()}"'
        said += f"PUB {topic} {len(m.value)} {options}\r\n".encode() + m.value + b"\r\n"
    answers = _nc(server.line, said, "-N").split()
    assert answers == [word for n in range(len(messages)) for word in (b"OK", b"%d" % n)], answers
    return list(messages)


def by_publish(server: Server, topic: str, messages: Sequence[Seen]) -> list[Seen]:
    said = b"".join(b"PUBLISH %b %b\n" % (topic.encode(), m.value) for m in messages)
    assert _nc(server.line, said, "-N").count(b"OK") == len(messages)
    return [Seen(m.value, None, {}) for m in messages]


def by_udp(server: Server, topic: str, messages: Sequence[Seen]) -> list[Seen]:
    host, port = server.udp.rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for m in messages:
            key = b" " + m.key if m.key is not None else b""
            sender.sendto(topic.encode() + key + b"\n" + m.value, (host, int(port)))
    return [Seen(m.value, m.key, {}) for m in messages]


WRITERS: list[Writer] = [
    by_kafka, by_the_python_client, by_http, by_web_socket, by_mbrokers_call, by_pub, by_publish, by_udp
]  # fmt: skip
