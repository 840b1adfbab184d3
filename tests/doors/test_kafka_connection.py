"""The Kafka door's manners: order, waiting, bounds, and what bad input does to a connection (and only to it)."""

import asyncio
import struct
from types import SimpleNamespace as Struct

import msgspec
import pytest
from kafka_wire import Wire, batch

from penstock.app import Server
from penstock.broker.fetch import Interest, Want
from penstock.config.settings import Settings
from penstock.doors.kafka import connection, errors
from penstock.doors.kafka.api import HANDLERS
from penstock.doors.kafka.door import KafkaDoor
from penstock.model import errors as nouns
from penstock.model.batch import decode_batch, walk
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.messages import decode_response, versions


async def values_of(wire: Wire) -> list[bytes]:
    reply = await wire.receive()
    found = []
    for topic in reply.responses:
        for partition in topic.partitions:
            records = bytes(partition.records or b"")
            for header in walk(records):
                found.extend(record.value for record in decode_batch(records, header.position))
    return found


async def until_gone(door: KafkaDoor) -> None:
    """Until the door has noticed that every connection is closed."""
    while door.limits.connections:
        door.listener._changed.clear()
        await door.listener._changed.wait()


def test_every_error_has_a_code_of_its_own_or_its_parents() -> None:
    nouns_of_the_tree = [n for n in vars(nouns).values() if isinstance(n, type) and issubclass(n, nouns.PenstockError)]
    for noun in nouns_of_the_tree:
        if noun is not nouns.PenstockError:
            assert errors.error_code(noun("x")) != errors.UNKNOWN_SERVER_ERROR, noun
    assert errors.error_code(nouns.PenstockError("x")) == errors.UNKNOWN_SERVER_ERROR


def test_every_served_version_has_a_table() -> None:
    for api_key, served in HANDLERS.items():
        first, last = versions(api_key)
        assert first <= served.min_version <= served.max_version <= last, ApiKey(api_key)


async def test_versions_are_told_and_nothing_else_is_promised(wire: Wire) -> None:
    reply = await wire.ask(ApiKey.API_VERSIONS, 3, client_software_name="t", client_software_version="1")
    told = {key.api_key: (key.min_version, key.max_version) for key in reply.api_keys}
    assert set(told) == set(HANDLERS)
    assert told[ApiKey.PRODUCE] == (0, 13)
    assert told[ApiKey.FETCH] == (4, 18)


async def test_an_unknown_version_of_api_versions_is_answered_as_version_0(wire: Wire) -> None:
    wire.send_raw(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 99, 7, -1))
    frame = await wire.receive_raw()
    correlation_id, reply = decode_response(ApiKey.API_VERSIONS, 0, frame)
    assert (correlation_id, reply.error_code) == (7, 35)
    assert any(key.api_key == ApiKey.API_VERSIONS for key in reply.api_keys)


async def test_replies_keep_the_order_of_requests_although_the_first_waits(kafka_door: KafkaDoor, wire: Wire) -> None:
    await wire.create("orders")
    wire.send_fetch("orders", 0, wait_ms=20_000)
    wire.send(ApiKey.METADATA, 9, topics=None)
    wire.send_produce("orders", batch(b"a"))  # what the fetch waits for is behind it on the same connection
    assert await values_of(wire) == [b"a"]
    assert (await wire.receive()).topics[0].name == "orders"
    assert (await wire.receive()).responses[0].partition_responses[0].base_offset == 0


async def test_a_waiting_reader_does_not_hold_another_connection(kafka_door: KafkaDoor, wire: Wire) -> None:
    await wire.create("orders")
    wire.send_fetch("orders", 0, wait_ms=20_000)
    other = await Wire.open(kafka_door.listener.port)
    assert await other.produce("orders", b"hello") == 0
    assert await values_of(wire) == [b"hello"]
    await other.close()


async def test_a_thin_answer_waits_for_enough_bytes(kafka_door: KafkaDoor, wire: Wire) -> None:
    await wire.create("orders")
    other = await Wire.open(kafka_door.listener.port)
    size = len(batch(b"x" * 100))
    wire.send_fetch("orders", 0, wait_ms=20_000, min_bytes=3 * size)
    for _ in range(3):
        await other.produce("orders", b"x" * 100)
    assert len(await values_of(wire)) == 3
    await other.close()


