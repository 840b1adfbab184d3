"""Everything a client may ask about topics, queue views and routers: one call, one request."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

from penstock.client.message import Message
from penstock.client.session import Session
from penstock.model.batch import decode_batch
from penstock.model.errors import Conflict, TopicExists, UnknownRouter, UnknownTopic, UnknownView, ViewExists
from penstock.wire.native import messages as wire

DEFAULT_VIEW = "queue"
DESCRIBED_AT_ONCE = 100
RouterKind = Literal["direct", "fanout", "topic", "headers"]


class Match(TypedDict, total=False):
    """What a filter asks for; a filter is a list of these, and takes what any of them takes."""

    key: str  # the whole key
    pattern: str  # words between dots; `*` is one word, `#` any number of them
    headers: dict[str, str]
    any_header: bool  # one of the headers is enough


class Topic(NamedTuple):
    name: str
    partitions: int
    settings: dict[str, str]
    internal: bool = False


class Partition(NamedTuple):
    partition: int
    start: int
    end: int
    leader: int
    replicas: list[int]
    in_sync: list[int]


class TopicSetting(NamedTuple):
    name: str
    value: str
    source: str  # topic, server or default


class TopicDescription(NamedTuple):
    name: str
    topic_id: str
    internal: bool
    partitions: list[Partition]
    settings: list[TopicSetting]


class Queue(NamedTuple):
    """A queue view: its settings, what it reads, and its messages in numbers."""

    topic: str
    name: str
    settings: dict[str, int | float | str | bool | None]
    sources: list[tuple[str, list[wire.MatchFields]]]
    paused: bool
    counts: dict[str, int]

    @property
    def pending(self) -> int:
        return self.counts.get("pending", 0)

    @property
    def processing(self) -> int:
        return self.counts.get("processing", 0)

    @property
    def processed(self) -> int:
        return self.counts.get("processed", 0)


class Binding(NamedTuple):
    to: str
    key: str | None = None
    headers: Mapping[str, str] = {}
    any_header: bool = False


class Router(NamedTuple):
    name: str
    kind: str
    bindings: list[Binding]


def match_fields(matches: Sequence[Match]) -> list[wire.MatchFields]:
    return [dict(match) for match in matches]  # type: ignore[arg-type]


class Admin:
    """Mixed into the client. Repeating any of these after a lost answer is safe."""

    _session: Session

    # -- topics -------------------------------------------------------------------------------------------------

    async def create_topic(
        self, name: str, partitions: int | None = None, settings: Mapping[str, str] | None = None
    ) -> Topic:
        request = wire.CreateTopic(name, partitions, dict(settings or {}))
        answer = await self._session.call(request, done_if=TopicExists)
        return await self.topic(name) if answer is None else _topic(answer.topics[0])

    async def delete_topic(self, name: str) -> None:
        await self._session.call(wire.DeleteTopic(name), done_if=UnknownTopic)

    async def alter_topic(
        self, name: str, settings: Mapping[str, str | None] | None = None, partitions: int | None = None
    ) -> None:
        """Set these settings (None takes one back), and grow to so many partitions."""
        await self._session.call(wire.AlterTopic(name, dict(settings or {}), partitions))

    async def topics(self, *, internal: bool = False) -> list[Topic]:
        """All of them, the server's own only if asked for."""
        answer = await self._session.call(wire.ListTopics(internal))
        return [_topic(one) for one in answer.topics]

    async def topic(self, name: str) -> Topic:
        """Raises UnknownTopic; never makes one."""
        answer = await self._session.call(wire.FindTopic(name, create=False))
        return _topic(answer.topics[0])

    async def describe_topic(self, name: str) -> TopicDescription:
        """Where its partitions begin and end, and every setting with where it comes from. Raises UnknownTopic."""
        for found in await self.describe_topics([name]):
            return found
        raise UnknownTopic(f"there is no topic {name!r}")

    async def describe_topics(self, names: Iterable[str], *, settings: bool = True) -> list[TopicDescription]:
        """Those of these topics that there are."""
        wanted = list(names)
        found = []
        for start in range(0, len(wanted), DESCRIBED_AT_ONCE):
            request = wire.DescribeTopics(wanted[start : start + DESCRIBED_AT_ONCE], settings)
            found += (await self._session.call(request)).topics
        return [_described(one) for one in found]

    async def swap_topics(
        self,
        name: str,
        other: str,
        ends: Sequence[int],
        offsets: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        """Let two topics exchange their names, if the partitions of `name` end at `ends`; else Conflict is raised.

        `offsets`: what groups have of `name` from then on, by group and partition; all else that was committed for the
        two names is forgotten.
        """
        topic_id = (await self.describe_topic(name)).topic_id
        kept = [(group, *place) for group, places in (offsets or {}).items() for place in places.items()]
        answer = await self._session.call(wire.SwapTopics(name, other, list(ends), kept, topic_id), done_if=Conflict)
        if answer is None and (await self.describe_topic(name)).topic_id == topic_id:
            raise Conflict(f"topic {name!r} does not end where it was believed to, or is being written to")

    # -- queue views --------------------------------------------------------------------------------------------

    async def create_queue(
        self,
        topic: str,
        name: str = DEFAULT_VIEW,
        *,
        matches: Sequence[Match] = (),
        start: Literal["earliest", "latest"] = "earliest",
        or_existing: bool = False,
        **settings: Any,
    ) -> Queue:
        """A queue view with these settings, as docs/queues.md names them; the topic is made on first use."""
        request = wire.CreateView(topic, name, settings, match_fields(matches), start, or_existing)
        answer = await self._session.call(request, done_if=ViewExists)
        return await self.queue(topic, name) if answer is None else _queue(answer.views[0])

    async def configure_queue(
        self, topic: str, name: str = DEFAULT_VIEW, *, matches: Sequence[Match] | None = None, **settings: Any
    ) -> Queue:
        fields = None if matches is None else match_fields(matches)
        answer = await self._session.call(wire.ConfigureView(topic, name, settings, fields))
        return _queue(answer.views[0])

    async def queues(self, topic: str | None = None) -> list[Queue]:
        answer = await self._session.call(wire.ListViews(topic))
        return [_queue(view) for view in answer.views]

    async def queue(self, topic: str, name: str = DEFAULT_VIEW) -> Queue:
        """Raises UnknownView."""
        answer = await self._session.call(wire.ListViews(topic, name))
        return _queue(answer.views[0])

    async def delete_queue(self, topic: str, name: str = DEFAULT_VIEW) -> None:
        await self._session.call(wire.DeleteView(topic, name), done_if=UnknownView)

    async def pause_queue(self, topic: str, name: str = DEFAULT_VIEW) -> None:
        """Hand out nothing until it is resumed."""
        await self._session.call(wire.PauseView(topic, name, paused=True))

    async def resume_queue(self, topic: str, name: str = DEFAULT_VIEW) -> None:
        await self._session.call(wire.PauseView(topic, name, paused=False))

    async def purge_queue(self, topic: str, name: str = DEFAULT_VIEW) -> int:
        """Settle everything that is not leased; how many that were."""
        answer = await self._session.call(wire.PurgeView(topic, name))
        return int(answer.count)

    async def redrive_queue(self, topic: str, name: str = DEFAULT_VIEW, limit: int = 10_000) -> int:
        """Dead letters back to where they came from, for this view only; how many that were."""
        answer = await self._session.call(wire.RedriveView(topic, name, limit))
        return int(answer.count)

    async def peek_queue(self, topic: str, name: str = DEFAULT_VIEW, limit: int = 10) -> list[Message]:
        """The next messages, without leasing them."""
        answer = await self._session.call(wire.PeekView(topic, name, limit))
        return [
            Message(part.topic, part.partition, record, attempt)
            for part in answer.leased
            for record, attempt in zip(decode_batch(part.batch), part.attempts, strict=True)
        ]

    # -- routers ------------------------------------------------------------------------------------------------

    async def create_router(self, name: str, kind: RouterKind) -> Router:
        return _named(await self._session.call(wire.CreateRouter(name, kind)), name)

    async def delete_router(self, name: str) -> None:
        await self._session.call(wire.DeleteRouter(name), done_if=UnknownRouter)

    async def bind(
        self,
        router: str,
        to: str,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        any_header: bool = False,
    ) -> Router:
        """What the router's topic takes and this binding matches goes to `to`: a topic, or a view `<topic>/<name>`."""
        fields = wire.BindingFields(to, key, dict(headers or {}), any_header)
        return _named(await self._session.call(wire.Bind(router, fields)), router)

    async def unbind(
        self,
        router: str,
        to: str,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        any_header: bool = False,
    ) -> Router:
        fields = wire.BindingFields(to, key, dict(headers or {}), any_header)
        return _named(await self._session.call(wire.Unbind(router, fields)), router)

    async def routers(self) -> list[Router]:
        answer = await self._session.call(wire.ListRouters())
        return [_router(one) for one in answer.routers]


def _topic(info: wire.TopicInfo) -> Topic:
    return Topic(info.name, info.partitions, info.settings, info.internal)


def _described(topic: wire.TopicDescription) -> TopicDescription:
    partitions = [
        Partition(index, one.start, one.end, one.leader, one.replicas, one.in_sync)
        for index, one in enumerate(topic.partitions)
    ]
    settings = sorted(TopicSetting(one.name, one.value, one.source) for one in topic.settings)
    return TopicDescription(topic.name, topic.topic_id, topic.internal, partitions, settings)


def _queue(view: wire.View) -> Queue:
    return Queue(view.topic, view.name, view.settings, view.sources, view.paused, view.counts)


def _router(router: wire.Router) -> Router:
    bindings = [Binding(one.to, one.key, one.headers, one.any_header) for one in router.bindings]
    return Router(router.name, router.kind, bindings)


def _named(answer: wire.Routers, name: str) -> Router:
    return next(_router(one) for one in answer.routers if one.name == name)
