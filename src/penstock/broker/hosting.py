"""Where group machines live: their decisions are obeyed here.

A decision's facts go to the ledger and its effects wait until they are durable; decisions of one group take effect in
the order they were made, so what is decided on a fact that is still on its way waits for it too. If the ledger fails,
the decision's replies are that failure and the machine is told.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from penstock.broker.alarms import Alarms
from penstock.delivery.decision import Decision, Effect, Moment, Reply
from penstock.delivery.group import Group
from penstock.delivery.group_events import GroupSettings
from penstock.delivery.group_facts import read_key
from penstock.model.clock import Clock
from penstock.model.errors import InvalidGroup, LimitReached, PenstockError, StorageFailed

GROUP_NAME_MAX_CHARS = 32_767  # what a string of Kafka's protocol can hold


class Ledger(Protocol):
    """Where facts are kept (see log/ledger.py)."""

    def record(self, key: bytes, value: bytes | None) -> asyncio.Future[None]: ...

    def replay(self) -> AsyncIterator[tuple[bytes, bytes | None]]: ...


@dataclass(slots=True, eq=False)
class _Turn:
    """Something to be done once some facts are durable; the turns of a group are taken in order."""

    settle: Callable[[PenstockError | None], None]
    missing: int = 0  # facts not yet durable
    error: PenstockError | None = None


@dataclass(slots=True, eq=False)
class Hosted:
    group: Group
    turns: deque[_Turn] = field(default_factory=deque)


class GroupHost:
    def __init__(self, ledger: Ledger, clock: Clock, settings: GroupSettings) -> None:
        self._ledger = ledger
        self._clock = clock
        self._settings = settings
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # tickets not answered yet
        self._tickets = 0
        self._stopping = False
        self.groups: dict[str, Hosted] = {}
        self.alarms = Alarms(clock, self._ring)

    @property
    def now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.wall_ms())

    # -- the groups ---------------------------------------------------------------------------------------------

    async def load(self) -> None:
        async for key, value in self._ledger.replay():
            parsed = read_key(key)
            if parsed is not None:
                hosted = self.groups.get(parsed.group) or self._add(parsed.group)
                hosted.group.replay(parsed, value)
        for hosted in list(self.groups.values()):
            hosted.group.resume(self.now)
            self._rest(hosted)

    def admit(self, name: str) -> Hosted:
        """The group, made if it is not there. One that nothing comes of is gone after the event it was made for."""
        hosted = self.groups.get(name)
        if hosted is not None:
            return hosted
        if len(self.groups) >= self._settings.max_groups:
            raise LimitReached(f"the server keeps at most {self._settings.max_groups} groups (max_groups)")
        if len(name) > GROUP_NAME_MAX_CHARS:
            raise InvalidGroup(f"a group's name may have {GROUP_NAME_MAX_CHARS} characters")
        return self._add(name)

    def _add(self, name: str) -> Hosted:
        hosted = self.groups[name] = Hosted(Group(name, self._settings))
        return hosted

    def _rest(self, hosted: Hosted) -> None:
        """After each event: forget a group of which nothing is left, else be woken when it wants to be."""
        group = hosted.group
        if not group.is_blank or hosted.turns:
            self.alarms.set(group.name, group.next_deadline_ms())
        elif self.groups.get(group.name) is hosted:
            group.bury()
            del self.groups[group.name]
            self.alarms.set(group.name, None)

    def _ring(self, name: str) -> None:
        hosted = self.groups.get(name)
        if hosted is not None:
            self.perform(hosted, hosted.group.tick(self.now))

    def release(self) -> None:
        """Answer everyone who waits, now and from now on, instead of letting them wait for others."""
        self._stopping = True
        for future in self._waiting.values():
            answer(future, _stopping())
        self._waiting.clear()

    # -- their decisions ----------------------------------------------------------------------------------------

    def ticket(self) -> tuple[int, asyncio.Future[Any]]:
        self._tickets += 1
        future = self._waiting[self._tickets] = asyncio.get_running_loop().create_future()
        return self._tickets, future

    def ask(self, hosted: Hosted, event: Callable[[int], Decision]) -> asyncio.Future[Any]:
        """Let the event happen; the future is the answer to its ticket."""
        ticket, future = self.ticket()
        self.perform(hosted, event(ticket))
        if self._stopping and self._waiting.pop(ticket, None) is not None:
            answer(future, _stopping())
        return future

    def perform(self, hosted: Hosted, decision: Decision) -> None:
        if decision.facts or hosted.turns:
            turn = _Turn(partial(self._settle, hosted, decision))
            hosted.turns.append(turn)
            # Facts of one tick may share a future.
            for future in {self._ledger.record(fact.key, fact.value) for fact in decision.facts}:
                turn.missing += 1
                future.add_done_callback(partial(self._landed, hosted, turn))
        else:
            self._run(decision.effects, None)
        self._rest(hosted)

    def when_durable(self, hosted: Hosted, action: Callable[[], None]) -> None:
        """Do this once all that the group has decided until now is durable, or has failed."""
        if hosted.turns:
            hosted.turns.append(_Turn(lambda _: action()))
        else:
            action()

    def _landed(self, hosted: Hosted, turn: _Turn, future: asyncio.Future[None]) -> None:
        turn.missing -= 1
        turn.error = _failure(future) or turn.error
        while hosted.turns and hosted.turns[0].missing == 0:
            first = hosted.turns.popleft()
            first.settle(first.error)
        self._rest(hosted)

    def _settle(self, hosted: Hosted, decision: Decision, error: PenstockError | None) -> None:
        if error is None:
            hosted.group.recorded(self.now, decision.facts)
            self._run(decision.effects, None)
        else:
            self._run(decision.effects, error)
            self.perform(hosted, hosted.group.unrecorded(self.now, decision.facts))

    def _run(self, effects: Sequence[Effect], error: PenstockError | None) -> None:
        for effect in effects:
            assert isinstance(effect, Reply)
            future = self._waiting.pop(effect.ticket, None)
            if future is not None:
                answer(future, error or effect.result)


def answer(future: asyncio.Future[Any], result: object) -> None:
    if future.done():  # whoever asked has gone
        return
    if isinstance(result, PenstockError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _failure(future: asyncio.Future[None]) -> PenstockError | None:
    if future.cancelled():
        return _stopping()
    error = future.exception()
    if error is None or isinstance(error, PenstockError):
        return error
    return StorageFailed(f"the group's facts could not be stored: {error}")


def _stopping() -> StorageFailed:
    return StorageFailed("the server is stopping")
