"""`penstock publish` and `penstock subscribe` against a real server process."""

import json
import os
import select
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cli_command import TIMEOUT_S, eventually, printed, run, run_json, start, texts

from penstock.testing import Server


def test_values_are_published_and_read_back(server: Server, topic: str) -> None:
    said = run(server, "publish", topic, "one", "two", "--key", "k", "-H", "a=1", "--delay", "1.5", "--priority", "3")
    assert said.startswith("2 messages in ")
    assert said.endswith("partition 0 to offset 1\n")
    one, two = printed(server, topic)
    assert (one["value"], one["key"], one["offset"]) == ("one", "k", 0)
    assert {header["name"]: header["value"] for header in two["headers"]} == {
        "a": "1", "penstock-delay-ms": "1500", "penstock-priority": "3",
    }  # fmt: skip


def test_lines_of_the_input_are_messages(server: Server, topic: str, tmp_path: Path) -> None:
    assert run(server, "publish", topic, given="a\nb\nc\n").startswith("3 messages")
    file = tmp_path / "messages"
    file.write_text("k1:d\nk2:e\n")
    told = run_json(server, "publish", topic, "--file", str(file), "--key-separator", ":")
    assert told == {
        "topic": topic,
        "records": 2,
        "partitions": [{"partition": 0, "first_offset": 3, "last_offset": 4, "records": 2}],
    }
    lines = printed(server, topic)
    assert [line["value"] for line in lines] == ["a", "b", "c", "d", "e"]
    assert [line["key"] for line in lines] == [None, None, None, "k1", "k2"]


def test_a_log_begins_where_one_says(server: Server, topic: str) -> None:
    run(server, "publish", topic, *map(str, range(20)))
    assert texts(server, topic, "--from", "15") == ["15", "16", "17", "18", "19"]
    assert texts(server, topic, "--from", "-3") == ["17", "18", "19"]
    assert texts(server, topic, "--from", "end") == []
    assert texts(server, topic, "--from", "1h", "--max", "2") == ["0", "1"]
    assert run(server, "subscribe", topic, "-e", "--raw", "--from", "18") == "18\n19\n"
    pretty = run(server, "subscribe", topic, "-n", "1")
    assert f"{topic}-0 @0" in pretty
    assert pretty.endswith("\n0\n")


def test_a_group_goes_on_where_it_stopped(server: Server, topic: str, group: str) -> None:
    run(server, "publish", topic, *map(str, range(10)))
    assert texts(server, topic, "--group", group, "--max", "4") == ["0", "1", "2", "3"]
    assert texts(server, topic, "--group", group) == ["4", "5", "6", "7", "8", "9"]


def test_filters_are_the_servers(server: Server, topic: str) -> None:
    for number in range(6):
        run(server, "publish", topic, str(number), "--key", f"eu.{number % 2}", "-H", f"third={number % 3}")
    assert texts(server, topic, "--key", "eu.1") == ["1", "3", "5"]
    assert texts(server, topic, "--pattern", "eu.*", "--header", "third=0") == ["0", "3"]


def test_a_queue_is_consumed_and_what_is_not_acknowledged_stays(server: Server, topic: str) -> None:
    run(server, "publish", topic, *map(str, range(10)))
    assert texts(server, topic, "--view", "queue", "--no-ack", "--max", "3") == ["0", "1", "2"]
    assert sorted(texts(server, topic, "--view", "queue", "--no-ack")) == [str(number) for number in range(10)]
    assert texts(server, topic, "--view", "queue", "--max", "4") == ["0", "1", "2", "3"]
    assert texts(server, topic, "--view", "queue") == ["4", "5", "6", "7", "8", "9"]
    assert texts(server, topic, "--view", "queue") == []
    assert len(texts(server, topic, "--view", "queue", "--name", "other")) == 10


@pytest.mark.parametrize("view", ["pubsub", "log"])
def test_a_follower_sees_what_comes_until_it_is_interrupted(server: Server, topic: str, view: str) -> None:
    run(server, "publish", topic, "before")
    process = start(server, "subscribe", topic, "--view", view, "--raw", *(["--from", "end"] if view == "log" else []))
    try:
        assert process.stdout is not None
        deadline = time.monotonic() + TIMEOUT_S
        seen = b""
        while b"news\n" not in seen:  # what is published before it subscribed is not its news
            assert time.monotonic() < deadline
            run(server, "publish", topic, "news")
            if select.select([process.stdout], [], [], 0)[0]:
                seen += os.read(process.stdout.fileno(), 1000)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
        assert b"before" not in seen
    finally:
        process.kill()
        process.communicate()


