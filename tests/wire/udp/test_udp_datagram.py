"""Datagrams: one message, lines, and messages with sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.udp.datagram import Datagram, Malformed, parse


@pytest.mark.parametrize(
    ("data", "messages"),
    [
        (b"orders\nhello", [(None, b"hello")]),
        (b"orders\r\nhello\r\n", [(None, b"hello\r\n")]),
        (b"orders order 7\nhello", [(b"order 7", b"hello")]),
        (b"orders \n", [(b"", b"")]),
        (b"orders\n", [(None, b"")]),
        (b"*orders\na\nb\r\n\nc\n", [(None, b"a"), (None, b"b"), (None, b"c")]),
        (b"*orders k\na", [(b"k", b"a")]),
        (b"*orders\n", []),
        (b"+orders\n3\na\nb2 k\nhi0\n", [(None, b"a\nb"), (b"k", b"hi"), (None, b"")]),
        (b"+orders all\r\n1\r\na1 mine\r\nb", [(b"all", b"a"), (b"mine", b"b")]),
    ],
)
def test_forms(data: bytes, messages: list[tuple[bytes | None, bytes]]) -> None:
    assert parse(data) == Datagram("orders", messages)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no line break after the topic"),
        (b"orders hello", "no line break after the topic"),
        ("größe\nx".encode(), "a topic's name is not ASCII"),
        (b"+orders\nabc", "no line break after a size"),
        (b"+orders\nabc\nabc", "a size is not a number"),
        (b"+orders\n-1\nabc", "a size is not a number"),
        (b"+orders\n999999\nabc", "a size is not a number"),
        (b"+orders\n4\nabc", "a payload is shorter than its size"),
        (b"+orders\n1\nabc", "no line break after a size"),
    ],
)
def test_what_is_not_a_datagram_says_why(data: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        parse(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_datagram_or_malformed(data: bytes) -> None:
    try:
        parse(data)
    except Malformed as error:
        assert str(error)


@given(
    st.lists(st.tuples(st.binary(max_size=20).filter(lambda k: b"\n" not in k and not k.endswith(b"\r")), st.binary()))
)
def test_sized_messages_carry_any_bytes(messages: list[tuple[bytes, bytes]]) -> None:
    sent = b"+t\n" + b"".join(b"%d %b\n%b" % (len(payload), key, payload) for key, payload in messages)
    assert parse(sent).messages == messages
