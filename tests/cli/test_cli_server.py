"""The command line against a real server process."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.server import Server

TIMEOUT_S = 30


def start(server: Server, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_SERVER": server.kafka},
    )


def run(server: Server, *arguments: str, given: str = "", code: int = 0) -> str:
    """Standard output of a command that ends with this exit code; standard error instead when that is not 0."""
    process = start(server, *arguments)
    try:
        out, error = process.communicate(given, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == code, (out, error)
    assert "Traceback" not in error
    return error if code else out


def run_json(server: Server, *arguments: str, given: str = "") -> Any:
    return json.loads(run(server, *arguments, "--json", given=given))


def consumed(server: Server, topic: str, *arguments: str) -> list[dict[str, Any]]:
    lines = run(server, "consume", topic, "--exit-at-end", "--json", *arguments).splitlines()
    return [json.loads(line) for line in lines]


def eventually(check: Any) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while not (result := check()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return result


# -- topics -------------------------------------------------------------------------------------------------


def test_a_topic_is_created_described_altered_and_deleted(server: Server, topic: str) -> None:
    assert run(server, "topic", "create", topic, "-p", "3", "--set", "retention.ms=60000") == f"created {topic}\n"
    described = run_json(server, "topic", "describe", topic)
    assert [one["partition"] for one in described["partitions"]] == [0, 1, 2]
    assert described["settings"]["retention.ms"] == {"value": "60000", "source": "topic"}

    run(server, "topic", "alter", topic, "--set", "cleanup.policy=compact", "--unset", "retention.ms", "-p", "5")
    described = eventually(
        lambda: (one := run_json(server, "topic", "describe", topic))["settings"].keys() == {"cleanup.policy"} and one
    )
    assert len(described["partitions"]) == 5

    assert topic in run(server, "topic", "list")
    assert {"topic": topic, "partitions": 5, "records": 0} in run_json(server, "topic", "list")
    assert run(server, "topic", "delete", topic, "--yes") == f"deleted {topic}\n"
    eventually(lambda: topic not in run(server, "topic", "list"))


def test_creating_a_topic_twice_is_an_error_unless_that_is_fine(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic)
    said = run(server, "topic", "create", topic, code=1)
    assert "TOPIC_ALREADY_EXISTS" in said and "penstock topic alter" in said
    assert run_json(server, "topic", "create", topic, "--if-not-exists") == [{"topic": topic, "created": False}]


def test_what_does_not_exist_is_named_with_what_to_do(server: Server, topic: str) -> None:
    for arguments in (["topic", "describe"], ["topic", "alter", "-p", "2"], ["consume"]):
        said = run(server, *arguments, topic, code=1)
        assert f"there is no topic '{topic}'" in said and "penstock topic list" in said
    assert "nothing was deleted" in run(server, "topic", "delete", topic, "--yes", code=1)
    assert run(server, "topic", "delete", topic, "--if-exists") == ""
    assert "penstock group list" in run(server, "group", "describe", topic, code=1)


def test_an_unsupported_topic_setting_is_refused(server: Server, topic: str) -> None:
    assert "retention.sm" in run(server, "topic", "create", topic, "--set", "retention.sm=1", code=1)
    run(server, "topic", "create", topic)
    assert "retention.ms" in run(server, "topic", "alter", topic, "--set", "retention.ms=soon", code=1)


def test_a_topic_cannot_shrink(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic, "-p", "3")
    assert "INVALID_PARTITIONS" in run(server, "topic", "alter", topic, "-p", "2", code=1)


def test_nobody_to_ask_means_nothing_is_deleted(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic)
    assert "add --yes" in run(server, "topic", "delete", topic, code=1)
    assert topic in run(server, "topic", "list")


def test_a_table_is_made_for_people(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic, "-p", "2")
    run(server, "produce", topic, "-p", "1", given="".join(f"{number}\n" for number in range(1234)))
    assert re.search(
        r"Partition +Leader +Replicas +In sync +Start +End", described := run(server, "topic", "describe", topic)
    )
    assert re.search(r"^ +1 .* 0 +1,234 *$", described, re.MULTILINE)


# -- produce and consume ------------------------------------------------------------------------------------


def test_lines_go_in_and_come_out(server: Server, topic: str) -> None:
    assert run(server, "produce", topic, given="one\ntwo\r\nthree").startswith("3 records in ")
    assert run(server, "consume", topic, "--raw", "--exit-at-end") == "one\ntwo\nthree\n"
    assert run(server, "consume", topic, "-n", "2", "--raw") == "one\ntwo\n"
    assert run(server, "consume", topic, "-e", "--raw", "--from", "-1") == "three\n"
    assert run(server, "consume", topic, "-e", "--raw", "--from", "1") == "two\nthree\n"
    assert run(server, "consume", topic, "-e", "--raw", "--from", "end") == ""
    assert run(server, "consume", topic, "-e", "--raw", "--from", "1h", "--delimiter", "|") == "one|two|three|"


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_carries_every_byte(server: Server, topic: str, compression: str) -> None:
    lines = [f"{number} " + "x" * (number % 100) for number in range(3000)]
    report = run_json(server, "produce", topic, "-z", compression, given="\n".join(lines))
    assert report["records"] == 3000
    assert report["partitions"] == [{"partition": 0, "first_offset": 0, "last_offset": 2999, "records": 3000}]
    assert run(server, "consume", topic, "--raw", "-e").splitlines() == lines


def test_keys_headers_and_tombstones(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic, "-p", "4")
    given = "".join(f"user-{number % 7}:{number}\n" for number in range(70)) + "user-0:\n"
    run(server, "produce", topic, "-K", ":", "-H", "source=test", "--empty-is-null", given=given)
    records = consumed(server, topic)
    assert len(records) == 71
    assert all(record["headers"] == [{"name": "source", "value": "test"}] for record in records)
    partitions: dict[str, set[int]] = {}
    for record in records:
        partitions.setdefault(record["key"], set()).add(record["partition"])
    assert len(partitions) == 7 and all(len(places) == 1 for places in partitions.values())
    assert [record["value"] for record in records if record["key"] == "user-0"][-1] is None


def test_values_come_from_the_command_line_a_file_or_whole(server: Server, topic: str, tmp_path: Path) -> None:
    run(server, "produce", topic, "-v", "a", "-v", "b", "-k", "k")
    file = tmp_path / "message.txt"
    file.write_text("c\nd\n")
    run(server, "produce", topic, "--file", str(file))
    run(server, "produce", topic, "--file", str(file), "--input", "whole")
    assert [record["value"] for record in consumed(server, topic)] == ["a", "b", "c", "d", "c\nd\n"]
    assert "cannot read" in run(server, "produce", topic, "--file", str(tmp_path / "nope"), code=1)


def test_what_consume_prints_produce_takes_back(server: Server, topic: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    given = [
        {"key": "k", "value": "text", "headers": {"h": "x"}, "timestamp_ms": now_ms},
        {"key": None, "value_base64": "/wA=", "timestamp_ms": now_ms + 1},
        {"value": {"nested": [1, 2]}},
    ]
    run(server, "produce", topic, "--input", "json", given="\n".join(map(json.dumps, given)))
    first = run(server, "consume", topic, "-e", "--json")
    copy = topic + ".copy"
    run(server, "produce", copy, "--input", "json", given=first)
    assert run(server, "consume", copy, "-e", "--json").replace(copy, topic) == first
    assert [json.loads(line).get("value") for line in first.splitlines()] == ["text", None, '{"nested":[1,2]}']
    assert "line 2 is not JSON" in run(server, "produce", topic, "--input", "json", given='{"value": 1}\nx\n', code=1)


def test_reading_begins_at_a_point_in_time(server: Server, topic: str) -> None:
    began_s = int(time.time()) - 3600  # not so long ago that retention would take it
    given = [json.dumps({"value": str(number), "timestamp_ms": (began_s + number) * 1000}) for number in range(10)]
    run(server, "produce", topic, "--input", "json", given="\n".join(given[:5]))
    run(server, "produce", topic, "--input", "json", given="\n".join(given[5:]))
    assert run(server, "consume", topic, "-e", "--raw", "--from", str((began_s + 7) * 1000)) == "7\n8\n9\n"
    moment = datetime.fromtimestamp(began_s + 3.5, UTC).isoformat()
    assert run(server, "consume", topic, "-e", "--raw", "--from", moment).split() == ["4", "5", "6", "7", "8", "9"]
    assert run(server, "consume", topic, "-e", "--raw", "--from", "30m") == ""


def test_a_partition_can_be_chosen_for_writing_and_reading(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic, "-p", "3")
    run(server, "produce", topic, "-p", "2", "-v", "here")
    assert [record["partition"] for record in consumed(server, topic, "-p", "2")] == [2]
    assert consumed(server, topic, "-p", "0", "-p", "1") == []
    assert "has no partition 3; it has 0 to 2" in run(server, "consume", topic, "-p", "3", code=1)
    assert "has no partition 3; it has 0 to 2" in run(server, "produce", topic, "-p", "3", "-v", "x", code=1)
    assert "there is no offset 5" in run(server, "consume", topic, "--from", "5", code=1)


def test_a_topic_is_not_created_against_ones_will(server: Server, topic: str) -> None:
    assert f"there is no topic '{topic}'" in run(server, "produce", topic, "-v", "x", "--no-create", code=1)


def test_what_is_typed_is_sent_without_waiting_for_more(server: Server, topic: str) -> None:
    producer = start(server, "produce", topic)
    assert producer.stdin
    try:
        for number in range(3):
            producer.stdin.write(f"{number}\n")
            producer.stdin.flush()
            eventually(lambda: topic in run(server, "topic", "list"))
            eventually(lambda number=number: run(server, "consume", topic, "-e", "--raw").endswith(f"{number}\n"))
        out, _ = producer.communicate(timeout=TIMEOUT_S)
    finally:
        producer.kill()
    assert out.startswith("3 records")


def test_following_ends_quietly_with_ctrl_c(server: Server, topic: str) -> None:
    run(server, "produce", topic, "-v", "first")
    consumer = start(server, "consume", topic, "--raw")
    assert consumer.stdout
    try:
        assert consumer.stdout.readline() == "first\n"
        run(server, "produce", topic, "-v", "second")
        assert consumer.stdout.readline() == "second\n"
        consumer.send_signal(signal.SIGINT)
        out, error = consumer.communicate(timeout=TIMEOUT_S)
    finally:
        consumer.kill()
    assert (consumer.returncode, out, error) == (0, "", "")


def test_a_reader_that_leaves_early_ends_it_quietly(server: Server, topic: str) -> None:
    run(server, "produce", topic, given="line of some length\n" * 50_000)
    consumer = start(server, "consume", topic, "--raw")
    assert consumer.stdout and consumer.stderr
    try:
        assert consumer.stdout.readline() == "line of some length\n"
        consumer.stdout.close()
        assert consumer.wait(TIMEOUT_S) == 0
        assert consumer.stderr.read() == ""
    finally:
        consumer.kill()


# -- groups -------------------------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_stopped(server: Server, topic: str, group: str) -> None:
    run(server, "produce", topic, given="".join(f"{number}\n" for number in range(10)))
    assert run(server, "consume", topic, "-g", group, "-n", "4", "--raw") == "0\n1\n2\n3\n"
    assert run(server, "consume", topic, "-g", group, "-e", "--raw").splitlines() == ["4", "5", "6", "7", "8", "9"]
    assert run(server, "consume", topic, "-g", group, "-e", "--raw") == ""
    described = run_json(server, "group", "describe", group)
    expected = {"topic": topic, "partition": 0, "committed": 10, "end": 10, "lag": 0, "member": None}
    assert described["offsets"] == [expected]
    assert described["state"] == "Empty" and described["members"] == []


def test_two_members_share_the_partitions_and_leave_in_peace(server: Server, topic: str, group: str) -> None:
    run(server, "topic", "create", topic, "-p", "4")
    members = [start(server, "consume", topic, "-g", group, "--raw") for _ in range(2)]
    try:

        def shares() -> Any:
            found = run(server, "group", "list")
            if group not in found:
                return None
            described = run_json(server, "group", "describe", group)
            own = sorted(len(one["assignment"].get(topic, [])) for one in described["members"] if one["assignment"])
            return described if described["state"] == "Stable" and own == [2, 2] else None

        described = eventually(shares)
        assert described["protocol"] == "range"
        assert sorted({row["member"] for row in described["offsets"]}) == [m["member_id"] for m in described["members"]]
        assert "has 2 members" in run(server, "group", "reset", group, "--to", "end", "-t", topic, "--yes", code=1)
        assert "has 2 members" in run(server, "group", "delete", group, "--yes", code=1)

        run(server, "produce", topic, "-K", ":", given="".join(f"{number}:{number}\n" for number in range(40)))
        eventually(
            lambda: sum(row["committed"] or 0 for row in run_json(server, "group", "describe", group)["offsets"]) == 40
        )
        for member in members:
            member.send_signal(signal.SIGINT)
        printed = [member.communicate(timeout=TIMEOUT_S)[0].split() for member in members]
    finally:
        for member in members:
            member.kill()
    assert all(printed) and sorted(map(int, printed[0] + printed[1])) == list(range(40))
    assert [member.returncode for member in members] == [0, 0]
    assert run_json(server, "group", "describe", group)["state"] == "Empty"


def test_a_group_is_reset_shown_and_deleted(server: Server, topic: str, group: str) -> None:
    run(server, "produce", topic, given="".join(f"{number}\n" for number in range(10)))
    run(server, "consume", topic, "-g", group, "-e", "--raw")

    def committed() -> int:
        return int(run_json(server, "group", "describe", group)["offsets"][0]["committed"])

    dry = run_json(server, "group", "reset", group, "--to", "beginning", "--dry-run")
    assert dry["offsets"] == [{"topic": topic, "partition": 0, "before": 10, "after": 0}] and not dry["applied"]
    assert committed() == 10
    assert "add --yes" in run(server, "group", "reset", group, "--to", "beginning", code=1)
    assert committed() == 10
    shown = run(server, "group", "reset", group, "--to", "beginning", "--yes")
    assert "Before" in shown and "goes on from there" in shown
    assert committed() == 0
    for position, offset in (("7", 7), ("-2", 8), ("end", 10), ("1h", 0)):
        run(server, "group", "reset", group, "--topic", topic, "--to", position, "--yes")
        assert committed() == offset
    run(server, "group", "reset", group, "--shift", "3", "--yes")
    run(server, "group", "reset", group, "--shift", "-1", "--yes")
    assert committed() == 2
    assert run(server, "consume", topic, "-g", group, "-n", "1", "--raw") == "2\n"

    assert group in run(server, "group", "list")
    assert run(server, "group", "delete", group, "--yes") == f"deleted {group}\n"
    assert group not in run(server, "group", "list")


def test_a_group_can_be_given_a_place_before_it_exists(server: Server, topic: str, group: str) -> None:
    run(server, "produce", topic, given="a\nb\nc\n")
    assert "--topic" in run(server, "group", "reset", group, "--to", "end", "--yes", code=1)
    run(server, "group", "reset", group, "--topic", topic, "--to", "2", "--yes")
    assert run(server, "consume", topic, "-g", group, "-e", "--raw") == "c\n"
