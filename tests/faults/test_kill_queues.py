"""`kill -9` while workers consume a queue: by steps, by acks and by rejecting.

Every message has its effect once where it is processed in a step, and lies once with the dead letters where it is
rejected; what was acknowledged does not come again, and nothing is lost.
"""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from story import WAIT_S, eventually, read_topic

from penstock.testing.server import Server
from servers import StartServer

ROUNDS = 5
MESSAGES = 1_000
TAKEN_PER_ROUND = 100

Message = dict[str, Any]


class Worker:
    """Leases and settles, whatever happens to the server, until it is told to stop."""

    def __init__(self, server: Server, topic: str) -> None:
        self.settled: set[str] = set()
        self.came_again: set[str] = set()
        self._server = server
        self.topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with httpx.Client(timeout=WAIT_S) as http:
            while not self._ended.is_set():
                try:
                    self._work(http)
                except httpx.HTTPError:
                    self._ended.wait(0.01)

    def _work(self, http: httpx.Client) -> None:
        answer = self._post(http, "lease", {"limit": 25, "wait_ms": 50})
        messages: list[Message] = answer.json()["messages"]
        self.came_again |= {message["value"] for message in messages} & self.settled
        for chosen in (messages[:10], messages[10:]):
            if chosen:
                self.settle(http, chosen)
                self.settled |= {message["value"] for message in chosen}

    def settle(self, http: httpx.Client, messages: list[Message]) -> None:
        self._post(http, "ack", {"receipts": [message["receipt"] for message in messages]})

    def _post(self, http: httpx.Client, verb: str, body: dict[str, Any]) -> httpx.Response:
        answer = http.post(f"{self._server.http}/v1/topics/{self.topic}/queues/work/{verb}", json=body)
        return answer.raise_for_status()


class Rejecter(Worker):
    def settle(self, http: httpx.Client, messages: list[Message]) -> None:
        self._post(http, "reject", {"receipts": [message["receipt"] for message in messages]})


class Stepper(Worker):
    """Publishes each message to another topic in the step that settles it."""

    def settle(self, http: httpx.Client, messages: list[Message]) -> None:
        for message in messages:
            records = [{"value": message["value"]}]
            body = {
                "step": f"step of {message['value']}",
                "receipts": [message["receipt"]],
                "publish": [{"topic": f"{self.topic}-done", "records": records}],
            }
            self._post(http, "step", body)


@pytest.fixture
def server(start_server: StartServer, topic: str) -> Iterator[Server]:
    server = start_server()
    records = [{"value": str(number)} for number in range(MESSAGES)]
    settings = {"lease_ms": 60_000, "retry_initial_ms": 0}
    call(server, f"/v1/topics/{topic}/queues", {"name": "work", "settings": settings})
    call(server, f"/v1/topics/{topic}/records", {"records": records})
    yield server


def call(server: Server, path: str, body: dict[str, Any]) -> None:
    httpx.post(f"{server.http}{path}", json=body, timeout=WAIT_S).raise_for_status()


def counts(server: Server, topic: str) -> dict[str, int]:
    answer = httpx.get(f"{server.http}/v1/topics/{topic}/queues/work", timeout=WAIT_S).raise_for_status().json()
    found: dict[str, int] = answer["counts"]
    return found


def survive(server: Server, worker: Worker) -> None:
    """Kill the server again and again while the worker works, then let it finish."""
    for _ in range(ROUNDS):
        goal = min(len(worker.settled) + TAKEN_PER_ROUND, MESSAGES)
        eventually(lambda goal=goal: len(worker.settled) >= goal, "work goes on")
        server.kill()
        server.restart()
    eventually(lambda: counts(server, worker.topic)["processed"] == MESSAGES, "all is processed", 4 * WAIT_S)
    worker.end()
    assert not worker.came_again


def values_in(server: Server, topic: str) -> list[int]:
    messages = read_topic(server.kafka, topic, MESSAGES)
    return sorted(int(message.value() or b"") for part in messages.values() for message in part)


def test_what_was_acknowledged_does_not_come_again(server: Server, topic: str) -> None:
    worker = Worker(server, topic)
    survive(server, worker)
    assert len(worker.settled) <= MESSAGES


def test_a_step_has_its_effect_once(server: Server, topic: str) -> None:
    survive(server, Stepper(server, topic))
    assert values_in(server, f"{topic}-done") == list(range(MESSAGES))


def test_a_rejected_message_is_a_dead_letter_once(server: Server, topic: str) -> None:
    survive(server, Rejecter(server, topic))
    assert values_in(server, f"{topic}.work.dead") == list(range(MESSAGES))
