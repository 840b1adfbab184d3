"""Structs into bytes, by plan. Record data is never copied: it stands between the other bytes as a buffer of its own.

What is written comes from our own code, so a wrong value is a mistake of ours: ValueError, TypeError, OverflowError or,
for an attribute that the table does not know in any version, AttributeError. mypyc compiles this module.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Final, cast
from uuid import UUID

from librt.strings import BytesWriter, write_f64_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64, u8

from penstock.wire.kafka.plan import (
    ARRAY,
    BOOL,
    BYTES,
    FLOAT64,
    ID,
    INT8,
    INT16,
    INT32,
    INT64,
    MAX_STRING_BYTES,
    RECORDS,
    STRING,
    STRUCT,
    UINT16,
    Buffer,
    Field,
    Plan,
)

MAX_FRAME_BYTES: Final = 0x7FFFFFFF

_ABSENT: Final = object()


class Writer:
    """A growing list of buffers; the last one is still being written."""

    def __init__(self) -> None:
        self.out: BytesWriter = BytesWriter()
        self.first: BytesWriter = self.out  # kept open until the end, because a frame's length stands in it
        self.done: list[Buffer] = []  # done[0] stands for `first`
        self.done_bytes: i64 = 0

    def pass_through(self, buffer: Buffer) -> None:
        """Put a buffer of the caller's between what is written so far and what follows."""
        written = len(self.out)
        if not self.done:
            self.done.append(b"")
        elif written:
            self.done.append(self.out.getvalue())
        if written:
            self.done_bytes += written
            self.out = BytesWriter()
        self.done.append(buffer)
        self.done_bytes += buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)

    def size_bytes(self) -> i64:
        return self.done_bytes + len(self.out)

    def buffers(self) -> list[Buffer]:
        if not self.done:
            return [self.out.getvalue()]
        self.done[0] = self.first.getvalue()
        if len(self.out):
            self.done.append(self.out.getvalue())
        return self.done

    def uvarint(self, value: i64) -> None:
        while value >= 0x80:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)

    def size(self, field: Field, size: i64, short: bool) -> None:
        if field.flexible:
            self.uvarint(size + 1)
        elif short:
            write_i16_be(self.out, i16(size))
        else:
            write_i32_be(self.out, i32(size))

    def null(self, field: Field) -> None:
        if not field.nullable:
            raise ValueError(f"{field.name} may not be null")
        if field.code == STRUCT:
            self.out.append(0xFF)
        else:
            self.size(field, -1, field.code == STRING)

    def string(self, field: Field, text: str) -> None:
        raw = text.encode("utf-8")
        size: i64 = len(raw)
        if size > MAX_STRING_BYTES:
            raise ValueError(f"{field.name}: a string of {size} bytes; at most {MAX_STRING_BYTES} are allowed")
        self.size(field, size, True)
        self.out.write(raw)

    def records(self, field: Field, value: object) -> None:
        if isinstance(value, (list, tuple)):
            size: i64 = 0
            for part in value:
                size += _size_of(part)
            self.size(field, size, False)
            for part in value:
                if _size_of(part):
                    self.pass_through(part)
            return
        size = _size_of(value)
        self.size(field, size, False)
        if size:
            self.pass_through(cast(Buffer, value))

    def array(self, field: Field, values: Sequence[object]) -> None:
        self.size(field, len(values), False)
        element = field.element
        assert element is not None
        if element.code == STRUCT and not element.nullable:
            plan = element.plan
            assert plan is not None
            for value in values:
                self.struct(plan, cast(SimpleNamespace, value))
        else:
            for value in values:
                self.value(element, value)

    def value(self, field: Field, value: object) -> None:
        code = field.code
        if value is None:
            self.null(field)
        elif code == INT32:
            write_i32_be(self.out, cast(int, value))
        elif code == STRING:
            self.string(field, cast(str, value))
        elif code == INT64:
            write_i64_be(self.out, cast(int, value))
        elif code == INT16:
            write_i16_be(self.out, cast(int, value))
        elif code == ARRAY:
            if isinstance(value, list):
                self.array(field, value)
            else:
                self.array(field, list(cast(Sequence[object], value)))
        elif code == RECORDS:
            self.records(field, value)
        elif code == ID:
            self.out.write(cast(UUID, value).bytes)
        elif code == STRUCT:
            plan = field.plan
            assert plan is not None
            if field.nullable:
                self.out.append(1)
            self.struct(plan, cast(SimpleNamespace, value))
        elif code == BYTES:
            raw = value if isinstance(value, bytes) else bytes(cast(bytearray, value))
            self.size(field, len(raw), False)
            self.out.write(raw)
        elif code == BOOL:
            self.out.append(1 if value else 0)
        else:
            self.rare_value(field, value)

    def rare_value(self, field: Field, value: object) -> None:
        code = field.code
        if code == FLOAT64:
            write_f64_be(self.out, cast(float, value))
            return
        number = cast(int, value)
        if code == INT8:
            if not -0x80 <= number <= 0x7F:
                raise OverflowError(f"{field.name}: {number} is not an int8")
            self.out.append(number & 0xFF)
            return
        top = 0xFFFF if code == UINT16 else 0xFFFFFFFF
        if not 0 <= number <= top:
            raise OverflowError(f"{field.name}: {number} is not in 0..{top}")
        if code != UINT16:
            self.out.append(number >> 24)
            self.out.append(number >> 16 & 0xFF)
        self.out.append(number >> 8 & 0xFF)
        self.out.append(number & 0xFF)

    def struct(self, plan: Plan, struct: SimpleNamespace) -> None:
        given: dict[str, object] = struct.__dict__
        used: i64 = 0
        for field in plan.fields:
            value = given.get(field.name, _ABSENT)
            if value is _ABSENT:
                value = field.default
            else:
                used += 1
            self.value(field, value)
        if plan.flexible:
            used += self.tags(plan, given)
        if used != len(given):
            for name in given:
                if name not in plan.template:
                    raise AttributeError(f"{plan.label} has no field {name!r}")

    def tags(self, plan: Plan, given: dict[str, object]) -> i64:
        """Write the tagged fields that differ from their default; return how many were given at all."""
        used: i64 = 0
        written: list[tuple[Field, bytes]] = []
        for field in plan.tagged:
            value = given.get(field.name, _ABSENT)
            if value is _ABSENT:
                continue
            used += 1
            if field.code == STRUCT:
                if value is None:
                    continue
            elif value == field.default:
                continue
            inner = Writer()
            inner.value(field, value)
            raw = inner.out.getvalue()
            if field.code != STRUCT or raw != field.default_bytes:
                written.append((field, raw))
        self.uvarint(len(written))
        for field, raw in written:
            self.uvarint(field.tag)
            self.uvarint(len(raw))
            self.out.write(raw)
        return used


