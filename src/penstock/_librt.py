"""Stands in for librt.strings, in plain Python, where librt is not installed: a pure install needs no binary of it.

Only what the leaves use, and only uncompiled: a compiled module always calls librt itself.
"""

from struct import Struct

_I16 = Struct(">h")
_I32 = Struct(">i")
_I64 = Struct(">q")
_I32_LE = Struct("<i")
_I64_LE = Struct("<q")


class BytesWriter:
    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray()

    def append(self, x: int, /) -> None:
        self._bytes.append(x)

    def write(self, b: bytes | bytearray, /) -> None:
        self._bytes += b

    def getvalue(self) -> bytes:
        return bytes(self._bytes)

    def truncate(self, size: int, /) -> None:
        del self._bytes[size:]

    def __len__(self) -> int:
        return len(self._bytes)

    def __getitem__(self, i: int, /) -> int:
        return self._bytes[i]

    def __setitem__(self, i: int, x: int, /) -> None:
        self._bytes[i] = x


def read_i16_be(b: bytes, index: int, /) -> int:
    return int(_I16.unpack_from(b, index)[0])


def read_i32_be(b: bytes, index: int, /) -> int:
    return int(_I32.unpack_from(b, index)[0])


def read_i64_be(b: bytes, index: int, /) -> int:
    return int(_I64.unpack_from(b, index)[0])


def write_i16_be(b: BytesWriter, n: int, /) -> None:
    b.write(_I16.pack(n))


def write_i32_be(b: BytesWriter, n: int, /) -> None:
    b.write(_I32.pack(n))


def write_i64_be(b: BytesWriter, n: int, /) -> None:
    b.write(_I64.pack(n))


def read_i32_le(b: bytes, index: int, /) -> int:
    return int(_I32_LE.unpack_from(b, index)[0])


def read_i64_le(b: bytes, index: int, /) -> int:
    return int(_I64_LE.unpack_from(b, index)[0])


def write_i32_le(b: BytesWriter, n: int, /) -> None:
    b.write(_I32_LE.pack(n))


def write_i64_le(b: BytesWriter, n: int, /) -> None:
    b.write(_I64_LE.pack(n))
