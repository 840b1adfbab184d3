"""Steps: settle and publish as one. The intent is one fact with the places in it, so there is no half of it.

A step that was done is remembered by its name, the newest ones of a bounded number, so that a repeat does nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.delivery.decision import Fact
from penstock.delivery.queue_facts import Intent, done_fact, intent_fact, key_step, read_step, step_key

MAX_UNDER_WAY = 1_000
MAX_REMEMBERED = 10_000
NAME_MAX_BYTES = 1_024


@dataclass(slots=True)
class UnderWay:
    intent: Intent
    tickets: list[int] = field(default_factory=list)


class Steps:
    def __init__(self, view_id: int) -> None:
        self.view_id = view_id
        self.under_way: dict[str, UnderWay] = {}
        self.done: dict[str, int] = {}  # the number under which it was done; oldest first
        self._numbers = 0
        self._touched: dict[str, None] = {}

    def begin(self, step: str, ticket: int, places: tuple[int, ...], payload: bytes) -> None:
        self.under_way[step] = UnderWay(Intent(places, payload), [ticket])
        self._touched[step] = None

    def finish(self, step: str) -> list[int]:
        """Returns the tickets that wait for it."""
        under_way = self.under_way.pop(step, None)
        if under_way is None:
            return []
        self._numbers += 1
        self.done[step] = self._numbers
        self._touched[step] = None
        self._forget_old()
        return under_way.tickets

    def _forget_old(self) -> None:
        while len(self.done) > MAX_REMEMBERED:
            oldest = next(iter(self.done))
            del self.done[oldest]
            self._touched[oldest] = None

    # -- facts --------------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        return bool(self._touched)

    def tell(self, facts: list[Fact], tombstones: list[Fact]) -> None:
        for step in self._touched:
            if step in self.under_way:
                facts.append(intent_fact(self.view_id, step, self.under_way[step].intent))
            elif step in self.done:
                facts.append(done_fact(self.view_id, step, self.done[step]))
            else:
                tombstones.append(Fact(step_key(self.view_id, step), None))
        self._touched.clear()

    def retell(self, key: bytes) -> None:
        self._touched[key_step(key)] = None

    def replay(self, key: bytes, value: bytes | None) -> None:
        step = key_step(key)
        self.under_way.pop(step, None)
        self.done.pop(step, None)
        if value is not None:
            told = read_step(value)
            if isinstance(told, Intent):
                self.under_way[step] = UnderWay(told)
            else:
                self.done[step] = told

    def resume(self) -> None:
        self.done = dict(sorted(self.done.items(), key=lambda item: item[1]))
        self._numbers = max(self.done.values(), default=0)
        self._forget_old()

    def tombstones(self) -> Iterator[Fact]:
        for step in {**self.under_way, **self.done, **self._touched}:
            yield Fact(step_key(self.view_id, step), None)
