"""Group members of every client library behind one face: what they own, what they read, and how they leave.

Each member runs in a thread (or, for Java, a process) of its own, commits as it goes, and starts at the beginning when
its group has no offsets yet.
"""

import asyncio
import contextlib
import json
import subprocess
import threading
from collections.abc import Iterable
from typing import Any

import aiokafka
import aiokafka.abc
import confluent_kafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from story import WAIT_S

SESSION_MS = 6000
HEARTBEAT_MS = 300
LEAVE_TIMEOUT_S = 30.0


class Member:
    """Runs `consume` in a thread until it is told to leave."""

    def __init__(self, address: str, group: str, topic: str, strategy: str, **options: Any) -> None:
        self.address, self.group, self.topic, self.strategy, self.options = address, group, topic, strategy, options
        self.values: list[bytes] = []
        self.owned: set[int] = set()
        self.assignments = 0
        self.leaving = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=type(self).__name__)
        self._thread.start()

    def leave(self) -> None:
        self.leaving.set()
        self._thread.join(LEAVE_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{type(self).__name__} does not leave"
        if self.failure is not None:
            raise self.failure

    def consume(self) -> None:
        raise NotImplementedError

    def gain(self, partitions: Iterable[int], *, all_of_them: bool) -> None:
        self.assignments += 1
        self.owned = set(partitions) if all_of_them else self.owned | set(partitions)

    def lose(self, partitions: Iterable[int]) -> None:
        self.owned = self.owned - set(partitions)

    def _run(self) -> None:
        try:
            self.consume()
        except BaseException as error:  # told to whoever waits for this member
            self.failure = error


class ConfluentMember(Member):
    def consume(self) -> None:
        eager = self.strategy != "cooperative-sticky"
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": self.group,
                "partition.assignment.strategy": self.strategy,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 200,
                "log_level": 2,
                **{name.replace("_", "."): value for name, value in self.options.items()},
            }
        )
        consumer.subscribe(
            [self.topic],
            on_assign=lambda _, pairs: self.gain((pair.partition for pair in pairs), all_of_them=eager),
            on_revoke=lambda _, pairs: self.lose(pair.partition for pair in pairs),
        )
        while not self.leaving.is_set():
            for message in consumer.consume(100, 0.05):
                if message.error() is None:
                    self.values.append(message.value() or b"")
        consumer.close()


class KafkaPythonMember(Member):
    STRATEGIES = {  # noqa: RUF012
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    def consume(self) -> None:
        member = self
        eager = self.strategy != "cooperative-sticky"

        class Listener(kafka.ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned: Any) -> None:
                member.gain((pair.partition for pair in assigned), all_of_them=eager)

            def on_partitions_revoked(self, revoked: Any) -> None:
                member.lose(pair.partition for pair in revoked)

            def on_partitions_lost(self, lost: Any) -> None:
                member.lose(pair.partition for pair in lost)

        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.address,
            group_id=self.group,
            partition_assignment_strategy=[self.STRATEGIES[self.strategy]],
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100,
            reconnect_backoff_max_ms=200,
            **self.options,
        )
        consumer.subscribe([self.topic], listener=Listener())
        while not self.leaving.is_set():
            for messages in consumer.poll(timeout_ms=500).values():
                self.values += [message.value for message in messages]
        consumer.close()


class AiokafkaMember(Member):
    STRATEGIES = {"range": AioRange, "roundrobin": AioRoundRobin}  # noqa: RUF012

    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        member = self

        class Listener(aiokafka.abc.ConsumerRebalanceListener):
            async def on_partitions_assigned(self, assigned: Any) -> None:
                member.gain((pair.partition for pair in assigned), all_of_them=True)

            async def on_partitions_revoked(self, revoked: Any) -> None:
                member.lose(pair.partition for pair in revoked)

        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.address,
            group_id=self.group,
            partition_assignment_strategy=[self.STRATEGIES[self.strategy]],
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100,
            metadata_max_age_ms=1000,
            **self.options,
        )
        consumer.subscribe([self.topic], listener=Listener())
        await consumer.start()
        try:
            while not self.leaving.is_set():
                for messages in (await consumer.getmany(timeout_ms=50)).values():
                    self.values += [message.value or b"" for message in messages]
        finally:
            await consumer.stop()


class JavaMember(Member):
    """The Java consumer in a JVM of its own; `options["java"]` is the command that starts the program."""

    def consume(self) -> None:
        process = subprocess.Popen(
            [*self.options["java"], "group", self.address, self.group, self.topic, self.strategy],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        threading.Thread(target=self._end_when_leaving, args=(process,), daemon=True).start()
        eager = self.strategy != "cooperative-sticky"
        for line in process.stdout:
            event = json.loads(line)
            if "gained" in event:
                self.gain(event["gained"], all_of_them=eager)
            elif "lost" in event:
                self.lose(event["lost"])
            else:
                self.values.append(event["value"].encode())
        assert process.wait(WAIT_S) == 0

    def _end_when_leaving(self, process: "subprocess.Popen[str]") -> None:
        self.leaving.wait()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(LEAVE_TIMEOUT_S / 2)
        except subprocess.TimeoutExpired:
            process.kill()