def _size_of(buffer: object) -> i64:
    if isinstance(buffer, bytes):
        return len(buffer)
    if isinstance(buffer, memoryview):
        return buffer.nbytes
    if isinstance(buffer, bytearray):
        return len(buffer)
    raise TypeError(f"record data is bytes, bytearray or memoryview, not {type(buffer).__name__}")


def encode(plan: Plan, struct: SimpleNamespace) -> list[Buffer]:
    """The struct's bytes, in as many buffers as its record data asks for."""
    writer = Writer()
    writer.struct(plan, struct)
    return writer.buffers()


def encode_frame(plan: Plan, header: bytes, struct: SimpleNamespace) -> list[Buffer]:
    """A frame: int32 length of all that follows, the header, the struct."""
    writer = Writer()
    write_i32_be(writer.out, 0)
    writer.out.write(header)
    return _close_frame(writer, plan, struct)


def encode_response_frame(
    plan: Plan, correlation_id: int, tagged_header: bool, struct: SimpleNamespace
) -> list[Buffer]:
    """A frame whose header is a correlation id and, in flexible versions, an empty list of tagged fields."""
    writer = Writer()
    write_i32_be(writer.out, 0)
    write_i32_be(writer.out, correlation_id)
    if tagged_header:
        writer.out.append(0)
    return _close_frame(writer, plan, struct)


def _close_frame(writer: Writer, plan: Plan, struct: SimpleNamespace) -> list[Buffer]:
    writer.struct(plan, struct)
    size = writer.size_bytes() - 4
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"{plan.label}: a frame of {size} bytes; at most {MAX_FRAME_BYTES} are allowed")
    first = writer.first
    first[0] = u8(size >> 24)
    first[1] = u8(size >> 16 & 0xFF)
    first[2] = u8(size >> 8 & 0xFF)
    first[3] = u8(size & 0xFF)
    return writer.buffers()
