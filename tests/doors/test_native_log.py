"""Topics, publishing and reading the log through the binary protocol."""

import time

import pytest
from kafka_wire import Wire
from native_wire import NativeWire, batch, opened

from penstock.model.batch import encode_batch
from penstock.model.record import Record
from penstock.testing.server import Server
from penstock.wire.native.messages import (
    AlterTopic,
    Batch,
    Commit,
    Commits,
    Committed,
    CreateTopic,
    DeleteTopic,
    Done,
    Failure,
    Fetch,
    Fetched,
    FindTopic,
    ListOffsets,
    ListTopics,
    Offsets,
    ProducerId,
    Publish,
    Published,
    TakeProducerId,
    TopicInfo,
    Topics,
)
from servers import StartServer

# -- topics -------------------------------------------------------------------------------------------------


async def test_a_topic_lives_and_dies(native: NativeWire, topic: str) -> None:
    created = await native.ask(CreateTopic(topic, 3, {"retention.ms": "1000000"}), Topics)
    assert created.topics == [TopicInfo(topic, 3, {"retention.ms": "1000000"})]
    assert (await native.ask(FindTopic(topic), Topics)).topics == created.topics
    assert created.topics[0] in (await native.ask(ListTopics(), Topics)).topics

    await native.ask(AlterTopic(topic, {"retention.ms": None, "max.message.bytes": "9999"}, partitions=5), Done)
    assert (await native.ask(FindTopic(topic), Topics)).topics == [TopicInfo(topic, 5, {"max.message.bytes": "9999"})]

    await native.ask(DeleteTopic(topic), Done)
    assert (await native.refused(FindTopic(topic, create=False))).code == "unknown-topic"


async def test_finding_a_topic_makes_it_unless_told_not_to(native: NativeWire, topic: str) -> None:
    assert (await native.refused(FindTopic(topic, create=False))).code == "unknown-topic"
    (made,) = (await native.ask(FindTopic(topic), Topics)).topics
    assert made.name == topic


