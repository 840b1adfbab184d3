"""Where delivery machines live: their decisions are obeyed here, whatever kind of machine it is.

A decision's facts go to the ledger and its effects wait until they are durable; decisions of one machine take effect in
the order they were made, so what is decided on a fact that is still on its way waits for it too. If the ledger fails,
the decision's replies are that failure and the machine is told.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from penstock.broker.alarms import Alarms
from penstock.delivery.decision import Decision, Effect, Fact, Moment, Reply
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError, StorageFailed


class Ledger(Protocol):
    """Where facts are kept (see log/ledger.py)."""

    def record(self, key: bytes, value: bytes | None) -> asyncio.Future[None]: ...

    def replay(self) -> AsyncIterator[tuple[bytes, bytes | None]]: ...


class Machine(Protocol):
    """What the protocol of `delivery/decision.py` asks of every machine."""

    def recorded(self, now: Moment, facts: Sequence[Fact]) -> None: ...

    def unrecorded(self, now: Moment, facts: Sequence[Fact]) -> Decision: ...


class _Turn:
    """Something to be done once some facts are durable; the turns of a machine are taken in order."""

    __slots__ = ("error", "missing", "settle")

    def __init__(self, settle: Callable[[PenstockError | None], None]) -> None:
        self.settle = settle
        self.missing = 0  # facts not yet durable
        self.error: PenstockError | None = None


M = TypeVar("M", bound=Machine)


class Hosted(Generic[M]):
    """A machine and the turns it has yet to take."""

    __slots__ = ("machine", "turns")

    def __init__(self, machine: M) -> None:
        self.machine = machine
        self.turns: deque[_Turn] = deque()


H = TypeVar("H", bound=Hosted[Any])


class Host(Generic[H]):
    """What all hosts share; a kind of machine brings its own `ring`, `rest` and `do`."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self.ledger = ledger
        self._clock = clock
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # tickets not answered yet
        self._tickets = 0
        self._stopping = False
        self.alarms = Alarms(clock, self.ring)

    @property
    def now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.wall_ms())

    # -- what a kind of machine brings --------------------------------------------------------------------------

    def ring(self, name: str) -> None:
        """The time has come that was set for this name."""
        raise NotImplementedError

    def rest(self, hosted: H) -> None:
        """After each event: be woken when the machine wants to be."""
        raise NotImplementedError

    def do(self, hosted: H, effects: Sequence[Effect]) -> None:
        """Effects other than replies; the facts beside them are durable."""
        raise NotImplementedError

    # -- decisions ----------------------------------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def release(self) -> None:
        """Answer everyone who waits, now and from now on, instead of letting them wait for others."""
        self._stopping = True
        for future in self._waiting.values():
            answer(future, stopping())
        self._waiting.clear()

    def ticket(self) -> tuple[int, asyncio.Future[Any]]:
        self._tickets += 1
        future = self._waiting[self._tickets] = asyncio.get_running_loop().create_future()
        return self._tickets, future

    def ask(self, hosted: H, event: Callable[[int], Decision]) -> asyncio.Future[Any]:
        """Let the event happen; the future is the answer to its ticket."""
        ticket, future = self.ticket()
        try:
            decision = event(ticket)
        except BaseException:
            del self._waiting[ticket]
            raise
        self.perform(hosted, decision)
        if self._stopping and self._waiting.pop(ticket, None) is not None:
            answer(future, stopping())
        return future

    def perform(self, hosted: H, decision: Decision) -> None:
        if decision.facts or hosted.turns:
            turn = _Turn(partial(self._settle, hosted, decision))
            hosted.turns.append(turn)
            record = self.ledger.record
            # Facts of one tick may share a future.
            for future in {record(fact.key, fact.value) for fact in decision.facts}:
                turn.missing += 1
                future.add_done_callback(partial(self._landed, hosted, turn))
        else:
            self._run(hosted, decision.effects)
        self.rest(hosted)

    def when_durable(self, hosted: H, action: Callable[[], None]) -> None:
        """Do this once all that the machine has decided until now is durable, or has failed."""
        if hosted.turns:
            hosted.turns.append(_Turn(lambda _: action()))
        else:
            action()

    def _landed(self, hosted: H, turn: _Turn, future: asyncio.Future[None]) -> None:
        turn.missing -= 1
        turn.error = _failure(future) or turn.error
        while hosted.turns and hosted.turns[0].missing == 0:
            first = hosted.turns.popleft()
            first.settle(first.error)
        self.rest(hosted)

    def _settle(self, hosted: H, decision: Decision, error: PenstockError | None) -> None:
        if error is None:
            if decision.facts:
                hosted.machine.recorded(self.now, decision.facts)
            self._run(hosted, decision.effects)
        else:
            for effect in decision.effects:
                if isinstance(effect, Reply):
                    self._answer(effect, error)
            self.perform(hosted, hosted.machine.unrecorded(self.now, decision.facts))

    def _run(self, hosted: H, effects: list[Effect]) -> None:
        others = None
        for effect in effects:
            if isinstance(effect, Reply):
                self._answer(effect, effect.result)
            elif others is None:
                others = [effect]
            else:
                others.append(effect)
        if others is not None:
            self.do(hosted, others)

    def _answer(self, reply: Reply, result: object) -> None:
        future = self._waiting.pop(reply.ticket, None)
        if future is not None:
            answer(future, result)


def answer(future: asyncio.Future[Any], result: object) -> None:
    if future.done():  # whoever asked has gone
        return
    if isinstance(result, PenstockError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _failure(future: asyncio.Future[None]) -> PenstockError | None:
    if future.cancelled():
        return stopping()
    error = future.exception()
    if error is None or isinstance(error, PenstockError):
        return error
    return StorageFailed(f"facts could not be stored: {error}")


def stopping() -> StorageFailed:
    return StorageFailed("the server is stopping")
