"""Which records a subscription wants: patterns on the key, equality on headers. Pure, and compiled once per use.

    key        the whole key, exactly
    pattern    AMQP's topic pattern on the key: words between dots, `*` is one word, `#` any number of words
    headers    these headers have these values; `any_header` asks for one of them instead of all

What a match does not name it does not ask for; an empty match takes everything. A filter is a list of matches and takes
what any of them takes; an empty list takes everything. A record without a key has no words: only `#` takes it.
"""

import re
from collections.abc import Callable, Sequence

import msgspec

from penstock.model.errors import InvalidSetting
from penstock.model.record import Record

Test = Callable[[Record], bool]

MAX_MATCHES = 1_000
MAX_PATTERN_BYTES = 1_024
MAX_WORDS = 128


class Match(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    key: str | None = None
    pattern: str | None = None
    headers: dict[str, str] = {}
    any_header: bool = False


def compile_filter(matches: Sequence[Match]) -> Test | None:
    """A test for records; None when everything passes. Raises InvalidSetting for a pattern that makes no sense."""
    if len(matches) > MAX_MATCHES:
        raise InvalidSetting(f"a filter has {len(matches)} matches: it may have {MAX_MATCHES}")
    tests = [_compile_match(match) for match in matches]
    if not tests or None in tests:
        return None
    # Most filters that have many matches list keys: these are looked up at once.
    keys = frozenset(match.key.encode() for match in matches if _is_key_only(match) and match.key is not None)
    others = [test for match, test in zip(matches, tests, strict=True) if test is not None and not _is_key_only(match)]
    if not others:
        return lambda record: record.key in keys
    if not keys:
        return others[0] if len(others) == 1 else lambda record: any(test(record) for test in others)
    return lambda record: record.key in keys or any(test(record) for test in others)


def _is_key_only(match: Match) -> bool:
    return match.key is not None and match.pattern is None and not match.headers


def _compile_match(match: Match) -> Test | None:
    tests: list[Test] = []
    if match.key is not None:
        key = match.key.encode()
        tests.append(lambda record: record.key == key)
    if match.pattern is not None and (pattern_test := compile_pattern(match.pattern)) is not None:
        tests.append(lambda record: pattern_test(record.key))
    if match.headers:
        tests.append(_headers_test(match.headers, match.any_header))
    if not tests:
        return None
    if len(tests) == 1:
        return tests[0]
    return lambda record: all(test(record) for test in tests)


def _headers_test(headers: dict[str, str], any_header: bool) -> Test:
    """A record may carry a header several times: one of them has to have the value."""
    wanted = frozenset((name, value.encode()) for name, value in headers.items())
    if any_header:
        return lambda record: not wanted.isdisjoint(record.headers)
    return lambda record: wanted.issubset(record.headers)


def compile_pattern(pattern: str) -> Callable[[bytes | None], bool] | None:
    """A test for keys; None when every key passes. AMQP 0-9-1 §3.1.3.3: words are delimited by dots."""
    encoded = pattern.encode()
    if len(encoded) > MAX_PATTERN_BYTES:
        raise InvalidSetting(f"pattern has {len(encoded)} bytes: it may have {MAX_PATTERN_BYTES}")
    words = encoded.split(b".") if encoded else []
    if len(words) > MAX_WORDS:
        raise InvalidSetting(f"pattern {pattern!r} has {len(words)} words: it may have {MAX_WORDS}")
    for word in words:
        if len(word) > 1 and (b"*" in word or b"#" in word):
            raise InvalidSetting(f"pattern {pattern!r}: '*' and '#' stand for whole words, not for parts of them")
    if words and set(words) == {b"#"}:
        return None
    if b"#" not in words:
        return _without_hash(words)
    return _with_hashes(words)


def _without_hash(words: list[bytes]) -> Callable[[bytes | None], bool]:
    """As many words as the pattern, each the same or under a `*`: a regular expression cannot go astray on it."""
    if b"*" not in words:
        whole = b".".join(words)
        return (lambda key: key == whole) if words else (lambda key: not key)
    matches = re.compile(rb"\.".join(rb"[^.]*" if w == b"*" else re.escape(w) for w in words), re.DOTALL).fullmatch
    return lambda key: key is not None and len(key) > 0 and matches(key) is not None


def _with_hashes(words: list[bytes]) -> Callable[[bytes | None], bool]:
    """What stands before the first `#` begins the key, what follows the last one ends it, and each part between has
    its place somewhere in between, in order. The first place that fits is as good as any, so nothing is tried twice."""
    parts: list[list[bytes]] = [[]]
    for word in words:
        if word == b"#":
            parts.append([])
        else:
            parts[-1].append(word)
    head, *middle, tail = parts
    middle = [part for part in middle if part]
    least = len(head) + len(tail) + sum(map(len, middle))

    def test(key: bytes | None) -> bool:
        found = key.split(b".") if key else []
        if len(found) < least or not _fits(head, found, 0) or not _fits(tail, found, len(found) - len(tail)):
            return False
        at, end = len(head), len(found) - len(tail)
        for part in middle:
            while not _fits(part, found, at):
                at += 1
                if at + len(part) > end:
                    return False
            at += len(part)
        return at <= end

    return test


def _fits(part: list[bytes], words: list[bytes], at: int) -> bool:
    if at + len(part) > len(words):
        return False
    return all(word in (b"*", words[at + i]) for i, word in enumerate(part))
