"""Topics: finding, listing, describing, making, changing and deleting them."""

from penstock.broker.observe import SettingView
from penstock.doors.line.binary_api import Call, handles
from penstock.log.topics import Topic
from penstock.model.errors import UnknownPartition, UnknownTopic
from penstock.wire.native.messages import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    DescribeTopics,
    Done,
    FindTopic,
    ListTopics,
    Message,
    PartitionInfo,
    SettingInfo,
    SwapTopics,
    TopicDescription,
    TopicDescriptions,
    TopicInfo,
    Topics,
)


@handles(FindTopic)
async def find_topic(call: Call, request: FindTopic) -> Topics:
    topic = await call.broker.administrator.topic_on_first_use(call.principal, request.name, allowed=request.create)
    return Topics([_info(topic)])


@handles(ListTopics)
async def list_topics(call: Call, request: ListTopics) -> Topics:
    topics = call.broker.observer.topics(call.principal, internal=request.internal)
    return Topics([_info(topic) for topic in topics])


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


@handles(SwapTopics)
async def swap_topics(call: Call, request: SwapTopics) -> object:
    return _swap(call, request)


async def _swap(call: Call, request: SwapTopics) -> Message:
    await call.broker.administrator.swap_topics(
        call.principal, request.name, request.other, request.ends, request.offsets, request.topic_id
    )
    return Done()


def _info(topic: Topic) -> TopicInfo:
    return TopicInfo(topic.name, topic.partition_count, dict(topic.settings.overrides), topic.internal)


# -- describing ---------------------------------------------------------------------------------------------


@handles(DescribeTopics)
async def describe_topics(call: Call, request: DescribeTopics) -> object:
    return _describe(call, request)


async def _describe(call: Call, request: DescribeTopics) -> Message:
    described = []
    for name in dict.fromkeys(request.names):
        try:
            described.append(await _description(call, name, request.settings))
        except (UnknownTopic, UnknownPartition):  # also of one that is deleted while we look
            continue
    return TopicDescriptions(described)


async def _description(call: Call, name: str, with_settings: bool) -> TopicDescription:
    observer = call.broker.observer
    topic = observer.topic(call.principal, name)
    nodes = [call.broker.node_id]
    partitions = []
    for index in range(topic.partition_count):
        partition = await observer.partition(call.principal, name, index)
        partitions.append(PartitionInfo(partition.start_offset, partition.durable_end, nodes[0], nodes, nodes))
    views = observer.settings_of(call.principal, topic) if with_settings else []
    settings = [SettingInfo(view.setting.name, view.value, _source(view)) for view in views]
    return TopicDescription(topic.name, str(topic.id), topic.internal, partitions, settings)


def _source(view: SettingView) -> str:
    return "topic" if view.own else "server" if view.server else "default"
