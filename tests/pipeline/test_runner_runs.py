"""Runs of pipelines with a real session and a real server: watched, reported, stopped and failed."""

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.batches import to_table
from penstock.pipeline.jobs import sql
from penstock.pipeline.jobs.job import Progress
from penstock.pipeline.progress import Reading
from penstock.pipeline.runner import Run
from penstock.pipeline.tables import open_table
from penstock.testing import Server
from servers import StartServer

WITHIN_S = 200.0

pytestmark = pytest.mark.timeout(500)


def eventually(check: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WITHIN_S
    while not (found := check()):
        assert time.monotonic() < deadline, f"{what} did not happen within {WITHIN_S} s"
        time.sleep(0.05)
    return found


class Recorder:
    """A display that remembers."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.ends: list[dict[str, Any]] = []

    def show(self, state: str, readings: Any, stage: Progress | None) -> None:
        self.readings += readings

    def note(self, text: str) -> None:
        pass

    def end(self, told: dict[str, Any]) -> None:
        self.ends.append(told)


def orders(server: Server, topic: str, count: int, first: int = 0) -> None:
    with server.sync_client() as client:
        values = [
            json.dumps({"id": number, "country": "NL" if number % 2 else "DE", "amount": number / 2})
            for number in range(first, first + count)
        ]
        client.publish_many(topic, values)


def listed(server: Server, name: str) -> list[Any]:
    with server.sync_client() as client:
        return [one for one in client.pipelines.list() if one.name == name]


def test_a_run_is_shown_reported_and_stopped_by_the_broker(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    orders(server, topic, 500)
    display = Recorder()
    run = Run(topic, server=server.line, display=display, about={"kind": "test"})

    def work(run: Run) -> str:
        stream = spark.readStream.format("penstock").option("server", server.line).option("topics", topic)
        stream = stream.option("startingOffsets", "earliest").load()
        place = str(tmp_path / "checkpoint")
        batches = to_table(str(tmp_path / "table"), checkpoint=place, application=topic)
        writer = stream.select("value", "offset").writeStream.queryName(topic.replace("-", "_"))
        query = writer.foreachBatch(batches).option("checkpointLocation", place).start()
        run.wait([query])
        return "ended"

    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(run.perform(work)))
    thread.start()
    try:
        reported = eventually(
            lambda: [one for one in listed(server, topic) if one.report.get("rows") == 500], "a report of 500 rows"
        )
        assert reported[0].report["kind"] == "test"
        assert reported[0].report["lag"] == 0
        with server.sync_client() as client:
            assert client.pipelines.stop(topic) == 1
    finally:
        if not outcomes and thread.is_alive():
            eventually(lambda: outcomes or run.is_stopping, "the order to stop")
        run.stop("the test is over")
        thread.join(WITHIN_S)
    assert (outcomes[0].state, outcomes[0].exit_code, outcomes[0].result) == ("stopped", 0, "ended")
    assert display.ends[0]["rows"] == 500
    assert {one.query for one in display.readings} == {topic.replace("-", "_")}
    assert [one.state for one in listed(server, topic)] == ["stopped"]
    assert open_table("parquet", str(tmp_path / "table")).read().num_rows == 500


def test_a_failure_is_one_sentence_and_stops_the_other_queries(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    orders(server, topic, 10)
    started: list[Any] = []

    def query(of: str, name: str) -> Any:
        reader = spark.readStream.format("penstock").option("server", server.line).option("topics", of)
        place = str(tmp_path / name)
        started.append(reader.load().writeStream.format("noop").option("checkpointLocation", place).start())
        return started[-1]

    run = Run(topic)
    outcome = run.perform(lambda run: run.wait([query(topic, "good"), query(f"{topic}.missing", "bad")]))
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert outcome.message.startswith(f"there is no topic '{topic}.missing'")
    assert "\n" not in outcome.message
    assert not any(one.isActive for one in started)


def test_a_statement_goes_into_a_table_once_and_goes_on(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    orders(server, topic, 100)
    options = sql.SqlOptions(
        server=server.line,
        statement=f"SELECT id, upper(country) AS land, amount, _offset FROM `{topic}` WHERE amount >= 25",
        checkpoint=str(tmp_path / "checkpoint"),
        into_table=str(tmp_path / "table"),
        application=topic,
        group=topic,
    )
    first = sql.run(spark, options)
    assert (first.rows, first.columns) == (100, ["id", "land", "amount", "_offset"])
    orders(server, topic, 20, first=100)
    assert sql.run(spark, options).rows == 20
    found = open_table("parquet", str(tmp_path / "table")).read().to_pylist()
    assert sorted(row["id"] for row in found) == list(range(50, 120))
    assert {row["land"] for row in found} == {"NL", "DE"}
    with server.sync_client() as client:
        assert sum(client.committed(topic).values()) == 120


def test_changing_totals_go_into_a_topic(spark: SparkSession, server: Server, topic: str, tmp_path: Path) -> None:
    orders(server, topic, 10)
    options = sql.SqlOptions(
        server=server.line,
        statement=f"SELECT country, count(*) AS orders, sum(amount) AS revenue FROM `{topic}` GROUP BY country",
        checkpoint=str(tmp_path / "checkpoint"),
        into_topic=f"{topic}.totals",
        key="country",
        mode="update",
        group=topic,
    )
    sql.run(spark, options)
    orders(server, topic, 2, first=10)
    sql.run(spark, options)
    with server.sync_client() as client, client.subscribe(f"{topic}.totals", "log") as totals:
        taken: list[Any] = []
        eventually(lambda: taken.extend(totals.take(10, 0.5)) or len(taken) >= 4, "four totals")
        assert sum(client.committed(topic).values()) == 12
    newest = {message.key.decode(): json.loads(message.value) for message in taken}
    assert newest == {
        "DE": {"country": "DE", "orders": 6, "revenue": 15.0},
        "NL": {"country": "NL", "orders": 6, "revenue": 18.0},
    }


def test_two_topics_are_joined_within_a_time(spark: SparkSession, server: Server, topic: str, tmp_path: Path) -> None:
    """Rows wait for their partners from batch to batch, until the watermark says that none will come."""
    payments = f"{topic}.payments"
    options = sql.SqlOptions(
        server=server.line,
        statement="SELECT o.id, o.amount, p.method FROM o JOIN p ON o.id = p.id AND p.at BETWEEN o.at AND o.at + "
        "INTERVAL 1 HOUR",
        topics={"o": topic, "p": payments},
        schemas={"o": "id BIGINT, amount DOUBLE, at TIMESTAMP", "p": "id BIGINT, method STRING, at TIMESTAMP"},
        watermarks={"o": "at 1 hour", "p": "at 1 hour"},
        checkpoint=str(tmp_path / "checkpoint"),
        into_topic=f"{topic}.paid",
        key="id",
    )
    with server.sync_client() as client:
        client.create_topic(payments)
        client.publish_many(topic, [{"id": n, "amount": n / 2, "at": "2026-11-15T10:00:00Z"} for n in range(4)])
        assert sql.run(spark, options).rows == 4
        paid = [{"id": 1, "method": "card", "at": "2026-11-15T10:30:00Z"}]
        client.publish_many(payments, [*paid, {"id": 2, "method": "late", "at": "2026-11-15T12:30:00Z"}])
        assert sql.run(spark, options).rows == 2
        with client.subscribe(f"{topic}.paid", "log") as joined:
            message = eventually(lambda: joined.take(5, 0.5), "a row of the join")
    assert [(one.key, json.loads(one.value)) for one in message] == [(b"1", {"id": 1, "amount": 0.5, "method": "card"})]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"statement": "SELECT * FROM nowhere"}, "the statement reads nowhere, and none of it is a topic"),
        ({"into_table": None}, "go either into a topic or into a table"),
        ({"mode": "sometimes"}, "the mode is 'sometimes'"),
        ({"schemas": {"other": "a INT"}}, "a schema is given for 'other'"),
        ({"watermarks": {"TOPIC": "at"}}, "is not of the form 'column interval'"),
    ],
)
def test_what_a_statement_cannot_be_is_told(
    server: Server, topic: str, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    orders(server, topic, 1)
    given: dict[str, Any] = {
        "server": server.line,
        "statement": f"SELECT * FROM `{topic}`",
        "checkpoint": str(tmp_path),
        "into_table": str(tmp_path / "table"),
    }
    change = {name: json.loads(json.dumps(value).replace("TOPIC", topic)) for name, value in change.items()}
    with pytest.raises(Exception, match=said):
        sql.run(None, sql.SqlOptions(**{**given, **change}))  # type: ignore[arg-type]


# -- without Spark ------------------------------------------------------------------------------------------


def test_a_broker_that_is_away_does_not_disturb_the_run(start_server: StartServer, topic: str) -> None:
    server = start_server()
    go_on = threading.Event()
    run = Run(topic, server=server.line)
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(run.perform(lambda run: go_on.wait(WITHIN_S))))
    thread.start()
    try:
        eventually(lambda: listed(server, topic), "the first report")
        server.kill()
        assert run._reporter is not None
        eventually(lambda: run._reporter.failures > 0, "a report that fails")
        server.restart()
        eventually(lambda: listed(server, topic), "a report after the restart")
    finally:
        go_on.set()
        thread.join(WITHIN_S)
    assert outcomes[0].state == "done"
    assert [one.state for one in listed(server, topic)] == ["stopped"]


def test_an_order_that_the_broker_repeats_does_not_hurry_the_run(server: Server, topic: str) -> None:
    hurried: list[int] = []

    def work(run: Run) -> None:
        with server.sync_client() as client:
            eventually(lambda: listed(server, topic), "the first report")
            client.pipelines.stop(topic)
        eventually(lambda: run.is_stopping, "the order")
        assert run._reporter is not None
        before = run._reporter.delivered
        eventually(lambda: run._reporter is not None and run._reporter.delivered > before, "an order that is repeated")
        hurried.append(run._stops)

    assert Run(topic, server=server.line).perform(work).state == "stopped"
    assert hurried == [1]


def test_signals_stop_a_run_and_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work(run: Run) -> None:
        signal.raise_signal(signal.SIGTERM)
        for done in range(1_000):
            run.progressed(Progress("counting", done))
            run.rest(0.01)

    outcome = Run("signalled").perform(work, signals=True)
    assert (outcome.state, outcome.exit_code) == ("stopped", 0)
    assert signal.getsignal(signal.SIGTERM) is before


def test_work_that_fails_is_an_outcome_and_not_an_error() -> None:
    display = Recorder()

    def work(run: Run) -> None:
        raise ZeroDivisionError("division by zero")

    outcome = Run("failing", display=display).perform(work)
    assert (outcome.state, outcome.message) == ("failed", "ZeroDivisionError: division by zero")
    assert display.ends[0]["error"] == outcome.message


def test_work_that_ends_because_it_was_cancelled_has_not_failed() -> None:
    cancelled = threading.Event()

    def work(run: Run) -> None:
        run.cancel = cancelled.set
        run.stop("enough")
        assert cancelled.wait(WITHIN_S)
        raise RuntimeError("the job was cancelled")

    assert Run("cancelled").perform(work).state == "stopped"


def test_a_slow_python_is_waited_for_and_nothing_else_is() -> None:
    tries: list[str] = []
    cleared: list[str] = []

    def work(said: str) -> str:
        tries.append(said)
        if len(tries) < 3:
            raise RuntimeError(f"Task failed: {said}")
        return "done"

    run = Run("slow")
    assert run.insist(lambda: work("Python worker failed to connect back."), lambda: cleared.append("")) == "done"
    assert (len(tries), len(cleared)) == (3, 2)
    tries.clear()
    with pytest.raises(RuntimeError):
        run.insist(lambda: work("something else"), lambda: cleared.append(""))
    assert len(tries) == 1
