"""Routers: bindings from a topic to views and to other topics, as an exchange has them.

A router is named after the topic that is published to. A message is appended there once, by whatever door; a binding to
a view is a filter of that view, so many views share the one copy; a binding to a topic is a view of the broker's own
that copies what matches, once each, by idempotent publishing.

A router is a fact in the ledger. What a binding does elsewhere is done first and recorded then, so nothing is shown
that does not work; start-up does it again for what is recorded.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from hashlib import blake2b
from typing import Any, Literal, TypeVar

import msgspec

from penstock.broker.administer import Administrator
from penstock.broker.forward import Forwarder
from penstock.broker.gather import Gatherer
from penstock.broker.hosting import Ledger
from penstock.broker.queues import Queues, QueueSettings, Source
from penstock.delivery.filters import Match, compile_filter
from penstock.log.topics import Topics
from penstock.model.errors import (
    InvalidRequest,
    InvalidSetting,
    LimitReached,
    NotAllowed,
    PenstockError,
    RouterExists,
    TopicExists,
    UnknownRouter,
    UnknownTopic,
    UnknownView,
)
from penstock.model.ids import check_topic_name, is_internal
from penstock.security.acl import Authorizer, Operation, Resource
from penstock.security.principal import BROKER, Principal

_log = logging.getLogger(__name__)

Kind = Literal["direct", "fanout", "topic", "headers"]
KINDS: tuple[Kind, ...] = ("direct", "fanout", "topic", "headers")

MAX_ROUTERS = 10_000
MAX_BINDINGS = 1_000  # of one router
_KEY = b"router:"
_FORWARDING = "__to_"
_MAX_NAME_CHARS = 240

# A copy is held until it is durable, tried without end, and leaves nothing behind, whatever its topic promises views.
_FORWARDING_SETTINGS = QueueSettings(lease_ms=0, max_attempts=0, dead_letter="", guarantee="exactly-once")

T = TypeVar("T")


class Binding(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`to` is a topic, or `<topic>/<view>`. What the router's kind does not use is refused."""

    to: str
    key: str | None = None  # direct: the key; topic: the pattern
    headers: dict[str, str] = {}
    any_header: bool = False


