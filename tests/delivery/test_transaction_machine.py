"""Transactions of several clients in any order, with delays, repeats, a failing ledger and crashes: what always holds.

A client believes in its transactions: each has a number of its own, goes into every batch, and ends as the client
asked, or is not known to have ended. In the end the logs are asked what became of each.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from transaction_stage import Entry, Stage

from penstock.delivery.offsets import TopicPartition
from penstock.delivery.transaction_events import ProducerIdentity, TransactionSettings
from penstock.model.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerMapping,
    InvalidTransactionState,
    OutOfOrderSequence,
    PenstockError,
    ProducerFenced,
    StorageFailed,
)

NAMES = ("a", "b")
PLACES = tuple(TopicPartition("t", n) for n in range(3))
TIMEOUT_MS = 10_000
RETRIABLE = (ConcurrentTransactions, StorageFailed)
FATAL = (ProducerFenced, InvalidProducerEpoch, InvalidProducerMapping, InvalidTransactionState, OutOfOrderSequence)
LIVES = 500
picks = st.integers(0, 1000)
rarely = st.integers(0, 5).map(lambda number: number == 0)


@dataclass
class Batch:
    place: TopicPartition
    sequence: int
    durable_at: int = -1
    known: bool = False  # that its partition is part of the transaction is durable
    acked: bool = False


@dataclass
class Client:
    name: str
    second: bool  # the protocol
    via: int
    identity: ProducerIdentity | None = None
    given: ProducerIdentity | None = None  # the identity that it continues
    uid: int | None = None  # of the transaction it believes to be in
    batches: list[Batch] = field(default_factory=list)
    added: set[TopicPartition] = field(default_factory=set)
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    ending: bool | None = None
    dead: bool = False
    generation: int = 0  # answers of an older one are lost


class TransactionWorld(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(TransactionSettings(retry_ms=100, max_retry_ms=1_000))
        self.stage.prompt = False
        self.clients: list[Client] = []
        self.delayed: list[Any] = []
        self.uids = 0
        self.connections = 0
        self.steps = 0
        self.asked: dict[int, set[bool]] = {}
        self.answered: dict[int, bool] = {}
        self.acked: dict[int, int] = {}  # batches of each transaction
        self.results: dict[tuple[str, int, int], bool] = {}  # of each identity that ended under the second protocol

    # -- clients ------------------------------------------------------------------------------------------------

    def connect(self) -> int:
        self.connections += 1
        return self.connections

    @initialize(seconds=st.tuples(st.booleans(), st.booleans()))
    def begin(self, seconds: tuple[bool, bool]) -> None:
        for name, second in zip(NAMES, seconds, strict=True):
            self.clients.append(Client(name, second, self.connect()))
            self.init(self.clients[-1])
        self.go_on(endings=True)

    @precondition(lambda self: len(self.clients) < 5 and (all(c.dead for c in self.clients) or self.steps % 15 == 0))
    @rule(name=st.sampled_from(NAMES), second=st.booleans())
    def arrive(self, name: str, second: bool) -> None:
        """Another process takes the name over; the one before does not know yet."""
        self.clients.append(Client(name, second, self.connect()))
        self.init(self.clients[-1])

    @invariant()
    def count(self) -> None:
        self.steps += 1

    def pick(self, pick: int, *, ready: bool) -> Client | None:
        found = [c for c in self.clients if not c.dead and (not ready or (c.identity is not None and c.ending is None))]
        return found[pick % len(found)] if found else None

    def send(self, client: Client, event: Any, learn: Any) -> None:
        generation = client.generation

        def hear(result: Any) -> None:
            if client.dead or generation != client.generation:
                return
            if isinstance(result, FATAL):
                client.dead = True
            elif not isinstance(result, PenstockError):
                learn(result)
            else:
                assert isinstance(result, RETRIABLE), result

        self.stage.ask(self.stage.transaction(client.name), event, hear)

    def init(self, client: Client) -> None:
        def learn(identity: ProducerIdentity) -> None:
            client.identity, client.given = identity, None
            client.sequences.clear()

        stage, new_id, given = self.stage, self.stage.new_id(), client.given
        machine = stage.transaction(client.name)
        self.send(client, lambda t: machine.init(stage.now, t, TIMEOUT_MS, given, new_id, client.via), learn)

    @precondition(lambda self: any(c.uid is None and not c.dead for c in self.clients))
    @rule(pick=picks)
    def init_again(self, pick: int) -> None:
        """Who has no identity yet asks again; who is between transactions may continue under a new epoch."""
        client = self.pick(pick, ready=False)
        if client is not None and client.ending is None and client.uid is None and (not client.identity or pick > 800):
            client.given, client.identity = client.identity or client.given, None
            self.init(client)

    @precondition(lambda self: self.pick(0, ready=True))
    @rule(pick=picks, places=st.lists(st.sampled_from(PLACES), min_size=1, max_size=3), delay=rarely)
    def produce(self, pick: int, places: list[TopicPartition], delay: bool) -> None:
        client = self.pick(pick, ready=True)
        assert client is not None
        for place in places:
            if not client.dead:
                self.produce_one(client, place, delay)

    def produce_one(self, client: Client, place: TopicPartition, delay: bool) -> None:
        assert client.identity is not None
        if client.uid is None:
            self.uids += 1
            client.uid = self.uids
            client.batches, client.added = [], set()
        if not client.second and place not in client.added:
            self.add(client, place, delay)
            if place not in client.added:
                return
        sequence = client.sequences[place] = client.sequences.get(place, -1) + 1
        client.batches.append(Batch(place, sequence))
        self.write(client, client.batches[-1])

    def add(self, client: Client, place: TopicPartition, delay: bool) -> None:
        stage, machine, identity = self.stage, self.stage.transaction(client.name), client.identity
        assert identity is not None
        if delay:
            self.delay(client, lambda machine, via: lambda t: machine.add(stage.now, t, identity, (place,), via))
        else:
            via, added = client.via, client.added
            self.send(client, lambda t: machine.add(stage.now, t, identity, (place,), via), lambda _: added.add(place))

    def write(self, client: Client, batch: Batch) -> None:
        machine, stage, identity = self.stage.transaction(client.name), self.stage, client.identity
        assert identity is not None
        assert client.uid is not None
        log = stage.open_log(batch.place)
        try:
            covered = machine.covers(identity, batch.place)
            if not covered and not client.second and not machine.has(identity, batch.place):
                raise InvalidTransactionState("not added")
            if not covered:
                learn = lambda _: self.learn_known(client, batch)  # noqa: E731
                self.send(client, lambda t: machine.add(stage.now, t, identity, (batch.place,)), learn)
            batch.durable_at = log.append(Entry(*identity, batch.sequence, client.uid))
            if covered:
                self.learn_known(client, batch)
        except FATAL:
            client.dead = True
        except RETRIABLE:
            pass

    def learn_known(self, client: Client, batch: Batch) -> None:
        batch.known = True
        self.acknowledge(client)

    def acknowledge(self, client: Client) -> None:
        for batch in client.batches:
            if (
                not client.dead
                and not batch.acked
                and batch.known
                and 0 <= batch.durable_at <= self.stage.logs[batch.place].durable
            ):
                batch.acked = True
                assert client.uid is not None
                self.acked[client.uid] = self.acked.get(client.uid, 0) + 1

    @precondition(lambda self: any(not b.acked for c in self.clients if not c.dead for b in c.batches))
    @rule(pick=picks)
    def write_again(self, pick: int) -> None:
        client = self.pick(pick, ready=True)
        if client is not None and client.uid is not None:
            for batch in client.batches:
                if not batch.acked and not client.dead:
                    self.write(client, batch)

    def sync(self, place: TopicPartition) -> None:
        log = self.stage.logs[place]
        log.durable = len(log.entries)
        for client in self.clients:
            self.acknowledge(client)

    @precondition(lambda self: any(c.uid and c.identity and c.ending is None and not c.dead for c in self.clients))
    @rule(pick=picks, commit=st.booleans(), delay=rarely)
    def end(self, pick: int, commit: bool, delay: bool) -> None:
        client = self.pick(pick, ready=True)
        if client is None or client.uid is None:
            return
        if commit and not (client.batches and all(batch.acked for batch in client.batches)):
            return  # a producer flushes first
        if not commit and not client.second and not client.added:
            return  # it knows that there is nothing to end
        client.ending = commit
        self.asked.setdefault(client.uid, set()).add(commit)
        self.send_end(client, delay)

    @precondition(lambda self: any(c.ending is not None and not c.dead for c in self.clients))
    @rule(pick=picks, delay=rarely)
    def end_again(self, pick: int, delay: bool) -> None:
        client = self.pick(pick, ready=False)
        if client is not None and client.ending is not None:
            self.send_end(client, delay)

    def send_end(self, client: Client, delay: bool) -> None:
        stage, machine, identity, commit = (
            self.stage,
            self.stage.transaction(client.name),
            client.identity,
            client.ending,
        )
        second, uid, via = client.second, client.uid, client.via
        assert identity is not None
        assert commit is not None
        assert uid is not None
        new_id = stage.new_id()

        def learn(after: ProducerIdentity) -> None:
            if client.uid != uid:
                return  # the answer to a repeat
            assert self.answered.setdefault(uid, commit) is commit
            if second:
                assert self.results.setdefault((client.name, *identity), commit) is commit
            if after != client.identity:
                client.sequences.clear()
            client.identity, client.uid, client.ending = after, None, None
            client.batches = []

        if delay:
            self.delay(client, lambda m, via: lambda t: m.end(stage.now, t, identity, commit, second, via, new_id))
        else:
            self.send(client, lambda t: machine.end(stage.now, t, identity, commit, second, via, new_id), learn)

    def delay(self, client: Client, request: Any) -> None:
        """The request is stuck on the way; its client gives the connection up and takes another."""
        self.delayed.append((client.name, client.via, request))
        client.via = self.connect()

    @precondition(lambda self: self.delayed)
    @rule(pick=picks)
    def deliver(self, pick: int) -> None:
        name, via, request = self.delayed.pop(pick % len(self.delayed))
        machine = self.stage.transaction(name)
        self.stage.ask(machine, request(machine, via))

    @precondition(lambda self: self.steps % 3 == 0)
    @rule(pick=picks)
    def lose_answers(self, pick: int) -> None:
        client = self.pick(pick, ready=False)
        if client is not None:
            client.generation += 1
            client.via = self.connect()

    # -- the server ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.stage.recording)
    @rule(luck=st.integers(0, 5))
    def record(self, luck: int) -> None:
        self.stage.record(failing=luck == 0)

    @rule(endings=st.booleans())
    def go_on(self, endings: bool) -> None:
        """All goes well for a moment."""
        while self.stage.recording or (endings and self.stage.endings):
            if self.stage.recording:
                self.stage.record()
            else:
                self.stage.conclude()
        for place in PLACES:
            self.sync(place)

    @precondition(lambda self: self.stage.endings)
    @rule(pick=picks, failing=st.sets(st.sampled_from(PLACES)))
    def conclude(self, pick: int, failing: set[TopicPartition]) -> None:
        self.stage.conclude(pick % len(self.stage.endings), lambda task: task.partition in failing)

    @precondition(lambda self: self.steps % 3 == 0)
    @rule(ms=st.sampled_from((10, 1_000, TIMEOUT_MS)))
    def wait(self, ms: int) -> None:
        self.stage.advance(ms)

    @precondition(lambda self: self.steps % 3 == 0)
    @rule(kept_facts=st.integers(0, 4), kept_batches=st.integers(0, 3))
    def crash(self, kept_facts: int, kept_batches: int) -> None:
        self.stage.crash(kept_facts, kept_batches)
        self.delayed.clear()
        for client in self.clients:
            client.generation += 1
            client.via = self.connect()
            for batch in client.batches:
                if not batch.acked:
                    batch.durable_at, batch.known = -1, False

    # -- what always holds --------------------------------------------------------------------------------------

    def teardown(self) -> None:
        stage = self.stage
        stage.prompt = True
        stage.settle()
        for place in PLACES:
            stage.open_log(place)
        stage.settle()
        stage.advance(3 * TIMEOUT_MS)
        for log in stage.logs.values():
            assert not log.open, "nothing holds readers back for ever"
        committed: dict[int, int] = {}
        aborted: dict[int, int] = {}
        for log in stage.logs.values():
            for uid, result in log.results():
                counts = committed if result else aborted
                counts[uid] = counts.get(uid, 0) + 1
        for uid in committed:
            assert True in self.asked.get(uid, ()), "nobody asked for this commit"
            assert committed[uid] >= self.acked[uid], "a commit is whole"
            assert self.answered.get(uid) is not False, "an abort that was answered is one"
        for uid, commit in self.answered.items():
            if commit:
                assert committed.get(uid, 0) == self.acked[uid], "a commit that was answered is never lost"
                assert uid not in aborted
        for machine in stage.machines:
            assert machine.next_deadline_ms(stage.now) is not None, "an id is forgotten in the end"


TestTransactionWorld = TransactionWorld.TestCase
TestTransactionWorld.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def storm(seed: int, steps: int) -> TransactionWorld:
    """A long life by dice, with what usually happens happening usually."""
    dice = random.Random(seed)
    world = TransactionWorld()
    world.begin((dice.random() < 0.5, dice.random() < 0.5))
    trouble = dice.choice((0.02, 0.1, 0.3))
    delays = dice.choice((0.0, 0.1, 0.5))
    failures = dice.choice((0.0, 0.1, 0.3))
    for _ in range(steps):
        pick = dice.randrange(1000)
        if dice.random() < trouble:
            match dice.randrange(6):
                case 0:
                    world.crash(dice.randrange(5), dice.randrange(4))
                case 1:
                    world.wait(dice.choice((10, 1_000, TIMEOUT_MS)))
                case 2 if world.stage.recording:
                    world.record(luck=0)
                case 3 if world.stage.endings:
                    world.conclude(pick, set(dice.sample(PLACES, 2)))
                case 4:
                    world.lose_answers(pick)
                case 5 if sum(not client.dead for client in world.clients) < 3:
                    world.arrive(dice.choice(NAMES), dice.random() < 0.5)
            continue
        while world.stage.recording and dice.random() < failures:
            world.record(luck=0)
        if world.delayed and dice.random() < 0.05:
            world.deliver(pick)
        match dice.randrange(8):
            case 0 | 1:
                client = world.pick(pick, ready=True)
                if client is not None:
                    world.produce(pick, dice.choices(PLACES, k=2), dice.random() < delays)
            case 2:
                world.end(pick, dice.random() < 0.7, dice.random() < delays)
            case 3:
                world.end_again(pick, dice.random() < delays)
            case 4:
                world.init_again(pick)
            case 5:
                world.write_again(pick)
            case _:
                world.go_on(endings=dice.random() < 0.7)
        if all(client.dead for client in world.clients):
            world.arrive(dice.choice(NAMES), dice.random() < 0.5)
    world.teardown()
    return world


def test_long_lives_of_many_transactions():
    commits = 0
    for seed in range(LIVES):
        try:
            commits += sum(storm(seed, 150).answered.values())
        except AssertionError as error:
            raise AssertionError(f"in the life of seed {seed}: {error}") from error
    assert commits > LIVES  # the dice do not only make trouble
