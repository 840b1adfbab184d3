"""What the door answers to requests that are odd, as Apache Kafka 4.1 answers them: clients act on these codes."""

import struct
import uuid
from types import SimpleNamespace as Struct

import pytest
from crc32c import crc32c
from kafka_wire import Wire, batch

from penstock.doors.kafka.door import KafkaDoor
from penstock.doors.kafka.errors import TOPIC_AUTHORIZATION_FAILED
from penstock.model.batch import read_header
from penstock.model.errors import NotAllowed
from penstock.security.acl import AllowAll, Operation, Resource
from penstock.security.principal import Principal
from penstock.wire.kafka.api import ApiKey

NO_ID = uuid.UUID(int=0)
INVALID_TOPIC, UNSUPPORTED_VERSION, INVALID_ASSIGNMENT = 17, 35, 39
INVALID_SETTING, INVALID_REQUEST, OUT_OF_RANGE, OUT_OF_ORDER, INVALID_RECORD = 40, 42, 1, 45, 87
UNKNOWN_LEADER_EPOCH = 75
TOPIC, BROKER = 2, 4


def patched(data: bytearray, position: int, layout: str, value: int, *, new_checksum: bool = True) -> bytearray:
    """A batch with one field changed, and a checksum that is right again."""
    data = bytearray(data)
    struct.pack_into(layout, data, position, value)
    if new_checksum:
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return data


async def produce_code(wire: Wire, records: bytes | bytearray, topic: str = "orders") -> int:
    wire.send_produce(topic, records)
    code: int = (await wire.receive()).responses[0].partition_responses[0].error_code
    return code


# -- metadata ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "a/b", "x" * 250])
async def test_a_name_that_no_topic_can_have_is_not_merely_unknown(wire: Wire, name: str) -> None:
    topics = [Struct(name=name, topic_id=NO_ID)]
    reply = await wire.ask(ApiKey.METADATA, 12, topics=topics, allow_auto_topic_creation=False)
    assert reply.topics[0].error_code == INVALID_TOPIC
    resource = Struct(resource_type=TOPIC, resource_name=name, configuration_keys=None)
    assert (await wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource])).results[0].error_code == INVALID_TOPIC
    described = await wire.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[Struct(name=name)])
    assert described.topics[0].error_code == INVALID_TOPIC


async def test_a_topic_asked_for_twice_is_described_once_and_its_id_counts_more_than_its_name(wire: Wire) -> None:
    await wire.create("orders")
    orders = Struct(name="orders", topic_id=NO_ID)
    reply = await wire.ask(ApiKey.METADATA, 12, topics=[orders, orders])
    assert [topic.name for topic in reply.topics] == ["orders"]
    other_name = Struct(name="other", topic_id=reply.topics[0].topic_id)
    reply = await wire.ask(ApiKey.METADATA, 12, topics=[other_name])
    assert [(topic.error_code, topic.name) for topic in reply.topics] == [(0, "orders")]


async def test_who_asks_for_controllers_is_told_that_these_are_brokers(wire: Wire) -> None:
    for endpoint_type, code in ((1, 0), (2, 114), (7, 115)):
        reply = await wire.ask(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=endpoint_type)
        assert (reply.error_code, len(reply.brokers)) == (code, 0 if code else 1)


async def test_a_page_that_cannot_be_found_is_refused(wire: Wire) -> None:
    await wire.create("orders", 3)
    for cursor in (Struct(topic_name="orders", partition_index=-1), Struct(topic_name="zebra", partition_index=0)):
        reply = await wire.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[Struct(name="orders")], cursor=cursor)
        assert [(topic.error_code, topic.partitions) for topic in reply.topics] == [(INVALID_REQUEST, [])]


async def test_half_a_producer_is_no_producer(wire: Wire) -> None:
    for producer_id, epoch, code in ((-1, -1, 0), (5, 0, 0), (5, -1, INVALID_REQUEST), (-1, 3, INVALID_REQUEST)):
        reply = await wire.ask(
            ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, producer_id=producer_id, producer_epoch=epoch
        )
        assert reply.error_code == code


