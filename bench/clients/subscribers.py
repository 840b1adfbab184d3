"""`python -m bench.clients.subscribers ADDRESS PATH OPTIONS`: many readers of server-sent events in one process.

Every event that is published carries the mark once, and nothing else on the stream does, so that counting it counts
events however the bytes were cut. When all subscribers are there the process says so; then each line that it is given
is a number of events that every subscriber should have by then, and it answers when they have, or when nothing has come
for a while.
"""

import asyncio
import contextlib
import json
import resource
import sys
import time
from typing import Any

import uvloop

from bench.clients.processes import hold

MARK = b"~"
SILENCE_S = 3.0
OPENING = 50  # connections that open at a time


class Subscriber(asyncio.Protocol):
    def __init__(self, request: bytes, audience: "Audience") -> None:
        self.events = 0
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request, self._audience = request, audience

    def connection_made(self, transport: asyncio.Transport) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.accepted.done():
            if data.startswith(b"HTTP/1.1 200"):
                self.accepted.set_result(None)
            else:
                self.accepted.set_exception(ConnectionError(data[:500].decode(errors="replace")))
        came = data.count(MARK)
        if came:
            self.events += came
            self._audience.came(came)

    def connection_lost(self, error: Exception | None) -> None:
        self._audience.lost += 1
        if not self.accepted.done():
            self.accepted.set_exception(error or ConnectionError("the server closed the connection"))


class Audience:
    def __init__(self) -> None:
        self.subscribers: list[Subscriber] = []
        self.events = 0
        self.lost = 0
        self.last_came = time.monotonic()
        self._wanted = 0
        self._reached = asyncio.Event()

    def came(self, events: int) -> None:
        self.events += events
        self.last_came = time.monotonic()
        if self.events >= self._wanted:
            self._reached.set()

    async def open(self, address: str, path: str, count: int) -> None:
        host, _, port = address.rpartition(":")
        request = f"GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream\r\n\r\n".encode()
        loop = asyncio.get_running_loop()
        for first in range(0, count, OPENING):
            wanted = min(OPENING, count - first)
            made = await asyncio.gather(
                *(loop.create_connection(lambda: Subscriber(request, self), host, int(port)) for _ in range(wanted))
            )
            opened = [subscriber for _, subscriber in made]
            await asyncio.gather(*(subscriber.accepted for subscriber in opened))
            self.subscribers += opened

    async def await_events(self, each: int) -> dict[str, Any]:
        self._wanted = each * len(self.subscribers)
        self._reached.clear()
        heard = -1
        while heard < self.events < self._wanted:
            heard = self.events
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reached.wait(), SILENCE_S)
        missing = sum(max(each - subscriber.events, 0) for subscriber in self.subscribers)
        return {"events": self.events, "missing": missing, "lost": self.lost, "ended": self.last_came}


async def listen(address: str, path: str, count: int) -> None:
    audience = Audience()
    await audience.open(address, path, count)
    print(json.dumps({"subscribed": len(audience.subscribers), "ended": time.monotonic()}), flush=True)
    loop = asyncio.get_running_loop()
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        cpu_s = time.process_time()
        print(json.dumps({**await audience.await_events(int(line)), "client_cpu_s": cpu_s}), flush=True)


def main() -> None:
    address, path, options = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    hold()
    uvloop.run(listen(address, path, **json.loads(options)))


if __name__ == "__main__":
    main()
