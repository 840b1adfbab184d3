"""What the composition root asks of every door."""

from typing import Protocol


class Door(Protocol):
    name: str

    async def open(self) -> str:
        """Listen; return the real address. Raises OSError when that address cannot be had."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, let what is under way come to an end, for at most so long."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
