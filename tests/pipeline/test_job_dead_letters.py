"""Dead letters of real queue views: counted by Spark, and sent back by choice, each once."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.client.sync import SyncClient
from penstock.model.errors import UnknownTopic
from penstock.model.message import DEAD_LAST_FAILURE_MS, DEAD_REASON, DEAD_TOPIC, DEAD_VIEW
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.jobs import dead_letters
from penstock.pipeline.jobs.dead_letters import DeadLetterOptions, RedriveOptions, Selection
from penstock.pipeline.jobs.letters import Letter, letters
from penstock.testing.server import Server

pytestmark = pytest.mark.timeout(300)  # a first job of Spark takes long on a busy machine

DAY_MS = 86_400_000
BEGIN_MS = 1_760_000_000_000


@pytest.fixture
def client(server: Server) -> Iterator[SyncClient]:
    with SyncClient(server.line) as client:
        yield client


def bury(client: SyncClient, topic: str, view: str, values: list[str], *, dead_letter: str | None = None) -> str:
    """Let these die in a view, each rejected; the topic that they are in then."""
    client.create_queue(topic, view, dead_letter=dead_letter)
    for value in values:
        client.publish(topic, value, key=value[:1], headers={"mine": "kept"})
    left = len(values)
    with client.subscribe(topic, "queue", name=view) as subscription:
        while left:
            messages = subscription.take(left, timeout_s=20)
            assert messages
            subscription.reject(messages)
            left -= len(messages)
    letters_topic = dead_letter or f"{topic}.{view}.dead"
    wait_for(lambda: client.queue(topic, view).processed == len(values))
    return letters_topic


def wait_for(is_so: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(UnknownTopic):
            if is_so():
                return
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.02)


def waiting(client: SyncClient, topic: str, view: str) -> list[str]:
    """What the view has for its consumers now, taken."""
    found: list[str] = []
    with client.subscribe(topic, "queue", name=view) as subscription:
        while client.queue(topic, view).pending or client.queue(topic, view).processing:
            messages = subscription.take(100, timeout_s=20)
            found += [message.value.decode() for message in messages]
            subscription.ack(messages)
    return sorted(found)


def test_report_tells_reasons_origins_and_times_of_real_letters(
    spark: SparkSession, server: Server, client: SyncClient, topic: str
):
    letters_topic = bury(client, topic, "mail", ["a1", "a2", "b1"])
    quarantine = f"{topic}.quarantine"
    for number in range(4):
        headers = {
            DEAD_REASON: "bad json <b>",
            DEAD_TOPIC: topic,
            DEAD_LAST_FAILURE_MS: str(BEGIN_MS + number * DAY_MS),
        }
        client.publish(quarantine, b"\xff{", headers=headers)
    client.publish(quarantine, "no headers at all")
    report = dead_letters.run(spark, DeadLetterOptions(server=server.line, topics=[letters_topic, quarantine]))
    assert report.total == 8
    assert dict(report.by_reason()) == {"rejected": 3, "bad json <b>": 4, "unknown": 1}
    assert dict(report.by_origin())[f"{topic}/mail"] == 3
    assert sum(count for _, _, count in report.times) == 8
    assert {sample.value for sample in report.samples} >= {"a1", "a2", "b1", "no headers at all"}
    assert "bad json &lt;b&gt;" in report.html()
    assert json.loads(json.dumps(report.as_dict()))["total"] == 8

    since = Selection(reason="bad*", since_ms=BEGIN_MS + DAY_MS, until_ms=BEGIN_MS + 3 * DAY_MS)
    report = dead_letters.run(spark, DeadLetterOptions(server=server.line, topics=[quarantine], select=since))
    assert report.total == 2
    found = dead_letters.run(spark, DeadLetterOptions(server=server.line))
    assert {letters_topic, quarantine} <= set(found.topics)


def test_chosen_letters_go_back_once_and_the_others_stay(
    spark: SparkSession, server: Server, client: SyncClient, topic: str
):
    letters_topic = bury(client, topic, "mail", ["a1", "b1", "a2", "b2"])
    other = bury(client, f"{topic}-other", "mail", ["c1"])
    chosen = Selection(reason="rej*", origin_view=f"{topic}/*")
    options = RedriveOptions(server=server.line, topics=[letters_topic, other], select=chosen, limit=3)
    dry = dead_letters.redrive(spark, RedriveOptions(server=server.line, topics=[letters_topic], dry_run=True))
    assert dry.count == 4 and waiting(client, topic, "mail") == []
    assert dead_letters.redrive(spark, options).count == 3
    assert waiting(client, topic, "mail") == ["a1", "a2", "b1"]
    assert dead_letters.redrive(spark, options).count == 1  # what is left
    assert dead_letters.redrive(spark, options).count == 0
    assert waiting(client, topic, "mail") == ["b2"]
    # The broker's own redrive knows of it, and what was not chosen is still there for it.
    assert client.redrive_queue(topic, "mail") == 0
    assert client.redrive_queue(f"{topic}-other", "mail") == 1


def test_letters_of_one_view_are_found_in_a_topic_that_views_share(
    spark: SparkSession, server: Server, client: SyncClient, topic: str
):
    shared = f"{topic}.morgue"
    bury(client, topic, "mail", ["a1", "a2"], dead_letter=shared)
    bury(client, f"{topic}-2", "stock", ["b1"], dead_letter=shared)
    chosen = Selection(origin_view="*/stock")
    assert dead_letters.redrive(spark, RedriveOptions(server=server.line, topics=[shared], select=chosen)).count == 1
    assert waiting(client, f"{topic}-2", "stock") == ["b1"]
    assert client.redrive_queue(topic, "mail") == 2
    assert client.redrive_queue(f"{topic}-2", "stock") == 0


def test_quarantined_records_go_back_to_their_topic(
    spark: SparkSession, server: Server, client: SyncClient, topic: str
):
    quarantine = f"{topic}.quarantine"
    client.create_topic(topic, 1)
    for number in range(3):
        client.publish(quarantine, f"v{number}", key="k", headers={DEAD_REASON: "bad", DEAD_TOPIC: topic, "x": "y"})
    client.publish(quarantine, "from nowhere")
    options = RedriveOptions(server=server.line, topics=[quarantine])
    assert dead_letters.redrive(spark, options).count == 3
    assert dead_letters.redrive(spark, options).count == 0
    assert client.offsets(topic).end == 3
    with client.subscribe(topic) as records:
        found = records.take(3, timeout_s=10)
    assert [message.value for message in found] == [b"v0", b"v1", b"v2"]
    assert all(dict(message.headers) == {"x": b"y"} for message in found)


def test_spark_and_the_driver_read_headers_alike(spark: SparkSession):
    strange = [
        [(DEAD_REASON, b"rejected"), (DEAD_VIEW, b"a/b"), (DEAD_LAST_FAILURE_MS, b"12")],
        [(DEAD_REASON, None), (DEAD_TOPIC, b"\xff\xfe"), (DEAD_LAST_FAILURE_MS, b"-3")],
        [(DEAD_REASON, b"one"), (DEAD_REASON, b"two" * 100), (DEAD_LAST_FAILURE_MS, b"9" * 30)],
        [],
    ]
    schema = "headers array<struct<key: string, value: binary>>, timestamp timestamp"
    rows = letters(spark.createDataFrame([(each, None) for each in strange], schema)).collect()
    for headers, row in zip(strange, rows, strict=True):
        letter = Letter.read(tuple(headers), -1)
        assert (row.reason, row.origin_topic, row.origin_view) == (
            letter.reason,
            letter.origin_topic,
            letter.origin_view,
        )
        assert (row.died_ms if row.died_ms is not None else -1) == letter.died_ms


@pytest.mark.parametrize(
    ("pattern", "fits", "not_"),
    [("a*", "a.b\nc", "ba"), ("?.+", "x.+", "xx+"), ("[a]", "[a]", "a"), ("é*", "éa", "e")],
)
def test_patterns_mean_the_same_to_spark_and_to_the_driver(spark: SparkSession, pattern: str, fits: str, not_: str):
    chosen = Selection(reason=pattern)
    found = [Letter(reason, "", "", 0).is_chosen(chosen) for reason in (fits, not_)]
    frame = spark.createDataFrame([(fits,), (not_,)], "reason string")
    assert [row.reason for row in dead_letters.chosen(frame, chosen).collect()] == [fits]
    assert found == [True, False]


def test_times_that_choose_nothing_are_refused():
    with pytest.raises(InvalidOption, match="not before"):
        Selection(since_ms=5, until_ms=5)