def test_lines_go_in_and_come_out(server: Server, topic: str) -> None:
    assert run(server, "publish", topic, given="one\ntwo\r\nthree").startswith("3 messages in ")
    assert run(server, "subscribe", topic, "--raw", "--exit-at-end") == "one\ntwo\nthree\n"
    assert run(server, "subscribe", topic, "-n", "2", "--raw") == "one\ntwo\n"
    assert run(server, "subscribe", topic, "-e", "--raw", "--from", "-1") == "three\n"
    assert run(server, "subscribe", topic, "-e", "--raw", "--from", "1") == "two\nthree\n"
    assert run(server, "subscribe", topic, "-e", "--raw", "--from", "end") == ""
    assert run(server, "subscribe", topic, "-e", "--raw", "--from", "1h", "--delimiter", "|") == "one|two|three|"


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_carries_every_byte(server: Server, topic: str, compression: str) -> None:
    lines = [f"{number} " + "x" * (number % 100) for number in range(3000)]
    report = run_json(server, "publish", topic, "-z", compression, given="\n".join(lines))
    assert report["records"] == 3000
    assert report["partitions"] == [{"partition": 0, "first_offset": 0, "last_offset": 2999, "records": 3000}]
    assert run(server, "subscribe", topic, "--raw", "-e").splitlines() == lines


def test_keys_headers_and_tombstones(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic, "-p", "4")
    given = "".join(f"user-{number % 7}:{number}\n" for number in range(70)) + "user-0:\n"
    run(server, "publish", topic, "-K", ":", "-H", "source=test", "--empty-is-null", given=given)
    records = printed(server, topic)
    assert len(records) == 71
    assert all(record["headers"] == [{"name": "source", "value": "test"}] for record in records)
    partitions: dict[str, set[int]] = {}
    for record in records:
        partitions.setdefault(record["key"], set()).add(record["partition"])
    assert len(partitions) == 7 and all(len(places) == 1 for places in partitions.values())
    assert [record["value"] for record in records if record["key"] == "user-0"][-1] is None


def test_values_come_from_the_command_line_a_file_or_whole(server: Server, topic: str, tmp_path: Path) -> None:
    run(server, "publish", topic, "a", "b", "-k", "k")
    file = tmp_path / "message.txt"
    file.write_text("c\nd\n")
    run(server, "publish", topic, "--file", str(file))
    run(server, "publish", topic, "--file", str(file), "--input", "whole")
    assert [record["value"] for record in printed(server, topic)] == ["a", "b", "c", "d", "c\nd\n"]
    assert "cannot read" in run(server, "publish", topic, "--file", str(tmp_path / "nope"), code=1)


