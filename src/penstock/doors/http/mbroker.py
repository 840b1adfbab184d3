"""The five calls of mbroker, kept as they are.

A subscriber is a queue view of its own, named by its id: what it has not committed comes again when it returns with its
cookie, and what arrived meanwhile as well. A message's id is `<partition>-<offset>`, so it stays the same however often
the message comes. A subscriber that is away for EXPIRES_MS is forgotten.
"""

import re
import uuid
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock.broker.queues import Delivery, Outcome, QueueSettings
from penstock.doors.http.call import Call, Reply, encode, reply
from penstock.doors.http.errors import MalformedRequest, NoSuchSubscriber
from penstock.doors.http.inbox import Inbox
from penstock.doors.http.records import Base64, Steering, Text, bytes_of, headers_of, json_of, text_of, value_of
from penstock.doors.http.routing import route
from penstock.doors.http.streams import EventStream
from penstock.model.errors import InvalidRequest, UnknownPartition, UnknownView
from penstock.model.message import Outgoing

MBROKER = "mbroker"

COOKIE = "subscriber_id"
VIEW_PREFIX = "subscriber-"
EXPIRES_MS = 24 * 3600 * 1000
MAX_UNCOMMITTED = 100_000  # then a subscriber gets nothing more until it commits
WINDOW = 1_000  # messages on their way to a client
FORMER_LEASE = 1  # a commit of what came by an earlier stream: good as long as nobody else holds the message

CARRIED = ((COOKIE, "cookie", "who subscribed; subscribing sets it"),)

SUBSCRIBER = QueueSettings(
    lease_ms=0,
    max_attempts=0,
    dead_letter="",
    guarantee="at-least-once",
    max_in_flight=MAX_UNCOMMITTED,
    expires_ms=EXPIRES_MS,
)
STEERS_NOTHING = Steering()

_MESSAGE_ID = re.compile(r"([0-9]{1,9})-([0-9]{1,14})")


class TopicOptions(msgspec.Struct):
    """mbroker's two settings of a topic."""

    compaction_enabled: bool = False
    retention_duration_secs: Annotated[int, Meta(ge=0, le=1 << 40)] | None = None


class Message(msgspec.Struct):
    data: msgspec.Raw
    key: Text = None


class Commit(msgspec.Struct):
    message_id: str


class TopicMade(msgspec.Struct):
    topic: str
    settings: dict[str, str]


class MessageId(msgspec.Struct):
    message_id: str


class SubscriberId(msgspec.Struct):
    subscriber_id: str


class Event(msgspec.Struct, omit_defaults=True):
    """`encoding` is there when the data came through another door and is no text: then it is base64."""

    message_id: str
    key: Any
    data: Any
    encoding: Literal["base64"] | None = None


class Session:
    """One open stream of one subscriber."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.numbers: dict[tuple[int, int], int] = {}  # lease numbers of what is written and not committed
        self._limit = WINDOW

    def written(self, deliveries: list[Delivery]) -> int:
        """These left. How much credit must be added so that a window's worth may follow them."""
        for delivery in deliveries:
            self.numbers[delivery.partition, delivery.record.offset] = delivery.receipt.number
        added = min(len(self.numbers) + WINDOW, MAX_UNCOMMITTED) - self._limit
        if added > 0:
            self._limit += added
        return max(0, added)


