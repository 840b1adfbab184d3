"""What the jobs' drivers ask the broker: about topics, their bounds and settings, and the groups that read them."""

from types import TracebackType
from typing import Any, NamedTuple, Self

from penstock.model.errors import UnknownTopic
from penstock.pipeline.link import Link
from penstock.wire.native import messages as wire

CLIENT = "penstock-pipeline"
TIMEOUT_S = 60.0  # that a server may be away


class Bounds(NamedTuple):
    """Of a partition's log. Before `stable` everything is decided: no transaction is open there."""

    start: int
    end: int
    stable: int
    found: int = -1  # the first at or after the time that was asked for


class TopicFacts(NamedTuple):
    name: str
    topic_id: str
    partitions: int
    settings: dict[str, str]  # all of them, defaults too
    chosen: dict[str, str]  # those that were set for this topic

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.settings.get("cleanup.policy", "").split(",")


class Desk:
    """Asked one thing after another; many bounds at once. What is asked is asked again when the connection breaks."""

    def __init__(self, server: str) -> None:
        self._link = Link(server, timeout_s=TIMEOUT_S, client=CLIENT)
        self._link.connection()  # a server that is not there is told before anything else is begun

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.close()

    def ask(self, message: wire.Message) -> Any:
        return self._link.ask(message)

    def ask_once(self, message: wire.Message) -> Any:
        """For what must not be repeated without a look at what has come of it."""
        return self._link.connection().request(message)

    # -- topics -------------------------------------------------------------------------------------------------

    def find(self, name: str) -> TopicFacts | None:
        described = self.ask(wire.DescribeTopics([name])).topics
        if not described:
            return None
        topic: wire.TopicDescription = described[0]
        settings = {each.name: each.value for each in topic.settings}
        chosen = {each.name: each.value for each in topic.settings if each.source == "topic"}
        return TopicFacts(topic.name, topic.topic_id, len(topic.partitions), settings, chosen)

    def topic(self, name: str) -> TopicFacts:
        found = self.find(name)
        if found is None:
            raise UnknownTopic(f"there is no topic {name!r} on this server")
        return found

    def names(self) -> list[str]:
        return [topic.name for topic in self.ask(wire.ListTopics()).topics]

    def bounds(self, topic: TopicFacts, time_ms: int | None = None) -> list[Bounds]:
        """Of each partition, in their order."""
        asked = [wire.ListOffsets(topic.name, partition, time_ms) for partition in range(topic.partitions)]
        replies: list[wire.Offsets] = self._link.ask_all(asked)
        return [
            Bounds(reply.start, reply.end, reply.end if reply.stable < 0 else reply.stable, reply.found)
            for reply in replies
        ]

    # -- groups and views ---------------------------------------------------------------------------------------

    def commits(self, topic: str) -> dict[str, dict[int, int]]:
        """Of each group that has read something of this topic, the next offset by partition."""
        groups = [group.name for group in self.ask(wire.ListGroups()).groups]
        replies: list[wire.Commits] = self._link.ask_all([wire.Committed(group, topic) for group in groups])
        return {
            group: {partition: offset for _, partition, offset in reply.offsets}
            for group, reply in zip(groups, replies, strict=True)
            if reply.offsets
        }

    def views(self, topic: str | None = None) -> list[wire.View]:
        views: list[wire.View] = self.ask(wire.ListViews(topic)).views
        return views
