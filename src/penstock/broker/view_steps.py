"""Steps: what is settled and what is published happen both or neither, and once.

The machine makes the intent durable together with what is settled; then it is published here under a name made of the
view and the step. After a crash the machine asks for it again, and what was stored already is not stored again.
"""

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from penstock.broker.gather import Gatherer
from penstock.broker.view import Home, View
from penstock.delivery.queue_events import Perform
from penstock.model.errors import (
    InvalidRecord,
    InvalidTimestamp,
    NotAllowed,
    PenstockError,
    RecordTooLarge,
    UnknownPartition,
    UnknownTopic,
)
from penstock.model.message import Outgoing
from penstock.security.principal import BROKER

RETRY_AFTER_S = 1.0

_IN_VAIN = (InvalidRecord, InvalidTimestamp, NotAllowed, RecordTooLarge, UnknownPartition)  # however often it is tried

_log = logging.getLogger(__name__)


class Publication(msgspec.Struct, frozen=True, array_like=True):
    """What a step publishes to one topic."""

    topic: str
    messages: tuple[Outgoing, ...]


def encode_step(publications: Sequence[Publication]) -> bytes:
    return msgspec.msgpack.encode(publications)


def decode_step(payload: bytes) -> dict[str, list[Outgoing]]:
    """The messages of each topic: one topic is published to once, so that its messages have numbers that rise."""
    messages: dict[str, list[Outgoing]] = {}
    for publication in msgspec.msgpack.decode(payload, type=tuple[Publication, ...]):
        messages.setdefault(publication.topic, []).extend(publication.messages)
    return messages


class Steps:
    def __init__(self, home: Home, gatherer: Gatherer) -> None:
        self._home = home
        self._gatherer = gatherer

    def perform(self, view: View, step: Perform) -> None:
        self._home.spawn(self._perform(view, step))

    async def _perform(self, view: View, step: Perform) -> None:
        """Until it succeeds: its intent is durable, so it has happened already as far as anybody knows."""
        left = decode_step(step.payload)
        producer = f"step:{view.id}:{step.step}"
        is_first = True
        while True:
            try:
                await self._publish(left, producer)
                break
            except PenstockError as error:
                if is_first:
                    _log.warning("step %r of %s waits to be published: %s", step.step, view.address, error)
                is_first = False
            await asyncio.sleep(RETRY_AFTER_S)
        self._home.perform(view, view.machine.performed(self._home.now, step.step))

    async def _publish(self, left: dict[str, list[Outgoing]], producer: str) -> None:
        futures, topics = [], []
        for topic in list(left):
            try:
                target = await self._gatherer.target(BROKER, topic)
            except UnknownTopic:
                del left[topic]  # deleted since the step was taken, and its messages with it
                continue
            futures.append(target.publish(left[topic], producer=producer))
            topics.append(topic)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for topic, outcome in zip(topics, outcomes, strict=True):
            if isinstance(outcome, _IN_VAIN):
                # All was well when the step was taken; the topic's settings have changed since.
                _log.error("%s cannot publish %d messages to %s: %s", producer, len(left[topic]), topic, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            del left[topic]