class Subscribers:
    """Those whose streams are open, by topic and view."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], Session] = {}

    def enter(self, topic: str, view: str, session: Session) -> None:
        """The newest stream of a subscriber is the one it reads; an older one is a connection that it lost."""
        older = self._sessions.get((topic, view))
        self._sessions[topic, view] = session
        if older is not None:
            older.inbox.finish()

    def leave(self, topic: str, view: str, session: Session) -> None:
        if self._sessions.get((topic, view)) is session:
            del self._sessions[topic, view]

    def get(self, topic: str, view: str) -> Session | None:
        return self._sessions.get((topic, view))


@route("POST", "/topics/{topic}", MBROKER, "Create a topic", body=TopicOptions, reply=TopicMade, status=201)
async def create_topic(call: Call) -> Reply:
    options = call.json(TopicOptions, TopicOptions())
    settings: dict[str, str] = {}
    if options.retention_duration_secs is not None:
        settings["retention.ms"] = str(options.retention_duration_secs * 1000)
    if options.compaction_enabled:
        settings["cleanup.policy"] = "compact,delete" if settings else "compact"
    await call.broker.administrator.create_topic(call.principal, call["topic"], None, settings)
    return reply(TopicMade(call["topic"], settings), 201)


@route("POST", "/topics/{topic}/publish", MBROKER, "Publish a message", body=Message, reply=MessageId)
async def publish(call: Call) -> Reply:
    """`data` is any JSON value, and arrives as the same value."""
    message = call.json(Message)
    value, is_json = value_of(message.data, base64=False)
    outgoing = Outgoing(bytes_of(message.key), value, headers_of(None, STEERS_NOTHING, is_json))
    target = await call.broker.gatherer.target(call.principal, call["topic"])
    (placed,) = await target.publish([outgoing])
    return Reply(b'{"message_id":"%d-%d"}' % placed)


@route(
    "GET",
    "/topics/{topic}/subscribe",
    MBROKER,
    "Subscribe: server-sent events",
    carried=CARRIED,
    reply=Event,
    stream=True,
)
async def subscribe(call: Call) -> Reply | None:
    """Sets the cookie `subscriber_id`. Presented again, everything not committed comes again."""
    topic = call["topic"]
    subscriber = _subscriber(call) or str(uuid.uuid4())
    view = VIEW_PREFIX + subscriber
    queues, subscribers = call.broker.queues, call.connection.house.subscribers
    await queues.create(call.principal, topic, view, SUBSCRIBER, start="latest", or_existing=True)
    session = Session()
    inbox, stream = session.inbox, EventStream(call.connection)
    subscribers.enter(topic, view, session)
    try:
        subscription = await queues.subscribe(
            call.principal, topic, view, inbox.deliver, WINDOW, lease_ms=0, ended=inbox.ended
        )
        try:
            cookie = f"{COOKIE}={subscriber}; Path=/topics; Max-Age={EXPIRES_MS // 1000}; HttpOnly; SameSite=Lax"
            stream.begin([(b"set-cookie", cookie.encode())])
            call.connection.read_only()  # only now: making the view is carried through
            while (deliveries := await inbox.take()) and not stream.closed:
                stream.write(b"".join([_event(delivery) for delivery in deliveries]))
                await stream.written()
                credit = session.written(deliveries)
                if credit:
                    subscription.add_credit(credit)
        finally:
            subscription.close()
            stream.end()
    finally:
        subscribers.leave(topic, view, session)
    return None


def _event(delivery: Delivery) -> bytes:
    record = delivery.record
    message_id = f"{delivery.partition}-{record.offset}"
    data, key = json_of(record), text_of(record.key)
    event = Event(message_id, key, data)
    if isinstance(data, Base64):
        event.data, event.encoding = data.base64, "base64"
    return b"id: %b\ndata: %b\n\n" % (message_id.encode(), encode(event))


@route("POST", "/topics/{topic}/commit", MBROKER, "Commit a message", carried=CARRIED, body=Commit, reply=MessageId)
async def commit(call: Call) -> Reply:
    """Answered when it is durable: the message does not come again."""
    topic, view = call["topic"], _view(call)
    message_id = call.json(Commit).message_id
    match = _MESSAGE_ID.fullmatch(message_id)
    if match is None:
        raise InvalidRequest(f"{message_id!r} is not the id of a message")
    partition, offset = int(match[1]), int(match[2])
    await _check_there(call, topic, message_id, partition, offset)
    session = call.connection.house.subscribers.get(topic, view)
    number = FORMER_LEASE if session is None else session.numbers.get((partition, offset), FORMER_LEASE)
    queues = call.broker.queues
    try:
        receipt = queues.receipt(topic, view, partition, offset, number)
        (error,) = await queues.settle(call.principal, topic, view, Outcome.ACK, [receipt])
    except UnknownView:
        raise _nobody(call) from None
    if error is not None:
        raise error
    if session is not None:
        session.numbers.pop((partition, offset), None)
    return reply(MessageId(message_id))


async def _check_there(call: Call, topic: str, message_id: str, partition: int, offset: int) -> None:
    try:
        end = (await call.broker.observer.partition(call.principal, topic, partition)).stable_end
    except UnknownPartition:
        end = 0
    if offset >= end:
        raise InvalidRequest(f"there is no message {message_id} in topic {topic!r}")


@route("POST", "/topics/{topic}/unsubscribe", MBROKER, "Unsubscribe", carried=CARRIED, reply=SubscriberId)
async def unsubscribe(call: Call) -> Reply:
    """The subscriber is forgotten, with what it has not committed."""
    view = _view(call)
    try:
        await call.broker.queues.delete(call.principal, call["topic"], view)
    except UnknownView:
        raise _nobody(call) from None
    return reply(SubscriberId(view.removeprefix(VIEW_PREFIX)))


def _subscriber(call: Call) -> str | None:
    text = call.cookie(COOKIE)
    if text is None:
        return None
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise MalformedRequest(f"the cookie {COOKIE} is not one that this server gave") from None


def _view(call: Call) -> str:
    subscriber = _subscriber(call)
    if subscriber is None:
        raise NoSuchSubscriber(f"there is no cookie {COOKIE}; subscribing gives one")
    return VIEW_PREFIX + subscriber


def _nobody(call: Call) -> NoSuchSubscriber:
    return NoSuchSubscriber(f"nobody with this {COOKIE} has subscribed to {call['topic']!r}")
