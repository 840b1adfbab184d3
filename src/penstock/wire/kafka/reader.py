"""Bytes into structs, by plan. Nothing a stranger sends can make this raise anything but `Malformed`.

A declared length or count is checked against the bytes that remain before anything is allocated for it, and one message
never makes more than `MAX_ELEMENTS` array elements. Record data is not copied: it becomes a memoryview of the caller's
buffer. mypyc compiles this module.
"""

from types import SimpleNamespace
from typing import Final
from uuid import UUID

from librt.strings import read_f64_be, read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from penstock.wire.kafka.plan import (
    ARRAY,
    BOOL,
    BYTES,
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
    UINT32,
    Buffer,
    Field,
    Plan,
)

MAX_ELEMENTS: Final = 500_000  # array elements in one message, all arrays together
MAX_KNOWN_IDS: Final = 4096  # ids whose UUID object is kept for the next message
WINDOW_BYTES: Final = 2048


class Malformed(ValueError):
    """The bytes are not the message they claim to be; the text says where."""


_known_ids: dict[bytes, UUID] = {}


def _id_of(raw: bytes) -> UUID:
    found = _known_ids.get(raw)
    if found is None:
        found = UUID(bytes=raw)
        if len(_known_ids) >= MAX_KNOWN_IDS:
            _known_ids.clear()
        _known_ids[raw] = found
    return found


