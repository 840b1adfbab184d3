"""The connection of worker processes: no loop, no thread, no retries, and errors that say what to do."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from penstock.client import blocking
from penstock.client.blocking import BlockingConnection
from penstock.client.errors import ClientClosed, Disconnected, ProtocolBroken, Unreachable, WrongDoor
from penstock.model.batch import decode_batch, encode_batch
from penstock.model.errors import LimitReached, PenstockError, RecordTooLarge, TimedOut, UnknownTopic
from penstock.model.record import Record
from penstock.testing.server import Server
from penstock.wire.native import messages as wire
from penstock.wire.native.framing import PREFACE, encode
from servers import StartServer

WELCOME = bytes(encode(1, wire.Welcome(1, "fake", "cluster", 1 << 20)))


@contextmanager
def talk(script: Callable[[socket.socket], None]) -> Iterator[str]:
    """A door of one connection that does what the script says."""
    with closing(socket.create_server(("127.0.0.1", 0))) as door:
        door.settimeout(20)

        def serve() -> None:
            try:
                peer, _ = door.accept()
            except OSError:
                return  # nobody came before the test was over
            with closing(peer):
                peer.settimeout(20)
                script(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{door.getsockname()[1]}"
        finally:
            thread.join(30)
            assert not thread.is_alive()


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def test_what_is_published_is_fetched_over_one_connection(server: Server, topic: str) -> None:
    with BlockingConnection(server.line) as connection:
        connection.request(wire.CreateTopic(topic, 1))
        batch = encode_batch([Record(0, 5, b"k", b"first"), Record(1, 6, None, b"second")])
        stored = connection.request(wire.Publish(-1, [wire.Batch(topic, 0, bytes(batch))]))
        assert [one.base_offset for one in stored.results] == [0]
        fetched = connection.request(wire.Fetch(topic, 0, 0, 1 << 20, 0))
        assert [record.value for record in decode_batch(fetched.batches)] == [b"first", b"second"]
        assert fetched.next_offset == 2


def test_replies_may_be_taken_in_any_order(server: Server, topic: str) -> None:
    with BlockingConnection(server.line) as connection:
        connection.request(wire.CreateTopic(topic, 1))
        waits = connection.send(wire.Fetch(topic, 0, 0, 1 << 20, 60_000))
        asked = [connection.send(wire.ListOffsets(topic, 0)) for _ in range(5)]
        assert [connection.receive(one).end for one in reversed(asked)] == [0] * 5
        batch = encode_batch([Record(0, 5, b"k", b"value")])
        connection.request(wire.Publish(-1, [wire.Batch(topic, 0, bytes(batch))]))
        assert connection.receive(waits).next_offset == 1


def test_a_failure_is_the_error_it_names_and_the_connection_goes_on(server: Server, topic: str) -> None:
    with BlockingConnection(server.line) as connection:
        with pytest.raises(UnknownTopic, match="no-such"):
            connection.request(wire.FindTopic("no-such", create=False))
        assert connection.request(wire.Ping()) == wire.Done()
        assert connection.is_open


def test_a_reply_is_taken_once(server: Server) -> None:
    with BlockingConnection(server.line) as connection:
        asked = connection.send(wire.Ping())
        connection.receive(asked)
        with pytest.raises(ValueError, match="taken before"):
            connection.receive(asked)


def test_requests_under_way_have_a_bound(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "IN_FLIGHT_MAX", 3)
    with BlockingConnection(server.line) as connection:
        asked = [connection.send(wire.Ping()) for _ in range(3)]
        with pytest.raises(LimitReached, match="3 requests"):
            connection.send(wire.Ping())
        for one in asked:
            connection.receive(one)
        connection.request(wire.Ping())


def test_a_frame_that_the_server_would_refuse_is_not_sent(server: Server, topic: str) -> None:
    with BlockingConnection(server.line) as connection:
        batch = wire.Batch(topic, 0, bytes(connection.max_frame_bytes))
        with pytest.raises(RecordTooLarge, match=r"Publish of \d+ bytes"):
            connection.request(wire.Publish(-1, [batch]))
        connection.request(wire.Ping())


def test_what_has_no_reply_is_told(server: Server, topic: str) -> None:
    with BlockingConnection(server.line) as connection:
        connection.request(wire.CreateTopic(topic, 1))
        batch = encode_batch([Record(0, 5, b"k", b"value")])
        connection.tell(wire.Publish(0, [wire.Batch(topic, 0, bytes(batch))]))
        fetched = connection.request(wire.Fetch(topic, 0, 0, 1 << 20, 20_000))
        assert fetched.next_offset == 1


def test_a_closed_one_says_so(server: Server) -> None:
    connection = BlockingConnection(server.line)
    connection.close()
    connection.close()
    with pytest.raises(ClientClosed, match="closed here"):
        connection.request(wire.Ping())


def test_nobody_there_names_the_address_and_what_to_do() -> None:
    port = closed_port()
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port}: connection refused.*penstock serve"):
        BlockingConnection(f"127.0.0.1:{port}")


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(Unreachable, match=r"no\.such\.host\.invalid:7070: this host name is not known"):
        BlockingConnection("no.such.host.invalid")


def test_a_server_that_is_there_is_found_behind_one_that_is_not(server: Server) -> None:
    with BlockingConnection(f"127.0.0.1:{closed_port()},{server.line}") as connection:
        assert str(connection.address) == server.line
        connection.request(wire.Ping())


def test_all_addresses_that_fail_are_named() -> None:
    first, second = closed_port(), closed_port()
    with pytest.raises(Unreachable, match=rf"{first}: .*{second}: .*penstock serve"):
        BlockingConnection(f"127.0.0.1:{first},127.0.0.1:{second}")


def test_another_door_is_told_apart(server: Server) -> None:
    with pytest.raises(WrongDoor, match="another door"):
        BlockingConnection(server.kafka)
    with pytest.raises(PenstockError, match="HTTP door"):
        BlockingConnection(server.doors["http"])


def test_bytes_of_another_protocol_are_refused() -> None:
    def script(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(b"\xff" * 64)

    with talk(script) as address, pytest.raises(ProtocolBroken, match="does not speak"):
        BlockingConnection(address)


def test_a_silent_server_is_given_up() -> None:
    heard: list[bytes] = []

    def script(peer: socket.socket) -> None:
        heard.append(peer.recv(1 << 16))
        peer.sendall(WELCOME)
        while data := peer.recv(1 << 16):  # until the client has closed
            heard.append(data)

    with talk(script) as address:
        connection = BlockingConnection(address, timeout_s=0.5)
        with pytest.raises(TimedOut, match=f"{address} was silent for 0.5 s"):
            connection.request(wire.Ping())
        assert not connection.is_open
        with pytest.raises(TimedOut):
            connection.request(wire.Ping())
    assert heard[0].startswith(PREFACE)


def test_a_reply_in_pieces_is_one_reply() -> None:
    def script(peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.recv(1 << 16)
        for byte in WELCOME:
            peer.sendall(bytes([byte]))
        peer.recv(1 << 16)
        peer.sendall(bytes(encode(2, wire.Fetched(bytes(100_000), 7, 0, 9))))

    with talk(script) as address, BlockingConnection(address) as connection:
        fetched = connection.request(wire.Fetch("orders", 0, 0, 1, 0))
        assert (len(fetched.batches), fetched.next_offset) == (100_000, 7)


def test_what_the_server_says_of_the_whole_connection_ends_it() -> None:
    def script(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(WELCOME)
        peer.recv(1 << 16)
        peer.sendall(bytes(encode(0, wire.Failure("not-allowed", "go away"))))

    with talk(script) as address, BlockingConnection(address) as connection:
        with pytest.raises(PenstockError, match="go away"):
            connection.request(wire.Ping())
        assert not connection.is_open


def test_a_server_that_dies_breaks_the_connection(start_server: StartServer, topic: str) -> None:
    server = start_server()
    with BlockingConnection(server.line) as connection:
        connection.request(wire.CreateTopic(topic, 1))
        waits = connection.send(wire.Fetch(topic, 0, 0, 1 << 20, 60_000))
        server.kill()
        with pytest.raises(Disconnected, match=f"{connection.address} broke"):
            connection.receive(waits, timeout_s=60)
        with pytest.raises(Disconnected):
            connection.request(wire.Ping())
