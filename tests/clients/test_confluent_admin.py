"""librdkafka's administration calls."""

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from story import WAIT_S, create_topic, eventually
from test_confluent import consumer_for, producer_for, publish, take

from penstock.testing.server import Server


@pytest.fixture
def admin(server: Server) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.kafka})


def test_topics_are_created_described_widened_and_deleted(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "1234567"})])[topic].result(WAIT_S)
    with pytest.raises(KafkaException) as twice:
        admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(WAIT_S)
    assert twice.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(WAIT_S)
    with pytest.raises(KafkaException) as fewer:
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(WAIT_S)
    assert fewer.value.args[0].code() == KafkaError.INVALID_PARTITIONS
    eventually(lambda: len(admin.list_topics(topic, WAIT_S).topics[topic].partitions) == 5, "five partitions")
    admin.delete_topics([topic])[topic].result(WAIT_S)
    eventually(lambda: topic not in admin.list_topics(timeout=WAIT_S).topics, "the topic is gone")
    with pytest.raises(KafkaException) as gone:
        admin.delete_topics([topic])[topic].result(WAIT_S)
    assert gone.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_bad_topic_is_refused(admin: AdminClient, topic: str) -> None:
    for new, code in [
        (NewTopic("no spaces please", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic(topic, 1, 5), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic(topic, 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
        (NewTopic(topic, 1, 1, config={"no.such.setting": "1"}), KafkaError.INVALID_CONFIG),
    ]:
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([new])[new.topic].result(WAIT_S)
        assert refused.value.args[0].code() == code


def test_topic_settings_are_read_and_changed(server: Server, admin: AdminClient, topic: str) -> None:
    create_topic(server.kafka, topic, retention_ms="1000000")
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def settings() -> dict[str, ConfigEntry]:
        (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return dict(future.result(WAIT_S))

    before = settings()
    assert before["retention.ms"].value == "1000000"
    assert not before["retention.ms"].is_default
    assert before["cleanup.policy"].value == "delete"
    assert before["cleanup.policy"].is_default
    change = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    forget = ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    resource.add_incremental_config(change)
    resource.add_incremental_config(forget)
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(WAIT_S)
    eventually(lambda: settings()["cleanup.policy"].value == "compact", "the setting shows")
    assert settings()["retention.ms"].value == "604800000"


def test_groups_are_listed_described_changed_and_deleted(
    server: Server, admin: AdminClient, topic: str, group: str
) -> None:
    publish(server.kafka, topic, [b"%d" % number for number in range(10)])
    consumer = consumer_for(server.kafka, group, client_id="the-reader", enable_auto_commit=False)
    consumer.subscribe([topic])
    assert len(take(consumer, 10)) == 10
    consumer.commit(asynchronous=False)

    assert group in {one.group_id for one in admin.list_consumer_groups().result(WAIT_S).valid}
    described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
    assert described.state.name == "STABLE"
    assert described.partition_assignor == "range"
    (member,) = described.members
    assert member.client_id == "the-reader"
    assert member.assignment.topic_partitions == [TopicPartition(topic, 0)]
    with pytest.raises(KafkaException) as busy:
        admin.delete_consumer_groups([group])[group].result(WAIT_S)
    assert busy.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    consumer.close()

    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(WAIT_S)
    assert [(pair.topic, pair.offset) for pair in listed.topic_partitions] == [(topic, 10)]
    back = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 4)])
    admin.alter_consumer_group_offsets([back])[group].result(WAIT_S)
    again = consumer_for(server.kafka, group)
    again.subscribe([topic])
    assert take(again, 6) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    again.close()
    admin.delete_consumer_groups([group])[group].result(WAIT_S)
    eventually(
        lambda: group not in {one.group_id for one in admin.list_consumer_groups().result(WAIT_S).valid}, "group gone"
    )


def test_offsets_are_listed_and_records_deleted(server: Server, admin: AdminClient, topic: str) -> None:
    producer = producer_for(server.kafka)
    for number in range(10):
        producer.produce(topic, b"%d" % number, timestamp=5_000 + number)
        producer.flush(WAIT_S)

    def offset(spec: OffsetSpec) -> int:
        pair = TopicPartition(topic, 0)
        (future,) = admin.list_offsets({pair: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED).values()
        return int(future.result(WAIT_S).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    assert offset(OffsetSpec.max_timestamp()) == 9
    assert offset(OffsetSpec.for_timestamp(5_004)) == 4
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 6)]).values()
    assert deleted.result(WAIT_S).low_watermark == 6
    assert offset(OffsetSpec.earliest()) == 6
    consumer = consumer_for(server.kafka, "nobody")
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert take(consumer, 4) == [b"6", b"7", b"8", b"9"]
    consumer.close()


def test_the_cluster_describes_itself(server: Server, admin: AdminClient, topic: str) -> None:
    create_topic(server.kafka, topic, partitions=2)
    cluster = admin.describe_cluster().result(WAIT_S)
    assert cluster.cluster_id
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == server.kafka
    from confluent_kafka import TopicCollection

    described = admin.describe_topics(TopicCollection([topic]))[topic].result(WAIT_S)
    assert [part.id for part in described.partitions] == [0, 1]
    assert str(described.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
