"""Which queue views there are. A view is shown when its definition is durable, and gone when its end is.

Start-up reads the ledger once and opens no partition: views whose topic is gone are forgotten, the others go on where
they were. Their partitions are opened when they are used, or one after another once the server runs.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Literal

from penstock.broker.view import View
from penstock.broker.view_host import ViewHost
from penstock.broker.views import (
    COUNTER_KEY,
    DEFINITION,
    LIFE_KEY,
    Source,
    StreamFact,
    ViewFact,
    address_of,
    decode_definition,
    definition_key,
    encode_definition,
)
from penstock.delivery.places import MAX_STREAMS
from penstock.delivery.queue_events import QueueSettings
from penstock.delivery.queue_facts import view_of
from penstock.log.topics import Topic, Topics
from penstock.model.errors import LimitReached, PenstockError, UnknownView

_log = logging.getLogger(__name__)

Start = Literal["earliest", "latest"]

RETRY_AFTER_S = 1.0
LEASES_PER_LIFE = 1 << 32  # more than are given between two starts of the server, however the clock is set meanwhile


class Registry:
    def __init__(self, host: ViewHost, topics: Topics, max_views: int) -> None:
        self._host = host
        self._topics = topics
        self._max_views = max_views
        self._last_id = 0
        self._life_has_begun = False  # the first view of all begins it, or the start of a server that has some
        self._changing: dict[str, asyncio.Future[None]] = {}
        self.by_address: dict[str, View] = {}
        self.by_topic: dict[str, dict[View, None]] = {}  # every view that reads the topic

    def get(self, topic: str, name: str) -> View:
        view = self.by_address.get(address_of(topic, name))
        if view is None:
            raise UnknownView(f"there is no queue view {address_of(topic, name)!r}")
        return view

    @contextlib.asynccontextmanager
    async def change(self, address: str) -> AsyncIterator[None]:
        """One change of a view at a time; changes of different views go side by side."""
        while (running := self._changing.get(address)) is not None:
            await asyncio.shield(running)
        self._changing[address] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self._changing.pop(address).set_result(None)

    # -- coming, changing, going ------------------------------------------------------------------------------------

    async def add(self, topic: Topic, name: str, settings: QueueSettings, source: Source, start: Start) -> View:
        if len(self.by_address) >= self._max_views:
            raise LimitReached(f"the server keeps at most {self._max_views} queue views (max_views)")
        bare = ViewFact(topic.name, topic.id.hex, name, settings, (source,), (), self._topics.clock.wall_ms())
        definition = bare.with_streams(await self._new_streams(bare, topic, start))
        self._last_id += 1
        view = self._host.make(self._last_id, definition)
        view.attach_streams(definition.streams, {topic.name: topic})  # refuses a filter that makes no sense
        recorded = [self._host.ledger.record(COUNTER_KEY, b"%d" % view.id), self._record(view, definition)]
        if not self._life_has_begun:
            recorded.append(self._begin_life())
        await asyncio.gather(*recorded)
        self._show(view)
        return view

    async def redefine(self, view: View, definition: ViewFact, *, topic_is_gone: bool = False) -> None:
        await self._recorded(view, [self._record(view, definition)], topic_is_gone)
        view.redefine(definition)

    async def set_source(self, view: View, topic: Topic, source: Source, start: Start) -> None:
        """Read this topic too, or other records of it."""
        definition = view.definition.with_source(source)
        added: list[StreamFact] = []
        if view.definition.source(topic.name) is None:
            added = await self._new_streams(definition, topic, start)
        await self.redefine(view, definition.with_streams(added))
        self._attach(view, topic, added)

    async def drop_source(self, view: View, topic: str, *, topic_is_gone: bool = False) -> None:
        if view.definition.source(topic) is not None:
            await self.redefine(view, view.definition.without_topic(topic), topic_is_gone=topic_is_gone)
            self._hide_from(topic, view)
            for number in view.detach_topic(topic):
                self._host.perform(view, view.machine.remove_stream(number))
            view.shelf.clear()

    async def fit(self, view: View, topic: Topic) -> None:
        """Read the partitions that the topic was given since."""
        if view.definition.source(topic.name) is not None:
            added = await self._new_streams(view.definition, topic, "earliest")
            if added:
                await self.redefine(view, view.definition.with_streams(added))
                self._attach(view, topic, added)

    async def fit_in_the_end(self, view: View, topic: Topic) -> None:
        """The same, however long the ledger takes nothing: what is in those partitions must be handed out."""
        while view.gone is None and self._topics.by_name.get(topic.name) is topic:
            try:
                async with self.change(view.address):
                    if view.gone is None:
                        await self.fit(view, topic)
                return
            except PenstockError as error:
                _log.warning("view %s does not read all of %s yet: %s", view.address, topic.name, error)
            await asyncio.sleep(RETRY_AFTER_S)

    async def erase(self, view: View, reason: PenstockError, *, topic_is_gone: bool = False) -> None:
        record = self._host.ledger.record
        # The definition goes first: facts without one are swept at start, a view without its facts would begin anew.
        erased = {record(definition_key(view.id), None)}
        erased.update(record(fact.key, None) for fact in view.machine.tombstones())
        await self._recorded(view, erased, topic_is_gone)
        if self.by_address.get(view.address) is view:
            del self.by_address[view.address]
        for source in view.definition.sources:
            self._hide_from(source.topic, view)
        self._host.remove(view, reason)

    async def _recorded(self, view: View, facts: Iterable[asyncio.Future[None]], topic_is_gone: bool) -> None:
        try:
            await asyncio.gather(*facts)
        except PenstockError as error:
            if not topic_is_gone:
                raise
            # What must not be is not, whatever the ledger says: the next start sees that the topic is gone.
            _log.warning("that view %s lost a topic is not recorded: %s", view.address, error)

    def _record(self, view: View, definition: ViewFact) -> asyncio.Future[None]:
        return self._host.ledger.record(definition_key(view.id), encode_definition(definition))

    def _show(self, view: View) -> None:
        self._host.add(view)
        self.by_address[view.address] = view
        for source in view.definition.sources:
            self.by_topic.setdefault(source.topic, {})[view] = None

    def _hide_from(self, topic: str, view: View) -> None:
        readers = self.by_topic.get(topic)
        if readers is not None:
            readers.pop(view, None)
            if not readers:
                del self.by_topic[topic]

    def _attach(self, view: View, topic: Topic, added: Sequence[StreamFact]) -> None:
        view.attach_streams(added, {topic.name: topic})
        self.by_topic.setdefault(topic.name, {})[view] = None
        view.pump.start_anew()

    async def _new_streams(self, definition: ViewFact, topic: Topic, start: Start) -> list[StreamFact]:
        """Numbers for those partitions of the topic that have none. To begin at the end, they must be open."""
        known = {stream.partition for stream in definition.streams if stream.topic == topic.name}
        indexes = [index for index in range(topic.partition_count) if index not in known]
        if definition.next_stream + len(indexes) > MAX_STREAMS:
            raise LimitReached(f"a view reads at most {MAX_STREAMS} partitions in its life")
        added = []
        for at, index in enumerate(indexes):
            # What retention removed before is passed over when the partition is opened.
            offset = (await self._topics.open(topic, index)).stable_end if start == "latest" else 0
            added.append(StreamFact(definition.next_stream + at, topic.name, topic.id.hex, index, offset))
        return added

    # -- start-up ---------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        definitions: dict[int, bytes] = {}
        facts: dict[int, dict[bytes, bytes]] = {}
        last_seed = 0
        async for key, value in self._host.ledger.replay():
            view_id = view_of(key)
            if view_id is not None:
                known = facts.setdefault(view_id, {})
                known.pop(key, None)
                if value is not None:
                    known[key] = value
            elif key[:1] == DEFINITION:
                view_id = int.from_bytes(key[1:], "big")
                if value is None:
                    definitions.pop(view_id, None)
                else:
                    definitions[view_id] = value
            elif key == COUNTER_KEY and value is not None:
                self._last_id = int(value)
            elif key == LIFE_KEY and value is not None:
                last_seed = int(value)
        self._host.lease_seed = max(self._topics.clock.wall_ms() * 1000, last_seed + LEASES_PER_LIFE)
        for view_id, value in definitions.items():
            self._last_id = max(self._last_id, view_id)
            definition = decode_definition(value)
            if self._is_alive(definition.topic, definition.topic_id):
                self._revive(view_id, definition, facts.pop(view_id, {}))
            else:
                self._host.ledger.record(definition_key(view_id), None)
        for keys in facts.values():  # of views that are gone: a crash cut their end short
            for key in keys:
                self._host.ledger.record(key, None)
        if definitions:
            try:
                await self._begin_life()
            except PenstockError as error:  # a full disk does not keep the server from starting; the clock will do
                _log.warning("where lease numbers begin is not recorded: %s", error)

    def _begin_life(self) -> asyncio.Future[None]:
        self._life_has_begun = True
        return self._host.ledger.record(LIFE_KEY, b"%d" % self._host.lease_seed)

    def _is_alive(self, topic: str, topic_id: str) -> bool:
        known = self._topics.by_name.get(topic)
        return known is not None and known.id.hex == topic_id

    def _revive(self, view_id: int, definition: ViewFact, facts: dict[bytes, bytes]) -> None:
        lost = {stream.topic for stream in definition.streams if not self._is_alive(stream.topic, stream.topic_id)}
        lost_streams = [stream for stream in definition.streams if stream.topic in lost]
        for topic in lost:
            definition = definition.without_topic(topic)
        view = self._host.make(view_id, definition)
        for key, value in facts.items():
            view.machine.replay(key, value)
        view.attach_streams(definition.streams, self._topics.by_name, again=True)
        for stream in lost_streams:
            view.machine.add_stream(stream.number, stream.start_offset)
            self._host.perform(view, view.machine.remove_stream(stream.number))
        if lost:
            self._record(view, definition)
        self._show(view)
        self._host.perform(view, view.machine.resume(self._host.now))

    async def settle_in(self) -> None:
        """Once the server runs: read new partitions of topics, and open all that is read, one after another."""
        for view in list(self.by_address.values()):
            for topic in list(view.topics):
                try:
                    if any((topic.name, index) not in view.numbers for index in range(topic.partition_count)):
                        self._host.spawn(self.fit_in_the_end(view, topic))
                    for stream in list(view.streams.values()):
                        if stream.partition is None:
                            await self._topics.open(stream.topic, stream.index)
                    view.survey()
                    self._host.perform(view, view.machine.tick(self._host.now))  # what was lost is told soon
                except PenstockError as error:
                    _log.warning("view %s does not reach topic %s: %s", view.address, topic.name, error)