class RouterInfo(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    bindings: tuple[Binding, ...] = ()


class Routers:
    def __init__(
        self,
        ledger: Ledger,
        topics: Topics,
        authorizer: Authorizer,
        administrator: Administrator,
        gatherer: Gatherer,
        queues: Queues,
    ) -> None:
        self._ledger = ledger
        self._topics = topics
        self._authorizer = authorizer
        self._administrator = administrator
        self._gatherer = gatherer
        self._queues = queues
        self._by_name: dict[str, RouterInfo] = {}
        self._forwarders: dict[tuple[str, str], Forwarder] = {}  # by router and target
        self._changing = asyncio.Lock()  # one change at a time: bindings of different routers must not close a ring
        self._changes: set[asyncio.Task[Any]] = set()

    # -- verbs ------------------------------------------------------------------------------------------------

    async def create(self, principal: Principal, name: str, kind: Kind) -> RouterInfo:
        """Makes the topic of that name too. The same kind again changes nothing; another raises RouterExists."""
        if kind not in KINDS:
            raise InvalidSetting(f"a router of kind {kind!r}; there are {', '.join(KINDS)}")
        return await self._change(self._create(principal, name, kind))

    async def delete(self, principal: Principal, name: str) -> None:
        """The bindings go; the topic and the views stay."""
        self._check(principal, Operation.DELETE, name)
        await self._change(self._delete(principal, name))

    async def bind(self, principal: Principal, name: str, binding: Binding) -> RouterInfo:
        """Idempotent. The target is made on first use.

        Raises InvalidSetting also for a binding that would bring messages back to where they came from.
        """
        self._check(principal, Operation.ALTER, name)
        return await self._change(self._bind(principal, name, binding))

    async def unbind(self, principal: Principal, name: str, binding: Binding) -> RouterInfo:
        """Idempotent."""
        self._check(principal, Operation.ALTER, name)
        return await self._change(self._unbind(principal, name, binding))

    def routers(self, principal: Principal) -> list[RouterInfo]:
        return [
            router
            for router in self._by_name.values()
            if self._authorizer.allows(principal, Operation.DESCRIBE, Resource.TOPIC, router.name)
        ]

    def describe(self, principal: Principal, name: str) -> RouterInfo:
        """Raises UnknownRouter."""
        self._check(principal, Operation.DESCRIBE, name)
        return self._get(name)

    # -- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        async for key, value in self._ledger.replay():
            if key.startswith(_KEY):
                name = key[len(_KEY) :].decode()
                if value is None:
                    self._by_name.pop(name, None)
                else:
                    self._by_name[name] = msgspec.json.decode(value, type=RouterInfo)
        for router in list(self._by_name.values()):
            try:
                await self._take_up(router)
            except PenstockError as error:
                _log.warning("router %s does not work as it should: %s", router.name, error)

    def check_unbound(self, topic: str) -> None:
        """Raise InvalidRequest if the topic is a router's or the target of one: what was copied is known by its log."""
        for router in self._by_name.values():
            if topic == router.name or any(binding.to.partition("/")[0] == topic for binding in router.bindings):
                raise InvalidRequest(
                    f"topic {topic!r} belongs to the router {router.name!r}: unbind or delete that first"
                )

    async def forget_topic(self, topic: str) -> None:
        """A topic was deleted: so is its router, and so are the bindings to it and to its views."""
        await self._change(self._forget_topic(topic))

    async def stop(self) -> None:
        await asyncio.gather(*self._changes, return_exceptions=True)
        forwarders, self._forwarders = self._forwarders, {}
        await asyncio.gather(*(forwarder.stop() for forwarder in forwarders.values()))

    # -- changes, one at a time -------------------------------------------------------------------------------

    async def _change(self, change: Coroutine[Any, Any, T]) -> T:
        """A client that goes away does not leave half a change behind."""

        async def in_turn() -> T:
            async with self._changing:
                return await change

        task = asyncio.create_task(in_turn())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def _create(self, principal: Principal, name: str, kind: Kind) -> RouterInfo:
        known = self._by_name.get(name)
        if known is not None:
            self._check(principal, Operation.DESCRIBE, name)
            if known.kind != kind:
                raise RouterExists(f"router {name!r} is there already, of kind {known.kind}")
            return known
        if len(self._by_name) >= MAX_ROUTERS:
            raise LimitReached(f"the server keeps at most {MAX_ROUTERS} routers")
        if is_internal(name):
            raise NotAllowed(f"names like {name!r} are the broker's own")
        self._check(principal, Operation.ALTER, name)
        if name not in self._topics.by_name:
            with contextlib.suppress(TopicExists):  # somebody else has just made it
                await self._administrator.create_topic(principal, name)
        return await self._record(RouterInfo(name, kind))

    async def _delete(self, principal: Principal, name: str) -> None:
        router = self._get(name)
        for to in {binding.to for binding in router.bindings}:
            await self._apply(principal, router, to, ())
        await self._erase(name)

    async def _bind(self, principal: Principal, name: str, binding: Binding) -> RouterInfo:
        router = self._get(name)
        compile_filter([match_of(router.kind, binding)])
        if binding in router.bindings:
            bindings = router.bindings  # done once more: a view that was deleted comes back
        elif len(router.bindings) >= MAX_BINDINGS:
            raise LimitReached(f"a router has at most {MAX_BINDINGS} bindings")
        else:
            bindings = (*router.bindings, binding)
        await self._check_target(principal, router, binding.to)
        new = RouterInfo(name, router.kind, bindings)
        return await self._replace(principal, router, new, binding.to)

    async def _unbind(self, principal: Principal, name: str, binding: Binding) -> RouterInfo:
        router = self._get(name)
        if binding not in router.bindings:
            return router
        new = RouterInfo(name, router.kind, tuple(known for known in router.bindings if known != binding))
        return await self._replace(principal, router, new, binding.to)

    async def _replace(self, principal: Principal, old: RouterInfo, new: RouterInfo, to: str) -> RouterInfo:
        """Let the target take what the new router's bindings say, then let the new router be known."""
        await self._apply(principal, new, to, _matches(new, to))
        if new == old:
            return old
        try:
            return await self._record(new)
        except BaseException:
            await self._apply(principal, old, to, _matches(old, to))
            raise

    async def _forget_topic(self, topic: str) -> None:
        if topic in self._by_name and topic not in self._topics.by_name:
            router = self._by_name[topic]
            for to in {binding.to for binding in router.bindings}:
                await self._apply(BROKER, router, to, ())
            await self._erase(topic)
        for router in list(self._by_name.values()):
            gone = {binding.to for binding in router.bindings if binding.to.partition("/")[0] == topic}
            for to in gone:
                await self._apply(BROKER, router, to, ())
            if gone:
                kept = tuple(binding for binding in router.bindings if binding.to not in gone)
                await self._record(RouterInfo(router.name, router.kind, kept))

    # -- targets ----------------------------------------------------------------------------------------------

    async def _check_target(self, principal: Principal, router: RouterInfo, to: str) -> None:
        topic, slash, _ = to.partition("/")
        check_topic_name(topic)
        if is_internal(topic):
            raise NotAllowed(f"topic {topic!r} is the broker's own")
        if not slash:
            if self._leads_to(topic, router.name):
                raise InvalidSetting(f"messages of {router.name!r} would come back to it by way of {topic!r}")
            self._authorizer.check(principal, Operation.READ, Resource.TOPIC, router.name)
            await self._gatherer.target(principal, topic)  # rights, and first use

    def _leads_to(self, start: str, goal: str) -> bool:
        """Whether what is published to one topic is copied to the other."""
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            topic = ahead.pop()
            if topic == goal:
                return True
            if topic not in seen:
                seen.add(topic)
                router = self._by_name.get(topic)
                ahead += [binding.to for binding in router.bindings if "/" not in binding.to] if router else []
        return False

    async def _apply(self, principal: Principal, router: RouterInfo, to: str, matches: tuple[Match, ...]) -> None:
        """Let the target take exactly this of the router's topic; without matches, nothing any more."""
        topic, slash, view = to.partition("/")
        if slash:
            await self._apply_to_view(principal, router.name, topic, view, matches)
        elif matches:
            await self._forward(router.name, topic, matches)
        else:
            await self._unforward(router.name, topic)

    async def _apply_to_view(
        self, principal: Principal, router: str, topic: str, view: str, matches: tuple[Match, ...]
    ) -> None:
        try:
            if not matches:
                await self._queues.remove_source(principal, topic, view, router)
            elif topic == router:
                await self._queues.create(principal, topic, view, matches=matches, start="latest", or_existing=True)
                await self._queues.add_source(principal, topic, view, Source(router, matches))
            else:
                await self._queues.create(principal, topic, view, or_existing=True)
                await self._queues.add_source(principal, topic, view, Source(router, matches))
        except (UnknownView, UnknownTopic):
            if matches:
                raise

    async def _forward(self, router: str, target: str, matches: tuple[Match, ...]) -> None:
        view = _forwarding_view(target)
        await self._queues.create(
            BROKER, router, view, _FORWARDING_SETTINGS, matches=matches, start="latest", or_existing=True
        )
        await self._queues.add_source(BROKER, router, view, Source(router, matches))
        if (router, target) not in self._forwarders:
            self._forwarders[router, target] = Forwarder(
                self._topics, self._gatherer, self._queues, router, view, target
            )

    async def _unforward(self, router: str, target: str) -> None:
        forwarder = self._forwarders.pop((router, target), None)
        if forwarder is not None:
            await forwarder.stop()
        with contextlib.suppress(UnknownView, UnknownTopic):  # it went with its topic
            await self._queues.delete(BROKER, router, _forwarding_view(target))

    async def _take_up(self, router: RouterInfo) -> None:
        """At start: go on, with what is left of the topics and views that the router knew."""
        if router.name not in self._topics.by_name:
            await self._erase(router.name)
            return
        kept = tuple(b for b in router.bindings if b.to.partition("/")[0] in self._topics.by_name)
        if kept != router.bindings:
            router = await self._record(RouterInfo(router.name, router.kind, kept))
        for to in dict.fromkeys(binding.to for binding in router.bindings):
            topic, slash, view = to.partition("/")
            if not slash:
                await self._forward(router.name, topic, _matches(router, to))
            elif self._has_view(topic, view):
                await self._queues.add_source(BROKER, topic, view, Source(router.name, _matches(router, to)))

    def _has_view(self, topic: str, view: str) -> bool:
        try:
            self._queues.describe(BROKER, topic, view)
        except UnknownView:
            return False
        return True

    # -- facts ------------------------------------------------------------------------------------------------

    async def _record(self, router: RouterInfo) -> RouterInfo:
        await self._ledger.record(_KEY + router.name.encode(), msgspec.json.encode(router))
        self._by_name[router.name] = router
        return router

    async def _erase(self, name: str) -> None:
        await self._ledger.record(_KEY + name.encode(), None)
        self._by_name.pop(name, None)

    def _get(self, name: str) -> RouterInfo:
        router = self._by_name.get(name)
        if router is None:
            raise UnknownRouter(f"there is no router {name!r}")
        return router

    def _check(self, principal: Principal, operation: Operation, name: str) -> None:
        self._authorizer.check(principal, operation, Resource.TOPIC, name)


def match_of(kind: Kind, binding: Binding) -> Match:
    """What a binding of this kind of router takes. Raises InvalidSetting."""
    if kind in ("direct", "topic"):
        if binding.key is None:
            raise InvalidSetting(f"a binding of a {kind} router needs a key")
    elif binding.key is not None:
        raise InvalidSetting(f"a binding of a {kind} router has no key")
    if kind == "headers":
        if not binding.headers:
            raise InvalidSetting("a binding of a headers router needs headers")
        return Match(headers=binding.headers, any_header=binding.any_header)
    if binding.headers or binding.any_header:
        raise InvalidSetting(f"a binding of a {kind} router has no headers")
    if kind == "direct":
        return Match(key=binding.key)
    return Match(pattern=binding.key) if kind == "topic" else Match()


def _matches(router: RouterInfo, to: str) -> tuple[Match, ...]:
    return tuple(match_of(router.kind, binding) for binding in router.bindings if binding.to == to)


def _forwarding_view(target: str) -> str:
    if len(target) > _MAX_NAME_CHARS:
        target = blake2b(target.encode(), digest_size=16).hexdigest()
    return _FORWARDING + target
