"""Columns that were read from batches, as Arrow arrays; what they lie in is not copied but by Arrow itself, once."""

from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from penstock.model.column_reader import HEADERS, KEY, VALUE, Columns
from penstock.model.errors import CorruptBatch

TIME: Final = pa.timestamp("us", tz="UTC")


def keys(columns: Columns) -> pa.Array:
    stride = 4 if columns.wanted & VALUE else 2
    return _gathered(
        columns.spans.getvalue(), columns.data, columns.rows, 0, stride, columns.key_validity(), pa.binary()
    )


def values(columns: Columns) -> pa.Array:
    first, stride = (2, 4) if columns.wanted & KEY else (0, 2)
    validity = columns.value_validity()
    return _gathered(columns.spans.getvalue(), columns.data, columns.rows, first, stride, validity, pa.binary())


def offsets(columns: Columns) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), columns.rows, [None, pa.py_buffer(columns.offsets.getvalue())])


def times(columns: Columns) -> pa.Array:
    return pa.Array.from_buffers(TIME, columns.rows, [None, pa.py_buffer(columns.times.getvalue())])


def time_types(columns: Columns) -> pa.Array:
    """0 where the producer set the time, 1 where the log did."""
    runs = columns.time_runs
    kinds = {kind for _, kind in runs}
    if len(kinds) <= 1:
        return constant(next(iter(kinds), 0), columns.rows, pa.int32())
    return pa.concat_arrays([constant(kind, rows, pa.int32()) for rows, kind in runs])


def headers(columns: Columns, kind: pa.DataType) -> pa.Array:
    """A list per row, empty where there are none; `kind` is how the caller calls its fields."""
    assert columns.wanted & HEADERS
    spans, data, count = columns.header_spans.getvalue(), columns.data, columns.header_rows
    names = _gathered(spans, data, count, 0, 4, b"", pa.binary())
    try:
        names = names.cast(pa.string())
    except pa.ArrowInvalid:
        raise CorruptBatch("a header's key is not UTF-8") from None
    held = _gathered(spans, data, count, 2, 4, columns.header_validity(), pa.binary())
    pairs = pa.StructArray.from_arrays([names, held], fields=list(kind.value_type))
    counts = pa.Array.from_buffers(pa.int32(), columns.rows + 1, [None, pa.py_buffer(columns.header_counts.getvalue())])
    return pa.ListArray.from_arrays(counts, pairs, type=kind)


def constant(value: Any, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)


def _gathered(
    spans: bytes, data: bytes, rows: int, first: int, stride: int, validity: bytes, kind: pa.DataType
) -> pa.Array:
    """Of the byte strings that lie between the spans, those at first, first + stride and so on."""
    if rows == 0:
        return pa.array([], kind)
    between = len(spans) // 4 - 1
    strings = pa.Array.from_buffers(kind, between, [None, pa.py_buffer(spans), pa.py_buffer(data)])
    taken = strings.take(_every(first, stride, rows))
    if not validity:
        return taken
    _, taken_offsets, taken_data = taken.buffers()
    return pa.Array.from_buffers(kind, rows, [pa.py_buffer(validity), taken_offsets, taken_data])


def _every(first: int, stride: int, rows: int) -> pa.Array:
    return _counted(first, stride, 1 << max(rows - 1, 1).bit_length()).slice(0, rows)


@lru_cache(maxsize=32)
def _counted(first: int, stride: int, rows: int) -> pa.Array:
    return pa.array(range(first, first + stride * rows, stride), pa.int32())
