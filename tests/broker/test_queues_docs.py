"""docs/queues.md tells of every setting and every header, with their defaults."""

import re
from pathlib import Path

import msgspec

from penstock.broker.queues import QueueSettings
from penstock.model import message

PAGE = (Path(__file__).parents[2] / "docs" / "queues.md").read_text()


def shown(default: object) -> str:
    return str(default).lower() if default is None or isinstance(default, bool) else str(default)


def test_every_setting_stands_there_with_its_default() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE, re.MULTILINE))
    defaults = {field.name: shown(field.default) for field in msgspec.structs.fields(QueueSettings)}
    assert told == defaults


def test_every_header_stands_there() -> None:
    names = {value for name, value in vars(message).items() if name.isupper() and isinstance(value, str)}
    assert names == set(re.findall(r"`(penstock-[a-z-]+)`", PAGE))
