"""The binary protocol as docs/protocol.md tells it, written from that page alone: nothing of ours is used here."""

import socket
import struct
from typing import Any


class Page:
    """What docs/protocol.md says, and nothing of ours, in as few lines as it takes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        assert len(taken) == size
        self.at += size
        return taken

    def number(self, form: str) -> Any:
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]

    def frame(self) -> tuple[int, int, Any]:
        size = self.number("I")
        end = self.at + size
        kind, correlation_id = self.number("B"), self.number("I")
        body = self.value()
        assert self.at == end == len(self.data)
        return kind, correlation_id, body

    def value(self) -> Any:
        first = self.number("B")
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 0x100
        if first < 0x90:
            return {self.value(): self.value() for _ in range(first & 0x0F)}
        if first < 0xA0:
            return [self.value() for _ in range(first & 0x0F)]
        if first < 0xC0:
            return self.take(first & 0x1F).decode()
        if first in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[first]
        sized = {0xC4: "B", 0xC5: "H", 0xC6: "I", 0xD9: "B", 0xDA: "H", 0xDB: "I", 0xDC: "H", 0xDD: "I"}
        if first in sized:
            size = self.number(sized[first])
            if first >= 0xDC:
                return [self.value() for _ in range(size)]
            return self.take(size) if first <= 0xC6 else self.take(size).decode()
        return self.number(
            {0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}[first]
        )

    def varint(self) -> int:
        raw = shift = 0
        while True:
            byte = self.number("B")
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return raw >> 1 ^ -(raw & 1)
            shift += 7

    def lengthed(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)

    def batch(self) -> tuple[dict[str, int], list[tuple[Any, ...]]]:
        start = self.at
        head = {
            name: self.number(form)
            for name, form in (
                ("base_offset", "q"), ("length", "i"), ("leader_epoch", "i"), ("magic", "b"), ("crc", "I"),
                ("attributes", "h"), ("last_offset_delta", "i"), ("base_timestamp", "q"), ("max_timestamp", "q"),
                ("producer_id", "q"), ("producer_epoch", "h"), ("base_sequence", "i"), ("record_count", "i"),
            )
        }  # fmt: skip
        assert self.at - start == 61
        assert head["magic"] == 2
        assert len(self.data) == start + 12 + head["length"]
        assert head["crc"] == castagnoli(self.data[start + 21 :])
        records = []
        for _ in range(head["record_count"]):
            end = self.varint() + self.at
            assert self.number("b") == 0
            time, offset = head["base_timestamp"] + self.varint(), head["base_offset"] + self.varint()
            key, value = self.lengthed(), self.lengthed()
            headers = [((self.lengthed() or b"").decode(), self.lengthed()) for _ in range(self.varint())]
            assert self.at == end
            records.append((offset, time, key, value, tuple(headers)))
        return head, records


def castagnoli(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def murmur2_of_the_page(key: bytes) -> int:
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for (k,) in struct.iter_unpack("<I", key[:whole]):
        k = k * 0x5BD1E995 & 0xFFFFFFFF
        k = (k ^ k >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        h = (h * 0x5BD1E995 & 0xFFFFFFFF) ^ k
    if key[whole:]:
        h = (h ^ int.from_bytes(key[whole:], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return h ^ h >> 15


# -- writing ------------------------------------------------------------------------------------------------


def packed(value: Any) -> bytes:
    """MessagePack, not always in the shortest form: a reader must take every form."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return struct.pack("b", value) if -32 <= value < 128 else b"\xd3" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"\xda" + struct.pack(">H", len(value.encode())) + value.encode()
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, dict):
        pairs = b"".join(packed(key) + packed(item) for key, item in value.items())
        return b"\xdf" + struct.pack(">I", len(value)) + pairs
    return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(packed, value))


def frame_of(kind: int, correlation_id: int, *fields: Any) -> bytes:
    body = packed(list(fields))
    return struct.pack(">IBI", 5 + len(body), kind, correlation_id) + body


def varint(number: int) -> bytes:
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    written = b""
    while zigzag > 0x7F:
        written += bytes([zigzag & 0x7F | 0x80])
        zigzag >>= 7
    return written + bytes([zigzag])


def lengthed(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


Given = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]  # time, key, value, headers


def batch_of(records: list[Given], producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    base_ms = records[0][0]
    section = b""
    for offset, (time_ms, key, value, headers) in enumerate(records):
        told = b"".join(lengthed(name.encode()) + lengthed(content) for name, content in headers)
        record = b"\x00" + varint(time_ms - base_ms) + varint(offset) + lengthed(key) + lengthed(value)
        section += lengthed(record + varint(len(headers)) + told)
    checked = struct.pack(
        ">hiqqqhii", 0, len(records) - 1, base_ms, max(record[0] for record in records), *producer, len(records)
    )
    crc = castagnoli(checked + section)
    rest = struct.pack(">ibI", 0, 2, crc) + checked + section
    return struct.pack(">qi", 0, len(rest)) + rest


# -- talking ------------------------------------------------------------------------------------------------


class PageClient:
    """Blocking, one thing at a time; pushes that come in between are kept."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self._file = self._socket.makefile("rb")
        self._next_id = 1
        self._kept: list[tuple[int, int, Any]] = []
        self._socket.sendall(bytes.fromhex("f050454e53544b01"))

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self, kind: int, *fields: Any) -> int:
        correlation_id = self._next_id
        self._next_id += 1
        self._socket.sendall(frame_of(kind, correlation_id, *fields))
        return correlation_id

    def receive(self, correlation_id: int) -> tuple[int, Any]:
        for at, (kind, came_for, body) in enumerate(self._kept):
            if came_for == correlation_id:
                del self._kept[at]
                return kind, body
        while True:
            size = self._file.read(4)
            kind, came_for, body = Page(size + self._file.read(int.from_bytes(size, "big"))).frame()
            if came_for == correlation_id:
                return kind, body
            self._kept.append((kind, came_for, body))

    def ask(self, kind: int, *fields: Any) -> tuple[int, Any]:
        return self.receive(self.send(kind, *fields))
