"""`kill -9` under load, again and again, with torn tails made on purpose in between.

What the server acknowledged is there afterwards, in order, once; so is what it had not acknowledged yet, because the
idempotent producer sends it again. The damage done between rounds is the damage a crash can do: bytes of a write that
was never acknowledged are cut short, and half a write stands behind the last whole one.
"""

import random
import struct
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from members import ConfluentMember
from story import WAIT_S, create_topic, eventually, read_topic

from penstock.testing.server import Server
from servers import StartServer
from thorough import often

ROUNDS = often(12, 6)
PARTITIONS = 4
ACKNOWLEDGED_PER_ROUND = 150
MAX_UNACKNOWLEDGED = 400
SEED = 20_240_817


class Load:
    """An idempotent producer that numbers its messages per partition and notes every acknowledgement."""

    def __init__(self, address: str, topic: str) -> None:
        self.sent: dict[int, int] = defaultdict(int)  # messages handed to the client, per partition
        self.acknowledged: dict[int, dict[int, int]] = defaultdict(dict)  # partition -> number -> offset
        self.failures: list[KafkaError] = []
        self.disconnected = threading.Event()
        self._topic = topic
        self._random = random.Random(SEED)
        self._ended = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "reconnect.backoff.ms": 5,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 5,
                "message.timeout.ms": 60_000,
                "error_cb": self._on_error,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def end(self) -> None:
        self._ended.set()
        self._thread.join(WAIT_S)
        assert self._producer.flush(60) == 0

    def _run(self) -> None:
        while not self._ended.is_set():
            if len(self._producer) < MAX_UNACKNOWLEDGED:
                self._send()
            self._producer.poll(0 if len(self._producer) < MAX_UNACKNOWLEDGED else 0.005)

    def _send(self) -> None:
        partition = self._random.randrange(PARTITIONS)
        number = self.sent[partition]
        size = self._random.choice([10, 100, 1000, 1000, 30_000])
        self._producer.produce(
            self._topic, b"%d:" % number + b"x" * size, partition=partition, on_delivery=self._on_delivery
        )
        self.sent[partition] += 1

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error)
        else:
            self.acknowledged[message.partition()][number_of(message)] = message.offset()

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.disconnected.set()


def number_of(message: Message) -> int:
    return int((message.value() or b"").partition(b":")[0])


def test_everything_acknowledged_is_there_in_order_and_once(start_server: StartServer, topic: str, group: str) -> None:
    server = start_server()
    create_topic(server.kafka, topic, partitions=PARTITIONS, segment_bytes=str(1 << 20))
    chance = random.Random(SEED)
    load = Load(server.kafka, topic)
    committed = 0
    for round_number in range(ROUNDS):
        goal = load.count() + ACKNOWLEDGED_PER_ROUND
        eventually(lambda goal=goal: load.failures or load.count() >= goal, "acknowledgements go on")
        assert not load.failures, load.failures[0]
        committed = commit(server.kafka, group, topic, round_number + 1)
        load.disconnected.clear()
        server.kill()
        # What was acknowledged may still be on its way to the client: only then is it known what was not.
        assert load.disconnected.wait(WAIT_S)
        hurt(server.data, topic, load, chance)
        server.restart()
        assert read_committed(server.kafka, group, topic) == committed
    load.end()
    assert not load.failures, load.failures[0]
    assert load.count() == sum(load.sent.values())

    found = read_topic(server.kafka, topic, load.count(), timeout_s=60)
    for partition, messages in found.items():
        assert [number_of(message) for message in messages] == list(range(load.sent[partition]))
        assert {number_of(message): message.offset() for message in messages} == load.acknowledged[partition]
    server.stop()
    assert "Traceback" not in server.log_text()


def commit(address: str, group: str, topic: str, offset: int) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 0})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset, f"note {offset}")], asynchronous=False)
    finally:
        consumer.close()
    return offset


def read_committed(address: str, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 0})
    try:
        (pair,) = consumer.committed([TopicPartition(topic, 0)], WAIT_S)
    finally:
        consumer.close()
    assert pair.metadata == f"note {pair.offset}"
    return int(pair.offset)


# -- the damage --------------------------------------------------------------------------------------------------------


def hurt(data: Path, topic: str, load: Load, chance: random.Random) -> None:
    """Tear the tail of every partition in one of the ways a crash can, and of the internal logs too."""
    for partition in range(PARTITIONS):
        newest = newest_segment(data, topic, partition)
        last_acknowledged = max(load.acknowledged[partition].values(), default=-1)
        tear = chance.choice([cut_unacknowledged, cut_unacknowledged, half_a_batch, noise, zeros, leave])
        tear(newest, last_acknowledged, chance)
    for newest in internal_segments(data):
        chance.choice([half_a_batch, noise, zeros, leave])(newest, -1, chance)


def newest_segment(data: Path, topic: str, partition: int) -> Path:
    (directory,) = [path for path in (data / "topics").iterdir() if path.name.rpartition(".")[0] == topic]
    return max((directory / str(partition)).glob("*.log"))


