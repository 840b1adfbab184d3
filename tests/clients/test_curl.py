"""mbroker's commands, as its README gives them, run by curl itself against a server on mbroker's port.

Only the placeholders that the README leaves to the reader, `<message_id>` and `<subscriber_id>`, are filled in.
"""

import json
import queue
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.testing.server import Server, ServerFailed
from servers import StartServer, only_penstock

pytestmark = only_penstock

CREATE = """curl -X POST -H "Content-Type: application/json" -d '{"compaction_enabled": false, "retention_duration_secs": 300}' http://127.0.0.1:1337/topics/my_topic"""  # noqa: E501
SUBSCRIBE = """curl -i http://127.0.0.1:1337/topics/my_topic/subscribe"""
PUBLISH = """curl -X POST -H "Content-Type: application/json" -d '{"key": null, "data": "Hello, world!"}' http://127.0.0.1:1337/topics/my_topic/publish"""
COMMIT = """curl -X POST -H "Content-Type: application/json" -d '{"message_id": "<message_id>"}' --cookie "subscriber_id=<subscriber_id>" http://127.0.0.1:1337/topics/my_topic/commit"""  # noqa: E501
UNSUBSCRIBE = (
    """curl -X POST --cookie "subscriber_id=<subscriber_id>" http://127.0.0.1:1337/topics/my_topic/unsubscribe"""
)

MBROKER_PORT = 1337
WAIT_S = 20.0


@pytest.fixture
def mbroker(start_server: StartServer) -> Server:
    """On mbroker's own port where nobody else has it, so that the commands need no change at all."""
    try:
        return start_server(http=f"127.0.0.1:{MBROKER_PORT}")
    except ServerFailed:
        return start_server()


class Curl:
    def __init__(self, server: Server) -> None:
        self._address = server.http.removeprefix("http://")

    def words(self, command: str, **placeholders: str) -> list[str]:
        for name, value in placeholders.items():
            command = command.replace(f"<{name}>", value)
        return shlex.split(command.replace(f"127.0.0.1:{MBROKER_PORT}", self._address))

    def run(self, command: str, **placeholders: str) -> tuple[int, str]:
        """The status and the body."""
        words = self.words(command, **placeholders)
        words[1:1] = ["--silent", "--show-error", "--max-time", str(WAIT_S), "--write-out", "\n%{http_code}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=2 * WAIT_S, check=True)
        body, _, status = done.stdout.rpartition("\n")
        return int(status), body

    @contextmanager
    def stream(self, command: str, *more: str) -> Iterator["Lines"]:
        words = [*self.words(command), "--no-buffer", "--silent", *more]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            yield Lines(process)
        finally:
            process.kill()
            process.wait()


class Lines:
    """What a running curl prints, line by line, never waited for without end."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.decode().rstrip("\r\n"))
        self._lines.put(None)

    def until(self, pattern: str) -> re.Match[str]:
        seen = []
        while True:
            line = self._lines.get(timeout=WAIT_S)
            assert line is not None, f"the stream ended before {pattern!r}: {seen}"
            seen.append(line)
            if match := re.search(pattern, line):
                return match

    def event(self) -> dict[str, object]:
        """The next event's data."""
        event = json.loads(self.until("^data: (.*)")[1])
        assert isinstance(event, dict)
        return event

    def ended(self) -> bool:
        while self._lines.get(timeout=WAIT_S) is not None:
            pass
        return True


def test_the_commands_of_mbroker_work_as_they_are_written(mbroker: Server) -> None:
    curl = Curl(mbroker)
    status, _ = curl.run(CREATE)
    assert status == 201
    with curl.stream(SUBSCRIBE) as stream:
        assert stream.until("^HTTP/1.1 (.*)")[1] == "200 OK"
        headers: dict[str, str] = {}
        while len(headers) < 2:
            match = stream.until(r"^(content-type|set-cookie): (.*)")
            headers[match[1]] = match[2]
        assert headers["content-type"].startswith("text/event-stream")
        cookie = re.match(r"subscriber_id=([0-9a-f-]{36})", headers["set-cookie"])
        assert cookie is not None
        subscriber_id = cookie[1]
        stream.until("^retry:")

        status, body = curl.run(PUBLISH)
        assert status == 200
        event = stream.event()
        assert event == {"message_id": json.loads(body)["message_id"], "key": None, "data": "Hello, world!"}

        status, _ = curl.run(COMMIT, message_id=str(event["message_id"]), subscriber_id=subscriber_id)
        assert status == 200
        status, _ = curl.run(UNSUBSCRIBE, subscriber_id=subscriber_id)
        assert status == 200
        assert stream.ended()
    status, body = curl.run(UNSUBSCRIBE, subscriber_id=subscriber_id)
    assert (status, json.loads(body)["code"]) == (404, "NoSuchSubscriber")


def test_what_was_not_committed_comes_again_to_a_returning_subscriber(mbroker: Server) -> None:
    curl = Curl(mbroker)
    curl.run(CREATE)
    with curl.stream(SUBSCRIBE) as stream:
        subscriber_id = stream.until(r"subscriber_id=([0-9a-f-]{36})")[1]
        stream.until("^retry:")
        for _ in range(3):
            curl.run(PUBLISH)
        first, second, third = stream.event(), stream.event(), stream.event()
        curl.run(COMMIT, message_id=str(second["message_id"]), subscriber_id=subscriber_id)
    curl.run(PUBLISH)  # while it is away
    with curl.stream(SUBSCRIBE, "--cookie", f"subscriber_id={subscriber_id}") as stream:
        assert stream.until(r"subscriber_id=([0-9a-f-]{36})")[1] == subscriber_id
        again = [stream.event() for _ in range(3)]
        assert again[:2] == [first, third]
        assert again[2]["message_id"] not in (first["message_id"], second["message_id"], third["message_id"])
        for event in again:
            status, _ = curl.run(COMMIT, message_id=str(event["message_id"]), subscriber_id=subscriber_id)
            assert status == 200
    mbroker.kill()
    mbroker.restart()
    with curl.stream(SUBSCRIBE, "--cookie", f"subscriber_id={subscriber_id}") as stream:
        stream.until("^retry:")
        curl.run(PUBLISH)
        assert stream.event()["message_id"] == "0-4"  # what was committed before the crash stays committed


def test_curl_says_nothing_of_a_content_type_and_is_understood(server: Server, topic: str) -> None:
    curl = Curl(server)
    status, body = curl.run(f'curl -d \'{{"value": "plain"}}\' http://127.0.0.1:1337/v1/topics/{topic}/records')
    assert (status, json.loads(body)) == (200, {"topic": topic, "offsets": [{"partition": 0, "offset": 0}]})
    status, body = curl.run(f"curl http://127.0.0.1:1337/v1/topics/{topic}/partitions/0/records")
    assert [record["value"] for record in json.loads(body)["records"]] == ["plain"]


def test_a_large_body_waits_for_its_100_continue(server: Server, topic: str, tmp_path: object) -> None:
    curl = Curl(server)
    path = f"{tmp_path}/large.json"
    value = "x" * 900_000
    with open(path, "w") as file:
        json.dump({"value": value}, file)
    status, _ = curl.run(f"curl -H 'Expect: 100-continue' -d @{path} http://127.0.0.1:1337/v1/topics/{topic}/records")
    assert status == 200
    status, body = curl.run(f"curl 'http://127.0.0.1:1337/v1/topics/{topic}/partitions/0/records?max_bytes=2000000'")
    assert json.loads(body)["records"][0]["value"] == value
