"""Named steps: what each may do, as stories, and then long lives of them by dice."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transaction_stage import Entry, Stage

from penstock.delivery import step as step_module
from penstock.delivery.offsets import TopicPartition
from penstock.delivery.step import Step
from penstock.delivery.step_record import STEP_HISTORY
from penstock.delivery.transaction_events import Opened, ProducerIdentity, TransactionSettings
from penstock.model.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    LimitReached,
    OutOfOrderSequence,
    PenstockError,
    ProducerFenced,
    StepAborted,
    StepForgotten,
    StepMismatch,
    StorageFailed,
)

P0, P1, P2 = PLACES = tuple(TopicPartition("t", n) for n in range(3))
TIMEOUT_MS = 10_000


class Play:
    """One step, asked things; an error is raised."""

    def __init__(self, stage: Stage | None = None) -> None:
        self.stage = stage or Stage()
        self.sequences: dict[tuple[int, TopicPartition], int] = {}

    @property
    def machine(self) -> Step:
        return self.stage.step("s")

    def ask(self, event: Callable[[int], Any]) -> Any:
        answer = self.stage.ask(self.machine, event)
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def open(self, epoch: int, label: str = "w", timeout_ms: int = TIMEOUT_MS) -> Opened:
        new_id = self.stage.new_id()
        return self.ask(lambda t: self.machine.open(self.stage.now, t, epoch, label, timeout_ms, new_id))

    def write(self, writer: int, place: TopicPartition = P0) -> None:
        identity = ProducerIdentity(writer, 0)
        log = self.stage.open_log(place)
        if not self.machine.covers(self.stage.now, identity, place):
            self.ask(lambda t: self.machine.add(self.stage.now, t, identity, (place,)))
        at = self.sequences[writer, place] = self.sequences.get((writer, place), -1) + 1
        log.append(Entry(writer, 0, at, writer))
        log.durable = len(log.entries)

    def commit(self, epoch: int, *writers: int, mark: str = "m") -> bool:
        return self.ask(lambda t: self.machine.commit(self.stage.now, t, epoch, writers, mark))

    def abort(self, epoch: int) -> int:
        return self.ask(lambda t: self.machine.abort(self.stage.now, t, epoch))

    def results(self) -> dict[int, bool | None]:
        """By writer, whether it was committed."""
        found: dict[int, bool | None] = {}
        for log in self.stage.logs.values():
            for writer, result in log.results():
                assert found.setdefault(writer, result) is result, "torn"
        return found


def test_a_commit_shows_the_writers_it_names_and_aborts_the_others():
    play = Play()
    first, second, straggler = (play.open(0).producer_id for _ in range(3))
    for writer in (first, second, straggler):
        play.write(writer, P0)
        play.write(writer, P1)
    assert play.commit(0, first, second) is True
    assert play.results() == {first: True, second: True, straggler: False}
    with pytest.raises(ProducerFenced):
        play.write(straggler)
    assert play.commit(0, first, second) is False
    assert play.commit(0) is False  # whatever a repeat names
    assert not play.machine.writers
    play.stage.crash()
    assert play.commit(0, first, second) is False
    assert play.machine.describe().committed == [(0, "m")]


def test_the_same_epoch_for_something_else_is_refused():
    play = Play()
    play.commit(3, mark="offsets 1 to 5")
    with pytest.raises(StepMismatch):
        play.commit(3, mark="offsets 1 to 6")
    assert play.open(3) == Opened(-1, -1, True, "offsets 1 to 5")
    with pytest.raises(StepForgotten):
        play.commit(2)
    with pytest.raises(StepForgotten):
        play.open(1)


def test_the_newest_commits_are_remembered():
    play = Play()
    for epoch in range(STEP_HISTORY + 5):
        play.commit(epoch, mark=str(epoch))
    assert play.commit(5, mark="5") is False
    with pytest.raises(StepForgotten):
        play.commit(4, mark="4")
    assert len(play.stage.ledger) == STEP_HISTORY
    play.stage.crash()
    assert len(play.machine.done) == STEP_HISTORY
    assert play.machine.newest == STEP_HISTORY + 4


def test_a_commit_that_counts_on_a_writer_that_is_gone_is_refused():
    play = Play()
    writer = play.open(0).producer_id
    play.write(writer)
    with pytest.raises(StepAborted):
        play.commit(0, writer, 7)
    with pytest.raises(StepAborted):
        play.commit(1, writer)
    assert play.abort(0) == 1
    assert play.abort(0) == 0
    with pytest.raises(StepAborted):
        play.commit(0, writer)
    again = play.open(0).producer_id
    play.write(again)
    assert play.commit(0, again)
    assert play.results() == {writer: False, again: True}
    assert play.abort(0) == 0


def test_a_later_commit_aborts_what_older_epochs_left_open_and_touches_no_newer_ones():
    play = Play()
    old, current, newer = (play.open(epoch).producer_id for epoch in (1, 2, 3))
    for writer in (old, current, newer):
        play.write(writer)
    play.commit(2, current)
    assert play.results() == {old: False, current: True, newer: None}
    assert play.machine.describe().open == [(3, ["w"])]


def test_silence_aborts_and_a_batch_is_a_sign_of_life():
    play = Play()
    writer = play.open(0).producer_id
    for _ in range(3):
        play.stage.advance(TIMEOUT_MS - 1)
        play.write(writer)
    play.stage.advance(TIMEOUT_MS)
    assert play.results() == {writer: False}
    with pytest.raises(StepAborted):
        play.commit(0, writer)


def test_forgetting_a_step_aborts_what_is_open_and_leaves_nothing():
    play = Play()
    play.commit(0)
    writer = play.open(1).producer_id
    play.write(writer)
    play.ask(lambda t: play.machine.forget(play.stage.now, t))
    assert play.results() == {writer: False}
    assert not play.stage.ledger
    play.stage.bury()
    assert not play.stage.steps
    assert play.commit(0, mark="another") is True


def test_what_makes_no_sense_is_refused():
    play = Play()
    for refused in (
        lambda: play.open(-1),
        lambda: play.open(0, "x" * 1025),
        lambda: play.commit(-1),
        lambda: play.commit(0, mark="x" * 1025),
    ):
        with pytest.raises(InvalidRequest):
            refused()
    with pytest.raises(InvalidTransactionTimeout):
        play.open(0, timeout_ms=0)
    play.stage.bury()
    assert not play.stage.steps


def test_what_is_to_be_ended_at_once_has_a_bound(monkeypatch):
    monkeypatch.setattr(step_module, "MAX_PLACES", 4)
    play = Play()
    for epoch in range(3):  # those that are ended do not count
        first, second = (play.open(epoch).producer_id for _ in range(2))
        for writer in (first, second):
            play.write(writer, P0)
            play.write(writer, P1)
        with pytest.raises(LimitReached):
            play.write(first, P2)
        play.commit(epoch, first, second)


def test_a_commit_that_was_recorded_is_carried_through_after_a_crash():
    play = Play()
    first, other = (play.open(0).producer_id for _ in range(2))
    for writer in (first, other):
        play.write(writer, P0)
        play.write(writer, P1)
    stage = play.stage
    stage.prompt = False
    stage.ask(play.machine, lambda t: play.machine.commit(stage.now, t, 0, [first], "m"))
    stage.record()
    stage.conclude(failing=lambda task: task.partition == P1)
    stage.crash()
    stage.prompt = True
    stage.settle()
    assert play.results() == {first: True, other: False}
    assert play.commit(0, first) is False


def test_an_abort_that_was_begun_cannot_become_a_commit():
    play = Play()
    writer = play.open(0).producer_id
    play.write(writer, P0)
    play.write(writer, P1)
    stage = play.stage
    stage.prompt = False
    stage.ask(play.machine, lambda t: play.machine.abort(stage.now, t, 0))
    assert not stage.endings
    stage.record()
    stage.conclude(failing=lambda task: task.partition == P1)
    stage.crash()
    stage.prompt = True
    with pytest.raises(StepAborted):
        play.commit(0, writer)
    assert play.results() == {writer: False}


# -- lives -------------------------------------------------------------------------------------------------------------


@dataclass
class Pen:
    """A writer, as a task knows it."""

    epoch: int
    producer_id: int
    written: list[tuple[TopicPartition, int, bool]] = field(default_factory=list)  # place, end, known
    broken: bool = False


class StepWorld:
    """A driver that may be there twice, tasks that may be, too, and everything else that can happen."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.stage = Stage(TransactionSettings(retry_ms=100, max_retry_ms=1_000))
        self.stage.prompt = False
        self.pens: list[Pen] = []
        self.epoch = 0
        self.requests: dict[int, list[frozenset[int]]] = {}  # by epoch, what commits have named
        self.answers: dict[int, int] = {}  # by epoch
        self.firsts: dict[int, int] = {}  # by epoch, how many were told to be the first
        self.rows: dict[int, int] = {}  # acknowledged, by writer

    @property
    def machine(self) -> Step:
        return self.stage.step("s")

    def open(self, epoch: int) -> None:
        def learn(result: Any) -> None:
            if isinstance(result, Opened) and not result.done:
                self.pens.append(Pen(epoch, result.producer_id))
            elif isinstance(result, PenstockError):
                assert isinstance(result, StorageFailed | StepForgotten), result
            else:
                assert self.requests.get(epoch), "done, and nobody asked for it"

        new_id = self.stage.new_id()
        self.stage.ask(
            self.machine, lambda t: self.machine.open(self.stage.now, t, epoch, "w", TIMEOUT_MS, new_id), learn
        )

    def write(self, pen: Pen, place: TopicPartition) -> None:
        identity = ProducerIdentity(pen.producer_id, 0)
        log = self.stage.open_log(place)
        sequence = sum(at == place for at, _, _ in pen.written)
        row = len(pen.written)
        try:
            known = self.machine.covers(self.stage.now, identity, place)
            if not known:

                def learn(result: Any) -> None:
                    if result is None:
                        pen.written[row] = (*pen.written[row][:2], True)
                    else:
                        pen.broken = True

                pen.written.append((place, log.append(Entry(*identity, sequence, pen.producer_id)), False))
                self.stage.ask(self.machine, lambda t: self.machine.add(self.stage.now, t, identity, (place,)), learn)
            else:
                pen.written.append((place, log.append(Entry(*identity, sequence, pen.producer_id)), True))
        except (ProducerFenced, InvalidProducerEpoch, InvalidTransactionState, OutOfOrderSequence):
            pen.broken = True

    def is_safe(self, pen: Pen) -> bool:
        """Whether all it wrote was acknowledged."""
        logs = self.stage.logs
        return not pen.broken and all(known and end <= logs[place].durable for place, end, known in pen.written)

    def commit(self, epoch: int, mark: str) -> None:
        pens = [pen for pen in self.pens if pen.epoch == epoch and self.is_safe(pen)]
        named = frozenset(pen.producer_id for pen in pens if self.dice.random() < 0.8)
        self.rows.update({pen.producer_id: len(pen.written) for pen in pens})
        self.requests.setdefault(epoch, []).append(named)

        def learn(result: Any) -> None:
            if result in (True, False):
                self.answers[epoch] = self.answers.get(epoch, 0) + 1
                self.firsts[epoch] = self.firsts.get(epoch, 0) + bool(result)
                self.epoch = max(self.epoch, epoch + 1)
            else:
                expected = (ConcurrentTransactions, StorageFailed, StepAborted, StepForgotten)
                assert isinstance(result, expected), result

        order = list(named)
        self.stage.ask(self.machine, lambda t: self.machine.commit(self.stage.now, t, epoch, order, mark), learn)

    def crash(self) -> None:
        self.stage.crash(self.dice.randrange(5), self.dice.randrange(4))
        for pen in self.pens:
            pen.broken = pen.broken or not all(
                known and end <= self.stage.logs[place].durable for place, end, known in pen.written
            )

    def go_on(self, endings: bool) -> None:
        while self.stage.recording or (endings and self.stage.endings):
            if self.stage.recording:
                self.stage.record()
            else:
                self.stage.conclude(self.dice.randrange(len(self.stage.endings)))
        for log in self.stage.logs.values():
            log.durable = len(log.entries)

    def live(self, steps: int) -> None:
        dice, stage = self.dice, self.stage
        trouble, failures = dice.choice((0.02, 0.1, 0.3)), dice.choice((0.0, 0.1, 0.3))
        for _ in range(steps):
            while stage.recording and dice.random() < failures:
                stage.record(failing=True)
            if dice.random() < trouble:
                match dice.randrange(4):
                    case 0:
                        self.crash()
                    case 1:
                        stage.advance(dice.choice((10, 1_000, TIMEOUT_MS)))
                    case 2 if stage.endings:
                        failing = set(dice.sample(PLACES, 2))
                        stage.conclude(dice.randrange(len(stage.endings)), lambda task, f=failing: task.partition in f)
                    case 3:
                        epoch = max(0, self.epoch - dice.randrange(2))
                        stage.ask(self.machine, lambda t, e=epoch: self.machine.abort(stage.now, t, e))
                continue
            epoch = max(0, self.epoch + dice.choice((-1, 0, 0, 0, 0, 1)))
            match dice.randrange(8):
                case 0 | 1:
                    self.open(epoch)
                case 2 | 3 | 4 if self.pens:
                    self.write(dice.choice(self.pens[-5:]), dice.choice(PLACES))
                case 5:
                    self.commit(epoch, "m")
                case _:
                    self.go_on(endings=dice.random() < 0.7)
        self.check()

    def check(self) -> None:
        stage = self.stage
        stage.prompt = True
        stage.settle()
        for place in PLACES:
            stage.open_log(place)
        stage.settle()
        stage.advance(3 * TIMEOUT_MS)
        assert not any(log.open for log in stage.logs.values()), "nothing holds readers back for ever"
        assert not self.machine.writers
        epochs = {pen.producer_id: pen.epoch for pen in self.pens}
        committed: dict[int, dict[int, int]] = {}
        for log in stage.logs.values():
            for writer, result in log.results():
                if result:
                    rows = committed.setdefault(epochs[writer], {})
                    rows[writer] = rows.get(writer, 0) + 1
        for epoch, rows in committed.items():
            wanted = [{w: self.rows[w] for w in named if self.rows[w]} for named in self.requests[epoch]]
            assert rows in wanted, "what is shown is what one commit named, all of it"
        for epoch in self.answers:
            assert epoch in self.machine.done or epoch < self.machine.newest - STEP_HISTORY
            assert epoch in committed or frozenset() in {
                frozenset(w for w in named if self.rows[w]) for named in self.requests[epoch]
            }, "a commit that was answered is never lost"
        assert all(count <= 1 for count in self.firsts.values())


def lives(seeds: Sequence[int]) -> int:
    answers = 0
    for seed in seeds:
        world = StepWorld(seed)
        try:
            world.live(150)
        except AssertionError as error:
            raise AssertionError(f"in the life of seed {seed}: {error}") from error
        answers += len(world.answers)
    return answers


def test_long_lives_of_many_steps():
    assert lives(range(400)) > 400


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_any_life_of_a_step(seed):
    lives([seed])
