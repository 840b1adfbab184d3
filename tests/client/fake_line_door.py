"""A line door that says what a test tells it to say: for what a sound server never does."""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from penstock.wire.native import messages as wire
from penstock.wire.native.framing import PREFACE, Receiver, decode_request, encode, split

Reply = wire.Message | bytes | None  # bytes go out as they are; None: no answer
Answers = Callable[[Any], Reply]


class FakeDoor:
    """`answer(request)` decides; None from it, or no `answer`, gives the usual answers of an empty server."""

    def __init__(self, answer: Answers | None = None, *, chunk_bytes: int = 0) -> None:
        self.requests: list[Any] = []
        self.connections = 0
        self._answer = answer
        self._chunk_bytes = chunk_bytes
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def of(self, kind: type[wire.Message]) -> list[Any]:
        return [request for request in self.requests if type(request) is kind]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        receiver = Receiver(1 << 26)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            assert await reader.readexactly(len(PREFACE)) == PREFACE
            while data := await reader.read(1 << 16):
                for frame in receiver.feed(data):
                    kind, correlation_id, body = split(frame)
                    request = decode_request(kind, bytes(body))
                    self.requests.append(request)
                    reply = self._answer(request) if self._answer else None
                    if reply is None:
                        reply = usual(request)
                    if reply is not None:
                        await self._write(writer, reply, correlation_id)
        writer.close()

    async def _write(self, writer: asyncio.StreamWriter, reply: wire.Message | bytes, correlation_id: int) -> None:
        data = bytes(reply) if isinstance(reply, (bytes, bytearray)) else bytes(encode(correlation_id, reply))
        step = self._chunk_bytes or len(data) or 1
        for at in range(0, len(data), step):
            writer.write(data[at : at + step])
            await writer.drain()


SILENCE = b""


def usual(request: Any) -> wire.Message | None:
    match request:
        case wire.Hello():
            return wire.Welcome(1, "fake", "cluster", 1 << 20)
        case wire.Ping():
            return wire.Done()
        case wire.FindTopic(name=name):
            return wire.Topics([wire.TopicInfo(name, 1, {})])
        case wire.TakeProducerId():
            return wire.ProducerId(7, 0)
        case wire.IncomingPublish(acks=0):
            return None
        case wire.IncomingPublish(batches=batches):
            return wire.Published([wire.Stored(0) for _ in batches])
        case wire.ListTopics():
            return wire.Topics([])
    return wire.Failure("InvalidRequest", "the fake door does not know this")
