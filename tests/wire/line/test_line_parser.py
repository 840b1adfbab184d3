"""The text protocol's parser: the same commands however the bytes arrive, and a place for every refusal."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.line import replies
from penstock.wire.line.commands import TABLE, help_lines
from penstock.wire.line.parser import MAX_LINE_BYTES, Command, Parser, Refused
from penstock.wire.line.words import quote, split_words

MAX_PAYLOAD_BYTES = 1 << 20
DIALOGUE = (
    b'PUB orders 16\r\n{"order_id":101}'
    b"FETCH orders 50\r\n"
    b"\r\n"
    b"PUB orders 3 key=42\n\r\n\n\r\n"
    b"SUBSCRIBE orders/queue credit=5\n"
    b"bogus\n"
    b"PUB orders 2 nonsense=1\r\nhi\r\n"
    b"PUBLISH orders  two  words \r\n"
    b'PUB orders 0 key="a \\"b\\" \\x00\\\\" header.type=x=y\n'
    b"ACK orders:0:50\r\n"
    b"ping\n"
)


def parse(*pieces: bytes) -> list[Command | Refused]:
    parser = Parser(MAX_PAYLOAD_BYTES)
    return [found for piece in pieces for found in parser.receive(piece)]


def only(data: bytes) -> Command | Refused:
    (found,) = parse(data)
    return found


def test_the_dialogue_is_understood() -> None:
    found = parse(DIALOGUE)
    assert [(f.name, f.words, f.payload) if isinstance(f, Command) else f.code for f in found] == [
        ("PUB", ["orders", "16"], b'{"order_id":101}'),
        ("FETCH", ["orders", "50"], b""),
        ("PUB", ["orders", "3"], b"\r\n\n"),
        ("SUBSCRIBE", ["orders/queue"], b""),
        "unknown-command",
        "invalid-request",
        ("PUBLISH", ["orders"], b" two  words "),
        ("PUB", ["orders", "0"], b""),
        ("ACK", ["orders:0:50"], b""),
        ("PING", [], b""),
    ]
    assert [f.options for f in found if isinstance(f, Command) and f.options] == [
        {"key": b"42"},
        {"credit": b"5"},
        {"key": b'a "b" \x00\\', "header.type": b"x=y"},
    ]


def test_byte_by_byte_is_the_same_as_whole() -> None:
    assert parse(*(bytes((byte,)) for byte in DIALOGUE)) == parse(DIALOGUE)


@given(st.lists(st.integers(0, len(DIALOGUE)), max_size=12), st.binary(max_size=40).filter(lambda b: b"\n" not in b))
def test_any_split_and_whatever_follows_gives_the_same_commands(cuts: list[int], trailing: bytes) -> None:
    data = DIALOGUE + trailing
    at = [0, *sorted(cuts), len(data)]
    assert parse(*(data[a:b] for a, b in pairwise(at))) == parse(DIALOGUE)


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_bytes_of_any_kind_are_commands_or_refusals_and_never_grow(pieces: list[bytes]) -> None:
    parser = Parser(1000)
    for piece in pieces:
        parser.receive(piece)
        assert parser.unfinished_bytes <= MAX_LINE_BYTES + 1000 + 300
    parser.finish()


@given(st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=20)), min_size=1, max_size=10), st.data())
def test_payloads_and_keys_come_out_as_they_went_in(messages: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    sent = b"".join(b"PUB t %d key=%b\r\n%b" % (len(payload), quote(key), payload) for payload, key in messages)
    cut = data.draw(st.integers(0, len(sent)))
    found = parse(sent[:cut], sent[cut:])
    assert [(f.payload, f.options["key"]) for f in found if isinstance(f, Command)] == messages


@given(st.lists(st.binary(max_size=30), max_size=6))
def test_quoted_values_are_given_back(values: list[bytes]) -> None:
    assert split_words(b" ".join(b"k=" + quote(value) for value in values)) == [b"k=" + value for value in values]


@given(st.binary(max_size=30))
def test_a_quoted_value_is_one_line_of_text_without_controls(value: bytes) -> None:
    quoted = quote(value)
    quoted.decode()
    assert not any(byte < 32 or byte == 127 for byte in quoted)


def test_a_large_payload_in_many_pieces_is_looked_at_once_it_is_whole() -> None:
    payload = bytes(range(256)) * 2048
    sent = b"PUB big %d\r\n%b" % (len(payload), payload)
    parser = Parser(MAX_PAYLOAD_BYTES)
    found = [f for at in range(0, len(sent), 1000) for f in parser.receive(sent[at : at + 1000])]
    assert [(f.payload, f.size_bytes) for f in found if isinstance(f, Command)] == [(payload, len(sent))]
    assert parser.unfinished_bytes == 0


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (b"GET / HTTP/1.1", "unknown-command", "there is no command GET; HELP lists"),
        (b"\xff\xfe hello", "unknown-command", "\\xff\\xfe"),
        (b"PUB", "invalid-request", "usage: PUB <topic> <size>"),
        (b"PUB orders", "invalid-request", "usage: PUB"),
        (b"PUB orders ten", "invalid-request", "ten is not a size"),
        (b"PUB orders -1", "invalid-request", "-1 is not a size"),
        (b"FETCH orders", "invalid-request", "usage: FETCH"),
        (b"FETCH orders 1 2", "invalid-request", "usage: FETCH"),
        (b"FETCH \xff 1", "invalid-request", "not UTF-8"),
        (b"FETCH orders 1 count=1 count=2", "invalid-request", "count is given twice"),
        (b"SUBSCRIBE a/queue colour=red", "invalid-request", "has no option colour"),
        (b'SUBSCRIBE a/queue key="abc', "invalid-request", "a quote is not closed"),
        (b"PUBLISH orders", "invalid-request", "usage: PUBLISH"),
        (b"PING me", "invalid-request", "usage: PING"),
    ],
)
def test_a_wrong_line_is_refused_and_the_next_one_is_taken(line: bytes, code: str, says: str) -> None:
    refused, ping = parse(line + b"\r\nPING\r\n")
    assert isinstance(refused, Refused)
    assert (refused.code, refused.fatal) == (code, False)
    assert says in refused.sentence
    assert isinstance(ping, Command)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"PUB orders 1048577\r\n", "payload-too-large"),
        (b"PUB orders 99999999999999999999\r\n", "payload-too-large"),
        (b"PUBLISH orders " + b"x" * MAX_LINE_BYTES, "line-too-long"),
        (b"PUBLISH orders " + b"x" * MAX_LINE_BYTES + b"\n", "line-too-long"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", "not-text"),
    ],
)
def test_after_what_cannot_be_passed_over_nothing_is_looked_at(data: bytes, code: str) -> None:
    parser = Parser(MAX_PAYLOAD_BYTES)
    (refused,) = parser.receive(data)
    assert isinstance(refused, Refused)
    assert (refused.code, refused.fatal) == (code, True)
    assert parser.receive(b"\r\nPING\r\n") == []
    assert parser.unfinished_bytes == 0
    assert parser.finish() == []


def test_an_overlong_line_is_refused_as_soon_as_it_is_one_however_it_arrives() -> None:
    parser = Parser(MAX_PAYLOAD_BYTES)
    found: list[Command | Refused] = []
    sent = 0
    while not found:
        found = parser.receive(b"y" * 100)
        sent += 100
    assert isinstance(found[0], Refused)
    assert sent <= MAX_LINE_BYTES + 100


def test_the_end_of_the_input_ends_a_line_but_not_a_payload() -> None:
    parser = Parser(MAX_PAYLOAD_BYTES)
    assert parser.receive(b"PING") == []
    assert [f.name for f in parser.finish() if isinstance(f, Command)] == ["PING"]
    parser.receive(b"PUB orders 10\r\nabc")
    (refused,) = parser.finish()
    assert isinstance(refused, Refused)
    assert (refused.code, refused.sentence) == ("truncated", "the payload ends 7 bytes before its size")


def test_commands_may_be_typed_in_any_case_and_with_many_blanks() -> None:
    for line in (b"fetch orders 5\n", b"Fetch  orders\t5 \n", b"  FETCH orders 5\r\n"):
        found = only(line)
        assert isinstance(found, Command)
        assert (found.name, found.words) == ("FETCH", ["orders", "5"])


def test_help_tells_every_command_in_lines_that_fit_a_terminal() -> None:
    lines = help_lines()
    assert all(len(line) <= 110 for line in lines)
    for syntax in TABLE:
        assert any(line.startswith(syntax.name) for line in lines)
        about = help_lines(syntax.name.lower())
        assert about[0].startswith(syntax.name)
        for option in syntax.options:
            assert option == "*" or any(line.strip().startswith(option) for line in about)


def test_every_example_of_the_help_is_a_command() -> None:
    for syntax in TABLE:
        if syntax.example:
            payload = b"hello" if syntax.has_payload else b""
            found = only(syntax.example.encode() + b"\r\n" + payload)
            assert isinstance(found, Command), found
            assert found.name == syntax.name


def test_an_answer_is_one_line_whatever_its_sentence_holds() -> None:
    assert replies.error("x", "two\r\nlines\ud800") == b"ERR x two lines\\ud800\r\n"
