"""Dead letters: a message that failed for good is stored in another topic, with what is known of its death.

It is published under a name made of its view and place, so that a burial that a crash cut short and that is done again
stores nothing twice. Only when it is durable there is it settled here.
"""

import asyncio
import logging

from penstock.broker.gather import Gatherer
from penstock.broker.view import Home, View
from penstock.broker.view_outbox import read_places
from penstock.delivery.places import offset_of, stream_of
from penstock.delivery.queue_events import Bury
from penstock.log.topics import Topic, Topics
from penstock.model.errors import PenstockError, StorageFailed
from penstock.model.message import (
    DEAD_ATTEMPTS,
    DEAD_FIRST_FAILURE_MS,
    DEAD_LAST_FAILURE_MS,
    DEAD_OFFSET,
    DEAD_PARTITION,
    DEAD_REASON,
    DEAD_TOPIC,
    DEAD_VIEW,
    ONLY_FOR,
    Outgoing,
)
from penstock.model.record import Headers, Record
from penstock.security.principal import BROKER

LOT = 500  # burials that are read and published together
DEAD_HEADERS_BYTES = 64 << 10  # more than a dead letter's own headers ever take

DEAD_HEADERS = frozenset(
    (
        DEAD_REASON, DEAD_ATTEMPTS, DEAD_FIRST_FAILURE_MS, DEAD_LAST_FAILURE_MS,
        DEAD_TOPIC, DEAD_PARTITION, DEAD_OFFSET, DEAD_VIEW,
    )
)  # fmt: skip

_log = logging.getLogger(__name__)


def dead_letter_topic(view: View) -> str:
    """Where this view's dead letters go; empty: nowhere."""
    chosen = view.definition.settings.dead_letter
    return _own_topic(view) if chosen is None else chosen


def _own_topic(view: View) -> str:
    """Made here, and so takes everything that the view's topic takes."""
    return f"{view.definition.topic}.{view.definition.name}.dead"


class Burial:
    """Buries for all views; per view one task, while there is something to bury."""

    def __init__(self, home: Home, gatherer: Gatherer) -> None:
        self._home = home
        self._gatherer = gatherer
        self._at_work: set[View] = set()

    def bury(self, view: View, burial: Bury) -> None:
        view.burying.append(burial)
        if view not in self._at_work:
            self._at_work.add(view)
            self._home.spawn(self._run(view))

    async def _run(self, view: View) -> None:
        try:
            while view.burying and view.gone is None:
                lot = [view.burying.popleft() for _ in range(min(LOT, len(view.burying)))]
                await self._bury(view, lot)
        finally:
            self._at_work.discard(view)

    async def _bury(self, view: View, lot: list[Bury]) -> None:
        home, machine = self._home, view.machine
        outcomes: list[PenstockError | None]
        try:
            outcomes = await self._store(view, lot)
        except PenstockError as error:
            outcomes = [error] * len(lot)
        failed = next((outcome for outcome in outcomes if outcome is not None), None)
        if failed is not None:
            _log.warning("dead letters of %s could not be stored, they are tried again: %s", view.address, failed)
        for burial, outcome in zip(lot, outcomes, strict=True):
            if outcome is None:
                home.perform(view, machine.buried(home.now, burial.place))
            else:
                home.perform(view, machine.unburied(home.now, burial.place))

    async def _store(self, view: View, lot: list[Bury]) -> list[PenstockError | None]:
        """Per burial None when its message is durable with the dead letters, or gone from the log; else why not."""
        name = dead_letter_topic(view)
        if not name:
            return [None] * len(lot)
        records = await read_places(self._home.topics, view, [burial.place for burial in lot])
        if not records:
            view.gone_records += len(lot)
            return [None] * len(lot)
        outcomes = await self._publish(view, lot, records, name)
        refused = [at for at, outcome in enumerate(outcomes) if outcome is not None and not outcome.retriable]
        if refused and name != _own_topic(view):
            # It would be refused for ever, and in the end nothing could die any more.
            _log.warning(
                "%s refuses dead letters of %s, they go to %s: %s",
                name, view.address, _own_topic(view), outcomes[refused[0]],
            )  # fmt: skip
            again = await self._publish(view, [lot[at] for at in refused], records, _own_topic(view))
            for at, outcome in zip(refused, again, strict=True):
                outcomes[at] = outcome
        return outcomes

    async def _publish(
        self, view: View, lot: list[Bury], records: dict[int, Record], name: str
    ) -> list[PenstockError | None]:
        try:
            await make_dead_letter_topic(self._home.topics, view, name)
            target = await self._gatherer.target(BROKER, name)
        except PenstockError as error:
            return [error] * len(lot)
        outcomes: list[PenstockError | None] = [None] * len(lot)
        stored = []
        for at, burial in enumerate(lot):
            record = records.get(burial.place)
            stream = view.streams.get(stream_of(burial.place))
            if record is None or stream is None:
                view.gone_records += 1
                continue
            letter = _dead_letter(view, burial, record, stream.topic, stream.index)
            stored.append((at, target.publish([letter], producer=self._name(view, burial, record, stream.topic))))
        results = await asyncio.gather(*(future for _, future in stored), return_exceptions=True)
        for (at, _), result in zip(stored, results, strict=True):
            if isinstance(result, BaseException):
                outcomes[at] = result if isinstance(result, PenstockError) else StorageFailed(str(result))
        return outcomes

    def _name(self, view: View, burial: Bury, record: Record, origin: Topic) -> str:
        """The same for the same message; the time is told because a log that lost its end gives offsets anew."""
        return f"dead:{view.id}:{burial.place}:{record.timestamp_ms}:{self._home.topics.identity(origin)}"


async def make_dead_letter_topic(topics: Topics, view: View, name: str) -> Topic:
    """Dead letters stay until somebody looks at them, so no time takes them away."""
    topic = topics.by_name.get(name)
    if topic is not None:
        return topic
    origin = topics.by_name.get(view.definition.topic)
    settings = {"cleanup.policy": "delete", "retention.ms": "-1"}
    if origin is not None:
        settings["max.message.bytes"] = str(min(origin.settings.max_message_bytes + DEAD_HEADERS_BYTES, (1 << 31) - 1))
    return await topics.create(name, 1, settings, or_existing=True)


def _dead_letter(view: View, burial: Bury, record: Record, origin: Topic, partition: int) -> Outgoing:
    told: list[tuple[str, bytes | None]] = [
        (DEAD_REASON, burial.reason.value.encode()),
        (DEAD_ATTEMPTS, b"%d" % burial.attempts),
        (DEAD_TOPIC, origin.name.encode()),
        (DEAD_PARTITION, b"%d" % partition),
        (DEAD_OFFSET, b"%d" % offset_of(burial.place)),
        (DEAD_VIEW, view.address.encode()),
    ]
    if burial.first_failure_ms:
        told.append((DEAD_FIRST_FAILURE_MS, b"%d" % burial.first_failure_ms))
        told.append((DEAD_LAST_FAILURE_MS, b"%d" % burial.last_failure_ms))
    return Outgoing(record.key, record.value, (*without_dead_headers(record.headers), *told), record.timestamp_ms)


def without_dead_headers(headers: Headers) -> Headers:
    """As it was before it died, or was redriven."""
    return tuple(header for header in headers if header[0] not in DEAD_HEADERS and header[0] != ONLY_FOR)
