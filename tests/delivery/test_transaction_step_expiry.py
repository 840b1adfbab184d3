"""Names of steps that nobody commits under any more are forgotten, and with them nothing that somebody needs."""

import random
from typing import Any

import pytest
from test_transaction_steps import P0, TIMEOUT_MS, Play
from transaction_stage import Stage

from penstock.delivery.transaction_events import TransactionSettings
from penstock.delivery.transaction_facts import read_done
from penstock.model.errors import ConcurrentTransactions, StepForgotten

DAY_MS = 24 * 3600 * 1000
EXPIRATION_MS = TransactionSettings().step_expiration_ms


def test_a_name_expires_so_long_after_its_newest_commit():
    play = Play()
    play.commit(0)
    play.stage.advance(EXPIRATION_MS // 2)
    play.commit(1)
    play.stage.advance(EXPIRATION_MS - 1)
    assert play.commit(1) is False
    assert play.commit(0) is False
    play.stage.advance(1)
    assert not play.stage.ledger
    assert not play.stage.steps
    assert play.commit(0, mark="another") is True


def test_it_is_as_old_after_a_restart_as_before():
    play = Play()
    play.commit(0)
    for _ in range(29):
        play.stage.advance(DAY_MS)
        play.stage.crash()
    assert play.commit(0) is False
    play.stage.advance(DAY_MS)
    assert not play.stage.ledger
    assert not play.stage.steps


def test_a_name_that_expired_while_nothing_ran_is_forgotten_at_the_start():
    play = Play()
    play.commit(0)
    play.stage.clock.advance(2 * EXPIRATION_MS)
    play.stage.crash()
    play.stage.advance(0)
    assert not play.stage.ledger


def test_nothing_is_forgotten_while_a_writer_is_open_or_being_ended():
    play = Play(Stage(TransactionSettings(step_max_timeout_ms=2 * EXPIRATION_MS)))
    play.commit(0)
    writer = play.open(1, timeout_ms=EXPIRATION_MS + DAY_MS).producer_id
    play.write(writer)
    play.stage.advance(EXPIRATION_MS)
    assert play.commit(0) is False
    play.stage.prompt = False
    play.ask(lambda t: play.machine.abort(play.stage.now, t, 1))
    play.stage.record()
    play.stage.advance(DAY_MS)
    assert play.machine.done
    play.stage.conclude()
    while play.stage.recording:
        play.stage.record()
    play.stage.advance(0)
    play.stage.settle()
    assert not play.stage.ledger


def test_nothing_begins_anew_before_the_old_is_gone_for_good():
    play = Play()
    for epoch in range(5):
        play.commit(epoch)
    play.stage.prompt = False
    play.stage.advance(EXPIRATION_MS)
    answers: list[Any] = []
    play.stage.ask(play.machine, lambda t: play.machine.commit(play.stage.now, t, 0, (), "m"), answers.append)
    play.stage.ask(play.machine, lambda t: play.machine.open(play.stage.now, t, 0, "w", 1, 7), answers.append)
    play.stage.record(failing=True)
    assert [type(answer) for answer in answers] == [ConcurrentTransactions] * 2
    for asked in (lambda: play.commit(0), lambda: play.open(0)):
        with pytest.raises(ConcurrentTransactions):
            asked()
    play.stage.advance(play.stage.settings.retry_ms)
    play.stage.settle()
    assert not play.stage.ledger
    play.stage.prompt = True
    assert play.commit(0) is True


@pytest.mark.parametrize("kept", range(6))
def test_whatever_a_crash_leaves_of_forgetting_tells_no_lies(kept):
    play = Play()
    for epoch in range(5):
        play.commit(epoch, mark=str(epoch))
    play.stage.prompt = False
    play.stage.advance(EXPIRATION_MS)
    play.stage.crash(kept_facts=kept)
    play.stage.prompt = True
    for epoch in range(5):
        if kept >= 5:
            assert play.commit(epoch, mark="new") is True
        elif epoch < kept:
            with pytest.raises(StepForgotten):
                play.commit(epoch, mark=str(epoch))
        else:
            assert play.commit(epoch, mark=str(epoch)) is False
    if kept < 5:
        play.stage.advance(0)
        assert not play.stage.ledger


def test_a_step_that_was_aborted_and_never_committed_leaves_nothing():
    play = Play()
    writer, other = play.open(3).producer_id, play.open(3).producer_id
    play.write(writer, P0)
    assert play.abort(3) == 2
    assert not play.stage.ledger
    play.stage.bury()
    assert not play.stage.steps
    play.open(3)
    play.stage.advance(TIMEOUT_MS)
    assert not play.stage.ledger
    assert not play.stage.steps
    assert play.results() == {writer: False}
    assert other not in play.results()


@pytest.mark.parametrize("seed", range(200))
def test_what_was_forgotten_never_stands_beside_what_came_after(seed):
    """Crashes and a failing ledger at any moment; each life of the name has marks of its own."""
    dice = random.Random(seed)
    play = Play()
    stage = play.stage
    stage.prompt = False
    life = 0

    def marks() -> set[str]:
        return {read_done(value).mark for key, value in stage.ledger.items() if b"done" in key}

    for _ in range(150):
        machine = play.machine
        match dice.randrange(9):
            case 0 | 1 | 2:
                epoch = dice.randrange(6)
                stage.ask(machine, lambda t, e=epoch, m=machine, mark=str(life): m.commit(stage.now, t, e, (), mark))
            case 3:
                stage.ask(machine, lambda t, m=machine: m.open(stage.now, t, 9, "w", TIMEOUT_MS, stage.new_id()))
            case 4:
                known = bool(machine.done)
                if dice.random() < 0.5:
                    stage.ask(machine, lambda t, m=machine: m.forget(stage.now, t))
                else:
                    stage.advance(EXPIRATION_MS)
                life += known and not machine.done
            case 5 if stage.recording:
                stage.record(failing=True)
            case 6 if dice.random() < 0.3:
                stage.crash(kept_facts=dice.randrange(8))
                life = max((int(mark) for mark in marks()), default=life + 1)
            case _:
                for _ in range(dice.randrange(4)):
                    if stage.recording:
                        stage.record()
                    elif stage.endings:
                        forgetting = bool(play.machine.done)
                        stage.conclude()
                        life += forgetting and not play.machine.done
                stage.bury()
        assert len(marks()) <= 1
    for _ in range(20):
        stage.settle()
        stage.advance(TIMEOUT_MS)
    stage.settle()
    stage.advance(EXPIRATION_MS)
    stage.settle()
    stage.bury()
    assert not stage.ledger
    assert not stage.steps
