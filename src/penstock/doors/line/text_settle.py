"""ACK and its kin: the messages that a connection was handed and has to settle, by the ids it was told.

What is settled in one go, in one way, for one view is settled together.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.queues import Outcome, Receipt
from penstock.doors.line import text_words as words
from penstock.doors.line.text_words import error_reply
from penstock.model.errors import LeaseLost, PenstockError
from penstock.security.principal import Principal
from penstock.wire.line import replies
from penstock.wire.line.parser import Command, Refused

OUTCOMES = {
    "ACK": Outcome.ACK,
    "NACK": Outcome.NACK,
    "REJECT": Outcome.REJECT,
    "RELEASE": Outcome.RELEASE,
    "EXTEND": Outcome.EXTEND,
}
MAX_RUN = 2_000
MAX_UNSETTLED = 100_000  # ids remembered; those whose lease ended long ago are among them

Settled = asyncio.Future[list[PenstockError | None]]


class Handed(NamedTuple):
    topic: str  # with `view`, the view that handed it out
    view: str
    receipt: Receipt


@dataclass(slots=True)
class Settlement:
    """Ids that were settled one after another. Those that name nothing are refused in their place."""

    outcome: Outcome
    handed: list[tuple[str, Handed]] = field(default_factory=list)
    refusals: dict[int, PenstockError] = field(default_factory=dict)  # by the place among all
    count: int = 0
    delay_ms: int | None = None
    lease_ms: int | None = None
    size_bytes: int = 0

    def answer(self, results: list[PenstockError | None]) -> bytes:
        if not self.refusals and not any(results):
            return replies.OK * len(results)
        settled = iter(results)
        answers = []
        for place in range(self.count):
            error = self.refusals[place] if place in self.refusals else next(settled)
            answers.append(replies.OK if error is None else error_reply(error))
        return b"".join(answers)


class Unsettled:
    def __init__(self, broker: Broker, principal: Principal) -> None:
        self._broker, self._principal = broker, principal
        self._handed: dict[str, Handed] = {}

    def remember(self, name: str, handed: Handed) -> None:
        self._handed.pop(name, None)  # so that the oldest stay in front
        self._handed[name] = handed
        if len(self._handed) > MAX_UNSETTLED:
            del self._handed[next(iter(self._handed))]

    def forget_view(self, topic: str, view: str) -> None:
        for name in [name for name, handed in self._handed.items() if handed[:2] == (topic, view)]:
            del self._handed[name]

    def clear(self) -> None:
        self._handed.clear()

    def next_settlement(self, commands: deque[Command | Refused]) -> Settlement:
        """Take the commands at the head that go together."""
        first = commands[0]
        assert isinstance(first, Command)
        settlement = Settlement(OUTCOMES[first.name])
        if len(first.words) > 1:
            commands.popleft()
            self._add_timed(settlement, first)
            return settlement
        while commands and settlement.count < MAX_RUN:
            following = commands[0]
            if type(following) is not Command or following.name != first.name or len(following.words) > 1:
                break
            handed = self._handed.get(following.words[0])
            if handed is not None and settlement.handed and settlement.handed[0][1][:2] != handed[:2]:
                break
            commands.popleft()
            self._add(settlement, following)
        return settlement

    def _add_timed(self, settlement: Settlement, command: Command) -> None:
        try:
            time_ms = words.whole("a time in ms", command.words[1])
        except PenstockError as error:
            settlement.refusals[0] = error
            settlement.count, settlement.size_bytes = 1, command.size_bytes
            return
        if settlement.outcome is Outcome.NACK:
            settlement.delay_ms = time_ms
        else:
            settlement.lease_ms = time_ms
        self._add(settlement, command)

    def _add(self, settlement: Settlement, command: Command) -> None:
        name = command.words[0]
        keeps = settlement.outcome is Outcome.EXTEND
        handed = self._handed.get(name) if keeps else self._handed.pop(name, None)
        if handed is None:
            refusal = LeaseLost(f"no message {name[:300]} waits to be settled on this connection")
            settlement.refusals[settlement.count] = refusal
        else:
            settlement.handed.append((name, handed))
        settlement.count += 1
        settlement.size_bytes += command.size_bytes

    def settle(self, settlement: Settlement) -> Settled | None:
        """None: nothing is left to be settled."""
        if not settlement.handed:
            return None
        topic, view, _ = settlement.handed[0][1]
        return self._broker.queues.settle(
            self._principal,
            topic,
            view,
            settlement.outcome,
            [handed.receipt for _, handed in settlement.handed],
            delay_ms=settlement.delay_ms,
            lease_ms=settlement.lease_ms,
        )

    def put_back(self, settlement: Settlement) -> None:
        """It could not be stored: the same may be said again."""
        for name, handed in settlement.handed:
            self._handed.setdefault(name, handed)