# -- topics -----------------------------------------------------------------------------------------------------


async def test_a_topic_only_validated_is_described_as_it_would_be(wire: Wire) -> None:
    asked = Struct(
        name="orders",
        num_partitions=3,
        replication_factor=1,
        assignments=[],
        configs=[Struct(name="retention.ms", value=" 5000 ")],
    )
    reply = (await wire.ask(ApiKey.CREATE_TOPICS, 7, topics=[asked], validate_only=True)).topics[0]
    assert (reply.error_code, reply.num_partitions, reply.replication_factor) == (0, 3, 1)
    assert {c.name: c.value for c in reply.configs}["retention.ms"] == "5000"
    assert (await wire.ask(ApiKey.METADATA, 12, topics=None)).topics == []


async def test_who_may_create_a_topic_need_not_know_its_settings(
    kafka_door: KafkaDoor, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SettingsHidden(AllowAll):
        def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
            if operation is Operation.DESCRIBE_CONFIGS:
                raise NotAllowed(name)

    monkeypatch.setattr(kafka_door.broker.observer, "_authorizer", SettingsHidden())
    asked = Struct(name="orders", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    reply = (await wire.ask(ApiKey.CREATE_TOPICS, 7, topics=[asked])).topics[0]
    assert (reply.error_code, reply.num_partitions) == (0, 1)
    assert (reply.configs, reply.topic_config_error_code) == (None, TOPIC_AUTHORIZATION_FAILED)


async def test_numbers_are_written_as_other_languages_read_them(wire: Wire) -> None:
    for text, code in (("+5", 0), ("1_000", INVALID_SETTING), ("٣", INVALID_SETTING), ("9" * 30, INVALID_SETTING)):
        configs = [Struct(name="retention.ms", value=text)]
        asked = Struct(name="orders", num_partitions=1, replication_factor=1, assignments=[], configs=configs)
        reply = await wire.ask(ApiKey.CREATE_TOPICS, 7, topics=[asked], validate_only=True)
        assert reply.topics[0].error_code == code, text


async def test_a_topic_named_twice_is_not_deleted(wire: Wire) -> None:
    await wire.create("orders")
    orders = Struct(name="orders", topic_id=NO_ID)
    both = Struct(name="orders", topic_id=uuid.uuid4())
    for topics in ([orders, orders], [both], [Struct(name=None, topic_id=NO_ID)]):
        reply = await wire.ask(ApiKey.DELETE_TOPICS, 6, topics=topics)
        assert [topic.error_code for topic in reply.responses] == [INVALID_REQUEST]
    assert [topic.error_code for topic in (await wire.ask(ApiKey.DELETE_TOPICS, 6, topics=[orders])).responses] == [0]


async def test_an_assignment_of_new_partitions_names_each_of_them(wire: Wire) -> None:
    await wire.create("orders", 2)
    node = (await wire.ask(ApiKey.METADATA, 12, topics=[])).brokers[0].node_id

    async def code(count: int, *assignments: list[int], times: int = 1) -> list[int]:
        asked = Struct(name="orders", count=count, assignments=[Struct(broker_ids=ids) for ids in assignments])
        reply = await wire.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[asked] * times, validate_only=True)
        return [result.error_code for result in reply.results]

    assert await code(3, [node]) == [0]
    assert await code(4, [node]) == [INVALID_ASSIGNMENT]
    assert await code(3, [node], [node]) == [INVALID_ASSIGNMENT]
    assert await code(3, [node], times=2) == [INVALID_REQUEST]


async def test_records_before_no_offset_at_all_cannot_be_deleted(wire: Wire) -> None:
    await wire.create("orders")
    topics = [Struct(name="orders", partitions=[Struct(partition_index=0, offset=-2)])]
    reply = await wire.ask(ApiKey.DELETE_RECORDS, 2, topics=topics)
    assert reply.topics[0].partitions[0].error_code == OUT_OF_RANGE


# -- settings ---------------------------------------------------------------------------------------------------


async def test_settings_asked_for_by_an_empty_list_are_all_of_them(wire: Wire) -> None:
    await wire.create("orders")
    for name, kind in (("orders", TOPIC), ("", BROKER)):
        results = []
        for keys in (None, []):
            resource = Struct(resource_type=kind, resource_name=name, configuration_keys=keys)
            results.append((await wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource])).results[0].configs)
        assert len(results[0]) == len(results[1]) > 0
        assert all(config.documentation is None for config in results[0])


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ([("retention.ms", 9, "1")], 1),
        ([("retention.ms", 0, None)], 1),
        ([("retention.ms", 0, "1"), ("retention.ms", 0, "2")], 1),
        ([("retention.ms", 0, "1")], 2),
    ],
)
async def test_an_unclear_change_of_settings_changes_nothing(
    wire: Wire, changes: list[tuple[str, int, str | None]], times: int
) -> None:
    await wire.create("orders")
    configs = [Struct(name=name, config_operation=operation, value=value) for name, operation, value in changes]
    resource = Struct(resource_type=TOPIC, resource_name="orders", configs=configs)
    reply = await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource] * times)
    assert [r.error_code for r in reply.responses] == [INVALID_REQUEST] * times
    asked = Struct(resource_type=TOPIC, resource_name="orders", configuration_keys=["retention.ms"])
    described = await wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[asked])
    assert described.results[0].configs[0].value == "604800000"


