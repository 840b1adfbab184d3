"""Topics: finding, listing, making, changing and deleting them."""

from penstock.doors.line.binary_api import Call, handles
from penstock.log.topics import Topic
from penstock.wire.native.messages import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    Done,
    FindTopic,
    ListTopics,
    TopicInfo,
    Topics,
)


@handles(FindTopic)
async def find_topic(call: Call, request: FindTopic) -> Topics:
    topic = await call.broker.administrator.topic_on_first_use(call.principal, request.name, allowed=request.create)
    return Topics([_info(topic)])


@handles(ListTopics)
async def list_topics(call: Call, request: ListTopics) -> Topics:
    return Topics([_info(topic) for topic in call.broker.observer.topics(call.principal)])


@handles(CreateTopic)
async def create_topic(call: Call, request: CreateTopic) -> Topics:
    topic = await call.broker.administrator.create_topic(
        call.principal, request.name, request.partitions, request.settings
    )
    return Topics([_info(topic)])


@handles(DeleteTopic)
async def delete_topic(call: Call, request: DeleteTopic) -> Done:
    await call.broker.administrator.delete_topic(call.principal, request.name)
    return Done()


@handles(AlterTopic)
async def alter_topic(call: Call, request: AlterTopic) -> Done:
    administrator = call.broker.administrator
    if request.settings:
        await administrator.change_settings(call.principal, request.name, request.settings)
    if request.partitions is not None:
        await administrator.add_partitions(call.principal, request.name, request.partitions)
    return Done()


def _info(topic: Topic) -> TopicInfo:
    return TopicInfo(topic.name, topic.partition_count, dict(topic.settings.overrides))
