"""Nonsense against a live server: recorded requests of real clients, mutated, by the thousand.

Whatever arrives, the server neither crashes nor hangs, allocates nothing on a stranger's word, closes at most the
connection that sent it, and serves everyone else meanwhile.
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from story import WAIT_S, create_topic, eventually

from penstock.testing.proxy import Proxy
from penstock.testing.server import Server
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.codec import Struct
from penstock.wire.kafka.messages import encode_request
from servers import StartServer, unique_name

SEED = 7
MUTATIONS = 8000
TIME_LIMIT_S = 40.0
MAX_GROWTH_BYTES = 64 << 20
REPLY_WAIT_S = 0.003
# A mutated request may well be a valid one for something large: the server's own limits hold it.
LIMITS: dict[str, object] = {"max_topics": 300, "max_partitions": 2000}

Frames = list[bytes]


# -- recording ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def captures() -> list[Frames]:
    """What three clients say in a short working life, one list of frames per connection."""
    with Proxy(record=True) as proxy, Server(kafka_advertised=proxy.address, **LIMITS) as server:
        proxy.upstream = server.kafka
        librdkafka_session(proxy.address)
        kafka_python_session(proxy.address)
        asyncio.run(aiokafka_session(proxy.address))
        recorded = [frames for frames in proxy.recordings if frames]
    keys = {struct.unpack_from(">h", frame, 4)[0] for frames in recorded for frame in frames}
    assert {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 22, 32, 37} <= keys
    return recorded


def librdkafka_session(address: str) -> None:
    topic = unique_name("fuzz-librdkafka")
    create_topic(address, topic, partitions=2)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "compression.type": "lz4"}
    )
    for number in range(20):
        producer.produce(topic, b"value-%d" % number, b"key", partition=number % 2, headers=[("h", b"v")])
    assert producer.flush(WAIT_S) == 0
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe([topic])
    read: list[object] = []
    eventually(lambda: read.extend(consumer.consume(20, 0.2)) or len(read) >= 20, "all read")
    consumer.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": address})
    for future in [
        *admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values(),
        *admin.describe_consumer_groups([topic]).values(),
        admin.list_consumer_groups(),
        *admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 1)]).values(),
    ]:
        future.result(WAIT_S)
    consumer.close()
    admin.delete_topics([topic])[topic].result(WAIT_S)


def kafka_python_session(address: str) -> None:
    topic = unique_name("fuzz-kafka-python")
    admin = kafka.KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([kafka.admin.NewTopic(topic, 2, 1)])
    producer = kafka.KafkaProducer(bootstrap_servers=address, compression_type="gzip")
    for number in range(20):
        producer.send(topic, b"value-%d" % number, b"key").get(WAIT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest", heartbeat_interval_ms=100
    )
    for _ in range(20):
        next(consumer)
    consumer.commit()
    admin.describe_groups([topic])
    admin.list_group_offsets({topic: None})
    admin.describe_cluster()
    admin.create_partitions({topic: 3})
    change = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic, {"retention.ms": "1000000"})
    admin.alter_configs([change])
    consumer.close()
    admin.delete_groups([topic])
    admin.delete_topics([topic])
    admin.close()


async def aiokafka_session(address: str) -> None:
    topic = unique_name("fuzz-aiokafka")
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True)
    await producer.start()
    for number in range(20):
        await producer.send_and_wait(topic, b"value-%d" % number, b"key")
    await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest", heartbeat_interval_ms=100
    )
    await consumer.start()
    for _ in range(20):
        await consumer.getone()
    await consumer.commit()
    await consumer.stop()


# -- mutating ----------------------------------------------------------------------------------------------------------


def flip_bits(frame: bytes, chance: random.Random, others: Frames) -> bytes:
    mutant = bytearray(frame)
    for _ in range(chance.choice([1, 1, 2, 8])):
        mutant[chance.randrange(4, len(mutant))] ^= 1 << chance.randrange(8)
    return bytes(mutant)


def cut_short_honestly(frame: bytes, chance: random.Random, others: Frames) -> bytes:
    """A shorter body under a size field that agrees: whatever is inside now reaches past the end."""
    body = frame[4 : chance.randrange(5, len(frame))]
    return struct.pack(">i", len(body)) + body


def cut_short(frame: bytes, chance: random.Random, others: Frames) -> bytes:
    return frame[: chance.randrange(1, len(frame))]


def lie_about_a_length(frame: bytes, chance: random.Random, others: Frames) -> bytes:
    """Overwrite 1, 2 or 4 bytes inside with an extreme number: lengths and counts are hit sooner or later."""
    extremes = [b"\xff", b"\x7f", b"\x80", b"\x7f\xff", b"\xff\xfe", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00"]
    lie = chance.choice([*extremes, b"\xff\xff\xff\xff\x0f", b"\x00\x00\x00\x00"])
    at = chance.randrange(4, max(5, len(frame) - len(lie)))
    return frame[:at] + lie + frame[at + len(lie) :]


def lie_about_the_size(frame: bytes, chance: random.Random, others: Frames) -> bytes:
    size = chance.choice([-1, 0, 1, 7, 0x7FFFFFFF, 200 << 20, len(frame), len(frame) - 5, chance.randrange(1 << 20)])
    return struct.pack(">i", size) + frame[4:]


def splice(frame: bytes, chance: random.Random, others: Frames) -> bytes:
    other = chance.choice(others)
    body = frame[4 : chance.randrange(5, len(frame))] + other[chance.randrange(4, len(other)) :]
    return struct.pack(">i", len(body)) + body


def other_api(frame: bytes, chance: random.Random, others: Frames) -> bytes:
    head = struct.pack(">hh", chance.choice([chance.randrange(-5, 100), *range(20)]), chance.randrange(-1, 20))
    return frame[:4] + head + frame[8:]


def insert_noise(frame: bytes, chance: random.Random, others: Frames) -> bytes:
    at = chance.randrange(4, len(frame))
    body = frame[4:at] + chance.randbytes(chance.randrange(1, 40)) + frame[at:]
    return struct.pack(">i", len(body)) + body


MUTATORS: list[Callable[[bytes, random.Random, Frames], bytes]] = [
    flip_bits,
    flip_bits,
    cut_short_honestly,
    cut_short,
    lie_about_a_length,
    lie_about_a_length,
    lie_about_the_size,
    splice,
    other_api,
    insert_noise,
]


# -- watching ----------------------------------------------------------------------------------------------------------


class Witness:
    """A client that keeps working, and a connection that must stay open, while others misbehave."""

    def __init__(self, address: str) -> None:
        self.rounds = 0
        self.failure: BaseException | None = None
        self._address = address
        self._topic = unique_name("witness")
        create_topic(address, self._topic)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> int:
        self._ended.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the server hangs for a well-behaved client"
        if self.failure is not None:
            raise self.failure
        return self.rounds

    def _run(self) -> None:
        try:
            with connect(self._address) as line:
                self._work(line)
        except BaseException as error:  # told to whoever asks for the end
            self.failure = error

    def _work(self, line: socket.socket) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self._address, "linger.ms": 0})
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self._address, "group.id": "witness"})
        consumer.assign([confluent_kafka.TopicPartition(self._topic, 0, 0)])
        while not self._ended.is_set():
            word = b"%d" % self.rounds
            producer.produce(self._topic, word)
            assert producer.flush(WAIT_S) == 0, "the server does not take messages any more"
            message = consumer.poll(WAIT_S)
            assert message is not None, "the server does not give messages any more"
            assert message.value() == word
            ask_metadata(line)
            self.rounds += 1
        consumer.close()


@contextlib.contextmanager
def connect(address: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as line:
        yield line


def ask_metadata(line: socket.socket) -> None:
    """Metadata v1 for no topics, answered in full on this very connection."""
    line.sendall(struct.pack(">ihhihi", 14, 3, 1, 99, -1, 0))
    head = receive(line, 8)
    size, correlation_id = struct.unpack(">ii", head)
    assert correlation_id == 99
    receive(line, size - 4)


def receive(line: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = line.recv(size - len(parts))
        assert part, "the server closed a connection that had done nothing wrong"
        parts += part
    return parts


def throw(address: str, frames: Frames) -> None:
    """Send on a connection of its own, listen for a moment, hang up."""
    with connect(address) as line, contextlib.suppress(ConnectionError, TimeoutError):
        line.sendall(b"".join(frames))
        line.settimeout(REPLY_WAIT_S)
        while line.recv(1 << 16):
            continue


# -- the stories -------------------------------------------------------------------------------------------------------


def test_mutated_requests_hurt_nobody(start_server: StartServer, captures: list[Frames]) -> None:
    server = start_server(**LIMITS)
    chance = random.Random(SEED)
    frames = [frame for connection in captures for frame in connection]
    witness = Witness(server.kafka)
    for connection in captures[:10]:  # warm caches and code paths with the unharmed recordings first
        throw(server.kafka, connection)
    eventually(lambda: witness.rounds > 20 or witness.failure, "the witness works")
    before_bytes = server.rss_bytes()
    deadline = time.monotonic() + TIME_LIMIT_S
    thrown = 0
    while thrown < MUTATIONS and time.monotonic() < deadline:
        # A well-formed request or two before it, so that the mutant meets a connection with a history.
        connection = chance.choice(captures)
        at = chance.randrange(len(connection))
        mutant = chance.choice(MUTATORS)(connection[at], chance, frames)
        throw(server.kafka, [*connection[max(0, at - chance.randrange(3)) : at], mutant])
        thrown += 1
        assert witness.failure is None, f"after {thrown} mutants"
    assert thrown >= 500, "too slow to prove anything"
    assert witness.end() > 20
    assert server.rss_bytes() - before_bytes < MAX_GROWTH_BYTES
    server.stop()
    assert "Traceback" not in server.log_text()


def test_half_open_frames_with_huge_sizes_take_no_memory(fresh_server: Server) -> None:
    witness = Witness(fresh_server.kafka)
    eventually(lambda: witness.rounds > 5 or witness.failure, "the witness works")
    before_bytes = fresh_server.rss_bytes()
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(connect(fresh_server.kafka)) for _ in range(300)]
        for line in lines:
            line.sendall(struct.pack(">ihhih", 90 << 20, 0, 9, 1, -1) + b"x" * 1000)
        for _ in range(5):  # a byte now and then, for ever
            for line in lines:
                line.sendall(b"x")
        rounds = witness.rounds
        eventually(lambda: witness.rounds > rounds + 5 or witness.failure, "the witness is served meanwhile")
        # 27 GB were announced. A connection may cost its first buffers and no more.
        assert fresh_server.rss_bytes() - before_bytes < 2 * MAX_GROWTH_BYTES
    witness.end()


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 2**31 - 1])
def test_an_impossible_size_closes_the_connection(server: Server, size: int) -> None:
    with connect(server.kafka) as line, contextlib.suppress(ConnectionError):
        line.sendall(struct.pack(">i", size) + b"x" * 100)
        assert line.recv(1) == b""


def test_a_client_that_never_reads_takes_bounded_memory(fresh_server: Server) -> None:
    topic = unique_name("never-read")
    create_topic(fresh_server.kafka, topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": fresh_server.kafka})
    for _ in range(200):
        producer.produce(topic, b"x" * 100_000)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    wanted = Struct(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=0,
        topics=[
            Struct(topic=topic, partitions=[Struct(partition=0, fetch_offset=0, partition_max_bytes=10 << 20)]),
        ],
    )
    request = b"".join(encode_request(ApiKey.FETCH, 4, 1, "greedy", wanted))
    witness = Witness(fresh_server.kafka)
    eventually(lambda: witness.rounds > 5 or witness.failure, "the witness works")
    before_bytes = fresh_server.rss_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            line = stack.enter_context(connect(fresh_server.kafka))
            line.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                line.sendall(request * 500)
        rounds, peak_bytes = witness.rounds, 0

        def served_meanwhile() -> bool:
            nonlocal peak_bytes
            peak_bytes = max(peak_bytes, fresh_server.rss_bytes())
            return witness.rounds > rounds + 50 or witness.failure is not None

        eventually(served_meanwhile, "the witness is served meanwhile")
        # Five connections at their bound of unread replies each, and not 25 GB.
        assert peak_bytes - before_bytes < 4 * MAX_GROWTH_BYTES
    witness.end()
