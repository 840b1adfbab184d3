"""What the broker knows of pipelines, and for how long, on a clock that the test moves."""

import pytest

from penstock.broker import pipelines as registry
from penstock.broker.pipelines import Pipelines
from penstock.model.errors import InvalidRequest, LimitReached, UnknownPipeline
from penstock.security.acl import AllowAll
from penstock.security.principal import ANONYMOUS
from penstock.testing.clock import ManualClock

SECOND = 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pipelines(clock: ManualClock) -> Pipelines:
    return Pipelines(clock, AllowAll())


def states(pipelines: Pipelines) -> dict[tuple[str, str], str]:
    return {(one.name, one.run): one.state for one in pipelines.pipelines(ANONYMOUS)}


def test_a_run_is_shown_as_it_reports(pipelines: Pipelines, clock: ManualClock) -> None:
    began = clock.wall_ms()
    assert pipelines.report(ANONYMOUS, "table", "1", "starting", {}) is False
    clock.advance(5 * SECOND)
    pipelines.report(ANONYMOUS, "table", "1", "running", {"records": 7})
    (shown,) = pipelines.pipelines(ANONYMOUS)
    assert shown == ("table", "1", "running", {"records": 7}, began, began + 5 * SECOND)


def test_a_silent_run_is_lost_and_then_forgotten(pipelines: Pipelines, clock: ManualClock) -> None:
    pipelines.report(ANONYMOUS, "table", "1", "running", {})
    pipelines.report(ANONYMOUS, "sql", "1", "stopped", {})
    clock.advance(registry.LOST_AFTER_MS)
    assert states(pipelines) == {("table", "1"): "running", ("sql", "1"): "stopped"}
    clock.advance(1)
    assert states(pipelines) == {("table", "1"): "lost", ("sql", "1"): "stopped"}
    clock.advance(registry.FORGOTTEN_AFTER_MS)
    assert states(pipelines) == {}


def test_a_lost_run_that_reports_again_is_back(pipelines: Pipelines, clock: ManualClock) -> None:
    pipelines.report(ANONYMOUS, "table", "1", "running", {})
    clock.advance(registry.LOST_AFTER_MS * 10)
    pipelines.report(ANONYMOUS, "table", "1", "running", {})
    assert states(pipelines) == {("table", "1"): "running"}


def test_the_clock_on_the_wall_loses_nobody(pipelines: Pipelines, clock: ManualClock) -> None:
    pipelines.report(ANONYMOUS, "table", "1", "running", {})
    clock.set_wall(clock.wall_ms() + 10 * registry.FORGOTTEN_AFTER_MS)
    assert states(pipelines) == {("table", "1"): "running"}


def test_a_new_run_takes_the_place_of_those_that_ended(pipelines: Pipelines, clock: ManualClock) -> None:
    pipelines.report(ANONYMOUS, "table", "1", "failed", {})
    pipelines.report(ANONYMOUS, "table", "2", "running", {})
    pipelines.report(ANONYMOUS, "table", "3", "running", {})
    assert states(pipelines) == {("table", "2"): "running", ("table", "3"): "running"}


def test_an_order_to_stop_reaches_every_run_that_goes_on(pipelines: Pipelines, clock: ManualClock) -> None:
    pipelines.report(ANONYMOUS, "table", "1", "running", {})
    pipelines.report(ANONYMOUS, "table", "2", "idle", {})
    pipelines.report(ANONYMOUS, "other", "1", "running", {})
    assert pipelines.stop(ANONYMOUS, "table") == 2
    assert pipelines.report(ANONYMOUS, "table", "1", "running", {}) is True
    assert pipelines.report(ANONYMOUS, "table", "1", "stopping", {}) is True
    assert pipelines.report(ANONYMOUS, "table", "2", "stopped", {}) is True
    assert pipelines.report(ANONYMOUS, "other", "1", "running", {}) is False
    assert pipelines.stop(ANONYMOUS, "table") == 1
    assert pipelines.report(ANONYMOUS, "table", "4", "running", {}) is False  # ordered before it was there
    with pytest.raises(UnknownPipeline):
        pipelines.stop(ANONYMOUS, "nobody")


def test_the_number_of_runs_is_bounded(
    pipelines: Pipelines, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_RUNS", 3)
    for number in range(3):
        pipelines.report(ANONYMOUS, f"p{number}", "1", "running", {})
    with pytest.raises(LimitReached):
        pipelines.report(ANONYMOUS, "p3", "1", "running", {})
    pipelines.report(ANONYMOUS, "p1", "1", "stopped", {})
    pipelines.report(ANONYMOUS, "p3", "1", "running", {})
    assert states(pipelines).keys() == {("p0", "1"), ("p2", "1"), ("p3", "1")}


@pytest.mark.parametrize(
    ("name", "run", "state", "report"),
    [
        ("", "1", "running", {}),
        ("x" * 250, "1", "running", {}),
        ("x", "", "running", {}),
        ("x", "1", "lost", {}),
        ("x", "1", "running", {str(n): n for n in range(65)}),
        ("x", "1", "running", {"text": "x" * 9000}),
    ],
)
def test_what_is_no_report(
    pipelines: Pipelines, name: str, run: str, state: str, report: dict[str, registry.Value]
) -> None:
    with pytest.raises(InvalidRequest):
        pipelines.report(ANONYMOUS, name, run, state, report)
    assert states(pipelines) == {}
