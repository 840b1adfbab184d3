"""`python -m bench.clients.doors VERB ADDRESS TOPIC OPTIONS`: bare connections that send what was made beforehand.

A connection sends a block of requests, waits until all of them are answered, and sends the next: so a handful of
connections keeps a server busy, and the client's own work is to find the ends of the answers.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop

from bench.clients.processes import hold
from bench.clients.worker import Watch

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
TIMEOUT_S = 120.0


class BlockConnection(asyncio.Protocol):
    """Sends `block`, counts answers until there are `answers` of them, and again, until the time is over."""

    def __init__(self, block: bytes, answers: int, count: Callable[[bytearray], int], until: float) -> None:
        self.blocks_answered = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._block, self._answers, self._count, self._until = block, answers, count, until
        self._missing = answers
        self._received = bytearray()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.write(self._block)

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            self._missing -= self._count(self._received)
        except ValueError as error:
            self._fail(error)
            return
        if self._missing > 0:
            return
        self.blocks_answered += 1
        self._missing = self._answers
        if time.monotonic() < self._until:
            self._transport.write(self._block)
        else:
            self.done.set_result(None)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
        self._transport.close()


def http_answers(received: bytearray) -> int:
    """Takes whole answers away from what was received; each must tell of success."""
    found = 0
    while (head_end := received.find(b"\r\n\r\n")) >= 0:
        length = LENGTH.search(received, 0, head_end)
        end = head_end + 4 + (int(length[1]) if length else 0)
        if len(received) < end:
            break
        if not received.startswith(b"HTTP/1.1 2"):
            raise ValueError(bytes(received[:500]).decode(errors="replace"))
        del received[:end]
        found += 1
    return found


def line_answers(received: bytearray) -> int:
    """`OK <offset>` a line."""
    found = received.count(b"\n")
    if found:
        if received.count(b"OK ") < found:
            raise ValueError(bytes(received[:500]).decode(errors="replace"))
        del received[: received.rfind(b"\n") + 1]
    return found


async def send_blocks(
    address: str, block: bytes, answers: int, count: Callable[[bytearray], int], connections: int, seconds: float
) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    watch = Watch()
    until = watch.started + seconds
    opened = [
        (await loop.create_connection(lambda: BlockConnection(block, answers, count, until), host, int(port)))[1]
        for _ in range(connections)
    ]
    await asyncio.wait_for(asyncio.gather(*(connection.done for connection in opened)), TIMEOUT_S)
    return {**watch.read(), "answers": sum(connection.blocks_answered for connection in opened) * answers}


async def http_publish(
    address: str, topic: str, size: int, records: int, connections: int, seconds: float
) -> dict[str, Any]:
    """`records` a request; one record goes the way of single ones."""
    value = "x" * size
    if records == 1:
        path, body = single_request(topic, value)
    else:
        path, body = batch_request(topic, [value] * records)
    head = f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return await send_blocks(address, head.encode() + b"\r\n\r\n" + body, 1, http_answers, connections, seconds)


def single_request(topic: str, value: str) -> tuple[str, bytes]:
    return f"/v1/topics/{topic}/records", json.dumps({"value": value}).encode()


def batch_request(topic: str, values: list[str]) -> tuple[str, bytes]:
    records = [{"value": value} for value in values]
    return f"/v1/topics/{topic}/records", json.dumps({"records": records}).encode()


async def line_publish(
    address: str, topic: str, size: int, commands: int, connections: int, seconds: float
) -> dict[str, Any]:
    block = f"PUB {topic} {size}\r\n{'x' * size}\r\n".encode() * commands
    return await send_blocks(address, block, commands, line_answers, connections, seconds)


def main() -> None:
    verb, address, topic, options = sys.argv[1:]
    hold()
    print(json.dumps(uvloop.run(VERBS[verb](address, topic, **json.loads(options)))))


VERBS = {"http": http_publish, "line": line_publish}

if __name__ == "__main__":
    main()
