"""Reading server-sent events in tests: whole events, never waited for without end."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx


class Event(NamedTuple):
    name: str
    id: str | None
    data: Any


class Events:
    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.iter_lines()
        self.last_id: str | None = None

    def __iter__(self) -> Iterator[Event]:
        name, event_id, data = "message", None, None
        for line in self._lines:
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "id":
                event_id = self.last_id = value
            elif field == "data":
                data = json.loads(value)
            elif not line:
                if data is not None:
                    yield Event(name, event_id, data)
                name, event_id, data = "message", None, None

    def take(self, count: int) -> list[Event]:
        taken: list[Event] = []
        if count:
            for event in self:
                taken.append(event)
                if len(taken) == count:
                    break
        return taken

    def values(self, count: int) -> list[object]:
        return [event.data["value"] for event in self.take(count)]

    def begun(self) -> "Events":
        """Wait until the server has said where the stream begins."""
        for line in self._lines:
            if line.startswith("id: "):
                self.last_id = line[4:]
                break
        return self


@contextmanager
def events(http: httpx.Client, path: str, **more: Any) -> Iterator[Events]:
    with http.stream("GET", path, **more) as answer:
        if answer.status_code != 200:
            answer.read()
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Events(answer)
