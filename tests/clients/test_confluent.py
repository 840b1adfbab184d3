"""librdkafka, through confluent-kafka: the client whose habits most others share."""

import time

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
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
from members import ConfluentMember
from story import WAIT_S, create_topic, end_offsets, eventually, read_topic, read_values

from penstock.testing.proxy import FETCH, PRODUCE, Proxy
from penstock.testing.server import Server
from servers import StartServer


def producer_for(address: str, **config: object) -> Producer:
    options = {key.replace("_", "."): value for key, value in config.items()}
    return Producer({"bootstrap.servers": address, "linger.ms": 1, "log_level": 2, **options})


def consumer_for(address: str, group: str, **config: object) -> Consumer:
    options = {key.replace("_", "."): value for key, value in config.items()}
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
            "fetch.wait.max.ms": 100,
            "log_level": 2,
            **options,
        }
    )


def publish(address: str, topic: str, values: list[bytes], **config: object) -> None:
    producer = producer_for(address, **config)
    for value in values:
        producer.produce(topic, value, on_delivery=must_succeed)
    assert producer.flush(WAIT_S) == 0


def must_succeed(error: KafkaError | None, message: object) -> None:
    assert error is None, error


def take(consumer: Consumer, count: int, timeout_s: float = WAIT_S) -> list[bytes | None]:
    values: list[bytes | None] = []
    deadline = time.monotonic() + timeout_s
    while len(values) < count:
        assert time.monotonic() < deadline, f"only {len(values)} of {count} messages came"
        for message in consumer.consume(count - len(values), 0.1):
            assert message.error() is None, message.error()
            values.append(message.value())
    return values


# -- producing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_comes_back_as_it_went(server: Server, topic: str, compression: str) -> None:
    values = [b"%d " % number * 50 for number in range(500)]
    publish(server.kafka, topic, values, compression_type=compression, enable_idempotence=True)
    assert read_values(server.kafka, topic, 500) == values


