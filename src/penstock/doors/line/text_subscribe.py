"""SUBSCRIBE: from the words of the command to a subscription that is ready to deliver."""

from typing import Any

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.coordinate import OffsetFact, TopicPartition
from penstock.broker.queues import QueueSettings, ViewInfo
from penstock.broker.read import Overflow, Start
from penstock.doors.line import text_words as words
from penstock.doors.line.text_deliveries import QueueSubscription, ReaderSubscription
from penstock.doors.line.text_settle import Unsettled
from penstock.doors.line.text_subscriptions import Address, Outlet, Subscription, Subscriptions, address_of
from penstock.model.errors import InvalidRequest, ViewExists
from penstock.security.principal import Principal
from penstock.wire.line.parser import Command

DEFAULT_CREDIT = 10
MAX_CREDIT = 10_000
DEFAULT_BEHIND = 10_000
MAX_BEHIND = 1_000_000

# Options that a queue view is made with, and the settings they are.
VIEW_OPTIONS = {
    "guarantee": "guarantee",
    "max_attempts": "max_attempts",
    "retry_initial": "retry_initial_ms",
    "dead_letter": "dead_letter",
    "delay": "delay_ms",
    "ttl": "ttl_ms",
    "max_priority": "max_priority",
    "ordered_by_key": "ordered_by_key",
    "single_active": "single_active",
}
FILTERS = frozenset(("key", "pattern"))
OPTIONS_OF_KINDS = {
    "pubsub": {"meta", "behind", "overflow"},
    "log": {"meta", "from", "group"},
    "queue": {"meta", "from", "credit", "lease", "view", *VIEW_OPTIONS},
}


async def subscribe(
    broker: Broker,
    principal: Principal,
    subscriptions: Subscriptions,
    unsettled: Unsettled,
    outlet: Outlet,
    command: Command,
) -> Subscription:
    """Make it and add it to the others; it delivers once it is started."""
    options = command.options
    view = options.get("view")
    address = address_of(command.words[0], None if view is None else words.text("view", view))
    for name in options:
        if name not in OPTIONS_OF_KINDS[address.kind] and name not in FILTERS and not name.startswith("header."):
            raise InvalidRequest(f"option {name} has no meaning for {address.topic}/{address.kind}")
    subscriptions.check_new(address)
    making = {"pubsub": _pubsub, "log": _log, "queue": _queue}[address.kind]
    subscription: Subscription = await making(broker, principal, address, outlet, options, unsettled)
    subscriptions.add(subscription)
    outlet.subscribed()
    return subscription


async def _pubsub(
    broker: Broker, principal: Principal, address: Address, outlet: Outlet, options: words.Options, _: Unsettled
) -> Subscription:
    overflow = words.one_of(options, "overflow", "drop-oldest", tuple(way.value for way in Overflow))
    with_meta = words.yes(options, "meta")
    await broker.administrator.topic_on_first_use(principal, address.topic)
    reader = await broker.readers.pubsub(
        principal,
        address.topic,
        matches=words.matches(options),
        max_behind=words.optional_whole(options, "behind", DEFAULT_BEHIND, 1, MAX_BEHIND),
        overflow=Overflow(overflow),
    )
    return ReaderSubscription(address, reader, outlet, with_meta=with_meta)


async def _log(
    broker: Broker, principal: Principal, address: Address, outlet: Outlet, options: words.Options, _: Unsettled
) -> Subscription:
    with_meta = words.yes(options, "meta")
    count = (await broker.administrator.topic_on_first_use(principal, address.topic)).partition_count
    start = _start(words.text("from", options.get("from", b"earliest")), count)
    if "group" in options:
        places = [TopicPartition(address.topic, index) for index in range(count)]
        group = words.text("group", options["group"])
        found = await broker.coordinator.committed(principal, group, places)
        offsets = {place.partition: fact.offset for place, fact in found.items() if isinstance(fact, OffsetFact)}
        start = Start({**(start.offsets or {}), **offsets}, None, start.earliest)
    reader = await broker.readers.log(principal, address.topic, start, matches=words.matches(options))
    return ReaderSubscription(address, reader, outlet, with_meta=with_meta)


def _start(text: str, partition_count: int) -> Start:
    if text in ("earliest", "latest"):
        return Start(earliest=text == "earliest")
    offsets = {}
    for word in text.split(","):
        at = words.position(word)
        if at.partition is None and partition_count > 1:
            raise InvalidRequest(f"there are {partition_count} partitions: say from=0:50,1:70 and so on")
        offsets[at.partition or 0] = at.offset
    return Start(offsets)


async def _queue(
    broker: Broker,
    principal: Principal,
    address: Address,
    outlet: Outlet,
    options: words.Options,
    unsettled: Unsettled,
) -> Subscription:
    credit = words.optional_whole(options, "credit", DEFAULT_CREDIT, 1, MAX_CREDIT)
    lease_ms = words.whole("lease", options["lease"]) if "lease" in options else None
    subscription = QueueSubscription(address, outlet, unsettled, with_meta=words.yes(options, "meta"))
    info = await _view(broker, principal, address, options)
    subscription.settled_before = info.settings.guarantee == "at-most-once"
    subscription.consumer = await broker.queues.subscribe(
        principal,
        address.topic,
        address.view,
        subscription.deliver,
        credit,
        lease_ms=lease_ms,
        ended=subscription.ended,
    )
    return subscription


async def _view(broker: Broker, principal: Principal, address: Address, options: words.Options) -> ViewInfo:
    """The view, made if it is not there. One that is there must be as the options say."""
    wanted = {setting: _value(option, options) for option, setting in VIEW_OPTIONS.items() if option in options}
    try:
        settings = msgspec.convert(wanted, QueueSettings, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the view's options make no sense: {error}") from None
    matches = words.matches(options)
    begins = words.one_of(options, "from", "earliest", ("earliest", "latest"))
    info = await broker.queues.create(
        principal,
        address.topic,
        address.view,
        settings,
        matches=matches,
        start="earliest" if begins == "earliest" else "latest",
        or_existing=True,
    )
    for option, setting in VIEW_OPTIONS.items():
        there = getattr(info.settings, setting)
        if setting in wanted and there != getattr(settings, setting):
            raise ViewExists(
                f"{address} is there already, with {option}={there}: leave {option} away or name another view"
            )
    if matches and all(source.matches != matches for source in info.sources):
        raise ViewExists(f"{address} is there already, with another filter: leave it away or name another view")
    return info


def _value(option: str, options: words.Options) -> Any:
    if option in ("ordered_by_key", "single_active"):
        return words.yes(options, option)
    return words.text(option, options[option])
