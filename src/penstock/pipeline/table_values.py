"""A table's values: JSON or Avro in, columns out, the reasons of those that do not fit, and the fields that are new.

`decoding.Decoder` is the law: what it says fits, fits. JSON whose columns are all of simple types is first tried by
Arrow's own reader, which reads a whole batch at once several times as fast; it is the stricter of the two, and where it
refuses, or sees anything out of the ordinary, the batch is decoded again by the law. It sees each value between two
markers of ours, so that a value which is two documents, or none, cannot pass for one of its neighbours.
"""

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.pipeline.decoding import Decoder, Reasons
from penstock.pipeline.inference import DEEP, MAX_DEPTH, fields_of, may_be_deep, opened, settled, unified

_SIMPLE = (pa.bool_(), pa.int32(), pa.int64(), pa.float64(), pa.string())


class Opened(NamedTuple):
    columns: list[pa.Array]
    reasons: Reasons
    new: dict[str, pa.DataType]  # fields that the schema does not have


class Values:
    def __init__(self, kind: str, schema: pa.Schema, avro: str | None = None, *, notice_new: bool = False) -> None:
        self._schema = schema
        self._decoder = Decoder(kind, schema, avro)
        self._notice_new = notice_new and kind == "json"
        self._names = set(schema.names)
        self._quick = kind == "json" and all(field.nullable and _is_simple(field.type) for field in schema)
        if self._quick:
            wrapped = pa.schema([("v", pa.struct(list(schema)))])
            self._parsing = pj.ParseOptions(explicit_schema=wrapped, unexpected_field_behavior="infer")

    def open(self, values: pa.Array) -> Opened:
        if self._quick and len(values):
            quickly = self._open_quickly(values)
            if quickly is not None:
                return quickly
        columns, reasons = self._decoder.decode(values)
        return Opened(columns, reasons, self._new_fields(values, reasons))

    def _open_quickly(self, values: pa.Array) -> Opened | None:
        """None: let the law decide."""
        if _has_deep(values):
            return None
        try:
            text = values.cast(pa.string())  # refuses what is not UTF-8
            if text.null_count:
                text = text.fill_null("null")
            lines = pc.binary_join_element_wise('{"v":', text, "}\n", "")
            _, _, data = lines.buffers()
            reading = pj.ReadOptions(use_threads=False, block_size=data.size + 1)
            table = pj.read_json(pa.BufferReader(data), reading, self._parsing)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if table.num_rows != len(values) or table.column_names != ["v"]:
            return None
        column = table.column(0)
        whole = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        if not _is_ordinary(whole):
            return None
        parts: dict[str, pa.Array] = dict(zip([field.name for field in whole.type], whole.flatten(), strict=True))
        columns = []
        for field in self._schema:
            part = _shaped(parts.pop(field.name), field.type)
            if part is None:
                return None
            columns.append(part)
        new = {}
        if self._notice_new:
            kinds = ((name, settled(part.type)) for name, part in parts.items())
            new = {name: kind for name, kind in kinds if kind is not None}
        return Opened(columns, {}, new)

    def _new_fields(self, values: pa.Array, reasons: Reasons) -> dict[str, pa.DataType]:
        if not self._notice_new:
            return {}
        fitting = (v for row, v in enumerate(values.to_pylist()) if v is not None and row not in reasons)
        return {name: kind for name, kind in fields_of(opened(fitting)).items() if name not in self._names}


def added(known: dict[str, pa.DataType], new: dict[str, pa.DataType]) -> None:
    """Note what else is new."""
    for name, kind in new.items():
        known[name] = unified(known.get(name, pa.null()), kind)


def _is_simple(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_is_simple(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _is_simple(kind.value_type)
    return kind in _SIMPLE


def _has_deep(values: pa.Array) -> bool:
    """Most values are too short for that, which their offsets tell."""
    length = pc.binary_length(values)
    if (pc.max(length).as_py() or 0) < 2 * DEEP:
        return False
    return any(map(may_be_deep, values.filter(pc.greater_equal(length, 2 * DEEP)).to_pylist()))


def _is_ordinary(array: pa.Array, depth: int = 0) -> bool:
    """Not so in fields that the schema does not have, where Arrow reads anything: Infinity and NaN, which are no JSON,
    and what is nested without end."""
    kind = array.type
    if pa.types.is_floating(kind):
        return pc.all(pc.is_finite(array)).as_py() is not False
    if pa.types.is_struct(kind):
        return depth < MAX_DEPTH and all(_is_ordinary(part, depth + 1) for part in array.flatten())
    return not pa.types.is_list(kind) or (depth < MAX_DEPTH and _is_ordinary(array.flatten(), depth + 1))


def _shaped(array: pa.Array, kind: pa.DataType) -> Any:
    """The array in its schema's type; nested fields that this does not have are left out. None: it cannot be."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        names = [field.name for field in array.type]
        parts = []
        for field in kind:
            part = _shaped(array.field(names.index(field.name)), field.type)
            if part is None:
                return None
            parts.append(part)
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None
