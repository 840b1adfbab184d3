"""`kill -9` while messages are published by HTTP under idempotency keys and copied on by a router.

Whoever has no answer asks again under the same key. In the end every message is there once, in the topic it was
published to and in the one it was copied to, in order.
"""

import itertools
import json
import threading
from typing import Any

import httpx
from confluent_kafka import Consumer, TopicPartition
from story import WAIT_S, eventually, read_topic

from penstock.testing.server import Server
from servers import StartServer

ROUNDS = 5
PUBLISHED_PER_ROUND = 60


class Publisher:
    """Publishes numbers one after another, each under a key of its own, until it is told to stop."""

    def __init__(self, server: Server, topic: str) -> None:
        self.acknowledged = 0
        self.repeats = 0
        self.refusals: list[str] = []
        self._server = server
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with httpx.Client(timeout=WAIT_S) as http:
            for number in itertools.count():
                if self._ended.is_set():
                    return
                while not self._publish(http, number):
                    self.repeats += 1
                self.acknowledged = number + 1

    def _publish(self, http: httpx.Client, number: int) -> bool:
        try:
            answer = http.post(
                f"{self._server.http}/v1/topics/{self._topic}/records",
                content=json.dumps({"value": str(number)}),
                headers={"content-type": "application/json", "idempotency-key": f"number {number}"},
            )
        except httpx.HTTPError:
            return self._ended.wait(0.01)
        if answer.is_error and answer.status_code < 500:
            self.refusals.append(answer.text)
            self._ended.set()
        return answer.is_success or self._ended.is_set()


def call(server: Server, path: str, body: dict[str, Any]) -> None:
    httpx.post(f"{server.http}{path}", json=body, timeout=WAIT_S).raise_for_status()


def end_of(server: Server, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "looks-only", "log_level": 0})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S, cached=False)[1]
    finally:
        consumer.close()


def numbers_in(server: Server, topic: str, count: int) -> list[int]:
    messages = read_topic(server.kafka, topic, count)
    assert list(messages) == [0]
    return [int(message.value() or b"") for message in messages[0]]


def test_each_message_is_stored_and_copied_once(start_server: StartServer, topic: str) -> None:
    server = start_server()
    copies = f"{topic}-copies"
    call(server, "/v1/routers", {"name": topic, "kind": "fanout"})
    call(server, f"/v1/routers/{topic}/bindings", {"to": copies})
    publisher = Publisher(server, topic)
    for _ in range(ROUNDS):
        goal = publisher.acknowledged + PUBLISHED_PER_ROUND
        eventually(lambda goal=goal: publisher.refusals or publisher.acknowledged >= goal, "publishing goes on")
        assert not publisher.refusals, publisher.refusals
        server.kill()
        server.restart()
    publisher.end()
    expected = list(range(publisher.acknowledged))
    assert numbers_in(server, topic, len(expected)) == expected

    eventually(lambda: end_of(server, copies) >= len(expected), "the last message is copied")
    assert numbers_in(server, copies, len(expected)) == expected
