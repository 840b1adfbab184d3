"""One timer for everyone who was given the same time.

Whoever is begun first is due first, so a plain ordered table is enough, and connections that are in time cost one entry
that comes and goes.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    def __init__(self, allowed_s: float, overdue: Callable[[T], None]) -> None:
        self.allowed_s = allowed_s
        self._overdue = overdue
        self._begun: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, one: T) -> None:
        """From now on; a second call does not give it more time."""
        if one not in self._begun:
            loop = asyncio.get_running_loop()
            self._begun[one] = loop.time()
            if self._timer is None:
                self._timer = loop.call_later(self.allowed_s, self._look)

    def end(self, one: T) -> None:
        self._begun.pop(one, None)

    def stop(self) -> None:
        self._begun.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._begun:
            one, begun = next(iter(self._begun.items()))
            if begun + self.allowed_s > loop.time():
                self._timer = loop.call_at(begun + self.allowed_s, self._look)
                return
            del self._begun[one]
            self._overdue(one)
