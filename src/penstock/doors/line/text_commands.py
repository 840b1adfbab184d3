"""What each text command does, but for publishing and settling. A handler returns its answer, or raises an error."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.coordinate import Commit, OffsetCommit, OffsetFact, TopicPartition
from penstock.doors.line import text_words as words
from penstock.doors.line.text_fetch import Fetching, index_of
from penstock.doors.line.text_settle import Unsettled
from penstock.doors.line.text_subscribe import subscribe
from penstock.doors.line.text_subscriptions import Outlet, Subscriptions, address_of
from penstock.model.errors import InvalidRequest
from penstock.security.principal import Principal
from penstock.wire.line import replies
from penstock.wire.line.commands import help_lines
from penstock.wire.line.parser import Command

MAX_PARTITIONS = 1 << 20
COUNTED = ("pending", "processing", "processed", "delayed", "dead", "consumers")


class Quit(Exception):
    """The client said goodbye."""


@dataclass(slots=True)
class Session:
    """What commands of one connection work with."""

    broker: Broker
    principal: Principal
    subscriptions: Subscriptions
    unsettled: Unsettled
    fetching: Fetching
    outlet: Outlet


Handler = Callable[[Session, Command], Coroutine[Any, Any, bytes]]


async def fetch(session: Session, command: Command) -> bytes:
    return await session.fetching.fetch(command)


async def unsubscribe(session: Session, command: Command) -> bytes:
    address = address_of(command.words[0])
    if not session.subscriptions.remove(address):
        raise InvalidRequest(f"this connection is not subscribed to {address}")
    return replies.ok(str(address))


async def start_subscription(session: Session, command: Command) -> bytes:
    subscription = await subscribe(
        session.broker, session.principal, session.subscriptions, session.unsettled, session.outlet, command
    )
    # All before this command is answered: its answer may go out now, before the first delivery.
    session.outlet.write(replies.ok(str(subscription.address)))
    subscription.start()
    return b""


async def status(session: Session, command: Command) -> bytes:
    address = address_of(command.words[0])
    if address.kind != "queue":
        raise InvalidRequest(f"only queues are counted: say {address.topic}/queue or {address.topic}/queue/<view>")
    counts = session.broker.queues.describe(session.principal, address.topic, address.view).counts
    return replies.ok(" ".join(f"{name}={getattr(counts, name)}" for name in COUNTED))


async def commit(session: Session, command: Command) -> bytes:
    group, topic, word = command.words
    wanted = words.position(word)
    partition_count = session.broker.observer.topic(session.principal, topic).partition_count
    place = TopicPartition(topic, index_of(topic, partition_count, wanted))
    if place.partition >= partition_count:
        raise InvalidRequest(f"topic {topic} has {partition_count} partitions")
    ask = OffsetCommit({place: Commit(wanted.offset)})
    refusals = await session.broker.coordinator.commit(session.principal, group, ask)
    refusal = refusals.get(place)
    if refusal is not None:
        raise refusal
    return replies.OK


async def committed(session: Session, command: Command) -> bytes:
    group, topic = command.words
    partition_count = session.broker.observer.topic(session.principal, topic).partition_count
    places = [TopicPartition(topic, index) for index in range(partition_count)]
    found = await session.broker.coordinator.committed(session.principal, group, places)
    told = [
        f"{place.partition}:{fact.offset}" if partition_count > 1 else str(fact.offset)
        for place, fact in found.items()
        if isinstance(fact, OffsetFact)
    ]
    return replies.ok(" ".join(told)) if told else replies.OK


async def create(session: Session, command: Command) -> bytes:
    settings = {name: words.text(name, value) for name, value in command.options.items()}
    count = settings.pop("partitions", None)
    partitions = None if count is None else words.whole("partitions", count, 1, MAX_PARTITIONS)
    await session.broker.administrator.create_topic(session.principal, command.words[0], partitions, settings)
    return replies.OK


async def delete(session: Session, command: Command) -> bytes:
    await session.broker.administrator.delete_topic(session.principal, command.words[0])
    return replies.OK


async def topics(session: Session, command: Command) -> bytes:
    found = session.broker.observer.topics(session.principal)
    lines = [f"TOPIC {topic.name} partitions={topic.partition_count}" for topic in found]
    return replies.lines(lines) + replies.end()


async def ping(session: Session, command: Command) -> bytes:
    return replies.PONG


async def auth(session: Session, command: Command) -> bytes:
    return replies.ok("no login is needed: this server knows no users")


async def show_help(session: Session, command: Command) -> bytes:
    about = command.words[0] if command.words else None
    try:
        return replies.lines(help_lines(about)) + replies.end()
    except KeyError:
        raise InvalidRequest(f"there is no command {about!r}; HELP lists what there is") from None


async def leave(session: Session, command: Command) -> bytes:
    raise Quit


HANDLERS: dict[str, Handler] = {
    "FETCH": fetch,
    "SUBSCRIBE": start_subscription,
    "UNSUBSCRIBE": unsubscribe,
    "STATUS": status,
    "COMMIT": commit,
    "COMMITTED": committed,
    "CREATE": create,
    "DELETE": delete,
    "TOPICS": topics,
    "PING": ping,
    "AUTH": auth,
    "HELP": show_help,
    "QUIT": leave,
}
MAY_WAIT = frozenset(("FETCH",))
