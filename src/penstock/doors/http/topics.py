"""Topics: list, create, look at, alter, delete."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.doors.http.call import Call, Reply, nothing, reply
from penstock.doors.http.routing import route
from penstock.model.errors import InvalidRequest

TOPICS = "Topics"

SettingValue = str | int | float | bool
PartitionCount = Annotated[int, Meta(ge=1, le=10_000)]


class NewTopic(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    partitions: PartitionCount | None = None
    settings: dict[str, SettingValue] = {}


class TopicChanges(msgspec.Struct, forbid_unknown_fields=True):
    """Settings that are null go back to the server's default. Partitions can only become more."""

    partitions: PartitionCount | None = None
    settings: dict[str, SettingValue | None] = {}


class PartitionInfo(msgspec.Struct):
    partition: int
    start_offset: int
    end_offset: int  # one past the last readable record


class TopicInfo(msgspec.Struct, omit_defaults=True):
    name: str
    id: str
    partitions: int
    settings: dict[str, str]  # those of its own
    offsets: list[PartitionInfo] | UnsetType = UNSET


class TopicList(msgspec.Struct):
    topics: list[TopicInfo]


class TopicsQuery(msgspec.Struct, forbid_unknown_fields=True):
    prefix: str = ""
    internal: bool = False


class TopicQuery(msgspec.Struct, forbid_unknown_fields=True):
    offsets: bool = True


def setting_text(value: SettingValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@route("GET", "/v1/topics", TOPICS, "List topics", query=TopicsQuery, reply=TopicList, reads=True)
async def list_topics(call: Call) -> Reply:
    """In the order of their names; `internal=true` shows the broker's own too."""
    query = call.query(TopicsQuery)
    topics = call.broker.observer.topics(call.principal, internal=query.internal)
    return reply(
        TopicList(
            [
                TopicInfo(t.name, str(t.id), t.partition_count, dict(t.settings.overrides))
                for t in topics
                if t.name.startswith(query.prefix)
            ]
        )
    )


@route("POST", "/v1/topics", TOPICS, "Create a topic", body=NewTopic, reply=TopicInfo, status=201)
async def create_topic(call: Call) -> Reply:
    """Settings have the names and values that Kafka gave them."""
    new = call.json(NewTopic)
    settings = {name: setting_text(value) for name, value in new.settings.items()}
    await call.broker.administrator.create_topic(call.principal, new.name, new.partitions, settings)
    return reply(await describe(call, new.name), 201, [(b"location", b"/v1/topics/" + new.name.encode())])


@route("GET", "/v1/topics/{topic}", TOPICS, "A topic and its offsets", query=TopicQuery, reply=TopicInfo, reads=True)
async def get_topic(call: Call) -> Reply:
    return reply(await describe(call, call["topic"], call.query(TopicQuery).offsets))


@route("PATCH", "/v1/topics/{topic}", TOPICS, "Alter a topic", body=TopicChanges, reply=TopicInfo)
async def alter_topic(call: Call) -> Reply:
    changes = call.json(TopicChanges)
    if changes.partitions is None and not changes.settings:
        raise InvalidRequest("nothing is to be changed: give `partitions` or `settings`")
    administrator, name = call.broker.administrator, call["topic"]
    if changes.partitions is not None:
        await administrator.add_partitions(call.principal, name, changes.partitions, validate_only=True)
    settings = {k: None if v is None else setting_text(v) for k, v in changes.settings.items()}
    if settings:
        await administrator.change_settings(call.principal, name, settings)
    if changes.partitions is not None:
        await administrator.add_partitions(call.principal, name, changes.partitions)
    return reply(await describe(call, name))


@route("DELETE", "/v1/topics/{topic}", TOPICS, "Delete a topic, its records and its queue views", status=204)
async def delete_topic(call: Call) -> Reply:
    await call.broker.administrator.delete_topic(call.principal, call["topic"])
    return nothing()


async def describe(call: Call, name: str, offsets: bool = True) -> TopicInfo:
    observer = call.broker.observer
    topic = observer.topic(call.principal, name)
    info = TopicInfo(topic.name, str(topic.id), topic.partition_count, dict(topic.settings.overrides))
    if offsets:
        info.offsets = []
        for index in range(topic.partition_count):
            partition = await observer.partition(call.principal, name, index)
            info.offsets.append(PartitionInfo(index, partition.start_offset, partition.durable_end))
    return info
