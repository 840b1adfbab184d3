"""What one take of a reader has found so far, within its limits. Nothing of it counts until it is handed over."""

from penstock.broker.tail import Messages, Opened
from penstock.delivery.filters import Test
from penstock.model.outgoing import size_bound


class Harvest:
    """At least one message is taken, however large; after that only what fits."""

    __slots__ = ("_test", "gap", "left_bytes", "left_messages", "parts", "positions")

    def __init__(self, max_messages: int, max_bytes: int, test: Test | None) -> None:
        self._test = test
        self.left_messages = max(1, max_messages)
        self.left_bytes = max_bytes
        self.parts: list[Messages] = []
        self.gap = 0
        self.positions: dict[int, int] = {}  # by the reader's own number of the partition

    @property
    def full(self) -> bool:
        return self.left_messages <= 0 or (self.left_bytes <= 0 and bool(self.parts))

    def add(self, opened: Opened, position: int) -> int:
        """Take what fits of these from `position` on; where to go on, which is `position` when nothing fits."""
        after = self._all_of(opened, position) if self._test is None else self._matching(opened, position, self._test)
        if after == opened.end:
            self.gap += opened.unreadable
        return after

    def _all_of(self, opened: Opened, position: int) -> int:
        messages = opened.messages
        start = opened.place_of(position)
        if start == 0:
            if len(messages) <= self.left_messages and opened.size_bytes <= self.left_bytes:
                if messages:
                    self.parts.append(messages)
                    self.left_messages -= len(messages)
                    self.left_bytes -= opened.size_bytes
                return opened.end
            if self.parts:
                self.left_bytes = 0
                return position  # whole, and so shared with others, the next time
        if start == len(messages):
            return opened.end
        stop, size_bytes = opened.cut(start, self.left_messages, self.left_bytes)
        if size_bytes > self.left_bytes and self.parts:
            self.left_bytes = 0
            return position
        self.left_messages -= stop - start
        self.left_bytes -= size_bytes
        self.parts.append(opened.piece(start, stop))
        if stop == len(messages):
            return opened.end
        self.left_bytes = min(self.left_bytes, 0)  # what comes next does not fit
        return messages[stop].record.offset

    def _matching(self, opened: Opened, position: int, test: Test) -> int:
        messages = opened.messages
        part = Messages()
        after = opened.end
        for at in range(opened.place_of(position), len(messages)):
            message = messages[at]
            if not test(message.record):
                continue
            size_bytes = size_bound(message.record)
            if (self.left_messages <= 0 or size_bytes > self.left_bytes) and (part or self.parts):
                self.left_bytes = 0
                after = message.record.offset
                break
            part.append(message)
            self.left_messages -= 1
            self.left_bytes -= size_bytes
        if part:
            self.parts.append(part)
        return after
