"""The tables' notation, and how a table becomes a plan.

A table is a text of blocks. A block describes one message in all its versions:

    request 3 metadata  versions 0-13  flexible 9+
        topics          [struct]  0+   nullable 1+
            topic_id    uuid      10+
            name        string    0+   nullable 10+
        ...

The first line: `request`, `response` (both with the API's number) or `data` (a message inside another one's bytes), the
name, the versions we know, and from which version on the message is flexible: compact lengths, tagged fields.

Each further line is a field, in wire order: its name, its type, the versions that have it, and then, as needed,
`nullable VERSIONS`, `tag NUMBER VERSIONS` (in these versions it stands among the tagged fields) and `= DEFAULT`.
Without a default it is 0, false, empty or the zero id. Types: bool, int8, int16, uint16, int32, uint32, int64, float64,
uuid, string, bytes, records; `struct`, whose fields follow indented; the name of a struct that the same block describes
under `struct NAME`; `[type]` is an array. Versions: `3`, `3-7` or `3+`.
"""

from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple
from uuid import UUID

from penstock.wire.kafka import plan as p
from penstock.wire.kafka.tables import TABLES
from penstock.wire.kafka.writer import encode

_NO_ID = UUID(int=0)

# type -> code, bytes at least (non-flexible, flexible), default
_PRIMITIVES: dict[str, tuple[int, int, int, object]] = {
    "bool": (p.BOOL, 1, 1, False),
    "int8": (p.INT8, 1, 1, 0),
    "int16": (p.INT16, 2, 2, 0),
    "uint16": (p.UINT16, 2, 2, 0),
    "int32": (p.INT32, 4, 4, 0),
    "uint32": (p.UINT32, 4, 4, 0),
    "int64": (p.INT64, 8, 8, 0),
    "float64": (p.FLOAT64, 8, 8, 0.0),
    "uuid": (p.ID, 16, 16, _NO_ID),
    "string": (p.STRING, 2, 1, ""),
    "bytes": (p.BYTES, 4, 1, b""),
    "records": (p.RECORDS, 4, 1, b""),
}


class Versions(NamedTuple):
    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NO_VERSIONS = Versions(0, -1)
_LAST = 0x7FFF


def _versions(text: str) -> Versions:
    if text.endswith("+"):
        return Versions(int(text[:-1]), _LAST)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


@dataclass(slots=True)
class Row:
    """One field line of a table."""

    name: str
    type_name: str  # without the array's brackets
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int
    tagged: Versions
    default: str | None
    rows: list["Row"] = field(default_factory=list)  # of a struct

    @property
    def is_struct(self) -> bool:
        return not self.is_array and self.type_name not in _PRIMITIVES


@dataclass(slots=True)
class Message:
    """One block of a table; its field lines are parsed when the first plan is made."""

    kind: str
    api_key: int
    name: str
    versions: Versions
    flexible: Versions
    lines: list[str]


@cache
def messages() -> dict[tuple[str, int | str], Message]:
    """Every message by (kind, API number), or by ("data", name)."""
    found: dict[tuple[str, int | str], Message] = {}
    for table in TABLES:
        for block in table.strip("\n").split("\n\n"):
            heading, *lines = block.split("\n")
            kind, *words = heading.split()
            api_key = int(words.pop(0)) if kind != "data" else -1
            name, _, versions, *flexible = words
            message = Message(
                kind=kind,
                api_key=api_key,
                name=name,
                versions=_versions(versions),
                flexible=_versions(flexible[1]) if flexible else NO_VERSIONS,
                lines=lines,
            )
            found[kind, name if kind == "data" else api_key] = message
    return found


def rows_of(message: Message) -> list[Row]:
    """The message's fields as a tree; a struct that is used by name has its rows wherever it is used."""
    top: list[Row] = []
    shared: dict[str, list[Row]] = {}
    by_name: list[Row] = []
    open_blocks: list[list[Row]] = [top]  # by depth of indentation
    for line in message.lines:
        words = line.split()
        depth = (len(line) - len(line.lstrip())) // 4
        if words[0] == "struct":
            block = shared.setdefault(words[1], [])
        else:
            row = _row(words)
            open_blocks[depth - 1].append(row)
            block = row.rows
            if row.type_name != "struct" and row.type_name not in _PRIMITIVES:
                by_name.append(row)
        del open_blocks[depth:]
        open_blocks.append(block)
    for row in by_name:
        row.rows = shared[row.type_name]
    return top


