"""Consume-transform-produce workers of every Python client, each a process that can be killed at any moment.

    python transaction_workers.py KIND ADDRESS SOURCE SINKS GROUP ID JOURNAL STOP SEED

Each takes up to MAX_TAKEN records of SOURCE, and in one transaction writes COPIES outputs of each of them (to SINKS-0,
SINKS-1, in the partition of the input) and hands in its offset for GROUP; now and then it aborts instead. It notes in
the file JOURNAL what it is about to do and what became of it, as `transaction_history.py` wants it. Whatever goes
wrong, its producer and its consumer begin anew, until the file STOP is there. `TransactionStory.java loop` does the
same.
"""

import asyncio
import faulthandler
import json
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
from kafka.structs import OffsetAndMetadata
from transaction_history import ABORTED, COMMITTED, Input, Output

MAX_TAKEN = 10
COPIES = 2
CALL_TIMEOUT_S = 10.0
SESSION_MS = 1500
TRANSACTION_MS = 10_000
BACK_OFF_S = 0.05


@dataclass
class Work:
    kind: str
    address: str
    source: str
    sinks: str
    group: str
    name: str
    journal: Path
    stop: Path
    random: random.Random
    attempts: int = 0

    @property
    def is_over(self) -> bool:
        return self.stop.exists()

    def wants_abort(self) -> bool:
        return self.random.randrange(8) == 0

    def note_attempt(self, inputs: list[Input]) -> str:
        self.attempts += 1
        attempt = f"{self.name}/{os.getpid()}/{self.attempts}"
        self._note({"attempt": attempt, "inputs": inputs})
        return attempt

    def note_outcome(self, attempt: str, outcome: str) -> None:
        self._note({"attempt": attempt, "outcome": outcome})

    def _note(self, line: dict[str, object]) -> None:
        with self.journal.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def outputs(self, attempt: str, inputs: Iterable[Input]) -> Iterator[tuple[str, int, bytes]]:
        """Topic, partition and value of everything to be written."""
        for taken in inputs:
            for copy in range(COPIES):
                yield f"{self.sinks}-{copy}", taken.partition, render(Output(attempt, taken, copy))


def render(output: Output) -> bytes:
    return f"{output.attempt} {output.input.partition} {output.input.offset} {output.copy}".encode()


def parse(value: str) -> Output:
    attempt, partition, offset, copy = value.split()
    return Output(attempt, Input(int(partition), int(offset)), int(copy))


def ends(inputs: Iterable[Input]) -> dict[int, int]:
    return {taken.partition: taken.offset + 1 for taken in inputs}  # the last of each partition


def starts(inputs: list[Input]) -> dict[int, int]:
    return {taken.partition: taken.offset for taken in reversed(inputs)}


# -- confluent-kafka --------------------------------------------------------------------------------------------


# When all brokers are away librdkafka 2.16 forgets them and begins anew, but waits for ever for one that it has
# forgotten when it next hands in offsets of a transaction (confluentinc/librdkafka issue 5511).
KEEP_BROKERS = {"metadata.recovery.strategy": "none"}


def live_confluent(work: Work) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": work.address,
            "transactional.id": work.name,
            "transaction.timeout.ms": TRANSACTION_MS,
            "message.timeout.ms": TRANSACTION_MS,
            "socket.timeout.ms": 3000,
            "linger.ms": 0,
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "log_level": 0,
            **KEEP_BROKERS,
        }
    )
    producer.init_transactions(CALL_TIMEOUT_S)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": work.address,
            "group.id": work.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 200,
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 50,
            "log_level": 0,
            **KEEP_BROKERS,
        }
    )
    taken: list[Input] = []

    # With a callback, partitions come and go while this thread polls, and never behind its back.
    def changed(_: confluent_kafka.Consumer, __: list[confluent_kafka.TopicPartition]) -> None:
        taken.clear()

    consumer.subscribe([work.source], on_assign=changed, on_revoke=changed, on_lost=changed)
    try:
        while not work.is_over:
            deadline = time.monotonic() + 0.1
            taken.clear()
            while len(taken) < MAX_TAKEN and time.monotonic() < deadline:
                message = consumer.poll(0.02)
                if message is not None and message.error() is None:
                    taken.append(Input(message.partition(), message.offset()))
            if taken:
                _transact_confluent(work, producer, consumer, list(taken))
    finally:
        consumer.close()


def _transact_confluent(
    work: Work, producer: confluent_kafka.Producer, consumer: confluent_kafka.Consumer, inputs: list[Input]
) -> None:
    def places(offsets: dict[int, int]) -> list[confluent_kafka.TopicPartition]:
        return [confluent_kafka.TopicPartition(work.source, p, offset) for p, offset in offsets.items()]

    metadata = consumer.consumer_group_metadata()
    attempt = work.note_attempt(inputs)
    aborting = work.wants_abort()
    producer.begin_transaction()
    try:
        for topic, partition, value in work.outputs(attempt, inputs):
            producer.produce(topic, value, partition=partition)
        producer.send_offsets_to_transaction(places(ends(inputs)), metadata, CALL_TIMEOUT_S)
        if not aborting:
            producer.commit_transaction(CALL_TIMEOUT_S)
    except confluent_kafka.KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        aborting = True
    if aborting:
        producer.abort_transaction(CALL_TIMEOUT_S)
        for place in places(starts(inputs)):
            consumer.seek(place)
    work.note_outcome(attempt, ABORTED if aborting else COMMITTED)


