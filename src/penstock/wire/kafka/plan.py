"""What a struct of a message looks like on the wire in one version: its fields in order, nothing else.

Plans are made from the tables by `schema.py`, once per message and version, and walked by `reader.py` and `writer.py`.
mypyc compiles this module, so that the walk reads its attributes without a dictionary.
"""

from types import SimpleNamespace
from typing import Final, TypeAlias

from mypy_extensions import i64

Struct: TypeAlias = SimpleNamespace
Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_STRING_BYTES: Final = 0x7FFF  # Kafka holds compact strings to the limit of the older form

BOOL: Final = 1
INT8: Final = 2
INT16: Final = 3
UINT16: Final = 4
INT32: Final = 5
UINT32: Final = 6
INT64: Final = 7
FLOAT64: Final = 8
ID: Final = 9
STRING: Final = 10
BYTES: Final = 11
RECORDS: Final = 12
STRUCT: Final = 13
ARRAY: Final = 14


class Plan:
    """One struct of one message in one version."""

    def __init__(self, label: str, flexible: bool) -> None:
        self.label: str = label
        self.flexible: bool = flexible
        self.fields: list[Field] = []
        self.tagged: list[Field] = []  # by rising tag
        self.min_bytes: i64 = 0
        # Every name the table knows in any version with its default: a decoded struct has them all.
        self.template: dict[str, object] = {}
        self.fresh_lists: list[str] = []  # names whose default is an empty list that nobody else may share


class Field:
    """One field of a plan, or the element of an array field."""

    def __init__(self, name: str, code: int, nullable: bool, flexible: bool, default: object) -> None:
        self.name: str = name
        self.code: i64 = code
        self.nullable: bool = nullable
        self.flexible: bool = flexible
        self.default: object = default
        self.tag: i64 = -1
        self.min_bytes: i64 = 0
        self.element: Field | None = None
        self.plan: Plan | None = None
        self.default_bytes: bytes = b""  # of a tagged struct: how it looks when all its fields are default
