"""How records look on the way out, and that JSON lines find their way back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.render import json_line, parse_json_line, pretty, raw, visible
from penstock.client.message import Message
from penstock.model.record import Record

RECORD = Record(42, 1794733200123, b"user-1", b'{"a": 1}', (("trace", b"x"), ("none", None)))


def received(record: Record = RECORD) -> Message:
    return Message("orders", 3, record)


def test_pretty_says_where_when_and_what() -> None:
    first, second = pretty(colour=False)(received()).decode().splitlines()
    assert first.startswith("orders-3 @42  20") and first.endswith("user-1  trace=x  none=(null)")
    assert second == '{"a": 1}'
    assert b"\x1b[36muser-1\x1b[0m" in pretty(colour=True)(received())


def test_a_record_cannot_drive_the_terminal() -> None:
    evil = Record(0, 0, b"\x1b[2J", "bell\x07 \x9b31m tab\t".encode(), (("\x1b", b"\r"),))
    shown = pretty(colour=False)(received(evil)).decode()
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(shown)
    assert "\\x1b[2J" in shown and "\t" in shown


def test_binary_is_shown_in_hex_and_cut() -> None:
    assert visible(b"\xff\x00") == "(2 bytes) ff 00"
    assert visible(b"\xff" * 100).endswith("ff…")
    assert visible(None) == "(null)" and visible(b"") == ""


def test_raw_is_the_value_alone_or_after_its_key() -> None:
    assert raw(None, b"\n")(received()) == b'{"a": 1}\n'
    assert raw(b"\t", b"\0")(received()) == b'user-1\t{"a": 1}\0'
    assert raw(b":", b"\n")(received(Record(0, 0, None, None))) == b":\n"


def test_a_json_line_is_one_line_with_everything_in_it() -> None:
    line = json_line(received())
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1794733200123,
        "time": "2026-11-15T09:00:00.123+00:00",
        "key": "user-1",
        "value": '{"a": 1}',
        "headers": [{"name": "trace", "value": "x"}, {"name": "none", "value": None}],
    }


@pytest.mark.parametrize("timestamp_ms", [-1, 2**62])
def test_a_time_that_is_none_is_null(timestamp_ms: int) -> None:
    assert json.loads(json_line(received(Record(0, timestamp_ms, None, b""))))["time"] is None
    assert pretty(colour=False)(received(Record(0, timestamp_ms, None, b"")))


content = st.none() | st.binary(max_size=20)


@given(content, content, st.lists(st.tuples(st.text(max_size=5), content), max_size=3), st.integers(0, 2**40))
def test_a_json_line_is_read_back_as_it_was(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp_ms: int
) -> None:
    parsed = parse_json_line(json_line(received(Record(0, timestamp_ms, key, value, tuple(headers)))))
    assert parsed == (key, value, tuple(headers), 3, timestamp_ms)


def test_people_may_write_json_lines_by_hand() -> None:
    parsed = parse_json_line(b'{"value": {"a": [1]}, "headers": {"h": "x"}}')
    assert (parsed.key, parsed.value, parsed.headers) == (None, b'{"a":[1]}', (("h", b"x"),))


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"value": "a", "headers": 1}',
        b'{"value_base64": "*"}',
        b'{"value": "a", "partition": "x"}',
    ],
)
def test_other_json_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json_line(line)
