"""A loop in a thread of its own, and how others wait for what happens in it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.client.errors import ClientClosed

T = TypeVar("T")


class Background:
    """A loop in a thread. Ends with `stop()`; a thread that was forgotten does not keep the process alive."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="penstock-client")
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        if self._loop.is_closed():
            work.close()
            raise ClientClosed("this client is closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a call that waits cannot be made from the client's own thread")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while waiting: nobody asks for it any more
            raise

    def stop(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def awaited(make: Callable[[], Awaitable[T]]) -> T:
    """`make` runs in the loop's thread, where futures belong."""
    return await make()