# -- produce ----------------------------------------------------------------------------------------------------


async def test_only_what_was_damaged_on_its_way_may_be_sent_again(wire: Wire) -> None:
    await wire.create("orders")
    sound = batch(b"a", b"b")
    old_format = b"\0" * 16 + b"\1" + b"\0" * 60
    assert await produce_code(wire, patched(sound, 70, ">B", 99, new_checksum=False)) == 2
    assert await produce_code(wire, patched(sound, 57, ">i", 9, new_checksum=False)) == 2
    assert await produce_code(wire, patched(sound, 57, ">i", 9)) == INVALID_RECORD
    assert await produce_code(wire, old_format) == INVALID_RECORD
    assert await produce_code(wire, sound[:-1]) == INVALID_RECORD
    assert await produce_code(wire, sound) == 0


async def test_a_batch_of_a_transaction_is_not_taken_without_one(wire: Wire) -> None:
    await wire.create("orders")
    assert await produce_code(wire, patched(batch(b"a"), 21, ">h", 0x10)) == INVALID_RECORD


async def test_what_only_the_broker_may_say_of_a_batch_is_taken_back(wire: Wire) -> None:
    await wire.create("orders")
    assert await produce_code(wire, patched(batch(b"a"), 21, ">h", 0x48)) == 0
    wire.send_fetch("orders", 0)
    stored = read_header((await wire.receive()).responses[0].partitions[0].records)
    assert stored.attributes == 0


async def test_a_producer_is_told_where_the_log_begins(wire: Wire) -> None:
    await wire.create("orders")
    await wire.produce("orders", b"a", b"b")
    topics = [Struct(name="orders", partitions=[Struct(partition_index=0, offset=1)])]
    await wire.ask(ApiKey.DELETE_RECORDS, 2, topics=topics)
    wire.send_produce("orders", batch(b"c"))
    assert (await wire.receive()).responses[0].partition_responses[0].log_start_offset == 1


async def test_a_number_before_the_first_is_not_acknowledged_as_a_repeat(wire: Wire) -> None:
    await wire.create("orders")
    assert await produce_code(wire, batch(b"a", producer=(7, 0, 5))) == 0
    assert await produce_code(wire, batch(b"b", producer=(7, 0, 0))) == OUT_OF_ORDER


