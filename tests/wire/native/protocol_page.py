"""What docs/protocol.md must say, told by the code; and what it says, as data.

`python tests/wire/native/protocol_page.py` writes the tables into the page.
"""

import re
import types
import typing
from pathlib import Path

import msgspec

from penstock.wire.native import messages
from penstock.wire.native.framing import REPLIES, REQUESTS
from penstock.wire.native.messages import Message

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"

PUSHES = ("Records", "Deliveries")
_NAMED = {
    "Match": messages.MatchFields,
    "Settings": messages.Settings,
    "Receipt": messages.Receipt,
    "Header": messages.Pair,
}
_WIRE_NAMES = {int: "int", str: "str", bytes: "bin", bool: "bool", float: "float", types.NoneType: "nil"}


def wire_type(annotation: typing.Any) -> str:
    """A field's type as the page spells it."""
    for name, named in _NAMED.items():
        if annotation == named:
            return name
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return wire_type(arguments[0])
    if origin is list:
        return f"[{wire_type(arguments[0])}…]"
    if origin is tuple:
        return f"[{', '.join(wire_type(argument) for argument in arguments)}]"
    if origin is dict:
        return f"{{{wire_type(arguments[0])}: {wire_type(arguments[1])}…}}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(wire_type(argument) for argument in arguments)
    return _WIRE_NAMES.get(annotation) or annotation.__name__


def fields_of(kind: type[msgspec.Struct]) -> str:
    told = []
    for field in msgspec.structs.fields(kind):
        text = f"`{field.name}` {wire_type(field.type)}"
        if field.default is not msgspec.NODEFAULT:
            text += f" = {_literal(field.default)}"
        elif field.default_factory is not msgspec.NODEFAULT:
            text += f" = {_literal(field.default_factory())}"
        told.append(text)
    return ", ".join(told) or "none"


def _literal(value: object) -> str:
    names = {None: "nil", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return names[value]
    return f'"{value}"' if isinstance(value, str) else str(value)


def messages_table(kinds: dict[int, type[Message]]) -> str:
    rows = ["| kind | message | fields |", "|---|---|---|"]
    rows += [f"| `{kind:#04x}` | {named.__name__} | {fields_of(named)} |" for kind, named in sorted(kinds.items())]
    return "\n".join(rows)


def structs_table() -> str:
    rows = ["| part | fields |", "|---|---|"]
    for name, named in vars(messages).items():
        if not isinstance(named, type) or not issubclass(named, msgspec.Struct) or issubclass(named, Message):
            continue
        if named.__module__ == messages.__name__ and name != "IncomingBatch":
            rows.append(f"| {name} | {fields_of(named)} |")
    return "\n".join(rows)


TABLES = {
    "requests": lambda: messages_table(REQUESTS),
    "replies": lambda: messages_table(REPLIES),
    "parts": structs_table,
}


def table(page: str, name: str) -> str:
    """What stands between the marks of a table."""
    found = re.search(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- end -->", page, re.DOTALL)
    assert found, f"docs/protocol.md has no table {name}"
    return found[1]


def vectors(page: str) -> dict[str, bytes]:
    """The page's test vectors: fenced blocks of hex, with `#` before what is meant for people."""
    found = re.findall(r"```vector ([\w-]+)\n(.*?)```", page, re.DOTALL)
    named = {}
    for name, block in found:
        assert name not in named, name
        named[name] = bytes.fromhex("".join(line.partition("#")[0] for line in block.splitlines()))
    return named


def _write_tables() -> None:
    page = PAGE.read_text()
    for name, make in TABLES.items():
        mark = f"<!-- {name} -->\n\n"
        page = page.replace(mark + table(page, name), mark + make())
    PAGE.write_text(page)


if __name__ == "__main__":
    _write_tables()
