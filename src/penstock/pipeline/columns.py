"""Arrow arrays as the buffers that `model/column_writer` takes: sliced, large, null, it is all settled here."""

from typing import Any

import pyarrow as pa

from penstock.model.column_writer import Column, HeaderColumn, Numbers

HEADER_LIST = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIME = pa.timestamp("us", tz="UTC")


def bytes_column(array: pa.Array) -> Column | None:
    """Of a binary or string array. None if every row is null."""
    if array.null_count == len(array):
        return None
    kind = array.type
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind) or pa.types.is_fixed_size_binary(kind):
        array = array.cast(pa.large_binary())
        kind = array.type
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    width = 8 if wide else 4
    validity, offsets, data = array.buffers()
    cut = offsets.slice(array.offset * width, (len(array) + 1) * width).to_pybytes()
    first = int.from_bytes(cut[:width], "little")
    last = int.from_bytes(cut[-width:], "little")
    held = data.slice(first, last - first).to_pybytes() if data is not None else b""
    bits, bit = _validity(array, validity)
    return Column(cut, held, bits, bit, wide)


def numbers(array: pa.Array) -> Numbers | None:
    """Of an array of 32-bit or 64-bit whole numbers (timestamps are such). None if every row is null."""
    if array.null_count == len(array):
        return None
    width = array.type.bit_width // 8
    validity, data = array.buffers()
    bits, bit = _validity(array, validity)
    return Numbers(data.slice(array.offset * width, len(array) * width).to_pybytes(), bits, bit, width == 8)


def header_column(array: pa.Array) -> HeaderColumn | None:
    """Of a list of structs of a name and a value. None if no row has any."""
    if pa.types.is_large_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    validity, offsets = array.buffers()[:2]
    cut = offsets.slice(array.offset * 4, (len(array) + 1) * 4).to_pybytes()
    first = int.from_bytes(cut[:4], "little")
    held = array.values.slice(first, int.from_bytes(cut[-4:], "little") - first)
    if not len(held):
        return None
    names, values = held.flatten()[:2]
    bits, bit = _validity(array, validity)
    nothing = Column(bytes(4 * (len(held) + 1)), b"", bytes((len(held) + 7) // 8))
    return HeaderColumn(cut, bytes_column(names) or nothing, bytes_column(values) or nothing, bits, bit)


def _validity(array: Any, validity: Any) -> tuple[bytes, int]:
    """The bytes that hold the rows' bits, and where in them the first one is."""
    if validity is None or array.null_count == 0:
        return b"", 0
    start = array.offset // 8
    stop = (array.offset + len(array) + 7) // 8
    return validity.slice(start, stop - start).to_pybytes(), array.offset % 8
