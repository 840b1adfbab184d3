"""The text protocol and the UDP door with nothing but `nc` and a shell, as the designs and docs/line.md show them."""

import subprocess

import pytest
from netcat import PATIENCE_S, Netcat, pipe
from story import eventually

from penstock.testing.server import Server
from servers import AGAINST_KAFKA, only_penstock

pytestmark = only_penstock

pytestmark = pytest.mark.skipif(AGAINST_KAFKA, reason="Kafka has no such door")


def test_the_dialogue_of_go_broker_byte_for_byte(server: Server, topic: str) -> None:
    name = topic.encode()
    pipe(server.line, (b"PUB %b 1\r\n-" % name) * 50)
    assert pipe(server.line, b'PUB %b 16\r\n{"order_id":101}' % name) == b"OK 50\r\n"
    assert pipe(server.line, b"FETCH %b 50\r\n" % name) == b'MSG 50 16\r\n{"order_id":101}'
    assert pipe(server.line, b"FETCH %b 50" % name) == b'MSG 50 16\r\n{"order_id":101}'


def test_both_sides_of_the_dialogue_in_one_connection(server: Server, topic: str) -> None:
    with Netcat(server.line) as nc:
        nc.say(f'PUB {topic} 16\r\n{{"order_id":101}}')
        assert nc.exactly(6) == b"OK 0\r\n"
        nc.say(f"FETCH {topic} 0\n")
        assert nc.exactly(26) == b'MSG 0 16\r\n{"order_id":101}'


def test_a_person_types_and_presses_enter_after_everything(server: Server, topic: str) -> None:
    with Netcat(server.line) as nc:
        nc.say(f"pub {topic} 5\n")
        nc.say("hello\n")
        assert nc.line() == "OK 0"
        nc.say(f"fetch {topic} 0\n\n")
        assert nc.exactly(14) == b"MSG 0 5\r\nhello"
        nc.say("what\n")
        assert nc.line() == "ERR unknown-command there is no command what; HELP lists what there is"
        nc.say("help\n")
        assert nc.line() == "PUB <topic> <size> [options]  then <size> bytes"
        while nc.line() != "END":
            pass
        nc.say("quit\n")
        assert nc.line() == "BYE"


def test_the_commands_of_the_hybrid_design(server: Server, topic: str) -> None:
    with Netcat(server.line) as worker, Netcat(server.line) as listener, Netcat(server.line) as producer:
        worker.say(f"SUBSCRIBE {topic}/queue\r\n")
        assert worker.line() == f"OK {topic}/queue"
        listener.say(f"SUBSCRIBE {topic}/pubsub\r\n")
        assert listener.line() == f"OK {topic}/pubsub"
        producer.say(f"PUBLISH {topic} hello, world\r\n")
        assert producer.line() == "OK 0"
        assert listener.message() == (f"{topic}:0:0", "hello, world")
        name, payload = worker.message()
        assert payload == "hello, world"
        worker.say(f"ACK {name}\r\n")
        assert worker.line() == "OK"


def test_a_script_gets_all_its_answers_although_it_says_nothing_more(server: Server, topic: str) -> None:
    script = b"".join(b"PUB %b 6 key=k%d\r\n%06d\r\n" % (topic.encode(), n % 10, n) for n in range(10_000))
    answers = pipe(server.line, script + f"FETCH {topic} 9999\r\nFETCH {topic} 10000\r\n".encode())
    expected = b"".join(b"OK %d\r\n" % n for n in range(10_000)) + b"MSG 9999 6\r\n009999"
    assert answers.startswith(expected)
    assert answers[len(expected) :] == (
        f"ERR offset-out-of-range topic {topic} has no message 10000 (start=0 end=10000)\r\n".encode()
    )


def test_an_oversized_payload_is_told_although_nc_goes_on_sending(server: Server, topic: str) -> None:
    answer = pipe(server.line, b"PUB %b 4000000000\r\n" % topic.encode() + b"x" * 3_000_000)
    assert answer.startswith(b"ERR payload-too-large ")
    assert pipe(server.line, b"PING\n") == b"PONG\r\n"


def values(server: Server, topic: str, count: int) -> list[bytes]:
    """What the topic holds once it holds so many."""

    def fetch() -> list[bytes]:
        answer = pipe(server.line, f"FETCH {topic} 0 count={count}\n".encode())
        return answer.split(b"\r\n")[1:-2:2]

    found: list[bytes] = eventually(lambda: now if len(now := fetch()) >= count else None, f"{count} messages")
    return found


def test_datagrams_from_nc_and_from_the_shell(server: Server, topic: str) -> None:
    host, port = server.udp.rsplit(":", 1)
    pipe(server.udp, f"{topic}\nfrom nc".encode(), "-u", "-w", "1")
    assert values(server, topic, 1) == [b"from nc"]
    # Not bash's own printf, which sends every line for itself.
    for form in (f"env printf '{topic} key-7\\nfrom bash'", f"env printf '*{topic}\\nfirst\\nsecond\\n'"):
        subprocess.run(["bash", "-c", f"{form} > /dev/udp/{host}/{port}"], check=True, timeout=PATIENCE_S)
    assert values(server, topic, 4) == [b"from nc", b"from bash", b"first", b"second"]
    with_key = pipe(server.line, f"FETCH {topic} 1 meta=yes\n".encode())
    assert b" key=key-7\r\n" in with_key