async def test_topics_that_are_refused(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    assert (await native.refused(CreateTopic(topic))).code == "topic-exists"
    assert (await native.refused(CreateTopic("with space"))).code == "invalid-topic-name"
    assert (await native.refused(CreateTopic(topic + "-2", 0))).code == "invalid-partitions"
    assert (await native.refused(CreateTopic(topic + "-2", None, {"no.such": "1"}))).code == "invalid-setting"
    assert (await native.refused(CreateTopic("__penstock_mine"))).code == "not-allowed"
    assert (await native.refused(AlterTopic(topic, partitions=1))).code == "invalid-partitions"
    assert (await native.refused(DeleteTopic(topic + "-3"))).code == "unknown-topic"


# -- publishing ---------------------------------------------------------------------------------------------


async def test_records_come_back_as_they_went_in(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    now_ms = time.time_ns() // 1_000_000
    records = [
        Record(0, now_ms, b"key", b"value", (("a", b"1"), ("a", None))),
        Record(1, now_ms + 7, None, None),
        Record(2, now_ms - 7, "größe".encode(), bytes(range(256))),
    ]
    for codec in range(5):
        sent = bytes(encode_batch(records, compression=codec))
        published = await native.ask(Publish(-1, [Batch(topic, 0, sent)]), Published)
        assert [stored.base_offset for stored in published.results] == [codec * 3]
    fetched = await native.ask(Fetch(topic, 0, 3, 1 << 20, 0), Fetched)
    assert (fetched.next_offset, fetched.start, fetched.end) == (15, 0, 15)
    assert opened(fetched.batches) == [
        Record(3 * codec + r.offset, r.timestamp_ms, r.key, r.value, r.headers)
        for codec in range(1, 5)
        for r in records
    ]


async def test_one_request_publishes_to_many_partitions_and_each_has_its_answer(native: NativeWire, topic: str) -> None:
    await native.create(topic, 2)
    damaged = bytearray(batch(b"damaged"))
    damaged[-1] ^= 1
    published = await native.ask(
        Publish(
            -1,
            [
                Batch(topic, 1, batch(b"a", b"b")),
                Batch(topic, 2, batch(b"no such partition")),
                Batch(topic + "-2", 0, batch(b"no such topic")),
                Batch(topic, 0, bytes(damaged)),
                Batch(topic, 0, b"never a batch"),
                Batch(topic, 1, batch(b"c")),
                Batch("__penstock_queues", 0, batch(b"not for you")),
            ],
        ),
        Published,
    )
    assert [(stored.base_offset, stored.error) for stored in published.results] == [
        (0, None),
        (-1, "unknown-partition"),
        (-1, "unknown-topic"),
        (-1, "corrupt-batch"),
        (-1, "invalid-record"),
        (2, None),
        (-1, "not-allowed"),
    ]
    assert published.results[2].retriable and not published.results[4].retriable
    assert await native.values(topic, partition=1) == [b"a", b"b", b"c"]
    assert await native.values(topic) == []


async def test_nothing_to_publish_is_published(native: NativeWire) -> None:
    assert (await native.ask(Publish(-1, []), Published)).results == []


async def test_requests_that_are_pipelined_are_stored_in_their_order(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    sent = [native.send_publish(topic, str(number).encode()) for number in range(500)]
    offsets = [(await native.reply(one, Published)).results[0].base_offset for one in sent]
    assert offsets == list(range(500))
    assert await native.values(topic) == [str(number).encode() for number in range(500)]


async def test_a_request_finds_what_an_earlier_one_made(native: NativeWire, topic: str) -> None:
    creating = native.send(CreateTopic(topic, 1))
    publishing = native.send_publish(topic, b"first")
    await native.reply(creating, Topics)
    assert (await native.reply(publishing, Published)).results[0].base_offset == 0
    deleting = native.send(DeleteTopic(topic))
    publishing_again = native.send_publish(topic, b"late")
    await native.reply(deleting, Done)
    assert (await native.reply(publishing_again, Published)).results[0].error == "unknown-topic"


async def test_without_acks_there_is_no_answer_but_to_what_failed(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    sent = [native.send_publish(topic, str(number).encode(), acks=0) for number in range(50)]
    failing = native.send_publish(topic + "-2", b"nowhere", acks=0)
    failure = await native.of(failing)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retriable) == ("unknown-topic", True)
    await native.publish(topic, b"last")
    assert await native.values(topic) == [*(str(number).encode() for number in range(50)), b"last"]
    assert not {correlation_id for correlation_id, _ in native.arrived} & set(sent)


async def test_acks_that_nobody_knows(native: NativeWire, topic: str) -> None:
    assert (await native.refused(Publish(2, []))).code == "invalid-request"


async def test_a_repeated_batch_is_stored_once(native: NativeWire, server: Server, topic: str) -> None:
    await native.create(topic)
    producer = await native.ask(TakeProducerId(), ProducerId)
    other = await native.ask(TakeProducerId(), ProducerId)
    assert producer.producer_id != other.producer_id
    first = batch(b"a", b"b", producer=(producer.producer_id, producer.epoch, 0))
    second = batch(b"c", producer=(producer.producer_id, producer.epoch, 2))
    again = await NativeWire.open(server.line)
    for wire in (native, again):
        published = await wire.ask(Publish(-1, [Batch(topic, 0, first), Batch(topic, 0, second)]), Published)
        assert [(stored.base_offset, stored.error) for stored in published.results] == [(0, None), (2, None)]
    gap = batch(b"e", producer=(producer.producer_id, producer.epoch, 4))
    (refused,) = (await native.ask(Publish(-1, [Batch(topic, 0, gap)]), Published)).results
    assert refused.error == "out-of-order-sequence"
    assert await native.values(topic) == [b"a", b"b", b"c"]
    await again.close()


async def test_a_batch_too_large_for_its_topic(native: NativeWire, topic: str) -> None:
    await native.create(topic, max_message_bytes="1000")
    (refused,) = (await native.reply(native.send_publish(topic, bytes(2000)), Published)).results
    assert refused.error == "record-too-large"


# -- fetching -----------------------------------------------------------------------------------------------


async def test_a_fetch_waits_for_what_comes(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    waiting = native.send_fetch(topic, 0, wait_ms=15_000)
    assert await native.publish(topic, b"here") == 0
    fetched = await native.reply(waiting, Fetched)
    assert [record.value for record in opened(fetched.batches)] == [b"here"]
    assert [kind for _, kind in native.arrived[-2:] if isinstance(kind, Fetched)] == [fetched]


async def test_a_fetch_that_finds_nothing_says_where_it_stands(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    await native.publish(topic, b"a", b"b")
    for wait_ms in (0, 30):
        fetched = await native.reply(native.send_fetch(topic, 2, wait_ms=wait_ms), Fetched)
        assert fetched == Fetched(b"", 2, 0, 2)


async def test_fetches_wait_side_by_side(native: NativeWire, topic: str) -> None:
    await native.create(topic, 20)
    waiting = [native.send_fetch(topic, 0, partition=index, wait_ms=15_000) for index in range(20)]
    for index in reversed(range(20)):
        await native.publish(topic, str(index).encode(), partition=index)
    for index, fetch in enumerate(waiting):
        (record,) = opened((await native.reply(fetch, Fetched)).batches)
        assert record.value == str(index).encode()


async def test_a_fetch_returns_one_batch_at_least_and_not_much_more_than_asked(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    for _ in range(4):
        await native.publish(topic, bytes(1000))
    one = await native.reply(native.send_fetch(topic, 0, max_bytes=1), Fetched)
    assert (len(opened(one.batches)), one.next_offset, one.end) == (1, 1, 4)
    two = await native.reply(native.send_fetch(topic, 1, max_bytes=2500), Fetched)
    assert [record.offset for record in opened(two.batches)] == [1, 2]


async def test_a_deleted_topic_ends_a_waiting_fetch(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    waiting = native.send_fetch(topic, 0, wait_ms=15_000)
    await native.ask(DeleteTopic(topic), Done)
    failure = await native.of(waiting)
    assert failure.code == "unknown-topic"


async def test_fetches_that_are_refused(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    assert (await native.refused(Fetch(topic, 0, 1, 100, 0))).code == "offset-out-of-range"
    assert (await native.refused(Fetch(topic, 0, -1, 100, 0))).code == "offset-out-of-range"
    assert (await native.refused(Fetch(topic, 1, 0, 100, 0))).code == "unknown-partition"
    assert (await native.refused(Fetch(topic + "-2", 0, 0, 100, 0))).code == "unknown-topic"
    assert (await native.refused(Fetch(topic, 0, 0, 0, 0))).code == "invalid-request"


async def test_a_client_that_goes_leaves_no_fetch_behind(start_server: StartServer, topic: str) -> None:
    server = start_server()
    staying = await NativeWire.open(server.line)
    await staying.create(topic)
    for _ in range(20):
        going = await NativeWire.open(server.line)
        for _ in range(50):
            going.send_fetch(topic, 0, wait_ms=600_000)
        going.writer.transport.abort()
    await staying.publish(topic, b"nobody waits")
    server.stop()  # would take its time if anybody did
    assert "Traceback" not in server.log_text()
    await staying.close()


# -- offsets ------------------------------------------------------------------------------------------------


async def test_where_a_partition_begins_and_ends(native: NativeWire, topic: str) -> None:
    await native.create(topic)
    assert await native.ask(ListOffsets(topic, 0), Offsets) == Offsets(0, 0, stable=0)
    now_ms = time.time_ns() // 1_000_000
    timed = [Record(number, now_ms + 1000 * number, None, b"x") for number in range(5)]
    await native.ask(Publish(-1, [Batch(topic, 0, bytes(encode_batch(timed)))]), Published)
    assert await native.ask(ListOffsets(topic, 0), Offsets) == Offsets(0, 5, stable=5)
    assert await native.ask(ListOffsets(topic, 0, now_ms + 1500), Offsets) == Offsets(0, 5, 2, 5)
    assert await native.ask(ListOffsets(topic, 0, now_ms + 999_999), Offsets) == Offsets(0, 5, 5, 5)
    assert (await native.refused(ListOffsets(topic, 7))).code == "unknown-partition"


async def test_what_a_group_has_read(native: NativeWire, topic: str, group: str) -> None:
    await native.create(topic, 2)
    await native.create(topic + "-2")
    assert (await native.ask(Committed(group), Commits)).offsets == []
    assert await native.ask(Commit(group, [(topic, 1, 7), (topic, 0, 3), (topic + "-2", 0, 9)]), Done) == Done(3)
    assert (await native.ask(Committed(group, topic), Commits)).offsets == [(topic, 0, 3), (topic, 1, 7)]
    await native.ask(Commit(group, [(topic, 0, 4)]), Done)
    everything = (await native.ask(Committed(group), Commits)).offsets
    assert sorted(everything) == sorted([(topic, 0, 4), (topic, 1, 7), (topic + "-2", 0, 9)])


async def test_commits_that_are_refused(native: NativeWire, topic: str, group: str) -> None:
    await native.create(topic)
    assert (await native.refused(Commit(group, [(topic, 5, 1)]))).code == "unknown-partition"
    assert (await native.refused(Commit(group, [(topic, 0, -1)]))).code == "invalid-request"
    assert (await native.refused(Commit(group, [(topic + "-2", 0, 1)]))).code == "unknown-topic"
    assert (await native.ask(Committed(group), Commits)).offsets == []


# -- with others --------------------------------------------------------------------------------------------


async def test_kafka_reads_what_was_published_here_and_the_other_way_round(server: Server, topic: str) -> None:
    native = await NativeWire.open(server.line)
    kafka = await Wire.open(int(server.kafka.rpartition(":")[2]))
    await native.create(topic)
    assert await native.publish(topic, b"native") == 0
    assert await kafka.produce(topic, b"kafka") == 1
    kafka.send_fetch(topic, 0)
    (found,) = (await kafka.receive()).responses[0].partitions
    fetched = await native.reply(native.send_fetch(topic, 0), Fetched)
    assert bytes(found.records) == fetched.batches
    assert await native.values(topic) == [b"native", b"kafka"]
    await native.close()
    await kafka.close()


async def test_what_was_answered_survives_a_kill_and_a_repeat_is_stored_once(
    start_server: StartServer, topic: str
) -> None:
    server = start_server()
    wire = await NativeWire.open(server.line)
    await wire.create(topic)
    producer = await wire.ask(TakeProducerId(), ProducerId)
    batches = [batch(str(number).encode(), producer=(producer.producer_id, 0, number)) for number in range(3)]
    for one in batches[:2]:
        await wire.ask(Publish(-1, [Batch(topic, 0, one)]), Published)
    # The third is on its way, at an unknown point of it, when the server dies.
    wire.send(Publish(-1, [Batch(topic, 0, batches[2])]))
    await wire.writer.drain()
    server.kill()
    with pytest.raises(ConnectionError):
        while True:
            await wire.next()

    server.restart()
    wire = await NativeWire.open(server.line)
    repeated = [(await wire.ask(Publish(-1, [Batch(topic, 0, one)]), Published)).results[0] for one in batches[1:]]
    assert [(stored.base_offset, stored.error) for stored in repeated] == [(1, None), (2, None)]
    assert await wire.values(topic) == [b"0", b"1", b"2"]
    assert (await wire.ask(TakeProducerId(), ProducerId)).producer_id > producer.producer_id
    await wire.close()


async def test_killed_in_the_middle_of_a_flood_nothing_answered_is_lost(start_server: StartServer, topic: str) -> None:
    server = start_server()
    wire = await NativeWire.open(server.line)
    await wire.create(topic)
    sent = {wire.send_publish(topic, str(number).encode()): number for number in range(2000)}
    answered: list[int] = []
    while len(answered) < 300:
        correlation_id, published = await wire.next()
        assert published.results[0].error is None
        answered.append(sent[correlation_id])
    server.kill()
    try:
        while True:
            correlation_id, _ = await wire.next()
            answered.append(sent[correlation_id])
    except ConnectionError:
        pass
    server.restart()
    wire = await NativeWire.open(server.line)
    values = await wire.values(topic)
    assert values == [str(number).encode() for number in range(len(values))]
    assert len(values) > max(answered)
    await wire.close()
