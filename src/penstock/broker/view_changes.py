"""How views come, change and go: one change of a view at a time, from the check to what is durable and shown."""

from collections.abc import Sequence

import msgspec

from penstock.broker.administer import Administrator
from penstock.broker.view import View
from penstock.broker.view_expiry import Expiry
from penstock.broker.view_floors import Floors
from penstock.broker.view_host import ViewHost
from penstock.broker.view_registry import Registry, Start
from penstock.broker.views import Source, address_of
from penstock.delivery.filters import Match
from penstock.delivery.queue_events import QueueSettings
from penstock.log.topics import Topic, Topics
from penstock.model.errors import InvalidTopicName, UnknownTopic, UnknownView, ViewExists
from penstock.security.principal import Principal

QUEUE_TOPIC_SETTINGS = {"cleanup.policy": "settled"}  # of topics that are made for a view


class ViewChanges:
    def __init__(
        self, host: ViewHost, registry: Registry, floors: Floors, topics: Topics, administrator: Administrator
    ) -> None:
        self._host = host
        self._registry = registry
        self._floors = floors
        self._topics = topics
        self._administrator = administrator
        self.expiry = Expiry(host, self._end)

    async def create(
        self,
        principal: Principal,
        topic: str,
        name: str,
        settings: QueueSettings | None,
        matches: Sequence[Match],
        start: Start,
        *,
        or_existing: bool,
    ) -> View:
        address = address_of(topic, name)
        async with self._registry.change(address):
            known = self._registry.by_address.get(address)
            if known is None:
                found = await self._administrator.topic_on_first_use(principal, topic, settings=QUEUE_TOPIC_SETTINGS)
                return await self._add(found, name, settings, matches, start)
        if not or_existing:
            raise ViewExists(f"there is a queue view {address!r} already")
        return known

    async def ensure(self, topic: Topic, name: str, settings: QueueSettings, matches: Sequence[Match]) -> View:
        """A view of the broker's own, made when first needed."""
        address = address_of(topic.name, name)
        async with self._registry.change(address):
            known = self._registry.by_address.get(address)
            return known or await self._add(topic, name, settings, matches, "earliest")

    async def _add(
        self, topic: Topic, name: str, settings: QueueSettings | None, matches: Sequence[Match], start: Start
    ) -> View:
        _check_readable(topic)
        chosen = _promising(settings or QueueSettings(), topic)
        view = await self._registry.add(topic, name, chosen, Source(topic.name, tuple(matches)), start)
        if self._topics.by_id.get(topic.id) is not topic:  # deleted meanwhile, when it had no such view yet
            await self._registry.erase(view, UnknownView(f"topic {topic.name!r} was deleted"))
            raise UnknownTopic(f"topic {topic.name!r} was deleted")
        self._floors.tell_topic(topic)
        self.expiry.use(view)
        return view

    async def configure(self, topic: str, name: str, settings: QueueSettings, matches: Sequence[Match] | None) -> View:
        async with self._registry.change(address_of(topic, name)):
            view = self._registry.get(topic, name)
            settings = _promising(settings, self._topics.get(topic))
            definition = msgspec.structs.replace(view.definition, settings=settings)
            if matches is not None:
                definition = definition.with_source(Source(topic, tuple(matches)))
            await self._registry.redefine(view, definition)
            view.shelf.clear()  # everything that waits is seen anew
            self._host.perform(view, view.machine.configure(self._host.now, settings))
            view.pump.start_anew()
        self.expiry.use(view)
        return view

    async def add_source(self, topic: str, name: str, source: Source, start: Start) -> View:
        async with self._registry.change(address_of(topic, name)):
            view = self._registry.get(topic, name)
            if view.definition.source(source.topic) != source:
                read = self._topics.get(source.topic)
                _check_readable(read)
                await self._registry.set_source(view, read, source, start)
                self._floors.tell_topic(read)
        return view

    async def remove_source(self, topic: str, name: str, source_topic: str) -> View:
        async with self._registry.change(address_of(topic, name)):
            view = self._registry.get(topic, name)
            await self._registry.drop_source(view, source_topic)
            read = self._topics.by_name.get(source_topic)
            if read is not None:
                self._floors.tell_topic(read)
        return view

    async def delete(self, topic: str, name: str, reason: str) -> None:
        async with self._registry.change(address_of(topic, name)):
            view = self._registry.get(topic, name)
            await self._registry.erase(view, UnknownView(reason))
        for read in view.topics:
            self._floors.tell_topic(read)

    async def _end(self, view: View) -> None:
        definition = view.definition
        await self.delete(definition.topic, definition.name, f"queue view {view.address!r} was unused for long")

    # -- with their topics ------------------------------------------------------------------------------------

    def topic_has_grown(self, topic: Topic) -> None:
        for view in self._registry.by_topic.get(topic.name, ()):
            self._host.spawn(self._fit(view, topic))

    async def _fit(self, view: View, topic: Topic) -> None:
        await self._registry.fit_in_the_end(view, topic)
        self._floors.tell_topic(topic)

    async def topic_is_gone(self, topic: str) -> None:
        """Its views are gone, too, and other views no longer read it; unless they are of a new topic of that name."""
        known = self._topics.by_name.get(topic)
        for view in list(self._registry.by_topic.get(topic, ())):
            if known is not None and known in view.topics:
                continue
            async with self._registry.change(view.address):
                if view.gone is None and view.definition.topic == topic:
                    await self._registry.erase(view, UnknownView(f"topic {topic!r} was deleted"), topic_is_gone=True)
                elif view.gone is None:
                    await self._registry.drop_source(view, topic, topic_is_gone=True)
        for view in list(self._registry.by_address.values()):  # those that no longer read their own topic
            if view.definition.topic == topic and (known is None or known.id.hex != view.definition.topic_id):
                async with self._registry.change(view.address):
                    if view.gone is None:
                        gone = UnknownView(f"topic {topic!r} was deleted")
                        await self._registry.erase(view, gone, topic_is_gone=True)


def _promising(settings: QueueSettings, topic: Topic) -> QueueSettings:
    """With the topic's guarantee where the view does not ask for its own."""
    if settings.guarantee is not None:
        return settings
    return msgspec.structs.replace(settings, guarantee=topic.settings.guarantee)


def _check_readable(topic: Topic) -> None:
    if topic.internal:
        raise InvalidTopicName(f"topic {topic.name!r} is the broker's own; it has no queue views")
