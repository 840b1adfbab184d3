"""Steps: what is settled and what is published happen both or neither, and once.

The machine makes the intent durable together with what is settled; then it is published here under a name made of the
view and the step. After a crash the machine asks for it again, and what was stored already is not stored again:

    one batch       is seen at once anyway: the name is an idempotent producer, which costs nothing more
    several         are a named step of the transaction machine with one writer, so nobody sees half of them. Is it
                    committed when the machine asks again, all is done; if not, it is written once more by another
                    writer, and the commit aborts what the first one wrote

The name is forgotten once the view has recorded that the step is done, or at the next start.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence

import msgspec

from penstock.broker.gather import Gatherer, Target
from penstock.broker.transact import Transactions
from penstock.broker.view import Home, View
from penstock.delivery.queue_events import Perform
from penstock.model.errors import (
    InvalidRecord,
    InvalidTimestamp,
    NotAllowed,
    PenstockError,
    RecordTooLarge,
    StorageFailed,
    UnknownPartition,
    UnknownTopic,
)
from penstock.model.ids import INTERNAL_PREFIX
from penstock.model.message import Outgoing
from penstock.security.principal import BROKER

RETRY_AFTER_S = 1.0
TIMEOUT_MS = 60_000  # of a writer: one that takes longer is aborted, and another tries again
EPOCH = 0  # a step has a name of its own, and happens once
NAME_PREFIX = f"{INTERNAL_PREFIX}step:"

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
    def __init__(self, home: Home, gatherer: Gatherer, transactions: Transactions | None) -> None:
        self._home = home
        self._gatherer = gatherer
        self._transactions = transactions

    def perform(self, view: View, step: Perform) -> None:
        self._home.spawn(self._perform(view, step))

    async def forget_done(self, under_way: Collection[str]) -> None:
        """At start: names of steps that are not among these, as `name_of` has them, are of no use any more."""
        if self._transactions is not None:
            for name in self._transactions.step_names(NAME_PREFIX):
                if name not in under_way:
                    await self._forget(name)

    async def _perform(self, view: View, step: Perform) -> None:
        """Until it succeeds: its intent is durable, so it has happened already as far as anybody knows."""
        left = decode_step(step.payload)
        name = name_of(view, step.step)
        is_first = True
        while True:
            try:
                targets = await self._targets(left)
                together = self._transactions is not None and self._needs_transaction(targets, left, name)
                if together:
                    await self._publish_together(view, targets, left, name)
                else:
                    await self._publish(targets, left, name)
                break
            except PenstockError as error:
                if is_first:
                    _log.warning("step %r of %s waits to be published: %s", step.step, view.address, error)
                is_first = False
            await asyncio.sleep(RETRY_AFTER_S)
        decision = view.machine.performed(self._home.now, step.step)
        ticket, recorded = self._home.ticket()
        decision.reply(ticket, None)
        self._home.perform(view, decision)
        if together:
            try:
                await recorded
            except PenstockError:
                return  # the machine tells it again; the name goes at the next start
            await self._forget(name)

    async def _targets(self, left: dict[str, list[Outgoing]]) -> dict[str, Target]:
        targets = {}
        for topic in list(left):
            try:
                targets[topic] = await self._gatherer.target(BROKER, topic)
            except UnknownTopic:
                del left[topic]  # deleted since the step was taken, and its messages with it
        return targets

    # -- one batch --------------------------------------------------------------------------------------------

    async def _publish(self, targets: dict[str, Target], left: dict[str, list[Outgoing]], producer: str) -> None:
        topics = list(targets)
        published = [target.publish(left[topic], producer=producer) for topic, target in targets.items()]
        outcomes = await asyncio.gather(*published, return_exceptions=True)
        for topic, outcome in zip(topics, outcomes, strict=True):
            if isinstance(outcome, _IN_VAIN):
                self._give_up(left, topic, producer, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                del left[topic]

    @staticmethod
    def _give_up(left: dict[str, list[Outgoing]], topic: str, producer: str, error: BaseException) -> None:
        """All was well when the step was taken; the topic's settings have changed since."""
        _log.error("%s cannot publish %d messages to %s: %s", producer, len(left[topic]), topic, error)
        del left[topic]

    # -- several ----------------------------------------------------------------------------------------------

    def _needs_transaction(self, targets: dict[str, Target], left: dict[str, list[Outgoing]], name: str) -> bool:
        """Also when it was begun as one: topics that are gone since must not make it something else."""
        assert self._transactions is not None
        if self._transactions.knows_step(name):
            return True
        if len(targets) > 1:
            return True
        return any(not target.fits_one_batch(left[topic], name) for topic, target in targets.items())

    async def _publish_together(
        self, view: View, targets: dict[str, Target], left: dict[str, list[Outgoing]], name: str
    ) -> None:
        assert self._transactions is not None
        writer = await self._transactions.open_writer(BROKER, name, EPOCH, view.address, TIMEOUT_MS)
        if writer.done:
            return
        written: list[asyncio.Future[None]] = []
        for topic, target in targets.items():
            try:
                written += await target.publish_for(left[topic], writer.producer_id, writer.producer_epoch)
            except _IN_VAIN as error:
                self._give_up(left, topic, name, error)
                raise StorageFailed(f"nothing can be published to {topic}: the rest is written anew") from error
        if not written:
            return  # every topic of it is gone
        for durable in written:
            await durable
        await self._transactions.commit_step(BROKER, name, EPOCH, [writer.producer_id], "", {})

    async def _forget(self, name: str) -> None:
        assert self._transactions is not None
        try:
            await self._transactions.forget_step(BROKER, name)
        except PenstockError as error:
            _log.warning("%s is forgotten at the next start: %s", name, error)


def name_of(view: View, step: str) -> str:
    return f"{NAME_PREFIX}{view.id}:{step}"
