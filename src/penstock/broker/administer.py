"""Administration: creating, altering and deleting topics, their settings and their records."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from penstock.log.settings import SETTINGS, check_setting, topic_settings
from penstock.log.swap import Swap
from penstock.log.topics import Topic, Topics
from penstock.model.errors import Conflict, InvalidRequest, InvalidSetting, NotAllowed, OffsetOutOfRange, UnknownTopic
from penstock.model.ids import NO_TOPIC_ID, check_topic_name, is_internal
from penstock.security.acl import Authorizer, Operation, Resource
from penstock.security.principal import Principal

CLUSTER = "cluster"


class Administrator:
    def __init__(
        self,
        topics: Topics,
        authorizer: Authorizer,
        *,
        default_partitions: int,
        auto_create_topics: bool,
        topic_deleted: Callable[[str], Awaitable[None]],
        check_swap: Callable[[Swap], None] = lambda swap: None,
    ) -> None:
        """`check_swap` raises what speaks against giving these names other logs."""
        self._topics = topics
        self._authorizer = authorizer
        self.default_partitions = default_partitions
        self.auto_create_topics = auto_create_topics
        self._topic_deleted = topic_deleted
        self._check_swap = check_swap

    async def create_topic(
        self,
        principal: Principal,
        name: str,
        partitions: int | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> Topic:
        """Create a topic. When it is only validated, the topic as it would be, without an id."""
        self._check_create(principal, name)
        count = self.default_partitions if partitions is None else partitions
        if validate_only:
            return Topic(name, NO_TOPIC_ID, self._topics.check_new(name, count, settings or {}), [None] * count)
        return await self._topics.create(name, count, settings or {})

    async def topic_on_first_use(
        self, principal: Principal, name: str, *, allowed: bool = True, settings: Mapping[str, str] | None = None
    ) -> Topic:
        """The topic; made with these settings if it is not there and the server, and the client, allow that."""
        self._authorizer.check(principal, Operation.DESCRIBE, Resource.TOPIC, name)
        topic = self._topics.by_name.get(name)
        if topic is not None:
            return topic
        check_topic_name(name)
        if not (allowed and self.auto_create_topics) or is_internal(name):
            raise UnknownTopic(f"there is no topic {name!r}")
        self._check_create(principal, name)
        self._topics.check_new(name, self.default_partitions, settings or {})
        return await self._topics.create(name, self.default_partitions, settings or {}, or_existing=True)

    def _check_create(self, principal: Principal, name: str) -> None:
        if not self._authorizer.allows(principal, Operation.CREATE, Resource.CLUSTER, CLUSTER):
            self._authorizer.check(principal, Operation.CREATE, Resource.TOPIC, name)
        if is_internal(name):
            raise NotAllowed(f"names like {name!r} are the broker's own")

    async def delete_topic(self, principal: Principal, name: str) -> None:
        """Delete a topic, and what is kept elsewhere about it: the offsets that groups committed."""
        await self._topics.delete(self._own(principal, Operation.DELETE, name).name)
        await self._topic_deleted(name)

    async def swap_topics(
        self,
        principal: Principal,
        name: str,
        other: str,
        ends: Sequence[int],
        offsets: Sequence[tuple[str, int, int]] = (),
        topic_id: str | None = None,
    ) -> None:
        """Let two topics exchange their names, if `name` is the topic, and ends, as the caller believes; else Conflict.

        Groups have these offsets (group, partition, next offset to read) for `name` from then on, and no others.
        """
        for topic in (name, other):
            self._own(principal, Operation.ALTER, topic)
        if name == other:
            raise InvalidRequest(f"topic {name!r} cannot be swapped with itself")
        count = self._topics.get(other).partition_count
        for group, partition, offset in offsets:
            if not group or not 0 <= partition < count or offset < 0:
                raise InvalidRequest(f"{group!r}, {partition}, {offset} is no offset of {other!r} ({count} partitions)")
            self._authorizer.check(principal, Operation.READ, Resource.GROUP, group)
        swap = Swap(name, other, tuple(offsets))

        def check(topic: Topic) -> None:
            if topic_id is not None and str(topic.id) != topic_id:
                raise Conflict(f"topic {name!r} has the id {topic.id}, not {topic_id}")
            self._check_swap(swap)

        await self._topics.swap(swap, ends, check)

    async def add_partitions(self, principal: Principal, name: str, count: int, *, validate_only: bool = False) -> None:
        topic = self._own(principal, Operation.ALTER, name)
        if validate_only:
            self._topics.check_count_of(topic, count)
        else:
            await self._topics.add_partitions(name, count)

    async def replace_settings(
        self, principal: Principal, name: str, settings: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Give the topic exactly these settings of its own."""
        topic = self._own(principal, Operation.ALTER_CONFIGS, name)
        topic_settings(settings, self._topics.defaults)
        if not validate_only:
            await self._topics.alter(topic.name, settings)

    async def change_settings(
        self,
        principal: Principal,
        name: str,
        changes: Mapping[str, str | None],
        appended: Mapping[str, str] | None = None,
        removed: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Set some settings, or drop them (None); add items to those that are lists, or take items away."""
        topic = self._own(principal, Operation.ALTER_CONFIGS, name)
        settings = dict(topic.settings.overrides)
        for setting, value in changes.items():
            if value is None:
                if setting not in SETTINGS:
                    check_setting(setting, value)
                settings.pop(setting, None)
            else:
                settings[setting] = value
        for setting, value in (appended or {}).items():
            items = self._items(settings, setting)
            settings[setting] = ",".join(items + [i for i in _split(value) if i not in items])
        for setting, value in (removed or {}).items():
            settings[setting] = ",".join(i for i in self._items(settings, setting) if i not in _split(value))
        await self.replace_settings(principal, name, settings, validate_only=validate_only)

    def _items(self, settings: Mapping[str, str], name: str) -> list[str]:
        if name != "cleanup.policy":
            if name not in SETTINGS:
                check_setting(name, "")
            raise InvalidSetting(f"topic setting {name} is not a list")
        return _split(settings.get(name, self._topics.defaults.get(name, SETTINGS[name].default)))

    async def delete_records(self, principal: Principal, name: str, index: int, before_offset: int) -> int:
        """Forget everything before this offset (-1: everything). Returns the new start offset."""
        topic = self._own(principal, Operation.DELETE, name)
        partition = await self._topics.open(topic, index)
        if before_offset < -1:
            raise OffsetOutOfRange(f"offset {before_offset} is not an offset")
        await partition.trim(partition.durable_end if before_offset == -1 else before_offset)
        return partition.start_offset

    def _own(self, principal: Principal, operation: Operation, name: str) -> Topic:
        """A topic that users may administer."""
        self._authorizer.check(principal, operation, Resource.TOPIC, name)
        topic = self._topics.get(name)
        if topic.internal:
            raise NotAllowed(f"topic {name!r} is the broker's own")
        return topic


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
