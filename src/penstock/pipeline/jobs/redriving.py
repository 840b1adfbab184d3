"""Redriving what is chosen. It fits in with the broker's own redrive: letters are leased from the view `redrive` of
their topic, so that what either of them sent back, neither does again.

A lot of chosen letters is published and settled in one step of that view, both or neither. What is not chosen is held
while the job goes through what is before it, and given back at the end, as it was.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.model.batch import decode_batch
from penstock.model.errors import UnknownView
from penstock.model.message import DEAD_TOPIC, DEAD_VIEW, ONLY_FOR
from penstock.model.record import Headers, Record
from penstock.pipeline.jobs.desk import Desk
from penstock.pipeline.jobs.job import OnProgress, Progress
from penstock.pipeline.jobs.letters import Letter, Selection, alive
from penstock.wire.native import messages as wire

LOT: Final = 500
STEP_BYTES: Final = 4 << 20  # of one step's messages; the broker takes twice that
LEASE_MS: Final = 120_000
EXTEND_AFTER_S: Final = 40.0
WAIT_MS: Final = 2_000  # for the letters of one view, which may lie far apart
MAX_HELD: Final = 900_000  # letters that are not chosen and lie before one that is
SETTLED_AT_ONCE: Final = 10_000
MAX_IN_FLIGHT: Final = 1_000_000
REDRIVE_VIEW: Final = "redrive"
UNCLAIMED_VIEW: Final = "redrive-origin"  # for letters that no queue view buried, such as those of a quarantine
SETTINGS: Final[wire.Settings] = {
    "lease_ms": LEASE_MS,
    "max_attempts": 0,
    "retry_initial_ms": 0,
    "dead_letter": "",
    "max_in_flight": MAX_IN_FLIGHT,
}
_STREAM_BITS: Final = 48


class Plan(NamedTuple):
    """Where chosen letters are: in which topic, of which view (empty: none), how many and up to which offsets."""

    letters: str
    view: str
    chosen: int
    last: Mapping[int, int]

    @property
    def origin(self) -> str:
        return self.view or "where they came from"


@dataclass(frozen=True)
class Redriven:
    letters: str  # the dead-letter topic
    origin: str  # `<topic>/<view>`
    count: int
    note: str = ""  # why it is fewer than were chosen


class _Held:
    """Leased, and not chosen."""

    def __init__(self, desk: Desk, topic: str, view: str) -> None:
        self._desk = desk
        self._address = (topic, view)
        self._receipts: list[wire.Receipt] = []
        self._extended_s = time.monotonic()

    def __len__(self) -> int:
        return len(self._receipts)

    def add(self, receipt: wire.Receipt) -> None:
        self._receipts.append(receipt)

    def keep(self) -> None:
        """Their leases must not end meanwhile: that would count as a failure, and bring them again."""
        if time.monotonic() - self._extended_s > EXTEND_AFTER_S:
            self._extended_s = time.monotonic()
            self._settle("extend")

    def release(self) -> None:
        self._settle("release")
        self._receipts.clear()

    def _settle(self, outcome: str) -> None:
        for first in range(0, len(self._receipts), SETTLED_AT_ONCE):
            some = self._receipts[first : first + SETTLED_AT_ONCE]
            lease_ms = LEASE_MS if outcome == "extend" else None
            self._desk.ask(wire.Settle(*self._address, outcome, some, lease_ms=lease_ms))


def redrive_chosen(
    desk: Desk, plans: Sequence[Plan], select: Selection, limit: int | None, on_progress: OnProgress
) -> list[Redriven]:
    done: list[Redriven] = []
    total = sum(plan.chosen for plan in plans)
    for plan in plans:
        before = sum(each.count for each in done)
        if limit is not None and before >= limit:
            break
        try:
            origin = _origin(desk, plan)
            view = _redrive_view(desk, plan)
        except UnknownView as error:
            done.append(Redriven(plan.letters, plan.origin, 0, str(error)))
            continue
        left = plan.chosen if limit is None else min(plan.chosen, limit - before)

        def tell(count: int, before: int = before) -> None:
            on_progress(Progress("redriving", before + count, total))

        redrive = _Redrive(desk, plan, view, origin, select)
        done.append(redrive.run(left, tell))
    return done


class _Redrive:
    """Through the letters of one plan."""

    def __init__(self, desk: Desk, plan: Plan, view: str, origin: wire.View | None, select: Selection) -> None:
        self._desk, self._plan, self._view, self._origin, self._select = desk, plan, view, origin, select
        self._held = _Held(desk, plan.letters, view)
        self._done = 0
        self._passed: set[int] = set()  # partitions that are read as far as there are chosen letters

    def run(self, limit: int, tell: Callable[[int], None]) -> Redriven:
        note = ""
        try:
            while self._done < limit and len(self._passed) < len(self._plan.last):
                if len(self._held) >= MAX_HELD:
                    note = f"more than {MAX_HELD:,} letters that are not chosen lie before the others"
                    break
                lot = self._lease()
                if not lot:
                    break
                self._held.keep()
                self._take(lot, limit)
                tell(self._done)
        finally:
            self._held.release()
        return Redriven(self._plan.letters, self._plan.origin, self._done, note)

    def _lease(self) -> list[wire.Leased]:
        asked = wire.Lease(self._plan.letters, self._view, LOT, WAIT_MS, LEASE_MS)
        leased: list[wire.Leased] = self._desk.ask(asked).leased
        return leased

    def _take(self, lot: Sequence[wire.Leased], limit: int) -> None:
        receipts: list[wire.Receipt] = []
        messages: list[wire.StepMessage] = []
        size = 0
        try:
            for leased in lot:
                for record, number in zip(decode_batch(leased.batch), leased.numbers, strict=True):
                    receipt = (leased.stream << _STREAM_BITS | record.offset, number)
                    if record.offset >= self._plan.last.get(leased.partition, -1):
                        self._passed.add(leased.partition)
                    if not self._is_chosen(record) or self._done + len(receipts) >= limit:
                        self._held.add(receipt)
                        continue
                    message = self._message(record)
                    size += len(record.key or b"") + len(record.value or b"")
                    if size > STEP_BYTES and receipts:
                        self._step(receipts, messages)
                        receipts, messages, size = [], [], 0
                    receipts.append(receipt)
                    messages.append(message)
            if receipts:
                self._step(receipts, messages)
                receipts = []
        finally:
            for receipt in receipts:  # the step failed: as if they had not been chosen
                self._held.add(receipt)

    def _is_chosen(self, record: Record) -> bool:
        letter = Letter.read(record.headers, record.timestamp_ms)
        if letter.origin_view != self._plan.view or not (letter.origin_view or letter.origin_topic):
            return False
        return letter.is_chosen(self._select)

    def _step(self, receipts: list[wire.Receipt], messages: list[wire.StepMessage]) -> None:
        """Its name only tells it from all others: what was settled is not leased again."""
        name = f"redrive-{uuid.uuid4()}"
        self._desk.ask(wire.Step(self._plan.letters, self._view, name, list(receipts), list(messages)))
        self._done += len(receipts)

    def _message(self, record: Record) -> wire.StepMessage:
        headers = alive(record.headers)
        topic = _told(record.headers, DEAD_TOPIC)
        if self._origin is not None:
            headers = (*headers, (ONLY_FOR, self._plan.view.encode()))
            if all(topic != source for source, _ in self._origin.sources):
                topic = self._origin.topic
        return wire.StepMessage(topic, record.key, record.value, list(headers))


def _told(headers: Headers, name: str) -> str:
    return next((value.decode(errors="replace") for known, value in headers if known == name and value), "")


def _origin(desk: Desk, plan: Plan) -> wire.View | None:
    """The view that they failed in. Raises UnknownView."""
    if not plan.view:
        return None
    topic, _, name = plan.view.rpartition("/")
    view: wire.View = desk.ask(wire.ListViews(topic, name)).views[0]
    return view


def _redrive_view(desk: Desk, plan: Plan) -> str:
    """The view of the letters that they are redriven from; made if it is not there yet."""
    if not plan.view:
        desk.ask(wire.CreateView(plan.letters, UNCLAIMED_VIEW, SETTINGS, [], or_existing=True))
        return UNCLAIMED_VIEW
    name = _known_view(desk, plan)
    if name is None:
        topic, _, view = plan.view.rpartition("/")
        if plan.letters == f"{topic}.{view}.dead":
            match: wire.MatchFields = {"headers": {DEAD_VIEW: plan.view}}
            desk.ask(wire.CreateView(plan.letters, REDRIVE_VIEW, SETTINGS, [match], or_existing=True))
            return REDRIVE_VIEW
        # Where several views bury, only the broker knows what it calls it. A redrive of none makes the view.
        desk.ask(wire.RedriveView(topic, view, 0))
        name = _known_view(desk, plan)
    if name is None:
        raise UnknownView(f"{plan.view} does not bury in {plan.letters} any more")
    desk.ask(wire.ConfigureView(plan.letters, name, {"max_in_flight": MAX_IN_FLIGHT}))
    return name


def _known_view(desk: Desk, plan: Plan) -> str | None:
    for view in desk.views(plan.letters):
        for _, matches in view.sources:
            if any(match.get("headers") == {DEAD_VIEW: plan.view} for match in matches):
                return view.name
    return None