class Reader:
    """A position in a buffer, seen through a window of plain bytes.

    Reading numbers from `bytes` is several times quicker than from a memoryview, so up to WINDOW_BYTES are copied at
    a time; record data is passed over without entering the window.
    """

    def __init__(self, buf: Buffer, position: int) -> None:
        self.buf: Buffer = buf
        self.end: i64 = len(buf)
        self.elements_left: i64 = MAX_ELEMENTS
        self.at: i64 = 0  # in the window
        if isinstance(buf, bytes):
            self.window: bytes = buf
            self.base: i64 = 0  # of the window in buf
            self.at = position
        else:
            self.window = bytes(buf[position : position + WINDOW_BYTES])
            self.base = position
        self.limit: i64 = len(self.window)

    def position(self) -> int:
        return self.base + self.at

    def remaining(self) -> i64:
        return self.end - self.base - self.at

    def need(self, size: i64, name: str) -> None:
        if self.at + size > self.limit:
            self.refill(size, name)

    def refill(self, size: i64, name: str) -> None:
        """Move the window so that the next `size` bytes are in it."""
        start = self.base + self.at
        left = self.end - start
        if size > left:
            raise Malformed(f"{name}: {size} bytes are announced, {left if left > 0 else 0} remain")
        take: i64 = WINDOW_BYTES if size < WINDOW_BYTES else size
        self.window = bytes(self.buf[start : start + take])
        self.base = start
        self.at = 0
        self.limit = len(self.window)

    def uvarint(self, name: str) -> i64:
        """An unsigned 32-bit number in 7-bit groups, lowest first, at most five of them."""
        value: i64 = 0
        shift: i64 = 0
        while True:
            if self.at >= self.limit:
                self.refill(1, name)
            byte: i64 = self.window[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise Malformed(f"{name}: a length takes more than five bytes")
        if value > 0xFFFFFFFF:
            raise Malformed(f"{name}: a length exceeds 32 bits")
        return value

    def size(self, field: Field, short: bool) -> i64:
        """A length or count; -1 for null where that is allowed."""
        size: i64
        if field.flexible:
            size = self.uvarint(field.name) - 1
        elif short:
            if self.at + 2 > self.limit:
                self.refill(2, field.name)
            size = i64(read_i16_be(self.window, self.at))
            self.at += 2
        else:
            if self.at + 4 > self.limit:
                self.refill(4, field.name)
            size = i64(read_i32_be(self.window, self.at))
            self.at += 4
        if size < 0:
            if size < -1:
                raise Malformed(f"{field.name}: length {size}")
            if not field.nullable:
                raise Malformed(f"{field.name}: null is not allowed")
        return size

    def string(self, field: Field) -> str | None:
        size = self.size(field, True)
        if size < 0:
            return None
        if size > MAX_STRING_BYTES:
            raise Malformed(f"{field.name}: a string of {size} bytes; at most {MAX_STRING_BYTES} are allowed")
        if self.at + size > self.limit:
            self.refill(size, field.name)
        start = self.at
        self.at += size
        try:
            return self.window[start : start + size].decode("utf-8")
        except UnicodeDecodeError as error:
            if field is _CLIENT_ID:  # is only ever shown, and there are clients that take it from the host's locale
                return self.window[start : start + size].decode("utf-8", "replace")
            raise Malformed(f"{field.name}: not UTF-8: {error.reason}") from None

    def raw(self, field: Field) -> bytes | None:
        size = self.size(field, False)
        if size < 0:
            return None
        if self.at + size > self.limit:
            self.refill(size, field.name)
        start = self.at
        self.at += size
        return self.window[start : start + size]

    def records(self, field: Field) -> memoryview | None:
        size = self.size(field, False)
        if size < 0:
            return None
        if size > self.remaining():
            raise Malformed(f"{field.name}: {size} bytes are announced, {self.remaining()} remain")
        start = self.base + self.at
        self.at += size
        return memoryview(self.buf)[start : start + size]

    def array(self, field: Field) -> list[object] | None:
        count = self.size(field, False)
        if count < 0:
            return None
        element = field.element
        assert element is not None
        if count > self.remaining() or count * element.min_bytes > self.remaining():
            raise Malformed(f"{field.name}: {count} elements are announced, {self.remaining()} bytes remain")
        self.elements_left -= count
        if self.elements_left < 0:
            raise Malformed(f"{field.name}: the message has more than {MAX_ELEMENTS} array elements")
        values: list[object] = []
        if element.code == STRUCT and not element.nullable:
            plan = element.plan
            assert plan is not None
            while count > 0:
                values.append(self.struct(plan))
                count -= 1
        else:
            while count > 0:
                values.append(self.value(element))
                count -= 1
        return values

    def value(self, field: Field) -> object:
        code = field.code
        at = self.at
        if code == INT32:
            if at + 4 > self.limit:
                self.refill(4, field.name)
                at = 0
            self.at = at + 4
            return read_i32_be(self.window, at)
        if code == STRING:
            return self.string(field)
        if code == INT64:
            if at + 8 > self.limit:
                self.refill(8, field.name)
                at = 0
            self.at = at + 8
            return read_i64_be(self.window, at)
        if code == INT16:
            if at + 2 > self.limit:
                self.refill(2, field.name)
                at = 0
            self.at = at + 2
            return read_i16_be(self.window, at)
        if code == ARRAY:
            return self.array(field)
        if code == RECORDS:
            return self.records(field)
        if code == ID:
            if at + 16 > self.limit:
                self.refill(16, field.name)
                at = 0
            self.at = at + 16
            return _id_of(self.window[at : at + 16])
        if code == STRUCT:
            plan = field.plan
            assert plan is not None
            if field.nullable and self.byte(field.name) >= 0x80:
                return None
            return self.struct(plan)
        if code == BYTES:
            return self.raw(field)
        return self.rare_value(field)

    def byte(self, name: str) -> i64:
        if self.at >= self.limit:
            self.refill(1, name)
        value: i64 = self.window[self.at]
        self.at += 1
        return value

    def rare_value(self, field: Field) -> object:
        code = field.code
        if code == BOOL:
            return self.byte(field.name) != 0
        if code == INT8:
            byte = self.byte(field.name)
            return byte if byte < 0x80 else byte - 0x100
        size: i64 = 2 if code == UINT16 else 4 if code == UINT32 else 8
        if self.at + size > self.limit:
            self.refill(size, field.name)
        at = self.at
        self.at += size
        if code == UINT16:
            return i64(read_i16_be(self.window, at)) & 0xFFFF
        if code == UINT32:
            return i64(read_i32_be(self.window, at)) & 0xFFFFFFFF
        return read_f64_be(self.window, at)

    def struct(self, plan: Plan) -> SimpleNamespace:
        values = plan.template.copy()
        for name in plan.fresh_lists:
            values[name] = []
        for field in plan.fields:
            values[field.name] = self.value(field)
        if plan.flexible:
            if self.at >= self.limit:
                self.refill(1, plan.label)
            if self.window[self.at] == 0:
                self.at += 1
            else:
                self.tags(plan, values)
        return SimpleNamespace(**values)

    def tags(self, plan: Plan, values: dict[str, object]) -> None:
        count = self.uvarint(plan.label)
        if count * 2 > self.remaining():
            raise Malformed(f"{plan.label}: {count} tagged fields are announced, {self.remaining()} bytes remain")
        last: i64 = -1
        while count > 0:
            count -= 1
            tag = self.uvarint(plan.label)
            if tag <= last:
                raise Malformed(f"{plan.label}: tag {tag} after tag {last}")
            last = tag
            size = self.uvarint(plan.label)
            if size > self.remaining():
                raise Malformed(f"{plan.label}: tag {tag} announces {size} bytes, {self.remaining()} remain")
            stop = self.base + self.at + size
            known = False
            for field in plan.tagged:
                if field.tag == tag:
                    known = True
                    values[field.name] = self.value(field)
                    if self.base + self.at != stop:
                        raise Malformed(f"{field.name}: tag {tag} announces {size} bytes, its value takes another size")
            if not known:
                self.at += size


def decode(plan: Plan, buf: Buffer, position: int = 0) -> tuple[SimpleNamespace, int]:
    """Read one struct; return it and the position after it."""
    if position > len(buf) or position < 0:
        raise Malformed(f"{plan.label}: position {position} in {len(buf)} bytes")
    reader = Reader(buf, position)
    struct = reader.struct(plan)
    return struct, reader.position()


def decode_body(plan: Plan, buf: Buffer, position: int) -> SimpleNamespace:
    """Read one struct and ignore what follows it."""
    if position > len(buf) or position < 0:
        raise Malformed(f"{plan.label}: position {position} in {len(buf)} bytes")
    return Reader(buf, position).struct(plan)


# -- headers, which have no table: their client id is never compact -----------------------------------------

_HEADER_PLAN: Final = Plan("header", True)
_CLIENT_ID: Final = Field("client_id", STRING, True, False, None)


def read_request_header(buf: Buffer) -> tuple[int, int, int, str | None, int]:
    """API number, version, correlation id, client id and the position after them."""
    reader = Reader(buf, 0)
    reader.need(8, "request header")
    window = reader.window
    api_key: int = read_i16_be(window, 0)
    api_version: int = read_i16_be(window, 2)
    correlation_id: int = read_i32_be(window, 4)
    reader.at = 8
    client_id = reader.string(_CLIENT_ID)
    return api_key, api_version, correlation_id, client_id, reader.position()


def read_response_header(buf: Buffer, tagged: bool) -> tuple[int, int]:
    """Correlation id and the position of the body."""
    reader = Reader(buf, 0)
    reader.need(4, "response header")
    correlation_id: int = read_i32_be(reader.window, 0)
    return correlation_id, skip_tags(buf, 4) if tagged else 4


def skip_tags(buf: Buffer, position: int) -> int:
    """The position after a header's tagged fields, none of which means anything to us."""
    if position < len(buf) and buf[position] == 0:
        return position + 1
    reader = Reader(buf, position)
    reader.tags(_HEADER_PLAN, {})
    return reader.position()
