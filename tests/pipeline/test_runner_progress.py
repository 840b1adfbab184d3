"""What is read out of Spark's reports, without Spark."""

import io
import json
from typing import Any

from penstock.pipeline.display import Lines, readings_table
from penstock.pipeline.jobs.job import Progress
from penstock.pipeline.progress import Meter, Reading, lag_of, summed


def report(batch: int, rows: int, *, end: Any = None, latest: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "batchId": batch,
        "timestamp": f"2026-11-15T10:00:{batch:02}.000Z",
        "numInputRows": rows,
        "processedRowsPerSecond": float(rows) * 2,
        "durationMs": {"triggerExecution": 500},
        "sources": [{"endOffset": end, "latestOffset": latest}],
        **more,
    }


class FakeQuery:
    """A query that says what the test wants it to say."""

    id = "4d3f9a1c-0000"
    name: str | None = "orders"

    def __init__(self) -> None:
        self.isActive = True
        self.status = {"message": "Waiting for data to arrive", "isTriggerActive": False, "isDataAvailable": False}
        self.recentProgress: list[dict[str, Any]] = []
        self.failure: Exception | None = None

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> Exception | None:
        return self.failure

    def stop(self) -> None:
        self.isActive = False

    def awaitTermination(self, timeout: Any = None) -> bool:  # noqa: N802
        return not self.isActive


def test_every_batch_counts_once_however_rarely_somebody_looks() -> None:
    query = FakeQuery()
    meter = Meter(query)
    assert meter.read() == Reading("orders", "starting", message="Waiting for data to arrive")
    query.recentProgress = [report(0, 100), report(1, 50), report(2, 7)]
    assert meter.read().rows == 157
    assert meter.read().rows == 157
    query.recentProgress = [*query.recentProgress, report(3, 3)]
    reading = meter.read()
    assert (reading.rows, reading.batches, reading.batch, reading.rows_per_s) == (160, 4, 3, 6.0)
    assert (reading.state, reading.duration_ms) == ("running", 500)


def test_a_query_without_news_is_idle_and_one_that_ended_keeps_its_sums() -> None:
    query = FakeQuery()
    meter = Meter(query)
    query.recentProgress = [report(0, 10), report(1, 0)]
    assert (meter.read().state, meter.reading.rows_per_s) == ("idle", 0.0)
    assert meter.read(stopping=True).state == "stopping"
    query.isActive = False
    assert (meter.read().state, meter.reading.rows) == ("stopped", 10)
    query.failure = RuntimeError("no")
    assert meter.read().state == "failed"


def test_a_query_that_is_started_anew_goes_on_counting() -> None:
    query = FakeQuery()
    query.recentProgress = [report(0, 10)]
    before = Meter(query).read()
    again = FakeQuery()
    again.recentProgress = [report(1, 5)]
    assert Meter(again, before).read().rows == 15


def test_lag_is_what_the_source_has_and_the_query_has_not_read() -> None:
    ours = {"orders": {"0": 10, "1": 20}}, {"orders": {"0": 15, "1": 20, "2": 4}}
    assert lag_of(report(0, 1, end=ours[0], latest=ours[1])) == 9
    assert lag_of(report(0, 1, end=json.dumps(ours[0]), latest=json.dumps(ours[1]))) == 9
    assert lag_of(report(0, 1, end={"a": 3}, latest={"a": 1})) == 0  # a topic that was made anew
    assert lag_of(report(0, 1, end=None, latest=None)) is None
    assert lag_of(report(0, 1, end="not JSON", latest="12")) is None
    assert lag_of({"sources": []}) is None


def test_rates_that_are_no_numbers_are_none() -> None:
    query = FakeQuery()
    query.recentProgress = [report(0, 5, processedRowsPerSecond="Infinity")]
    assert Meter(query).read().rows_per_s == 0.0


def test_a_connect_session_tells_numbers_of_its_sources_only() -> None:
    query = FakeQuery()
    told = report(0, 0)
    told |= {"numInputRows": None, "processedRowsPerSecond": None}
    told["sources"] = [{"numInputRows": 30, "processedRowsPerSecond": 7.5}, {"numInputRows": 3}]
    query.recentProgress = [told]
    reading = Meter(query).read()
    assert (reading.rows, reading.rows_per_s, reading.state) == (33, 7.5, "running")


def test_several_queries_are_summed_for_one_line() -> None:
    one = Reading("a", "running", batch=3, batches=3, rows=30, rows_per_s=1.5, lag=4, duration_ms=10)
    other = Reading("b", "idle", batch=9, batches=9, rows=70, rows_per_s=0.0, lag=None, duration_ms=90)
    total = summed([one, other])
    assert (total.query, total.state, total.batch, total.rows) == ("a, b", "running", 9, 100)
    assert (total.lag, total.duration_ms, total.batches) == (4, 90, 12)
    assert summed([one, Reading("c", "failed", message="boom")]).state == "failed"
    assert summed([]).state == "starting"


def test_a_line_is_written_when_something_has_changed() -> None:
    out = io.StringIO()
    lines = Lines("sales", out)
    for rows in (10, 10, 25):
        lines.show("running", [Reading("orders", "running", batch=rows, rows=rows)], None)
    lines.show("running", [], Progress("writing", 5, 10))
    lines.note("about to end")
    lines.end({"state": "done", "rows": 25})
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [one.get("rows") for one in told] == [10, 25, None, None, 25]
    assert told[2]["stage"] == "writing"
    assert {one["pipeline"] for one in told} == {"sales"}
    assert told[-1]["state"] == "done"


def test_the_table_shows_a_row_for_each_query() -> None:
    from rich.console import Console

    console = Console(width=120, record=True, file=io.StringIO())
    console.print(readings_table([Reading("orders", "running", batch=3, rows=12_345, rows_per_s=99.6, lag=7)]))
    text = console.export_text()
    assert "12,345" in text
    assert "orders" in text
    assert "100" in text