def internal_segments(data: Path) -> list[Path]:
    logs = [max(stream.glob("*.log"), default=None) for stream in (data / "topics").glob("__*/*")]
    return [log for log in logs if log is not None]


def batches(log: bytes) -> list[tuple[int, int, int]]:
    """(last offset, start, stop) of each whole batch.

    i64 base offset | i32 size of what follows | i32 epoch | i8 magic | u32 crc | i16 attributes | i32 last offset delta
    """
    found = []
    start = 0
    while start + 27 <= len(log):
        base, size = struct.unpack_from(">qi", log, start)
        (delta,) = struct.unpack_from(">i", log, start + 23)
        if size <= 0 or start + 12 + size > len(log):
            break
        found.append((base + delta, start, start + 12 + size))
        start += 12 + size
    return found


def cut_unacknowledged(path: Path, last_acknowledged: int, chance: random.Random) -> None:
    log = path.read_bytes()
    safe = max((stop for last, _, stop in batches(log) if last <= last_acknowledged), default=0)
    if safe < len(log):
        with path.open("r+b") as file:
            file.truncate(chance.randrange(safe, len(log)))


def half_a_batch(path: Path, last_acknowledged: int, chance: random.Random) -> None:
    log = path.read_bytes()
    whole = batches(log)
    if not whole:
        return noise(path, last_acknowledged, chance)
    last, start, stop = whole[-1]
    torn = struct.pack(">q", last + 1) + log[start + 8 : stop]
    return append(path, torn[: chance.randrange(1, len(torn))])


def noise(path: Path, last_acknowledged: int, chance: random.Random) -> None:
    append(path, chance.randbytes(chance.randrange(1, 5000)))


def zeros(path: Path, last_acknowledged: int, chance: random.Random) -> None:
    append(path, bytes(chance.randrange(1, 8192)))


def leave(path: Path, last_acknowledged: int, chance: random.Random) -> None:
    """Some tails survive."""


def append(path: Path, what: bytes) -> None:
    with path.open("ab") as file:
        file.write(what)


# -- what the catalogue promised ---------------------------------------------------------------------------------------


def test_topics_made_and_deleted_stay_so(fresh_server: Server, topic: str) -> None:
    for round_number in range(4):
        admin = AdminClient({"bootstrap.servers": fresh_server.kafka, "log_level": 0})
        made, gone = f"{topic}-made-{round_number}", f"{topic}-gone-{round_number}"
        for future in admin.create_topics([NewTopic(made, 3, 1), NewTopic(gone, 3, 1)]).values():
            future.result(WAIT_S)
        admin.delete_topics([gone])[gone].result(WAIT_S)
        fresh_server.kill()
        fresh_server.restart()
        topics = AdminClient({"bootstrap.servers": fresh_server.kafka}).list_topics(timeout=WAIT_S).topics
        ours = {name: len(row.partitions) for name, row in topics.items() if name.startswith(topic)}
        assert ours == {f"{topic}-made-{number}": 3 for number in range(round_number + 1)}


def test_a_stopped_server_starts_again_from_every_kind_of_end(fresh_server: Server, topic: str) -> None:
    """Clean and unclean ends in turn: what one start-up writes, the next must understand."""
    producer = Producer({"bootstrap.servers": fresh_server.kafka, "reconnect.backoff.max.ms": 100, "log_level": 0})
    ends = [fresh_server.stop, fresh_server.kill, fresh_server.kill, fresh_server.stop, fresh_server.stop]
    for number, end in enumerate(ends):
        producer.produce(topic, b"%d" % number)
        assert producer.flush(WAIT_S) == 0
        end()
        fresh_server.restart()
    values = [message.value() for message in read_topic(fresh_server.kafka, topic, len(ends))[0]]
    assert values == [b"%d" % number for number in range(len(ends))]


def test_a_second_server_on_the_same_data_is_refused(fresh_server: Server, start_server: StartServer) -> None:
    with pytest.raises(RuntimeError, match="exit code 1 before ready") as refused:
        start_server(data=fresh_server.data)
    assert "Traceback" not in str(refused.value)
    assert fresh_server.is_running


def test_a_group_member_survives_the_servers_death(fresh_server: Server, topic: str, group: str) -> None:
    create_topic(fresh_server.kafka, topic)
    member = ConfluentMember(fresh_server.kafka, group, topic, "range", auto_commit_interval_ms=100)
    producer = Producer({"bootstrap.servers": fresh_server.kafka, "reconnect.backoff.max.ms": 100, "log_level": 0})
    for number in range(5):
        producer.produce(topic, b"%d" % number)
        assert producer.flush(WAIT_S) == 0
        eventually(lambda number=number: b"%d" % number in member.values, "the message arrives")
        fresh_server.kill()
        fresh_server.restart()
    producer.produce(topic, b"last")
    assert producer.flush(WAIT_S) == 0
    eventually(lambda: b"last" in member.values, "the group works on")
    member.leave()
