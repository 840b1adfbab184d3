"""A producer that goes on while its topic's name gets another log: what is acknowledged is in one log or the other."""

import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition

import penstock
from penstock.testing.server import Server
from servers import only_penstock

WITHIN_S = 60
BEFORE, AFTER = 50, 50


def read(server: Server, topic: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []
    deadline = time.monotonic() + WITHIN_S
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value().decode())
    consumer.close()
    return values


@only_penstock
def test_a_producer_goes_on_in_the_new_log(server: Server, topic: str) -> None:
    acknowledged: list[str] = []
    swapped = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": server.kafka, "enable.idempotence": True, "linger.ms": 0})
        number, after = 0, 0
        while after < AFTER:
            value = str(number)
            producer.produce(topic, value, on_delivery=lambda error, message, value=value: note(error, value))
            producer.flush(WITHIN_S)
            number += 1
            after += swapped.is_set()
            time.sleep(0.002)

    def note(error: object, value: str) -> None:
        assert error is None, error
        acknowledged.append(value)

    with penstock.SyncClient(server.line) as client:
        client.create_topic(topic, 1)
        client.create_topic(topic + "-new", 1)
        client.publish(topic + "-new", "first")
        producing = threading.Thread(target=produce)
        producing.start()
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            end = client.offsets(topic).end
            if end < BEFORE:
                continue
            try:
                client.swap_topics(topic, topic + "-new", [end])
                break
            except penstock.Conflict:
                continue
        swapped.set()
        producing.join(WITHIN_S)
        assert not producing.is_alive()
        old, new = client.offsets(topic + "-new").end, client.offsets(topic).end
    first, *rest = read(server, topic, new)
    assert first == "first"
    assert [*read(server, topic + "-new", old), *rest] == acknowledged
    assert len(rest) >= AFTER - 1
