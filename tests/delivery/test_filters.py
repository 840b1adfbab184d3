"""Filters: patterns against an obvious oracle, headers, and lists of matches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.filters import MAX_MATCHES, MAX_PATTERN_BYTES, MAX_WORDS, Match, compile_filter
from penstock.model.errors import InvalidSetting
from penstock.model.record import Headers, Record


def record(key: str | None = None, *headers: tuple[str, bytes | None]) -> Record:
    carried: Headers = headers
    return Record(0, 0, None if key is None else key.encode(), b"value", carried)


def takes(match: Match | list[Match], of: Record) -> bool:
    test = compile_filter(match if isinstance(match, list) else [match])
    return test is None or test(of)


def naive(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    first, *rest = pattern
    if first == "#":
        return naive(rest, words) or (bool(words) and naive(pattern, words[1:]))
    return bool(words) and first in ("*", words[0]) and naive(rest, words[1:])


def words_of(text: str | None) -> list[str]:
    return text.split(".") if text else []


words = st.sampled_from(("a", "b", "ab", "é", "", "."))
keys = st.none() | st.lists(words, max_size=6).map(".".join)
patterns = st.lists(words | st.sampled_from(("*", "#", "#", "*")), max_size=6).map(".".join)


@given(patterns, keys)
def test_a_pattern_takes_what_the_obvious_reading_takes(pattern: str, key: str | None) -> None:
    assert takes(Match(pattern=pattern), record(key)) == naive(words_of(pattern), words_of(key))


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        ("#", [None, "", "a", "a.b.c"], []),
        ("*", ["a", "é"], [None, "", "a.b"]),
        ("a.#", ["a", "a.b", "a.b.c"], ["", "b.a", "ab"]),
        ("#.a", ["a", "b.a", "c.b.a"], ["a.b", "ba"]),
        ("#.a.#", ["a", "b.a", "a.b", "b.a.b"], ["", "b", "ab"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b"], ["a", "b", "a.b.c"]),
        ("#.#", [None, "", "a", "a.b"], []),
        ("#.*", ["a", "a.b"], [None, ""]),
        ("*.#.*", ["a.b", "a.b.c"], ["a", ""]),
        ("a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c"]),
        ("#.a.#.a.#", ["a.a", "a.x.a"], ["a", "x.a.x"]),
        ("", ["", None], ["a"]),
        ("orders.*.eu", ["orders.new.eu"], ["orders.new.us", "xorders.new.eu", "orders.new.eu.x", "ordersxnewxeu"]),
    ],
)
def test_edges_of_patterns(pattern: str, taken: list[str | None], refused: list[str | None]) -> None:
    assert [key for key in taken if not takes(Match(pattern=pattern), record(key))] == []
    assert [key for key in refused if takes(Match(pattern=pattern), record(key))] == []


@pytest.mark.parametrize("pattern", ["a*", "*a.b", "##", "a.#b", "**"])
def test_wildcards_are_whole_words(pattern: str) -> None:
    with pytest.raises(InvalidSetting, match="whole words"):
        compile_filter([Match(pattern=pattern)])


def test_a_pattern_that_makes_others_slow_is_no_trouble() -> None:
    match = Match(pattern=".".join(["#", "a"] * 40 + ["#", "b"]))
    assert not takes(match, record(".".join(["a"] * 2_000)))


def test_filters_have_bounds() -> None:
    for match in (Match(pattern="x" * (MAX_PATTERN_BYTES + 1)), Match(pattern=".".join("x" * (MAX_WORDS + 1)))):
        with pytest.raises(InvalidSetting):
            compile_filter([match])
    with pytest.raises(InvalidSetting):
        compile_filter([Match(key="k")] * (MAX_MATCHES + 1))


def test_a_key_is_the_whole_key() -> None:
    assert takes(Match(key="a.b"), record("a.b"))
    assert not takes(Match(key="a.b"), record("a.b.c"))
    assert not takes(Match(key="a"), record(None))
    assert takes(Match(key=""), record(""))
    assert not takes(Match(key=""), record(None))


def test_all_headers_or_any_of_them() -> None:
    both = record(None, ("kind", b"order"), ("land", "dé".encode()))
    one = record(None, ("kind", b"order"), ("land", b"fr"), ("land", None))
    wanted = {"kind": "order", "land": "dé"}
    assert takes(Match(headers=wanted), both) and not takes(Match(headers=wanted), one)
    assert takes(Match(headers=wanted, any_header=True), one)
    assert not takes(Match(headers=wanted, any_header=True), record(None, ("kind", b"bill")))
    assert not takes(Match(headers=wanted, any_header=True), record())


def test_a_header_that_is_there_twice_has_both_values() -> None:
    twice = record(None, ("tag", b"red"), ("tag", b"big"))
    assert takes(Match(headers={"tag": "red"}), twice) and takes(Match(headers={"tag": "big"}), twice)


def test_all_that_a_match_names_is_asked_for() -> None:
    match = Match(pattern="orders.#", headers={"land": "fr"})
    assert takes(match, record("orders.new", ("land", b"fr")))
    assert not takes(match, record("orders.new"))
    assert not takes(match, record("bills", ("land", b"fr")))
    assert not takes(Match(key="orders.new", pattern="bills.#"), record("orders.new"))


def test_a_filter_takes_what_any_match_takes() -> None:
    either = [Match(key="a"), Match(key="b"), Match(pattern="x.*"), Match(headers={"h": "1"})]
    assert [takes(either, record(key)) for key in ("a", "b", "c", "x.y")] == [True, True, False, True]
    assert takes(either, record("c", ("h", b"1")))
    assert [takes([Match(key="a"), Match(key="b")], record(key)) for key in ("a", "b", "c", None)] == [
        True,
        True,
        False,
        False,
    ]
    assert [takes([Match(pattern="x.*"), Match(pattern="y.*")], record(key)) for key in ("x.1", "y.1", "z.1")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("matches", [[], [Match()], [Match(key="a"), Match()], [Match(pattern="#")]])
def test_what_takes_everything_needs_no_test(matches: list[Match]) -> None:
    assert compile_filter(matches) is None
