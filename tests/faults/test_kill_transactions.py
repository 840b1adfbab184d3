"""`kill -9` of the server and of transactional clients, in the midst of consume-transform-produce loops.

Every kind of client has topics and a group of its own and moves all that it is fed, while the server they share dies
again and again, and its clients too. In the end each input has been answered exactly once: see `transaction_history`.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from java_program import VERSIONS, command
from story import WAIT_S, create_topic, eventually
from transaction_history import ABORTED, COMMITTED, History, Input, Seen, check
from transaction_story import COMMITTED as READ_COMMITTED
from transaction_story import UNCOMMITTED, committed_offsets, read_messages
from transaction_workers import COPIES, parse

from penstock.testing.server import Server
from servers import StartServer

ROUNDS = 6
PARTITIONS = 2
FED_PER_ROUND = 150  # inputs per partition: enough to be at work when the server dies
PATIENCE_S = 60.0
SEED = 20_261_115
WORKERS = Path(__file__).with_name("transaction_workers.py")


class Crew:
    """The workers of one kind of client, with their topics, their group and their journals."""

    def __init__(self, kind: str, server: Server, home: Path, size: int = 1) -> None:
        self.kind, self.server, self.home = kind, server, home
        self.source, self.sinks, self.group = f"{kind}-in", f"{kind}-out", f"{kind}-movers"
        self.stop = home / f"{kind}.stop"
        self.journals = [home / f"{kind}-{number}.journal" for number in range(size)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.started = 0
        self.fed = 0
        for topic in (self.source, *self.outputs):
            create_topic(server.kafka, topic, partitions=PARTITIONS)

    @property
    def outputs(self) -> list[str]:
        return [f"{self.sinks}-{copy}" for copy in range(COPIES)]

    def start(self) -> None:
        for number in range(len(self.journals)):
            self._start(number)

    def _start(self, number: int) -> None:
        if self.kind == "java":  # which changes its version, and so its protocol, with every life
            version = VERSIONS[(self.started + 1) % len(VERSIONS)]
            program = [*command(version, "TransactionStory"), "loop"]
        else:
            program = [sys.executable, str(WORKERS), self.kind]
        name, seed = f"{self.kind}-{number}", str(SEED + self.started)
        places = [self.server.kafka, self.source, self.sinks, self.group, name, str(self.journals[number])]
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen([*program, *places, str(self.stop), seed], stderr=log, stdout=log)
        self.started += 1

    def kill_one(self, chance: random.Random) -> None:
        number = chance.randrange(len(self.journals))
        self.processes[number].kill()
        self.processes[number].wait()
        self._start(number)

    def end(self) -> None:
        self.stop.touch()
        for process in self.processes.values():
            process.wait(PATIENCE_S)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def feed(self, producer: Producer) -> None:
        for number in range(self.fed, self.fed + FED_PER_ROUND):
            for partition in range(PARTITIONS):
                producer.produce(self.source, str(number), partition=partition)
        self.fed += FED_PER_ROUND

    def lines_of(self, journal: Path) -> list[dict[str, Any]]:
        """What a worker noted; a kill may have cut the last line short."""
        text = journal.read_text() if journal.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def lines(self) -> list[dict[str, Any]]:
        return [line for journal in self.journals for line in self.lines_of(journal)]

    def attempts(self) -> int:
        return sum("inputs" in line for line in self.lines())

    def is_past(self, attempts: int) -> bool:
        """Whether there were more attempts than these, or everything has been tried."""
        return self.attempts() > attempts or self.has_tried_all()

    def has_tried_all(self) -> bool:
        tried = {(place[0], place[1]) for line in self.lines() for place in line.get("inputs", ())}
        return all((partition, self.fed - 1) in tried for partition in range(PARTITIONS))

    def is_amid(self) -> bool:
        """Whether one of its transactions is open now, or there is nothing left to do."""
        last = [self.lines_of(journal)[-1:] for journal in self.journals]
        return any(lines and "inputs" in lines[0] for lines in last) or self.has_tried_all()

    def is_done(self) -> bool:
        return committed_offsets(self.server.kafka, self.group, self.source, PARTITIONS) == [self.fed] * PARTITIONS

    def history(self) -> History:
        history = History(COPIES, dict.fromkeys(range(PARTITIONS), self.fed))
        for line in self.lines():
            attempt = str(line["attempt"])
            if "inputs" in line:
                history.attempts[attempt] = [Input(*taken) for taken in line["inputs"]]
            else:
                history.outcomes[attempt] = str(line["outcome"])
        offsets = committed_offsets(self.server.kafka, self.group, self.source, PARTITIONS)
        history.committed = dict(enumerate(offsets))
        for topic in self.outputs:
            for partition, messages in read_messages(self.server.kafka, topic).items():
                for message in messages:
                    place = (topic, partition, message.offset())
                    history.seen.append(Seen(parse((message.value() or b"").decode()), place))
        return history


@pytest.fixture
def crews(start_server: StartServer, tmp_path: Path) -> Iterator[list[Crew]]:
    server = start_server()
    sizes = {"java": 1, "confluent": 2, "kafka-python": 1, "aiokafka": 1}
    made = [Crew(kind, server, tmp_path, size) for kind, size in sizes.items()]
    yield made
    for crew in made:
        crew.close()


def test_transactions_survive_the_death_of_everyone_in_them(crews: list[Crew]) -> None:
    server, chance = crews[0].server, random.Random(SEED)
    feeder = Producer({"bootstrap.servers": server.kafka, "enable.idempotence": True, "log_level": 0})
    for crew in crews:
        crew.start()
    for turn in range(ROUNDS):
        busy = [partial(crew.is_past, crew.attempts()) for crew in crews]
        for crew in crews:
            crew.feed(feeder)
        assert feeder.flush(WAIT_S) == 0
        for crew, is_busy in zip(crews, busy, strict=True):
            eventually(is_busy, f"{crew.kind} is at work", PATIENCE_S)
        first = chance.choice(crews)  # the server dies while this one is at work, or has done all
        more = partial(first.is_past, first.attempts() + chance.randrange(4))
        eventually(more, f"{first.kind} goes on", PATIENCE_S)
        victim = crews[turn % len(crews)]
        eventually(victim.is_amid, f"{victim.kind} is amid a transaction", PATIENCE_S)
        victim.kill_one(chance)
        eventually(first.is_amid, f"{first.kind} is amid a transaction", PATIENCE_S)
        server.kill()
        server.restart()
    for crew in crews:
        eventually(crew.is_done, f"{crew.kind} has moved everything", PATIENCE_S)
        crew.end()
    histories = {crew.kind: crew.history() for crew in crews}
    for crew in crews:
        history = histories[crew.kind]
        assert check(history) == [], f"{crew.kind}: {crew.home}"
        assert len(history.seen) == crew.fed * PARTITIONS * COPIES
        assert {*history.outcomes.values()} == {COMMITTED, ABORTED}, f"{crew.kind} must have done both"
        for topic in crew.outputs:  # nothing is left open
            assert ends_of(server, topic, UNCOMMITTED) == ends_of(server, topic, READ_COMMITTED)
    unknown = sum(len(history.attempts) - len(history.outcomes) for history in histories.values())
    assert unknown >= ROUNDS // 2, "too few died in the midst of a transaction to prove anything"


def ends_of(server: Server, topic: str, isolation: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "reader", "isolation.level": isolation})
    try:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return [consumer.get_watermark_offsets(place, WAIT_S, cached=False)[1] for place in places]
    finally:
        consumer.close()
