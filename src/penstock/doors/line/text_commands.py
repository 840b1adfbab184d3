"""What each text command does, but for publishing and settling. A handler returns its answer, or raises an error."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.coordinate import Commit, OffsetCommit, OffsetFact, TopicPartition
from penstock.broker.read import Start
from penstock.doors.line import text_words as words
from penstock.doors.line.text_settle import Unsettled
from penstock.doors.line.text_subscribe import subscribe
from penstock.doors.line.text_subscriptions import Outlet, Subscriptions, address_of
from penstock.log.partition import Partition
from penstock.model.errors import InvalidRequest, OffsetOutOfRange, PenstockError
from penstock.security.principal import Principal
from penstock.wire.line import replies
from penstock.wire.line.commands import help_lines
from penstock.wire.line.parser import Command

MAX_FETCH_COUNT = 10_000
MAX_FETCH_BYTES = 1 << 20
MAX_WAIT_MS = 60_000
MAX_PARTITIONS = 1 << 20


class Quit(Exception):
    """The client said goodbye."""


@dataclass(slots=True)
class Session:
    """What commands of one connection work with."""

    broker: Broker
    principal: Principal
    subscriptions: Subscriptions
    unsettled: Unsettled
    outlet: Outlet


Handler = Callable[[Session, Command], Coroutine[Any, Any, bytes]]


async def fetch(session: Session, command: Command) -> bytes:
    topic, options = command.words[0], command.options
    wanted = words.position(command.words[1])
    wait_ms = words.optional_whole(options, "wait", 0, 0, MAX_WAIT_MS)
    count = words.optional_whole(options, "count", 0, 1, MAX_FETCH_COUNT)
    with_meta = words.yes(options, "meta")
    partition_count = session.broker.observer.topic(session.principal, topic).partition_count
    index = _partition_of(topic, partition_count, wanted)
    partition = await session.broker.observer.partition(session.principal, topic, index)
    if not partition.start_offset <= wanted.offset <= partition.durable_end:
        raise _not_there(topic, wanted.offset, partition)
    start = Start(offsets={index: wanted.offset})
    reader = await session.broker.readers.log(session.principal, topic, start, partitions=[index])
    try:
        taken = await reader.take(count or 1, MAX_FETCH_BYTES, wait_ms)
    finally:
        reader.close()
    if not taken.messages and not count:
        raise _not_there(topic, wanted.offset, partition)
    prefix = f"{index}:" if partition_count > 1 else ""
    found = []
    for _, _, record in taken.messages:
        meta = replies.meta(record.key, record.timestamp_ms, record.headers) if with_meta else b""
        found.append(replies.message(f"{prefix}{record.offset}".encode(), record.value, meta))
    if not count:
        return found[0]
    following = taken.positions.get(index, wanted.offset)
    return b"".join(f + b"\r\n" for f in found) + replies.end(f"{prefix}{following}")


def _partition_of(topic: str, partition_count: int, wanted: words.Position) -> int:
    if wanted.partition is not None:
        return wanted.partition
    if partition_count > 1:
        raise InvalidRequest(f"topic {topic} has {partition_count} partitions: say partition:offset, as in 0:50")
    return 0


def _not_there(topic: str, offset: int, partition: Partition) -> PenstockError:
    start, end = partition.start_offset, partition.durable_end
    return OffsetOutOfRange(f"topic {topic} has no message {offset} (start={start} end={end})")


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


async def commit(session: Session, command: Command) -> bytes:
    group, topic, word = command.words
    wanted = words.position(word)
    partition_count = session.broker.observer.topic(session.principal, topic).partition_count
    place = TopicPartition(topic, _partition_of(topic, partition_count, wanted))
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
