"""Talking to the line door as a person would, within a test's patience."""

import asyncio
import contextlib
from collections import deque
from typing import NamedTuple, Self

PATIENCE_S = 15.0


class Message(NamedTuple):
    name: str
    payload: bytes
    meta: str = ""


class Talk:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int, *, limit: int = 1 << 24) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=limit))

    def send(self, text: str | bytes) -> None:
        self.writer.write(text.encode() if isinstance(text, str) else text)

    async def line(self) -> str:
        async with asyncio.timeout(PATIENCE_S):
            line = await self.reader.readline()
        assert line.endswith(b"\r\n"), line
        return line[:-2].decode()

    async def lines(self, count: int) -> list[str]:
        return [await self.line() for _ in range(count)]

    async def ask(self, text: str | bytes) -> str:
        """A command, its line end added, and the one line that answers it."""
        self.send((text.encode() if isinstance(text, str) else text) + b"\r\n")
        return await self.line()

    async def publish(self, topic: str, payload: bytes, options: str = "") -> str:
        self.send(b"PUB %b %d %b\r\n%b" % (topic.encode(), len(payload), options.encode(), payload))
        return await self.line()

    async def exactly(self, size_bytes: int) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readexactly(size_bytes)

    async def message(self, *, ends_with_line: bool = True) -> Message:
        kind, name, size, *meta = (await self.line()).split(" ", 3)
        assert kind == "MSG", (kind, name, size)
        payload = await self.exactly(int(size))
        if ends_with_line:
            assert await self.exactly(2) == b"\r\n"
        return Message(name, payload, meta[0] if meta else "")

    async def fetch(self, text: str) -> Message:
        self.send(f"FETCH {text}\r\n")
        return await self.message(ends_with_line=False)

    async def until_end(self) -> list[str]:
        """Lines up to the END that closes an answer, without it."""
        found = []
        while (line := await self.line()) != "END":
            found.append(line)
        return found

    async def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Consumer(Talk):
    """Deliveries come whenever they like; here they wait apart from the answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._answers: deque[str] = deque()
        self._messages: deque[Message] = deque()

    async def line(self) -> str:
        while not self._answers:
            await self._sort()
        return self._answers.popleft()

    async def message(self, *, ends_with_line: bool = True) -> Message:
        assert ends_with_line
        while not self._messages:
            await self._sort()
        return self._messages.popleft()

    async def _sort(self) -> None:
        line = await super().line()
        if not line.startswith("MSG "):
            self._answers.append(line)
            return
        _, name, size, *meta = line.split(" ", 3)
        payload = await self.exactly(int(size))
        assert await self.exactly(2) == b"\r\n"
        self._messages.append(Message(name, payload, meta[0] if meta else ""))

    @property
    def undelivered(self) -> int:
        """Messages that came and were not asked for."""
        return len(self._messages)
