"""What a person is told when the other side is not there, or is something else."""

import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.client.kafka.cluster import Cluster, parse_servers
from penstock.client.kafka.connection import Address
from penstock.client.kafka.errors import ERRORS, Disconnected, Invalid, Refused, Unreachable

TIMEOUT_S = 0.3


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def address_of(listening: socket.socket) -> str:
    return "{}:{}".format(*listening.getsockname())


def test_servers_are_hosts_with_or_without_ports() -> None:
    assert parse_servers("a, b:1,[::1]:2,[::1]") == [
        Address("a", 9092),
        Address("b", 1),
        Address("::1", 2),
        Address("::1", 9092),
    ]
    assert [str(address) for address in parse_servers("a:1,[::1]:2")] == ["a:1", "[::1]:2"]
    for text in ("", ":1", "a:b", "a:70000", "a:0"):
        with pytest.raises(Invalid, match="host:port"):
            parse_servers(text)


def test_a_server_that_is_not_running_is_named_with_what_to_do(listener: socket.socket) -> None:
    address = address_of(listener)
    listener.close()
    with pytest.raises(Unreachable) as caught, Cluster(address, TIMEOUT_S) as cluster:
        cluster.metadata(None)
    assert str(caught.value) == (
        f"cannot reach {address}: connection refused; is the server running? "
        "start it with 'penstock serve' or name another with --server"
    )


def test_the_next_server_is_asked_when_the_first_is_down(listener: socket.socket) -> None:
    """It accepts and says nothing, so the second failure shows that it was asked; the first is the one reported."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        down = address_of(gone)
    with pytest.raises(Unreachable, match=down), Cluster(f"{down},{address_of(listener)}", TIMEOUT_S) as cluster:
        cluster.any()
    listener.settimeout(TIMEOUT_S)
    listener.accept()[0].close()


def test_a_server_that_says_nothing_is_given_up(listener: socket.socket) -> None:
    with pytest.raises(Unreachable, match="does not answer like a Kafka door: no answer"):
        Cluster(address_of(listener), TIMEOUT_S).any()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x02ab", b"\xff\xff\xff\xff", b""]
)
def test_a_server_that_is_not_kafka_is_told_apart(listener: socket.socket, answer: bytes) -> None:
    def reply() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(answer)

    thread = threading.Thread(target=reply)
    thread.start()
    with pytest.raises(Unreachable, match="does not answer like a Kafka door"):
        Cluster(address_of(listener), TIMEOUT_S).any()
    thread.join()


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(Unreachable, match=r"cannot reach nowhere\.invalid:9092: this host name is not known"):
        Cluster("nowhere.invalid", TIMEOUT_S).any()


def test_refusals_prefer_the_servers_words_and_add_what_to_do() -> None:
    assert str(Refused(36, "cannot create topic 'a'", "Topic 'a' already exists.")) == (
        "cannot create topic 'a': Topic 'a' already exists (TOPIC_ALREADY_EXISTS); "
        "change it with 'penstock topic alter'"
    )
    assert Refused(12345, "x").name == "ERROR_12345"
    assert all(known.reason and known.name.isupper() for known in ERRORS.values())


def test_what_may_work_later_is_tried_again_and_what_may_not_is_not() -> None:
    cluster = Cluster("127.0.0.1:1", TIMEOUT_S, retry_s=5)
    answers: list[Exception | str] = [Refused(5, "x"), Disconnected("x"), "done"]

    def act() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert cluster.retry(act) == "done"
    answers[:] = [Refused(3, "x"), "done"]
    with pytest.raises(Refused):
        cluster.retry(act)
    answers[:] = [Disconnected("x"), "done"]
    with pytest.raises(Disconnected):
        cluster.retry(act, repeatable=False)
