"""kcat, the command line that people reach for first; it carries an older librdkafka."""

import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from members import ConfluentMember
from story import create_topic, eventually, read_topic, read_values

from penstock.testing.server import Server

KCAT = shutil.which("kcat") or "kcat"  # where it is missing the tests fail: make test installs it
TIMEOUT_S = 30


def kcat(*arguments: str, given: bytes = b"") -> bytes:
    done = subprocess.run([KCAT, *arguments], input=given, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@contextmanager
def member(
    address: str, group: str, topic: str, *options: str
) -> Iterator[tuple["subprocess.Popen[bytes]", list[str]]]:
    """kcat as a member of a group, with the lines that it has printed so far."""
    process = subprocess.Popen(
        [KCAT, "-b", address, "-u", *options, "-X", "auto.offset.reset=earliest", "-f", "%s\n", "-G", group, topic],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    lines: list[str] = []
    threading.Thread(target=lambda: lines.extend(map(_line, process.stdout or ())), daemon=True).start()
    try:
        yield process, lines
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _line(raw: bytes) -> str:
    return raw.decode().rstrip("\n")


def test_metadata_names_the_broker_and_the_topic(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic, partitions=3)
    listed = json.loads(kcat("-b", server.kafka, "-L", "-J"))
    assert [broker["name"] for broker in listed["brokers"]] == [server.kafka]
    (row,) = [row for row in listed["topics"] if row["topic"] == topic]
    assert [part["partition"] for part in row["partitions"]] == [0, 1, 2]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(server: Server, topic: str, compression: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(300))
    kcat("-b", server.kafka, "-t", topic, "-P", "-z", compression, given=lines)
    assert kcat("-b", server.kafka, "-t", topic, "-C", "-e", "-q", "-o", "beginning") == lines
    assert read_values(server.kafka, topic, 300) == lines.splitlines()


def test_keys_headers_and_nulls(server: Server, topic: str) -> None:
    produce = ("-b", server.kafka, "-t", topic, "-P", "-K", ":", "-Z", "-H", "colour=blue")
    kcat(*produce, given=b"key:value\ngone:\n")
    first, gone = read_topic(server.kafka, topic, 2)[0]
    assert (first.key(), first.value(), first.headers()) == (b"key", b"value", [("colour", b"blue")])
    assert (gone.key(), gone.value()) == (b"gone", None)
    printed = kcat("-b", server.kafka, "-t", topic, "-C", "-e", "-q", "-f", "%o %k %S %h\n")
    assert printed == b"0 key 5 colour=blue\n1 gone -1 colour=blue\n"


def test_reading_from_offsets_ends_and_times(server: Server, topic: str) -> None:
    kcat("-b", server.kafka, "-t", topic, "-P", given=b"a\nb\nc\nd\n")
    read = ("-b", server.kafka, "-t", topic, "-C", "-e", "-q", "-o")
    assert kcat(*read, "2") == b"c\nd\n"
    assert kcat(*read, "-1") == b"d\n"
    stamps = [message.timestamp()[1] for message in read_topic(server.kafka, topic, 4)[0]]
    assert kcat(*read, f"s@{stamps[0]}") == b"a\nb\nc\nd\n"
    query = kcat("-b", server.kafka, "-Q", "-t", f"{topic}:0:{stamps[0]}")
    assert query.decode().split() == [topic, "[0]", "offset", "0"]


def test_idempotent_kcat(server: Server, topic: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(1000))
    kcat("-b", server.kafka, "-t", topic, "-P", "-X", "enable.idempotence=true", given=lines)
    assert read_values(server.kafka, topic, 1000) == lines.splitlines()


def test_a_line_of_two_megabytes(server: Server, topic: str) -> None:
    create_topic(server.kafka, topic, max_message_bytes=str(4 << 20))
    big = b"x" * (2 << 20)
    kcat("-b", server.kafka, "-t", topic, "-P", "-X", "message.max.bytes=4000000", given=big)
    assert read_values(server.kafka, topic, 1) == [big]


def test_a_killed_member_is_missed_after_its_session(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic, partitions=2)
    kcat("-b", server.kafka, "-t", topic, "-P", "-p", "0", given=b"a\n")
    kcat("-b", server.kafka, "-t", topic, "-P", "-p", "1", given=b"b\n")
    short = (
        "-X",
        "session.timeout.ms=1500",
        "-X",
        "heartbeat.interval.ms=200",
        "-X",
        "partition.assignment.strategy=range",
    )
    with member(server.kafka, group, topic, *short) as (process, lines):
        eventually(lambda: sorted(lines) == ["a", "b"], "kcat reads all")
        heir = ConfluentMember(server.kafka, group, topic, "range")
        eventually(lambda: len(heir.owned) == 1, "both share")
        process.send_signal(signal.SIGKILL)
        eventually(lambda: len(heir.owned) == 2, "the survivor takes over")
        heir.leave()


def test_two_kcats_share_a_group_until_one_leaves(server: Server, topic: str, group: str) -> None:
    create_topic(server.kafka, topic, partitions=2)
    quick = ("-X", "heartbeat.interval.ms=200", "-X", "fetch.wait.max.ms=100")
    with (
        member(server.kafka, group, topic, *quick) as (first, some),
        member(server.kafka, group, topic, *quick) as (_, rest),
    ):
        sent = 0

        def both_read() -> bool:
            nonlocal sent
            for partition in ("0", "1"):
                kcat("-b", server.kafka, "-t", topic, "-P", "-p", partition, given=b"%d\n" % sent)
                sent += 1
            return bool(some) and bool(rest)

        eventually(both_read, "both members read")
        eventually(lambda: {int(line) for line in some + rest} == set(range(sent)), "everything arrived")
        first.send_signal(signal.SIGTERM)
        first.wait(TIMEOUT_S)
        both_read()
        eventually(lambda: {sent - 2, sent - 1} <= {int(line) for line in rest}, "the second one reads both partitions")