async def test_a_fetch_ends_when_its_time_is_over(wire: Wire) -> None:
    await wire.create("orders")
    wire.send_fetch("orders", 0, wait_ms=30)
    reply = await wire.receive()
    assert (reply.responses[0].partitions[0].error_code, reply.responses[0].partitions[0].high_watermark) == (0, 0)


async def test_limits_of_bytes_are_kept_but_one_batch_always_comes(wire: Wire) -> None:
    await wire.create("orders", partitions=3)
    for partition in range(3):
        for _ in range(4):
            await wire.produce("orders", b"x" * 1000, partition=partition)
    size = len(batch(b"x" * 1000))
    wire.send_fetch("orders", 0, partition_max_bytes=1)
    assert len(await values_of(wire)) == 1
    wire.send_fetch("orders", 0, partition_max_bytes=2 * size + 10)
    assert len(await values_of(wire)) == 2
    wire.send_fetch("orders", 0, partitions=(0, 1, 2), partition_max_bytes=4 * size, max_bytes=5 * size)
    assert len(await values_of(wire)) == 5


async def test_a_fetch_session_tells_only_what_is_new(kafka_door: KafkaDoor, wire: Wire) -> None:
    await wire.create("orders", partitions=3)
    wire.send_fetch("orders", 0, partitions=(0, 1, 2), session=(0, 0))
    first = await wire.receive()
    assert first.session_id > 0
    assert [p.partition_index for p in first.responses[0].partitions] == [0, 1, 2]

    await wire.produce("orders", b"news", partition=1)
    wire.send_fetch("orders", 0, partitions=(), session=(first.session_id, 1))
    second = await wire.receive()
    assert [p.partition_index for t in second.responses for p in t.partitions] == [1]

    wire.send_fetch("orders", 1, partitions=(1,), session=(first.session_id, 2))
    assert (await wire.receive()).responses == []
    wire.send_fetch("orders", 1, partitions=(), session=(first.session_id, 2))
    assert (await wire.receive()).error_code == 71  # an epoch that was used already
    wire.send_fetch("orders", 1, partitions=(), session=(first.session_id, -1))
    await wire.receive()
    wire.send_fetch("orders", 1, partitions=(), session=(first.session_id, 3))
    assert (await wire.receive()).error_code == 70  # it was closed
    assert len(kafka_door.sessions) == 0


async def test_a_busy_partition_does_not_starve_others_of_a_session(wire: Wire) -> None:
    await wire.create("orders", partitions=2)
    for partition in (0, 1):
        for _ in range(4):
            await wire.produce("orders", b"x" * 1000, partition=partition)
    size = len(batch(b"x" * 1000))
    wire.send_fetch("orders", 0, partitions=(0, 1), session=(0, 0), max_bytes=size, partition_max_bytes=size)
    reply = await wire.receive()
    order = [[p.partition_index for p in reply.responses[0].partitions if p.records]]
    for epoch in (1, 2):
        wire.send_fetch("orders", 0, partitions=(), session=(reply.session_id, epoch), max_bytes=size)
        again = await wire.receive()
        order.append([p.partition_index for t in again.responses for p in t.partitions])
    assert order == [[0], [1], [0]]


async def test_a_reader_of_a_deleted_topic_is_told_at_once(kafka_door: KafkaDoor, wire: Wire) -> None:
    await wire.create("orders")
    wire.send_fetch("orders", 0, wait_ms=60_000)
    other = await Wire.open(kafka_door.listener.port)
    await other.ask(ApiKey.METADATA, 9, topics=None)
    reply = await other.ask(ApiKey.DELETE_TOPICS, 5, topic_names=["orders"], timeout_ms=1000)
    assert reply.responses[0].error_code == 0
    assert (await wire.receive()).responses[0].partitions[0].error_code == 3
    await other.close()


async def test_produce_without_acks_is_not_answered(wire: Wire) -> None:
    await wire.create("orders")
    wire.send_produce("orders", batch(b"a"), acks=0)
    wire._asked.pop()
    assert await wire.produce("orders", b"b") == 1