def test_keys_nulls_headers_and_timestamps_are_kept(server: Server, topic: str) -> None:
    producer = producer_for(server.kafka)
    headers = [("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b""), ("null", None)]
    producer.produce(topic, b"value", b"key", headers=headers, timestamp=1_600_000_000_123)
    producer.produce(topic, None, b"tombstone", timestamp=1_600_000_000_124)
    producer.produce(topic, b"", b"", timestamp=1_600_000_000_125)
    producer.produce(topic, b"keyless", timestamp=1_600_000_000_126)
    assert producer.flush(WAIT_S) == 0

    first, tombstone, empty, keyless = read_topic(server.kafka, topic, 4)[0]
    assert (first.key(), first.value(), first.headers()) == (b"key", b"value", headers)
    assert (tombstone.key(), tombstone.value(), tombstone.headers()) == (b"tombstone", None, None)
    assert (empty.key(), empty.value()) == (b"", b"")
    assert (keyless.key(), keyless.value()) == (None, b"keyless")
    stamps = [message.timestamp() for message in (first, tombstone, empty, keyless)]
    assert stamps == [(1, 1_600_000_000_123 + step) for step in range(4)]  # 1: the producer's time
    assert [message.offset() for message in (first, tombstone, empty, keyless)] == [0, 1, 2, 3]


def test_log_append_time_is_the_servers(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic, message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    producer = producer_for(server.kafka)
    producer.produce(topic, b"when?", timestamp=1_000)
    assert producer.flush(WAIT_S) == 0
    (message,) = read_topic(server.kafka, topic, 1)[0]
    kind, stamp_ms = message.timestamp()
    assert kind == 2
    assert before_ms - 1000 <= stamp_ms <= time.time() * 1000 + 1000


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(server: Server, topic: str, acks: str) -> None:
    create_topic(server.kafka, topic)
    publish(server.kafka, topic, [b"%d" % number for number in range(100)], acks=acks)
    eventually(lambda: end_offsets(server.kafka, topic) == {0: 100}, "all messages stored")
    assert read_values(server.kafka, topic, 100) == [b"%d" % number for number in range(100)]


def test_messages_of_more_than_a_megabyte(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic, max_message_bytes=str(8 << 20))
    values = [bytes([number]) * (1 << 20) * (number + 1) for number in range(4)]
    publish(server.kafka, topic, values, message_max_bytes=8 << 20)
    assert read_values(server.kafka, topic, 4) == values


def test_a_message_over_the_topics_limit_is_refused_and_the_next_one_is_not(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic, max_message_bytes="1000")
    errors: list[KafkaError | None] = []
    producer = producer_for(server.kafka)
    for value in (b"x" * 5000, b"fits"):
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(WAIT_S) == 0
    assert errors[0] is not None
    assert errors[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert errors[1] is None
    assert read_values(server.kafka, topic, 1) == [b"fits"]


def test_a_hundred_and_twenty_partitions(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic, partitions=120)
    producer = producer_for(server.kafka)
    for number in range(1200):
        producer.produce(topic, b"%d" % number, partition=number % 120, on_delivery=must_succeed)
    assert producer.flush(WAIT_S) == 0
    found = read_topic(server.kafka, topic, 1200)
    assert len(found) == 120
    for partition, messages in found.items():
        assert [int(message.value() or b"") for message in messages] == list(range(partition, 1200, 120))


def test_an_unknown_topic_is_an_error_where_topics_are_not_made_on_first_use(
    start_server: StartServer, topic: str
) -> None:
    strict = start_server(auto_create_topics=False)
    producer = producer_for(strict.kafka, topic_metadata_propagation_max_ms=200, message_timeout_ms=3000)
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"into the void", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert errors[0] is not None
    assert errors[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._MSG_TIMED_OUT)
    assert topic not in producer.list_topics(timeout=WAIT_S).topics


# -- idempotence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["requests", "replies"])
def test_idempotent_producer_with_forced_retries_stores_all_once_in_order(
    start_server: StartServer, topic: str, lost: str
) -> None:
    with Proxy() as proxy:
        server = start_server(kafka_advertised=proxy.address)
        proxy.upstream = server.kafka
        create_topic(proxy.address, topic, partitions=3)
        rule = getattr(proxy, f"lose_{lost}")(PRODUCE, every=7)
        producer = producer_for(
            proxy.address,
            enable_idempotence=True,
            batch_num_messages=20,
            linger_ms=0,
            reconnect_backoff_ms=1,
            reconnect_backoff_max_ms=20,
            retry_backoff_ms=5,
        )
        acknowledged: list[tuple[int, int]] = []

        def note(error: KafkaError | None, message: object) -> None:
            assert error is None, error
            acknowledged.append((message.partition(), message.offset()))  # type: ignore[attr-defined]

        for number in range(1500):
            producer.produce(topic, b"%d" % number, partition=number % 3, on_delivery=note)
            if number % 10 == 0:
                producer.poll(0.001)  # so that the load comes as many requests, not one
        assert producer.flush(60) == 0
        proxy.behave()
        assert rule.lost >= 3, "the test lost too little to prove anything"
        assert len(set(acknowledged)) == 1500
        found = read_topic(proxy.address, topic, 1500)
    for partition, messages in found.items():
        assert [int(message.value() or b"") for message in messages] == list(range(partition, 1500, 3))


def test_consumer_survives_lost_fetches(start_server: StartServer, topic: str, group: str) -> None:
    with Proxy() as proxy:
        server = start_server(kafka_advertised=proxy.address)
        proxy.upstream = server.kafka
        for start in range(0, 2000, 100):  # in many batches, so that there are many fetches
            publish(proxy.address, topic, [b"%d" % number for number in range(start, start + 100)])
        rule = proxy.lose_replies(FETCH, every=2, limit=5)
        consumer = consumer_for(
            proxy.address, group, fetch_message_max_bytes=2000, reconnect_backoff_ms=1, reconnect_backoff_max_ms=20
        )
        consumer.subscribe([topic])
        assert take(consumer, 2000) == [b"%d" % number for number in range(2000)]
        consumer.close()
        assert rule.lost >= 1


# -- consuming ---------------------------------------------------------------------------------------------------------


def test_a_parked_fetch_is_woken_by_new_data(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic)
    consumer = consumer_for(server.kafka, group, fetch_wait_max_ms=8000, fetch_min_bytes=1)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.5) is None  # by now the fetch is parked
    started = time.monotonic()
    publish(server.kafka, topic, [b"wake up"])
    assert take(consumer, 1) == [b"wake up"]
    assert time.monotonic() - started < 4
    consumer.close()


def test_a_parked_fetch_waits_for_min_bytes(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic)
    consumer = consumer_for(server.kafka, group, fetch_wait_max_ms=1500, fetch_min_bytes=100_000)
    publish(server.kafka, topic, [b"thin"])
    started = time.monotonic()
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert take(consumer, 1) == [b"thin"]
    assert time.monotonic() - started > 1.2
    consumer.close()


def test_a_new_group_may_start_at_the_beginning(server: Server, topic: str, group: str) -> None:
    publish(server.kafka, topic, [b"old"])
    consumer = consumer_for(server.kafka, group, auto_offset_reset="earliest")
    consumer.subscribe([topic])
    assert take(consumer, 1) == [b"old"]
    consumer.close()


def test_a_new_group_may_start_at_the_end(server: Server, topic: str, group: str) -> None:
    publish(server.kafka, topic, [b"old"])
    consumer = consumer_for(server.kafka, group, auto_offset_reset="latest")
    consumer.subscribe([topic])

    def first_read() -> bytes | None:
        publish(server.kafka, topic, [b"new"])  # again and again: where the end is when the group looks, is its affair
        message = consumer.poll(0.2)
        return message and message.value()

    assert eventually(first_read, "a message after the start") == b"new"
    consumer.close()


def test_a_new_group_may_refuse_to_guess(server: Server, topic: str, group: str) -> None:
    publish(server.kafka, topic, [b"old"])
    consumer = consumer_for(server.kafka, group, auto_offset_reset="error")
    consumer.subscribe([topic])
    message = eventually(lambda: consumer.poll(0.1), "an error event")
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    consumer.close()


def test_seeking_by_timestamp(server: Server, topic: str, group: str) -> None:
    producer = producer_for(server.kafka)
    for number in range(10):
        producer.produce(topic, b"%d" % number, timestamp=1_000_000 + number * 1000)
        assert producer.flush(WAIT_S) == 0
    consumer = consumer_for(server.kafka, group)
    asked = [TopicPartition(topic, 0, stamp) for stamp in (0, 1_004_500)]
    assert [consumer.offsets_for_times([one], WAIT_S)[0].offset for one in asked] == [0, 5]
    (beyond,) = consumer.offsets_for_times([TopicPartition(topic, 0, 9_000_000)], WAIT_S)
    assert beyond.offset == -1  # librdkafka's OFFSET_END: no such message yet
    consumer.assign([TopicPartition(topic, 0, 5)])
    assert take(consumer, 5) == [b"5", b"6", b"7", b"8", b"9"]
    consumer.close()


def test_an_offset_out_of_range_is_reset(server: Server, topic: str, group: str) -> None:
    publish(server.kafka, topic, [b"only"])
    consumer = consumer_for(server.kafka, group)
    consumer.assign([TopicPartition(topic, 0, 500)])
    assert take(consumer, 1) == [b"only"]
    consumer.close()


def test_committed_offsets_and_metadata_are_kept(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic, partitions=2)
    consumer = consumer_for(server.kafka, group, enable_auto_commit=False)
    consumer.commit(offsets=[TopicPartition(topic, 0, 3, "a note"), TopicPartition(topic, 1, 9)], asynchronous=False)
    again = consumer_for(server.kafka, group)
    first, second = again.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], WAIT_S)
    assert (first.offset, first.metadata, second.offset) == (3, "a note", 9)
    consumer.close()
    again.close()


# -- groups ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_come_and_go_and_every_message_is_read(server: Server, topic: str, group: str, strategy: str) -> None:
    create_topic(server.kafka, topic, partitions=6)
    values = {b"%d" % number for number in range(600)}
    members = [ConfluentMember(server.kafka, group, topic, strategy)]
    eventually(lambda: len(members[0].owned) == 6, "one member owns all")
    members.append(ConfluentMember(server.kafka, group, topic, strategy))
    eventually(lambda: [len(member.owned) for member in members] == [3, 3], "two members share")
    assert not members[0].owned & members[1].owned
    publish(server.kafka, topic, sorted(values), sticky_partitioning_linger_ms=0)
    eventually(lambda: set(members[0].values + members[1].values) == values, "all messages arrived")
    assert len(members[0].values) + len(members[1].values) == 600  # calm between rebalances: nothing twice
    members[0].leave()
    eventually(lambda: len(members[1].owned) == 6, "the one who stays takes over")
    publish(server.kafka, topic, [b"after"])
    eventually(lambda: b"after" in members[1].values, "the message after the rebalance")
    members[1].leave()
    committed = Consumer({"bootstrap.servers": server.kafka, "group.id": group}).committed(
        [TopicPartition(topic, number) for number in range(6)], WAIT_S
    )
    assert sum(max(pair.offset, 0) for pair in committed) == 601


def test_a_static_member_returns_to_its_partitions_without_a_rebalance(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic, partitions=4)
    stays = ConfluentMember(server.kafka, group, topic, "range", group_instance_id="stays", session_timeout_ms=20000)
    returns = ConfluentMember(
        server.kafka, group, topic, "range", group_instance_id="returns", session_timeout_ms=20000
    )
    eventually(lambda: len(stays.owned) == 2 and len(returns.owned) == 2, "both share")
    had, assignments = set(returns.owned), stays.assignments
    returns.leave()  # a static member does not send LeaveGroup
    returned = ConfluentMember(
        server.kafka, group, topic, "range", group_instance_id="returns", session_timeout_ms=20000
    )
    eventually(lambda: len(returned.owned) == 2, "it is back")
    assert returned.owned == had
    assert stays.assignments == assignments
    assert len(stays.owned) == 2
    stays.leave()
    returned.leave()


def test_a_second_static_member_of_one_name_fences_the_first(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic)
    first = consumer_for(server.kafka, group, group_instance_id="same")
    first.subscribe([topic])
    eventually(lambda: first.poll(0.05) or first.assignment(), "an assignment")
    second = consumer_for(server.kafka, group, group_instance_id="same")
    second.subscribe([topic])

    def fenced() -> bool:
        second.poll(0.05)
        message = first.poll(0.05)
        return message is not None and message.error() is not None and message.error().code() == KafkaError._FATAL

    eventually(fenced, "the first is fenced")
    eventually(lambda: second.poll(0.05) or second.assignment(), "the second has its place")
    second.close()
    first.close()


def test_group_reads_on_across_a_restart_of_the_server(fresh_server: Server, topic: str, group: str) -> None:
    create_topic(fresh_server.kafka, topic, partitions=2)
    member = ConfluentMember(fresh_server.kafka, group, topic, "range", reconnect_backoff_max_ms=200)
    publish(fresh_server.kafka, topic, [b"before-%d" % number for number in range(50)])
    eventually(lambda: len(member.values) == 50, "the messages before")
    fresh_server.restart()
    publish(fresh_server.kafka, topic, [b"after-%d" % number for number in range(50)])
    eventually(lambda: {b"after-%d" % number for number in range(50)} <= set(member.values), "the messages after")
    member.leave()
    assert set(member.values) == {b"%s-%d" % (when, number) for when in (b"before", b"after") for number in range(50)}
    committed = Consumer({"bootstrap.servers": fresh_server.kafka, "group.id": group}).committed(
        [TopicPartition(topic, number) for number in range(2)], WAIT_S
    )
    assert sum(pair.offset for pair in committed) == 100


def test_idempotent_producer_goes_on_across_a_restart(fresh_server: Server, topic: str) -> None:
    producer = producer_for(
        fresh_server.kafka, enable_idempotence=True, reconnect_backoff_max_ms=200, retry_backoff_ms=20
    )
    for number in range(200):
        producer.produce(topic, b"%d" % number, on_delivery=must_succeed)
    assert producer.flush(WAIT_S) == 0
    fresh_server.restart()
    for number in range(200, 400):
        producer.produce(topic, b"%d" % number, on_delivery=must_succeed)
    assert producer.flush(WAIT_S) == 0
    assert read_values(fresh_server.kafka, topic, 400) == [b"%d" % number for number in range(400)]


# -- administration ----------------------------------------------------------------------------------------------------


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