# -- kafka-python -----------------------------------------------------------------------------------------------


def live_kafka_python(work: Work) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=work.address,
        transactional_id=work.name,
        transaction_timeout_ms=TRANSACTION_MS,
        delivery_timeout_ms=TRANSACTION_MS,
        request_timeout_ms=3000,
        reconnect_backoff_ms=5,
        reconnect_backoff_max_ms=50,
        retry_backoff_ms=10,
        max_block_ms=CALL_TIMEOUT_S * 1000,
    )
    try:
        producer.init_transactions()
        consumer = kafka.KafkaConsumer(
            work.source,
            bootstrap_servers=work.address,
            group_id=work.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=200,
            fetch_max_wait_ms=50,
            request_timeout_ms=3000,
            reconnect_backoff_ms=5,
            reconnect_backoff_max_ms=50,
            max_poll_records=MAX_TAKEN,
        )
        try:
            while not work.is_over:
                polled = consumer.poll(timeout_ms=100)
                inputs = [Input(place.partition, record.offset) for place, all_ in polled.items() for record in all_]
                if inputs:
                    _transact_kafka_python(work, producer, consumer, inputs)
        finally:
            consumer.close()
    finally:
        producer.close(timeout=0)


def _transact_kafka_python(
    work: Work, producer: kafka.KafkaProducer, consumer: kafka.KafkaConsumer, inputs: list[Input]
) -> None:
    attempt = work.note_attempt(inputs)
    aborting = work.wants_abort()
    producer.begin_transaction()
    for topic, partition, value in work.outputs(attempt, inputs):
        producer.send(topic, value, partition=partition)
    offsets = {kafka.TopicPartition(work.source, p): OffsetAndMetadata(end, "", -1) for p, end in ends(inputs).items()}
    producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
    if aborting:
        producer.abort_transaction()
        for partition, offset in starts(inputs).items():
            consumer.seek(kafka.TopicPartition(work.source, partition), offset)
    else:
        producer.commit_transaction()
    work.note_outcome(attempt, ABORTED if aborting else COMMITTED)


# -- aiokafka ---------------------------------------------------------------------------------------------------


async def live_aiokafka(work: Work) -> None:
    """Without group management: this client hands in offsets without its generation, so two members of a group could
    not be told apart. The transactional id alone keeps others out, as all did before KIP-447."""
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=work.address,
        transactional_id=work.name,
        transaction_timeout_ms=TRANSACTION_MS,
        request_timeout_ms=3000,
        retry_backoff_ms=10,
    )
    async with asyncio.timeout(CALL_TIMEOUT_S):
        await producer.start()
    try:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=work.address,
            group_id=work.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            fetch_max_wait_ms=50,
            request_timeout_ms=3000,
            retry_backoff_ms=10,
        )
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await consumer.start()
        try:
            await _loop_aiokafka(work, producer, consumer)
        finally:
            await consumer.stop()
    finally:
        # Its close waits for a transaction that may never end.
        producer._sender.sender_task and producer._sender.sender_task.cancel()
        await producer.client.close()


async def _loop_aiokafka(work: Work, producer: aiokafka.AIOKafkaProducer, consumer: aiokafka.AIOKafkaConsumer) -> None:
    async with asyncio.timeout(CALL_TIMEOUT_S):
        found = await producer.partitions_for(work.source)
        places = [aiokafka.TopicPartition(work.source, number) for number in sorted(found)]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, await consumer.committed(place) or 0)
    while not work.is_over:
        polled = await consumer.getmany(timeout_ms=100, max_records=MAX_TAKEN)
        inputs = [Input(place.partition, record.offset) for place, all_ in polled.items() for record in all_]
        if not inputs:
            continue
        attempt = work.note_attempt(inputs)
        aborting = work.wants_abort()
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await producer.begin_transaction()
            for topic, partition, value in work.outputs(attempt, inputs):
                await producer.send(topic, value, partition=partition)
            offsets = {aiokafka.TopicPartition(work.source, p): end for p, end in ends(inputs).items()}
            await producer.send_offsets_to_transaction(offsets, work.group)
            if aborting:
                await producer.abort_transaction()
                for partition, offset in starts(inputs).items():
                    consumer.seek(aiokafka.TopicPartition(work.source, partition), offset)
            else:
                await producer.commit_transaction()
        work.note_outcome(attempt, ABORTED if aborting else COMMITTED)


# -- life -------------------------------------------------------------------------------------------------------

LIVES = {
    "confluent": live_confluent,
    "kafka-python": live_kafka_python,
    "aiokafka": lambda work: asyncio.run(live_aiokafka(work)),
}


def main(kind: str, address: str, source: str, sinks: str, group: str, name: str, *rest: str) -> None:
    faulthandler.register(10)
    journal, stop, seed = rest
    work = Work(kind, address, source, sinks, group, name, Path(journal), Path(stop), random.Random(int(seed)))
    while not work.is_over:
        try:
            LIVES[kind](work)
        except (Exception, TimeoutError) as error:  # the server is away, or somebody was fenced: begin anew
            print(f"{kind}: {type(error).__name__}: {error}", file=sys.stderr)
            time.sleep(BACK_OFF_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
