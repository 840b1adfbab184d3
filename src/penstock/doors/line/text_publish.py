"""PUB and PUBLISH: what is typed or piped in one go for one topic is published, and stored, in one go."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.broker.broker import Broker
from penstock.broker.gather import Acks, Target
from penstock.doors.line import text_words as words
from penstock.doors.line.text_words import error_reply
from penstock.model.errors import InvalidRequest, PenstockError, UnknownTopic
from penstock.model.message import DELAY_MS, PRIORITY, TTL_MS, Outgoing, Placed
from penstock.security.principal import Principal
from penstock.wire.line.parser import Command, Refused

NAMES = frozenset(("PUB", "PUBLISH"))
MAX_RUN = 2_000
MAX_TARGETS = 64  # topics that a connection has at hand
ALONE = ("acks", "producer", "seq")  # what is said of a whole publish and not of a message
STEERING = {"delay": DELAY_MS, "priority": PRIORITY, "ttl": TTL_MS}
MAX_PRIORITY = 9

Stored = asyncio.Future[list[Placed]] | asyncio.Future[list[Placed | PenstockError]]


@dataclass(slots=True)
class Run:
    """Messages for one topic that were sent one after another."""

    topic: str
    messages: list[Outgoing] = field(default_factory=list)
    size_bytes: int = 0
    acks: Acks = Acks.ALL
    producer: str | None = None
    sequence: int = 0
    many_partitions: bool = False


def next_run(commands: deque[Command | Refused]) -> Run:
    """Take the publishes at the head that go together. Raises InvalidRequest, having taken the first one only."""
    first = commands.popleft()
    assert isinstance(first, Command)
    run = Run(first.words[0], size_bytes=first.size_bytes)
    if first.options:
        _steer(run, first)
    run.messages.append(_outgoing(first))
    if any(name in first.options for name in ALONE):
        return run
    topic, messages = run.topic, run.messages
    while commands and len(messages) < MAX_RUN:
        following = commands[0]
        if (
            type(following) is not Command
            or following.name not in NAMES
            or following.words[0] != topic
            or following.options
        ):
            break
        commands.popleft()
        run.size_bytes += following.size_bytes
        messages.append(Outgoing(None, following.payload))
    return run


def _steer(run: Run, command: Command) -> None:
    options = command.options
    run.acks = Acks(words.one_of(options, "acks", "all", tuple(acks.value for acks in Acks)))
    if ("producer" in options) != ("seq" in options):
        raise InvalidRequest("producer and seq go together")
    if "producer" in options:
        run.producer = words.text("producer", options["producer"])
        run.sequence = words.whole("seq", options["seq"])


def _outgoing(command: Command) -> Outgoing:
    options = command.options
    if not options:
        return Outgoing(None, command.payload)
    steering = [
        (
            header,
            b"%d" % words.whole(option, options[option], 0, MAX_PRIORITY if option == "priority" else words.MAX_OFFSET),
        )
        for option, header in STEERING.items()
        if option in options
    ]
    return Outgoing(
        options.get("key"),
        command.payload,
        (*words.headers(options), *steering),
        words.optional_whole(options, "timestamp", -1),
        words.optional_whole(options, "partition", -1, 0, words.MAX_PARTITION),
    )


class Publishing:
    """The topics that one connection publishes to."""

    def __init__(self, broker: Broker, principal: Principal) -> None:
        self._broker = broker
        self._principal = principal
        self._targets: dict[str, Target] = {}

    async def begin(self, run: Run) -> Stored:
        """The order is fixed when this returns."""
        known = run.topic in self._targets
        target = await self._target(run.topic)
        stored = _publish(target, run, run.messages)
        if not stored.done() or (refusal := stored.exception()) is None:
            return stored
        # Refused at once: nothing of it was stored.
        self._targets.pop(run.topic, None)
        if known and isinstance(refusal, UnknownTopic):  # deleted since; on first use there may be another
            target = await self._target(run.topic)
            stored = _publish(target, run, run.messages)
        if len(run.messages) == 1 or isinstance(refusal, UnknownTopic):
            return stored
        apart = [_publish(target, run, [message]) for message in run.messages]
        return asyncio.get_running_loop().create_task(_all_of(apart))

    async def _target(self, topic: str) -> Target:
        target = self._targets.get(topic)
        if target is None:
            if len(self._targets) >= MAX_TARGETS:
                self._targets.clear()
            target = self._targets[topic] = await self._broker.gatherer.target(self._principal, topic)
        return target


def _publish(target: Target, run: Run, messages: list[Outgoing]) -> asyncio.Future[list[Placed]]:
    run.many_partitions = target.topic.partition_count > 1
    return target.publish(messages, acks=run.acks, producer=run.producer, sequence=run.sequence)


async def _all_of(publishes: list[asyncio.Future[list[Placed]]]) -> list[Placed | PenstockError]:
    """Each with its own result: one bad message is not the others' failure."""
    results: list[Placed | PenstockError] = []
    for publish in publishes:
        try:
            results += await publish
        except PenstockError as error:
            results.append(error)
    return results


def answer(run: Run, results: Sequence[Placed | PenstockError]) -> bytes:
    many = run.many_partitions
    return b"".join([error_reply(r) if isinstance(r, PenstockError) else _place(r, many) for r in results])


def _place(placed: Placed, many_partitions: bool) -> bytes:
    return b"OK %d:%d\r\n" % placed if many_partitions else b"OK %d\r\n" % placed.offset