async def test_a_refused_produce_without_acks_closes_the_connection(wire: Wire) -> None:
    wire.send_produce("missing", batch(b"a"), acks=0)
    assert await wire.closed()


@pytest.mark.parametrize(
    ("topic", "records", "acks", "code"),
    [
        ("missing", batch(b"a"), -1, 3),
        ("orders", batch(b"a"), 5, 21),
        ("orders", batch(b"a")[:-1], -1, 87),
        ("orders", batch(b"a")[:20], -1, 87),
        ("orders", b"", -1, 87),
        ("orders", batch(b"x" * 2_000_000), -1, 10),
        ("orders", batch(b"a") + batch(b"b"), -1, 87),
        ("__penstock_catalogue", batch(b"a"), -1, 29),
    ],
)
async def test_bad_batches_get_a_clear_error_and_store_nothing(
    wire: Wire, topic: str, records: bytes, acks: int, code: int
) -> None:
    await wire.create("orders")
    wire.send_produce(topic, records, acks=acks)
    reply = (await wire.receive()).responses[0].partition_responses[0]
    assert (reply.error_code, reply.base_offset) == (code, -1)
    assert reply.error_message
    assert await wire.produce("orders", b"good") == 0


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 2_000_000_000),
        struct.pack(">i", 3) + b"abc",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, ApiKey.PRODUCE, 0, 1, -1),
        struct.pack(">ihhih", 10, ApiKey.METADATA, 9, 1, -1),
        struct.pack(">ihhih", 14, ApiKey.METADATA, 1, 1, -1) + struct.pack(">i", 1_000_000),
    ],
)
async def test_garbage_closes_only_its_own_connection(kafka_door: KafkaDoor, wire: Wire, garbage: bytes) -> None:
    await wire.create("orders")
    stranger = await Wire.open(kafka_door.listener.port)
    stranger.send_raw(garbage)
    assert await stranger.closed()
    assert await wire.produce("orders", b"unharmed") == 0


async def test_connections_beyond_the_bound_are_turned_away(kafka_door: KafkaDoor, wire: Wire) -> None:
    await wire.create("orders")
    kafka_door.limits.max_connections = 1
    stranger = await Wire.open(kafka_door.listener.port)
    assert await stranger.closed()
    await wire.produce("orders", b"a")
    await wire.close()
    async with asyncio.timeout(10):
        await until_gone(kafka_door)
    again = await Wire.open(kafka_door.listener.port)
    assert await again.produce("orders", b"b") == 1
    await again.close()


async def test_a_client_that_does_not_read_is_not_read_from(kafka_door: KafkaDoor, wire: Wire) -> None:
    await wire.create("orders")
    for _ in range(8):
        await wire.produce("orders", b"x" * 500_000)
    greedy = await Wire.open(kafka_door.listener.port)
    transport = greedy._writer.transport
    transport.pause_reading()  # the client's side takes nothing any more
    for _ in range(300):
        greedy.send_fetch("orders", 0, max_bytes=8 << 20, partition_max_bytes=8 << 20)
    # Another client is served; the greedy one's replies stop at the bound although its requests are all there.
    assert await wire.produce("orders", b"fine") == 8
    (held,) = [c for c in kafka_door.listener.connections if c._frames]  # type: ignore[attr-defined]
    assert held._transport.get_write_buffer_size() <= connection.WRITE_BUFFER_BYTES + (9 << 20)  # type: ignore[attr-defined]
    assert len(held._exchanges) <= 2  # type: ignore[attr-defined]
    transport.resume_reading()
    for _ in range(300):
        reply = await greedy.receive()
        assert len(bytes(reply.responses[0].partitions[0].records)) > 4_000_000
    await greedy.close()


async def test_requests_under_way_are_bounded_by_their_bytes(kafka_door: KafkaDoor, wire: Wire) -> None:
    await wire.create("orders")
    kafka_door.limits.max_held_bytes = 1
    assert await wire.produce("orders", b"a") == 0
    others = [await Wire.open(kafka_door.listener.port) for _ in range(3)]
    offsets = await asyncio.gather(*(other.produce("orders", b"b") for other in others))
    assert sorted(offsets) == [1, 2, 3]
    assert kafka_door.limits.held_bytes == 0
    for other in others:
        await other.close()


