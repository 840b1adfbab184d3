"""The verbs of queue views: the shell around the queue machines. A view is addressed as `<topic>/<name>`.

Plain calls take effect in the order they are made; their futures resolve when what was decided is durable.

    views.py            what a view is, as a fact            view_registry.py    which views there are
    view_changes.py     how they come, change and go         view_expiry.py      those that nobody uses
    view.py             a view at home here                  view_host.py        its decisions are obeyed
    view_pump.py        from the log to the machine          view_outbox.py      from the machine to the consumers
    view_lease.py       leasing by a call                    view_steps.py       settle and publish in one step
    view_burial.py      dead letters                         view_redrive.py     and back again
    view_floors.py      what the log may forget              view_peek.py        looking without taking
    view_subscription.py                                     consuming by a callback
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from penstock.broker.administer import Administrator
from penstock.broker.gather import Gatherer
from penstock.broker.hosting import Ledger
from penstock.broker.transact import Transactions
from penstock.broker.view import Delivery, View
from penstock.broker.view_burial import dead_letter_topic
from penstock.broker.view_changes import ViewChanges
from penstock.broker.view_expiry import CHORE as EXPIRY
from penstock.broker.view_floors import CHORE as FLOORS
from penstock.broker.view_floors import Floors
from penstock.broker.view_host import ViewHost
from penstock.broker.view_lease import Taker
from penstock.broker.view_peek import peek
from penstock.broker.view_redrive import SETTINGS as REDRIVE_SETTINGS
from penstock.broker.view_redrive import letters_of, redrive, redrive_view_name
from penstock.broker.view_registry import Registry, Start
from penstock.broker.view_steps import Publication, encode_step
from penstock.broker.view_subscription import Subscription
from penstock.broker.views import OWN_PREFIX, Source, ViewInfo, address_of, check_settings, check_view_name
from penstock.delivery.filters import Match, compile_filter
from penstock.delivery.places import place_of
from penstock.delivery.queue_events import Counts, Outcome, QueueSettings, Reason, Receipt, Status
from penstock.log.topics import Topics
from penstock.model.clock import Clock
from penstock.model.errors import (
    InvalidRequest,
    InvalidViewName,
    PenstockError,
    UnknownPartition,
)
from penstock.security.acl import Authorizer, Operation, Resource
from penstock.security.principal import BROKER, Principal

__all__ = [
    "Counts", "Delivery", "Match", "Outcome", "Publication", "QueueSettings", "Queues", "Reason", "Receipt", "Source",
    "Status", "Subscription", "ViewInfo",
]  # fmt: skip

DEFAULT_VIEW = "queue"  # what `SUBSCRIBE orders/queue` means

MAX_CREDIT = 1_000_000
MAX_STEP_BYTES = 8 << 20

T = TypeVar("T")


class Queues:
    def __init__(
        self,
        ledger: Ledger,
        topics: Topics,
        clock: Clock,
        authorizer: Authorizer,
        administrator: Administrator,
        gatherer: Gatherer,
        *,
        max_views: int,
        transactions: Transactions | None = None,
    ) -> None:
        """Without `transactions` steps that publish several batches are not seen at once."""
        self._topics = topics
        self._clock = clock
        self._authorizer = authorizer
        self._gatherer = gatherer
        self._host = ViewHost(ledger, clock, topics, gatherer, self._chore, transactions)
        self._registry = Registry(self._host, topics, max_views)
        self._floors = Floors(self._host, self._registry.by_topic)
        self._changes = ViewChanges(self._host, self._registry, self._floors, topics, administrator)
        self._expiry = self._changes.expiry
        self._takers: set[Taker] = set()
        self._unbroken: set[asyncio.Task[Any]] = set()
        self._released = False
        topics.grown = self._changes.topic_has_grown

    # -- views ------------------------------------------------------------------------------------------------

    async def create(
        self,
        principal: Principal,
        topic: str,
        name: str,
        settings: QueueSettings | None = None,
        *,
        matches: Sequence[Match] = (),
        start: Start = "earliest",
        or_existing: bool = False,
    ) -> ViewInfo:
        """A new view of a topic (made on first use). `or_existing`: a view that is there is left as it is.

        Raises ViewExists, InvalidViewName, InvalidSetting, LimitReached.
        """
        address = address_of(topic, check_view_name(name))
        if name.startswith(OWN_PREFIX) and principal is not BROKER:
            raise InvalidViewName(f"names that begin with {OWN_PREFIX!r} are the broker's own")
        known = self._registry.by_address.get(address)
        if known is not None and or_existing:
            if not self._authorizer.allows(principal, Operation.READ, Resource.QUEUE, address):
                self._check(principal, Operation.DESCRIBE, topic, name)
            return known.info()
        self._check(principal, Operation.CREATE, topic, name)
        self._authorizer.check(principal, Operation.READ, Resource.TOPIC, topic)
        check_settings(topic, name, settings)
        compile_filter(matches)
        making = self._changes.create(principal, topic, name, settings, matches, start, or_existing=or_existing)
        return (await self._unbreakable(making)).info()

    async def configure(
        self,
        principal: Principal,
        topic: str,
        name: str,
        settings: QueueSettings,
        matches: Sequence[Match] | None = None,
    ) -> ViewInfo:
        self._check(principal, Operation.ALTER, topic, name)
        check_settings(topic, name, settings)
        compile_filter(matches or ())
        return (await self._unbreakable(self._changes.configure(topic, name, settings, matches))).info()

    async def delete(self, principal: Principal, topic: str, name: str) -> None:
        self._check(principal, Operation.DELETE, topic, name)
        reason = f"queue view {address_of(topic, name)!r} was deleted"
        await self._unbreakable(self._changes.delete(topic, name, reason))

    async def add_source(
        self,
        principal: Principal,
        topic: str,
        name: str,
        source: Source,
        *,
        start: Start = "latest",
    ) -> ViewInfo:
        """Let the view read another topic too. Idempotent; of a topic that it reads already, the matches are replaced.

        What that topic holds already is not for the view unless `start` says so.
        """
        self._check(principal, Operation.ALTER, topic, name)
        self._authorizer.check(principal, Operation.READ, Resource.TOPIC, source.topic)
        compile_filter(source.matches)
        return (await self._unbreakable(self._changes.add_source(topic, name, source, start))).info()

    async def remove_source(self, principal: Principal, topic: str, name: str, source_topic: str) -> ViewInfo:
        """Let the view no longer read this topic; what it had not settled of it is no longer its own. Idempotent."""
        self._check(principal, Operation.ALTER, topic, name)
        return (await self._unbreakable(self._changes.remove_source(topic, name, source_topic))).info()

    def views(self, principal: Principal, topic: str | None = None) -> list[ViewInfo]:
        """Those that the principal may see, of one topic or of all; the broker's own are not listed."""
        return [
            view.info()
            for view in self._registry.by_address.values()
            if (topic is None or view.definition.topic == topic)
            and (principal is BROKER or not view.definition.name.startswith(OWN_PREFIX))
            and self._authorizer.allows(principal, Operation.DESCRIBE, Resource.QUEUE, view.address)
        ]

    def describe(self, principal: Principal, topic: str, name: str) -> ViewInfo:
        """Raises UnknownView."""
        return self._get(principal, Operation.DESCRIBE, topic, name).info()

    async def pause(self, principal: Principal, topic: str, name: str, *, paused: bool) -> None:
        view = self._get(principal, Operation.ALTER, topic, name)
        machine, now = view.machine, self._host.now
        decision = machine.pause(now) if paused else machine.unpause(now)
        ticket, future = self._host.ticket()
        decision.reply(ticket, None)
        self._host.perform(view, decision)
        await future

    async def purge(self, principal: Principal, topic: str, name: str) -> int:
        view = self._get(principal, Operation.DELETE, topic, name)
        for stream in list(view.streams.values()):  # so that it is known what there is to purge
            await self._topics.open(stream.topic, stream.index)
        view.survey()
        view.shelf.clear()
        view.edition += 1  # what is being read now is not to be shown
        purged: int = await self._host.ask(view, lambda ticket: view.machine.purge(self._host.now, ticket))
        return purged

    async def redrive(self, principal: Principal, topic: str, name: str, limit: int = 10_000) -> int:
        """Dead letters of this view back to the topics they came from, for this view only; how many that were.

        A limit of 0 only makes the view that they are redriven from.
        """
        view = self._get(principal, Operation.ALTER, topic, name)
        if limit < 0:
            raise InvalidRequest(f"a redrive of {limit} messages")
        self._expiry.use(view)
        return await self._unbreakable(self._redrive(view, limit))

    async def _redrive(self, view: View, limit: int) -> int:
        letters_topic = self._topics.by_name.get(dead_letter_topic(view))
        if letters_topic is None:
            return 0
        letters = await self._changes.ensure(
            letters_topic, redrive_view_name(view), REDRIVE_SETTINGS, (letters_of(view),)
        )
        return await redrive(self._host, self._gatherer, view, letters, limit)

    async def peek(self, principal: Principal, topic: str, name: str, limit: int = 10) -> list[Delivery]:
        """The next messages, without leasing them (receipts with number 0)."""
        return await peek(self._topics, self._get(principal, Operation.READ, topic, name), limit)

    def status_of(self, principal: Principal, topic: str, name: str, partition: int, offset: int) -> Status:
        view = self._get(principal, Operation.DESCRIBE, topic, name)
        return view.machine.status_of(self._place(view, partition, offset))

    # -- consuming --------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        principal: Principal,
        topic: str,
        name: str,
        deliver: Callable[[Sequence[Delivery]], None],
        credit: int,
        *,
        lease_ms: int | None = None,
        ended: Callable[[PenstockError], None] | None = None,
    ) -> Subscription:
        """Credit: how many unsettled messages it takes at once. `ended` is told when the view is deleted."""
        view = self._get(principal, Operation.READ, topic, name)
        if not 0 <= credit <= MAX_CREDIT:
            raise InvalidRequest(f"credit is 0 to {MAX_CREDIT}, not {credit}")
        self._expiry.use(view)
        subscription = Subscription(self._host, view)
        subscription.begin(deliver, ended, credit, lease_ms)
        return subscription

    async def lease(
        self, principal: Principal, topic: str, name: str, limit: int, *, wait_ms: int = 0, lease_ms: int | None = None
    ) -> list[Delivery]:
        """Up to `limit` messages; waits for the first. They are leased beyond this call, until settled or timed out."""
        view = self._get(principal, Operation.READ, topic, name)
        if not 1 <= limit <= MAX_CREDIT:
            raise InvalidRequest(f"1 to {MAX_CREDIT} messages can be leased at once, not {limit}")
        self._expiry.use(view)
        taker = Taker(self._host, view, limit)
        self._takers.add(taker)
        try:
            return await taker.take(0 if self._released else wait_ms, lease_ms)
        finally:
            self._takers.discard(taker)
            view.used_ms = self._clock.monotonic_ms()

    def settle(
        self,
        principal: Principal,
        topic: str,
        name: str,
        outcome: Outcome,
        receipts: Sequence[Receipt],
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
    ) -> asyncio.Future[list[PenstockError | None]]:
        """Per receipt None, or LeaseLost. Raises UnknownView."""
        view = self._get(principal, Operation.READ, topic, name)
        return self._host.settle(view, outcome, receipts, delay_ms=delay_ms, lease_ms=lease_ms)

    async def step(
        self,
        principal: Principal,
        topic: str,
        name: str,
        step: str,
        receipts: Sequence[Receipt],
        publications: Sequence[Publication],
    ) -> bool:
        """Settle and publish, both or neither. False: this step was done before, nothing happened now."""
        view = self._get(principal, Operation.READ, topic, name)
        payload = encode_step(publications)
        if len(payload) > MAX_STEP_BYTES:
            raise InvalidRequest(f"a step of {len(payload)} bytes; at most {MAX_STEP_BYTES} are taken")
        for publication in publications:  # what cannot be published is refused before anything happens
            target = await self._gatherer.target(principal, publication.topic)
            target.check(publication.messages)
        view = self._registry.get(topic, name)  # it may have gone meanwhile
        self._expiry.use(view)
        done: bool = await asyncio.shield(
            self._host.ask(view, lambda ticket: view.machine.step(self._host.now, ticket, step, receipts, payload))
        )
        return done

    def receipt(self, topic: str, name: str, partition: int, offset: int, number: int) -> Receipt:
        """For doors whose clients name messages by partition and offset of the view's own topic."""
        return Receipt(self._place(self._registry.get(topic, name), partition, offset), number)

    # -- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Replay, and go on with what was under way. After topics are known, before `topics.sweep()`."""
        await self._registry.load()
        for view in self._registry.by_address.values():
            self._expiry.expect(view)
        self._host.spawn(self._settle_in())

    async def _settle_in(self) -> None:
        await self._host.forget_done_steps()
        await self._registry.settle_in()
        for name in list(self._registry.by_topic):
            topic = self._topics.by_name.get(name)
            if topic is not None:
                self._floors.tell_topic(topic)
                await asyncio.sleep(0)

    def release(self) -> None:
        """The server is about to stop: nobody waits any more."""
        self._released = True
        for taker in self._takers:
            taker.release()

    async def stop(self) -> None:
        self.release()
        await self._host.stop()

    def run_due(self) -> None:
        """Let happen what time brings. Timers do this; a test with a clock of its own may."""
        self._host.alarms.run_due()
        self._host.chores.run_due()

    def check_unread(self, topic: str) -> None:
        """Raise InvalidRequest if a view reads this topic: its places are offsets of this log."""
        for view in self._registry.by_topic.get(topic, ()):
            raise InvalidRequest(f"topic {topic!r} is read by the queue view {view.address!r}: delete that first")

    async def forget_topic(self, topic: str) -> None:
        """A topic was deleted: so are its views, and other views no longer read it."""
        await self._changes.topic_is_gone(topic)

    # -- chores -----------------------------------------------------------------------------------------------

    def _chore(self, name: str) -> None:
        if name == FLOORS:
            self._floors.tell()
            return
        view_id, _, chore = name.partition(":")
        view = self._host.by_id.get(int(view_id))
        if view is None:
            return
        if chore == "read":
            view.pump.start_anew()
        elif chore == EXPIRY:
            self._expiry.look(view)

    # -- within -----------------------------------------------------------------------------------------------

    async def _unbreakable(self, work: Coroutine[Any, Any, T]) -> T:
        """Work that must not stop half-way when whoever asked for it goes away."""
        task = asyncio.create_task(work)
        self._unbroken.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._unbroken.discard(task)
        if not task.cancelled():
            task.exception()  # marked as seen: whoever asked may have gone

    def _check(self, principal: Principal, operation: Operation, topic: str, name: str) -> None:
        self._authorizer.check(principal, operation, Resource.QUEUE, address_of(topic, name))

    def _get(self, principal: Principal, operation: Operation, topic: str, name: str) -> View:
        self._authorizer.check(principal, operation, Resource.QUEUE, address_of(topic, name))
        return self._registry.get(topic, name)

    @staticmethod
    def _place(view: View, partition: int, offset: int) -> int:
        number = view.numbers.get((view.definition.topic, partition))
        if number is None or offset < 0:
            raise UnknownPartition(f"view {view.address!r} reads no offset {offset} of a partition {partition}")
        return place_of(number, offset)
