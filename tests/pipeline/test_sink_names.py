"""What the sink and the jobs leave with the broker: names that are of use, and no others; nothing open for ever."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from sink_stories import ask, is_stable, values_in
from source_topics import create

from penstock.model.errors import StepAborted, UnknownTransaction
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.jobs import compact_state, replay
from penstock.pipeline.jobs.desk import Desk
from penstock.pipeline.jobs.step_notes import marks_of, write_note
from penstock.pipeline.sink import BatchSink, commit_step, write_rows
from penstock.pipeline.sink_options import sink_options
from penstock.testing.server import Server
from penstock.wire.native import messages as wire

WAIT_S = 30.0
LONG_MS = 600_000


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})


def options_of(server: Server, topic: str, **more: Any) -> Any:
    given = {"server": server.line, "topic": topic, "timeout": "30"}
    return sink_options(given | {name: str(value) for name, value in more.items()}, stream=False)


def committed(server: Server, step: str) -> list[tuple[int, str]]:
    with Desk(server.line) as desk:
        return marks_of(desk, step)


def until_stable(server: Server, topic: str) -> None:
    waiting = threading.Event()
    for _ in range(int(WAIT_S / 0.05)):
        if is_stable(server, topic):
            return
        waiting.wait(0.05)
    raise AssertionError(f"{topic} still has something open after {WAIT_S:g} s")


# -- a driver that dies for good ----------------------------------------------------------------------------------


def test_dead_application_holds_readers_until_its_time_out_and_may_come_back(server: Server, topic: str) -> None:
    create(server, topic, 1)
    hasty = options_of(server, topic, stepTimeout=1)
    dead = write_rows(hasty, topic, 0, rows("dead"))
    until_stable(server, topic)
    assert values_in(server, topic) == []
    with pytest.raises(UnknownTransaction):  # it was never committed, so nothing is left of the name
        ask(server, wire.DescribeStep(topic))
    with pytest.raises(StepAborted, match="stepTimeout"):  # it was not dead after all
        commit_step(hasty, topic, 0, [dead], "m")
    repeat = write_rows(hasty, topic, 0, rows("alive"))
    assert commit_step(hasty, topic, 0, [repeat], "m") is True
    assert commit_step(hasty, topic, 0, [repeat], "m") is False
    assert values_in(server, topic) == ["alive"]
    assert is_stable(server, topic)


def test_repeat_of_a_dead_application_need_not_wait_for_the_time_out(server: Server, topic: str) -> None:
    create(server, topic, 1)
    patient = options_of(server, topic, stepTimeout=LONG_MS // 1000)
    write_rows(patient, topic, 0, rows("dead"))
    repeat = write_rows(patient, topic, 0, rows("alive"))
    assert not is_stable(server, topic)
    assert commit_step(patient, topic, 0, [repeat], "m") is True
    assert values_in(server, topic) == ["alive"]
    assert is_stable(server, topic)


# -- names --------------------------------------------------------------------------------------------------------


def test_write_without_a_name_leaves_none(server: Server, topic: str) -> None:
    create(server, topic, 1)
    sink = BatchSink(options_of(server, topic))
    sink.commit([sink.write(rows("a", "b"))])
    assert values_in(server, topic) == ["a", "b"]
    with pytest.raises(UnknownTransaction):
        ask(server, wire.DescribeStep(sink._application))


def test_write_with_a_name_is_remembered(server: Server, topic: str) -> None:
    create(server, topic, 1)
    sink = BatchSink(options_of(server, topic, application=f"import {topic}", epoch=3))
    sink.commit([sink.write(rows("a"))])
    assert committed(server, f"import {topic}") == [(3, "")]


def test_compaction_that_is_over_leaves_no_name(server: Server, topic: str) -> None:
    with Desk(server.line) as desk:
        compact_state.write_state(desk, topic, compact_state.State(compact_state.BEGUN, "work"))
        assert compact_state.read_state(desk, topic).stage == compact_state.BEGUN
        compact_state.write_state(desk, topic, compact_state.State(compact_state.DONE))
        assert compact_state.read_state(desk, topic).stage == compact_state.DONE
        with pytest.raises(UnknownTransaction):
            desk.ask(wire.DescribeStep(compact_state.note_step(topic)))


def test_replay_that_is_over_leaves_its_own_name_only(server: Server, topic: str) -> None:
    options = replay.ReplayOptions(server=server.line, run=topic, topic=topic, into=f"{topic}-copy")
    create(server, topic, 1)
    step, plan = f"replay:{topic}", f"replay:{topic}:plan"
    whole = json.dumps({"of": replay._digest(options), "to": replay.WHOLE, "rows": 7})
    with Desk(server.line) as desk:
        write_note(desk, plan, {"left": "by one that was killed at its very end"})
        desk.ask(wire.CommitStep(step, 0, [], whole))
    assert replay.run(None, options).skipped  # type: ignore[arg-type]
    assert committed(server, plan) == []
    assert committed(server, step) == [(0, whole)]


def test_replay_whose_plan_was_forgotten_does_not_guess(server: Server, topic: str) -> None:
    options = replay.ReplayOptions(server=server.line, run=topic, topic=topic, into=f"{topic}-copy")
    create(server, topic, 1)
    half = json.dumps({"of": replay._digest(options), "to": replay.WHOLE // 2, "rows": 7})
    ask(server, wire.CommitStep(f"replay:{topic}", 0, [], half))
    with pytest.raises(InvalidOption, match="forgotten"):
        replay.run(None, options)  # type: ignore[arg-type]
    assert committed(server, f"replay:{topic}") == [(0, half)]