async def test_a_silent_connection_is_closed_and_a_waiting_one_is_not(settings: Settings) -> None:
    server = Server(msgspec.structs.replace(settings, connection_idle_ms=200))
    await server.start()
    door = server.doors[0]
    assert isinstance(door, KafkaDoor)
    waiting, half_open = [await Wire.open(door.listener.port) for _ in range(2)]
    await waiting.create("orders")
    waiting.send_fetch("orders", 0, wait_ms=1500)
    half_open.send_raw(struct.pack(">ih", 100, 3))  # a request that never ends
    assert await half_open.closed()
    assert await values_of(waiting) == []
    await waiting.close()
    await server.stop()


async def test_requests_that_never_arrive_whole_are_bounded_and_do_not_stop_others(
    kafka_door: KafkaDoor, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    await wire.create("orders")
    kafka_door.limits.max_held_bytes, kafka_door.limits.stuck_s = 3 << 20, 0.1
    strangers = [await Wire.open(kafka_door.listener.port) for _ in range(3)]
    for stranger in strangers:
        stranger.send_raw(struct.pack(">ihh", 50 << 20, ApiKey.PRODUCE, 9) + bytes(1 << 20))
    closing = [asyncio.create_task(stranger.closed()) for stranger in strangers]
    done, _ = await asyncio.wait(closing, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert done
    for number in range(5):
        assert await wire.produce("orders", b"unharmed") == number
    assert kafka_door.limits.held_bytes <= (3 << 20) + (16 << 20)
    assert "max_pending_bytes" in caplog.text
    for stranger in strangers:
        await stranger.close()
    await asyncio.wait(closing, timeout=10)
    async with asyncio.timeout(10):
        while len(kafka_door.listener.connections) > 1:
            kafka_door.listener._changed.clear()
            await kafka_door.listener._changed.wait()
    assert kafka_door.limits.held_bytes == 0


async def test_draining_answers_what_is_under_way(kafka_door: KafkaDoor, wire: Wire) -> None:
    await wire.create("orders")
    wire.send_fetch("orders", 0, wait_ms=60_000)
    await asyncio.sleep(0.05)
    kafka_door.broker.fetcher.release()
    await asyncio.wait_for(kafka_door.drain(10), 15)
    assert await values_of(wire) == []
    with pytest.raises(OSError):
        await Wire.open(kafka_door.listener.port)


async def test_metadata_makes_topics_only_where_allowed(wire: Wire) -> None:
    asked = [Struct(name="fresh")]
    reply = await wire.ask(ApiKey.METADATA, 9, topics=asked, allow_auto_topic_creation=False)
    assert reply.topics[0].error_code == 3
    reply = await wire.ask(ApiKey.METADATA, 9, topics=asked, allow_auto_topic_creation=True)
    assert (reply.topics[0].error_code, len(reply.topics[0].partitions)) == (0, 1)
    reply = await wire.ask(ApiKey.METADATA, 9, topics=[Struct(name="no/slash")], allow_auto_topic_creation=True)
    assert reply.topics[0].error_code == 17


async def test_partitions_are_described_page_by_page(wire: Wire) -> None:
    await wire.create("a", partitions=3)
    await wire.create("b", partitions=3)
    seen, cursor = [], None
    while True:
        reply = await wire.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=2, cursor=cursor
        )
        seen += [(t.name, p.partition_index) for t in reply.topics for p in t.partitions]
        cursor = reply.next_cursor
        if cursor is None:
            break
    assert seen == [(name, index) for name in "ab" for index in range(3)]


async def test_an_interest_that_was_closed_watches_nothing_any_more(kafka_door: KafkaDoor, wire: Wire) -> None:
    await wire.create("orders")
    partition = await kafka_door.broker.topics.open(kafka_door.broker.topics.get("orders"), 0)
    interest, want = Interest(), Want("key", "orders", 0, 0, 1000)
    interest.add(want)
    interest.watch(want, partition)
    interest.close()
    interest.watch(want, partition)  # a read that was under way meanwhile
    assert partition._watchers is None