# -- fetch and offsets ------------------------------------------------------------------------------------------


async def test_every_topic_stands_once_in_an_answer_and_every_partition_tells_its_end(wire: Wire) -> None:
    await wire.create("orders", 3)
    await wire.create("other")
    await wire.produce("orders", b"a", partition=0)
    await wire.produce("orders", b"b", partition=2)
    await wire.produce("other", b"c")
    asked = [
        Struct(topic=topic, partitions=[Struct(partition=p, fetch_offset=0, partition_max_bytes=1 << 20) for p in ps])
        for topic, ps in (("orders", (0, 1, 2)), ("other", (0,)))
    ]
    for max_bytes in (1 << 20, 1):  # all of it; or one batch, and the other partitions are not come to
        reply = await wire.ask(ApiKey.FETCH, 12, max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=asked)
        assert sorted(topic.topic for topic in reply.responses) == ["orders", "other"]
        ends = {(t.topic, p.partition_index): p.high_watermark for t in reply.responses for p in t.partitions}
        assert ends == {("orders", 0): 1, ("orders", 1): 0, ("orders", 2): 1, ("other", 0): 1}


async def test_what_is_refused_stays_in_its_session_until_it_is_asked_for_otherwise(wire: Wire) -> None:
    await wire.create("orders")
    await wire.produce("orders", b"a")

    async def code(session: tuple[int, int], leader_epoch: int | None) -> tuple[int, int | None]:
        partition = Struct(partition=0, fetch_offset=0, partition_max_bytes=100, current_leader_epoch=leader_epoch)
        reply = await wire.ask(
            ApiKey.FETCH,
            12,
            max_wait_ms=0,
            session_id=session[0],
            session_epoch=session[1],
            topics=[] if leader_epoch is None else [Struct(topic="orders", partitions=[partition])],
        )
        return reply.session_id, reply.responses[0].partitions[0].error_code if reply.responses else None

    session_id, first = await code((0, 0), 5)
    assert first == UNKNOWN_LEADER_EPOCH
    assert await code((session_id, 1), None) == (session_id, UNKNOWN_LEADER_EPOCH)
    assert await code((session_id, 2), 0) == (session_id, 0)
    assert await code((session_id, 3), 5) == (session_id, UNKNOWN_LEADER_EPOCH)


async def test_one_batch_comes_even_if_none_is_allowed(wire: Wire) -> None:
    await wire.create("orders")
    await wire.produce("orders", b"a")
    wire.send_fetch("orders", 0, max_bytes=0, wait_ms=15_000)
    assert len((await wire.receive()).responses[0].partitions[0].records) > 0


async def test_a_fetch_of_nothing_does_not_wait(wire: Wire) -> None:
    wire.send_fetch("orders", 0, partitions=(), wait_ms=600_000)
    assert (await wire.receive()).responses == []


async def test_a_reader_of_what_is_committed_gets_a_list_of_what_was_aborted(wire: Wire) -> None:
    await wire.create("orders")
    asked = [Struct(topic="orders", partitions=[Struct(partition=0, fetch_offset=0, partition_max_bytes=100)])]
    for isolation_level, aborted in ((0, None), (1, [])):
        reply = await wire.ask(ApiKey.FETCH, 12, max_wait_ms=0, isolation_level=isolation_level, topics=asked)
        assert reply.responses[0].partitions[0].aborted_transactions == aborted


async def test_a_time_that_a_version_does_not_know_is_a_matter_of_the_version(wire: Wire) -> None:
    await wire.create("orders")
    for version, timestamp, code in ((6, -3, UNSUPPORTED_VERSION), (7, -3, 0), (10, -99, UNSUPPORTED_VERSION)):
        topics = [Struct(name="orders", partitions=[Struct(partition_index=0, timestamp=timestamp)])]
        reply = await wire.ask(ApiKey.LIST_OFFSETS, version, topics=topics)
        assert reply.topics[0].partitions[0].error_code == code
