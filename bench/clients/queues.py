"""What every queue client under measurement can do.

It is the client that the server's users would take, used as its documentation shows; asyncio clients get uvloop.
"""

from typing import Protocol

BATCH = 500  # messages that go or come together, where the caller decides


class QueueClient(Protocol):
    async def open(self, address: str) -> None: ...
    async def close(self) -> None: ...

    async def make(self, queue: str) -> None:
        """A queue with a consumer that will find everything published from now on."""

    async def drop(self, queue: str) -> None: ...

    async def publish(self, queue: str, values: list[bytes]) -> None:
        """Some thousand messages, in the client's way of doing many; returns when all are acknowledged."""

    async def publish_one(self, queue: str, value: bytes) -> None: ...

    async def work(self, queue: str, count: int) -> int:
        """Take and settle so many messages, in batches of BATCH; the sum of the numbers that stand in them."""
