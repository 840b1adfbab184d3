"""Routers: bindings from a topic to views and to other topics, as an exchange has them.

A router is named after the topic that is published to. A message is appended there once, by whatever door; a binding to
a view is a filter of that view, so many views share the one copy; a binding to a topic is a view of the broker's own
that copies what matches, once each, by idempotent publishing.
"""

from typing import Literal

import msgspec

from penstock.broker.administer import Administrator
from penstock.broker.gather import Gatherer
from penstock.broker.hosting import Ledger
from penstock.broker.queues import Queues
from penstock.delivery.filters import Match
from penstock.log.topics import Topics
from penstock.security.acl import Authorizer
from penstock.security.principal import Principal

Kind = Literal["direct", "fanout", "topic", "headers"]


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
    ) -> None: ...

    async def create(self, principal: Principal, name: str, kind: Kind) -> RouterInfo:
        """Makes the topic of that name too. The same kind again changes nothing; another raises RouterExists."""
        raise NotImplementedError

    async def delete(self, principal: Principal, name: str) -> None:
        """The bindings go; the topic and the views stay."""

    async def bind(self, principal: Principal, name: str, binding: Binding) -> RouterInfo:
        """Idempotent. The target is made on first use."""
        raise NotImplementedError

    async def unbind(self, principal: Principal, name: str, binding: Binding) -> RouterInfo:
        raise NotImplementedError

    def routers(self, principal: Principal) -> list[RouterInfo]:
        raise NotImplementedError

    def describe(self, principal: Principal, name: str) -> RouterInfo:
        """Raises UnknownRouter."""
        raise NotImplementedError

    async def start(self) -> None: ...

    async def forget_topic(self, topic: str) -> None: ...

    async def stop(self) -> None: ...


def match_of(kind: Kind, binding: Binding) -> Match:
    """What a binding of this kind of router takes. Raises InvalidSetting."""
    raise NotImplementedError