def test_what_subscribe_prints_publish_takes_back(server: Server, topic: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    given = [
        {"key": "k", "value": "text", "headers": {"h": "x"}, "timestamp_ms": now_ms},
        {"key": None, "value_base64": "/wA=", "timestamp_ms": now_ms + 1},
        {"value": {"nested": [1, 2]}},
    ]
    run(server, "publish", topic, "--input", "json", given="\n".join(map(json.dumps, given)))
    first = run(server, "subscribe", topic, "-e", "--json")
    copy = topic + ".copy"
    run(server, "publish", copy, "--input", "json", given=first)
    assert run(server, "subscribe", copy, "-e", "--json").replace(copy, topic) == first
    assert [json.loads(line).get("value") for line in first.splitlines()] == ["text", None, '{"nested":[1,2]}']
    assert "line 2 is not JSON" in run(server, "publish", topic, "--input", "json", given='{"value": 1}\nx\n', code=1)


def test_reading_begins_at_a_point_in_time(server: Server, topic: str) -> None:
    began_s = int(time.time()) - 3600  # not so long ago that retention would take it
    given = [json.dumps({"value": str(number), "timestamp_ms": (began_s + number) * 1000}) for number in range(10)]
    run(server, "publish", topic, "--input", "json", given="\n".join(given[:5]))
    run(server, "publish", topic, "--input", "json", given="\n".join(given[5:]))
    assert run(server, "subscribe", topic, "-e", "--raw", "--from", str((began_s + 7) * 1000)) == "7\n8\n9\n"
    moment = datetime.fromtimestamp(began_s + 3.5, UTC).isoformat()
    assert run(server, "subscribe", topic, "-e", "--raw", "--from", moment).split() == ["4", "5", "6", "7", "8", "9"]
    assert run(server, "subscribe", topic, "-e", "--raw", "--from", "30m") == ""


def test_a_partition_can_be_chosen_for_writing_and_reading(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic, "-p", "3")
    run(server, "publish", topic, "-p", "2", "here")
    assert [record["partition"] for record in printed(server, topic, "-p", "2")] == [2]
    assert printed(server, topic, "-p", "0", "-p", "1") == []
    assert f"topic '{topic}' has 3 partitions" in run(server, "subscribe", topic, "-p", "3", code=1)
    assert "has no partition 3; it has 0 to 2" in run(server, "publish", topic, "-p", "3", "x", code=1)
    assert "there is no offset 5" in run(server, "subscribe", topic, "--from", "5", code=1)


def test_a_topic_is_not_created_against_ones_will(server: Server, topic: str) -> None:
    assert f"there is no topic '{topic}'" in run(server, "publish", topic, "x", "--no-create", code=1)


def test_what_is_typed_is_sent_without_waiting_for_more(server: Server, topic: str) -> None:
    producer = start(server, "publish", topic)
    assert producer.stdin
    try:
        for number in range(3):
            producer.stdin.write(f"{number}\n")
            producer.stdin.flush()
            eventually(lambda: topic in run(server, "topic", "list"))
            eventually(lambda number=number: run(server, "subscribe", topic, "-e", "--raw").endswith(f"{number}\n"))
        out, _ = producer.communicate(timeout=TIMEOUT_S)
    finally:
        producer.kill()
    assert out.startswith("3 messages")


def test_following_ends_quietly_with_ctrl_c(server: Server, topic: str) -> None:
    run(server, "publish", topic, "first")
    consumer = start(server, "subscribe", topic, "--raw")
    assert consumer.stdout
    try:
        assert consumer.stdout.readline() == "first\n"
        run(server, "publish", topic, "second")
        assert consumer.stdout.readline() == "second\n"
        consumer.send_signal(signal.SIGINT)
        out, error = consumer.communicate(timeout=TIMEOUT_S)
    finally:
        consumer.kill()
    assert (consumer.returncode, out, error) == (0, "", "")


def test_a_reader_that_leaves_early_ends_it_quietly(server: Server, topic: str) -> None:
    run(server, "publish", topic, given="line of some length\n" * 50_000)
    consumer = start(server, "subscribe", topic, "--raw")
    assert consumer.stdout and consumer.stderr
    try:
        assert consumer.stdout.readline() == "line of some length\n"
        consumer.stdout.close()
        assert consumer.wait(TIMEOUT_S) == 0
        assert consumer.stderr.read() == ""
    finally:
        consumer.kill()


def test_several_topics_are_read_at_once(server: Server, topic: str, group: str) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    for name in names:
        run(server, "publish", name, "1", "2")
    assert sorted(run(server, "subscribe", *names, "-e", "--raw").split()) == ["1", "1", "1", "2", "2", "2"]
    assert len(run(server, "subscribe", *names, "-g", group, "-n", "5", "--raw").split()) == 5
    assert len(run(server, "subscribe", *names, "-g", group, "-e", "--raw").split()) == 1
    queue = run(server, "subscribe", *names, "-e", "--view", "queue", "--json").splitlines()
    assert sorted(json.loads(line)["topic"] for line in queue) == sorted(names * 2)
    assert run(server, "subscribe", *names, "-e", "--view", "queue") == ""


def test_several_topics_are_followed(server: Server, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(2)]
    for name in names:
        run(server, "topic", "create", name)
    follower = start(server, "subscribe", *names, "--raw", "--max", "4")
    assert follower.stdout
    try:
        for number, name in enumerate([*names, *reversed(names)]):
            run(server, "publish", name, str(number))
            assert follower.stdout.readline() == f"{number}\n"
        assert follower.wait(TIMEOUT_S) == 0
    finally:
        follower.kill()
        follower.communicate()


def test_a_topic_that_is_not_there_is_not_made_by_reading(server: Server, topic: str) -> None:
    said = run(server, "subscribe", topic, code=1)
    assert f"there is no topic '{topic}'" in said
    assert "penstock topic list" in said