def _row(words: list[str]) -> Row:
    name, type_name, versions, *rest = words
    is_array = type_name.startswith("[")
    row = Row(name, type_name.strip("[]"), is_array, _versions(versions), NO_VERSIONS, -1, NO_VERSIONS, None)
    while rest:
        match rest:
            case ["nullable", nullable, *rest]:
                row.nullable = _versions(nullable)
            case ["tag", tag, tagged, *rest]:
                row.tag, row.tagged = int(tag), _versions(tagged)
            case ["=", default, *rest]:
                row.default = default
            case _:
                raise ValueError(f"unreadable field line: {' '.join(words)}")
    return row


def compile_plan(message: Message, version: int) -> p.Plan:
    """The plan of one message in one version."""
    if version not in message.versions:
        raise KeyError(f"{message.name} {message.kind} has no version {version}")
    return _plan(f"{message.name} {message.kind} v{version}", rows_of(message), version, version in message.flexible)


def _plan(label: str, rows: list[Row], version: int, flexible: bool) -> p.Plan:
    plan = p.Plan(label, flexible)
    min_bytes = 1 if flexible else 0
    for row in rows:
        default = _default(row)
        if row.is_array and default is not None:
            plan.fresh_lists.append(row.name)
        plan.template[row.name] = None if row.is_struct else default
        if version not in row.versions:
            continue
        compiled = _field(label, row, version, flexible)
        if version in row.tagged:
            compiled.tag = row.tag
            plan.tagged.append(compiled)
        else:
            plan.fields.append(compiled)
            min_bytes += int(compiled.min_bytes)
            if row.name in plan.fresh_lists:
                plan.fresh_lists.remove(row.name)
    plan.tagged.sort(key=lambda each: int(each.tag))
    plan.min_bytes = min_bytes
    return plan


def _field(label: str, row: Row, version: int, flexible: bool) -> p.Field:
    nullable = version in row.nullable
    if row.is_array:
        compiled = p.Field(row.name, p.ARRAY, nullable, flexible, _default(row))
        compiled.min_bytes = 1 if flexible else 4
        compiled.element = _single(label, row, version, flexible, False)
        return compiled
    return _single(label, row, version, flexible, nullable)


def _single(label: str, row: Row, version: int, flexible: bool, nullable: bool) -> p.Field:
    """A field that is not an array, or an array's element."""
    if row.type_name in _PRIMITIVES:
        code, plain_bytes, flexible_bytes, _ = _PRIMITIVES[row.type_name]
        compiled = p.Field(row.name, code, nullable, flexible, _default(row))
        compiled.min_bytes = flexible_bytes if flexible else plain_bytes
        return compiled
    compiled = p.Field(row.name, p.STRUCT, nullable, flexible, _default(row))
    inner = _plan(f"{label} {row.name}", row.rows, version, flexible)
    compiled.plan = inner
    compiled.min_bytes = 1 if nullable else inner.min_bytes
    if version in row.tagged and not row.is_array:
        prefix = b"\x01" if nullable else b""
        compiled.default_bytes = prefix + b"".join(bytes(part) for part in encode(inner, SimpleNamespace()))
    return compiled


def _default(row: Row) -> object:
    """What the field is when it is not given: an absent struct that may not be null is one of defaults."""
    text = row.default
    if text == "null":
        return None
    if row.is_array:
        return []
    if row.type_name not in _PRIMITIVES:
        return SimpleNamespace()
    default = _PRIMITIVES[row.type_name][3]
    if text is None:
        return default
    if isinstance(default, bool):
        return text == "true"
    if isinstance(default, int):
        return int(text, 0)
    return float(text) if isinstance(default, float) else text
