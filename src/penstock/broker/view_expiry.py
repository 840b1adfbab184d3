"""Views that nobody uses end by themselves, if they were made so. One alarm serves all of them.

Using a view only notes the time. The alarm comes when the view would have been unused for long enough, looks at that
note, and is set again if somebody was there meanwhile.
"""

from collections.abc import Awaitable, Callable

from penstock.broker.view import View
from penstock.broker.view_host import ViewHost
from penstock.model.errors import PenstockError, UnknownView

CHORE = "end"


class Expiry:
    def __init__(self, host: ViewHost, end: Callable[[View], Awaitable[None]]) -> None:
        self._host = host
        self._end = end

    def use(self, view: View) -> None:
        view.used_ms = self._host.now.monotonic_ms
        self.expect(view)

    def expect(self, view: View) -> None:
        expires_ms = view.definition.settings.expires_ms
        if expires_ms:
            self._host.chores.set(f"{view.alarm}:{CHORE}", view.used_ms + expires_ms)

    def look(self, view: View) -> None:
        """The alarm came."""
        expires_ms = view.definition.settings.expires_ms
        if not expires_ms:
            return
        now_ms = self._host.now.monotonic_ms
        if view.consumers or view.machine.counts().processing:
            view.used_ms = now_ms
        if now_ms < view.used_ms + expires_ms:
            self.expect(view)
        else:
            self._host.spawn(self._try_to_end(view))

    async def _try_to_end(self, view: View) -> None:
        try:
            await self._end(view)
        except UnknownView:
            pass  # somebody else ended it
        except PenstockError:
            self.use(view)  # tried again after as long a time
