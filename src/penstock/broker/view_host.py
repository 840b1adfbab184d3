"""Where queue machines live, and what their effects ask for is begun.

Deliver     the outbox hands it to its consumer
Bury        the burial stores it with the dead letters
Perform     the steps publish it
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from penstock.broker.alarms import Alarms
from penstock.broker.gather import Gatherer
from penstock.broker.hosting import Host, Ledger
from penstock.broker.transact import Transactions
from penstock.broker.view import View
from penstock.broker.view_burial import Burial
from penstock.broker.view_outbox import Outbox
from penstock.broker.view_pump import Pump
from penstock.broker.view_records import Chunks, Shelf, Shelves
from penstock.broker.view_steps import Steps, name_of
from penstock.broker.views import ViewFact
from penstock.delivery.decision import Decision, Effect
from penstock.delivery.queue import Queue
from penstock.delivery.queue_events import Bury, Deliver, Outcome, Perform, Receipt
from penstock.log.topics import Topics
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError

_log = logging.getLogger(__name__)

NOBODY = 0  # the ticket of what the broker settles by itself


class ViewHost(Host[View]):
    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        topics: Topics,
        gatherer: Gatherer,
        chore: Callable[[str], None],
        transactions: Transactions | None = None,
    ) -> None:
        """`chore` is told the name of a chore whose time has come."""
        super().__init__(ledger, clock)
        self.topics = topics
        self.chores = Alarms(clock, chore)
        self.by_id: dict[int, View] = {}
        self.lease_seed = 0
        self.moved: Callable[[View], None] = lambda view: None  # told after each event, of views that free the log
        self.chunks = Chunks()
        self._shelves = Shelves()
        self._burial = Burial(self, gatherer)
        self._steps = Steps(self, gatherer, transactions)
        self._tasks: set[asyncio.Task[None]] = set()
        self._consumers = 0

    # -- views ----------------------------------------------------------------------------------------------------

    def make(self, view_id: int, definition: ViewFact) -> View:
        """A view that nobody sees yet."""
        machine = Queue(view_id, definition.settings, lease_seed=self.lease_seed)
        view = View(view_id, definition, machine, Shelf(self._shelves))
        view.pump = Pump(self, view)
        view.outbox = Outbox(self, view)
        view.used_ms = self._clock.monotonic_ms()
        return view

    def add(self, view: View) -> None:
        self.by_id[view.id] = view

    def remove(self, view: View, reason: PenstockError) -> None:
        """From now on nothing of it is recorded; whoever waits for it is told."""
        view.gone = reason
        self.by_id.pop(view.id, None)
        self.alarms.set(view.alarm, None)
        view.pump.stop()
        view.outbox.stop()
        view.shelf.clear()
        view.burying.clear()
        consumers, view.consumers = view.consumers, {}
        for consumer in consumers.values():
            if consumer.ended is not None:
                consumer.ended(reason)
        view.wake()

    # -- the host's part --------------------------------------------------------------------------------------------

    def perform(self, hosted: View, decision: Decision) -> None:
        if hosted.gone is not None:
            decision.facts.clear()
        delivers: list[Effect] = []
        if decision.effects and not hosted.at_most_once:
            # A lease is no fact: nobody need wait for what is settled beside it. The machine holds on to this very list
            # of effects, to take back what was not performed: what is performed now must not stay in it.
            delivers = [effect for effect in decision.effects if isinstance(effect, Deliver)]
            if delivers:
                decision.effects[:] = [effect for effect in decision.effects if not isinstance(effect, Deliver)]
        super().perform(hosted, decision)
        if delivers:
            self.do(hosted, delivers)

    def ring(self, name: str) -> None:
        view = self.by_id.get(int(name))
        if view is not None:
            self.perform(view, view.machine.tick(self.now))

    def rest(self, hosted: View) -> None:
        if hosted.gone is None:
            self.alarms.set(hosted.alarm, hosted.machine.next_deadline_ms())
            hosted.pump.poke()
            if hosted.frees_log:
                self.moved(hosted)

    def do(self, hosted: View, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                hosted.outbox.deliver(effect)
            elif isinstance(effect, Bury):
                self._burial.bury(hosted, effect)
            elif isinstance(effect, Perform):
                self._steps.perform(hosted, effect)

    async def forget_done_steps(self) -> None:
        """At start, when all views are known."""
        under_way = {name_of(view, step) for view in self.by_id.values() for step in view.machine.steps_under_way()}
        await self._steps.forget_done(under_way)

    # -- for those who work for a view ------------------------------------------------------------------------------

    def new_consumer(self) -> int:
        self._consumers += 1
        return self._consumers

    def detach(self, view: View, consumer: int, *, lost: bool = False) -> None:
        if view.consumers.pop(consumer, None) is not None and view.gone is None:
            view.used_ms = self._clock.monotonic_ms()
            # A server that stops loses its consumers itself.
            self.perform(view, view.machine.detach(self.now, consumer, lost=lost and not self.is_stopping))

    def settle(
        self, view: View, outcome: Outcome, receipts: Sequence[Receipt], **terms: int | None
    ) -> asyncio.Future[list[PenstockError | None]]:
        now = self.now
        view.used_ms = now.monotonic_ms
        settle = view.machine.settle
        return self.ask(view, lambda ticket: settle(now, ticket, outcome, receipts, **terms))

    def settle_quietly(self, view: View, outcome: Outcome, receipts: Sequence[Receipt]) -> None:
        if view.gone is None:
            self.perform(view, view.machine.settle(self.now, NOBODY, outcome, receipts))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("work for a queue view failed", exc_info=task.exception())

    async def stop(self) -> None:
        self.alarms.stop()
        self.chores.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
