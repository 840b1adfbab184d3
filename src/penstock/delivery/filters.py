"""Which records a subscription wants: patterns on the key, equality on headers. Pure, and compiled once per use.

    key        the whole key, exactly
    pattern    AMQP's topic pattern on the key: words between dots, `*` is one word, `#` any number of words
    headers    these headers have these values; `any_header` asks for one of them instead of all

What a match does not name it does not ask for; an empty match takes everything. A filter is a list of matches and takes
what any of them takes; an empty list takes everything.
"""

from collections.abc import Callable, Sequence

import msgspec

from penstock.model.record import Record

Test = Callable[[Record], bool]


class Match(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    key: str | None = None
    pattern: str | None = None
    headers: dict[str, str] = {}
    any_header: bool = False


def compile_filter(matches: Sequence[Match]) -> Test | None:
    """A test for records; None when everything passes. Raises InvalidSetting for a pattern that makes no sense."""
    raise NotImplementedError
