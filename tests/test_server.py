"""The server as a process: how it starts, what it says, how it ends."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from penstock.testing.server import DOORS, Server

TIMEOUT_S = 30


def refused(*flags: str) -> str:
    """Start a server that must refuse to; what it says, which is one line and no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "serve", *flags],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def topics_of(address: str) -> dict[str, int]:
    found = AdminClient({"bootstrap.servers": address}).list_topics(timeout=TIMEOUT_S).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def test_it_tells_its_doors_then_that_it_is_ready_and_stops_with_0() -> None:
    with Server() as server:
        lines = server.log_text().splitlines()
        assert [line.split()[3:6] for line in lines[:-1]] == [[door, "listening", "on"] for door in DOORS]
        assert lines[-1].endswith("penstock ready")
        server.stop()  # SIGTERM; fails unless the exit code is 0
        assert server.log_text().splitlines()[-1].endswith("stopped")


def test_log_lines_for_machines() -> None:
    with Server(log_format="json") as server:
        lines = [json.loads(line) for line in server.log_text().splitlines()]
        assert {line["level"] for line in lines} == {"info"}
        assert lines[-1]["message"] == "penstock ready"


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("--kafka", f"127.0.0.1:{port}", "--data", str(tmp_path / "data"))
    assert f"127.0.0.1:{port}" in said
    assert "in use" in said.lower()
    assert "--kafka" in said


def test_a_data_directory_in_use_is_a_clear_error() -> None:
    with Server() as server:
        said = refused("--kafka", "127.0.0.1:0", "--data", str(server.data))
        assert str(server.data) in said
        assert str(server.pid) in said


def test_a_data_directory_that_cannot_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    assert str(tmp_path / "file") in refused("--kafka", "127.0.0.1:0", "--data", str(tmp_path / "file"))


def test_topics_are_created_on_first_use_with_the_servers_defaults() -> None:
    with Server(default_partitions=3) as server:
        producer = Producer({"bootstrap.servers": server.kafka})
        producer.produce("fresh", b"hello")
        assert producer.flush(TIMEOUT_S) == 0
        assert topics_of(server.kafka) == {"fresh": 3}


def test_topics_are_not_created_on_first_use_where_that_is_off() -> None:
    with Server(auto_create_topics=False) as server:
        failures: list[object] = []
        producer = Producer({"bootstrap.servers": server.kafka, "topic.metadata.propagation.max.ms": 100})
        producer.produce("fresh", b"hello", on_delivery=lambda error, _: failures.append(error))
        producer.flush(TIMEOUT_S)
        assert len(failures) == 1
        assert failures[0] is not None
        assert topics_of(server.kafka) == {}


def test_clients_are_told_the_advertised_address() -> None:
    with Server(kafka_advertised="broker.example:19092") as server:
        admin = AdminClient({"bootstrap.servers": server.kafka})
        (broker,) = admin.list_topics(timeout=TIMEOUT_S).brokers.values()
        assert (broker.host, broker.port) == ("broker.example", 19092)


def test_a_server_in_memory_leaves_nothing_behind(tmp_path: Path) -> None:
    with Server(data=tmp_path / "data", storage="memory:") as server:
        producer = Producer({"bootstrap.servers": server.kafka})
        producer.produce("fresh", b"hello")
        assert producer.flush(TIMEOUT_S) == 0
        assert topics_of(server.kafka) == {"fresh": 1}
        server.stop()
        assert not (tmp_path / "data").exists()
        server.restart()
        assert topics_of(server.kafka) == {}


def test_a_door_that_is_off_does_not_listen() -> None:
    with Server(kafka="off") as server, pytest.raises((KafkaException, KeyError)):
        topics_of(server.doors["kafka"])
