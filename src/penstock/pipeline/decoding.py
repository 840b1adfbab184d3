"""Values into typed columns: JSON or Avro in, Arrow arrays out, and for each value that does not fit the reason why.

A column's type decides what fits, the same way for one record as for a million. JSON: whole numbers within the type's
range, text as text, times as 2026-01-31T12:00:00Z, dates as 2026-01-31, bytes as base64, decimals as number or text.
What is missing or null is null, unless the column may not be; fields that the schema does not name are passed over.
"""

import datetime
import decimal
import io
import uuid
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock.pipeline.errors import InvalidOption

CORRUPT: Final = "_corrupt"  # the column that tells what is wrong with a value, null when nothing is
MAX_REASON_CHARS: Final = 300

Reasons = dict[int, str]  # by row
_Open = Callable[[bytes], Any]  # raises _REFUSED


class Decoded(NamedTuple):
    columns: list[pa.Array]  # in the schema's order
    reasons: Reasons  # of the rows whose columns are all null because their value does not fit


class Decoder:
    """For values of one schema. A null value is a row of nulls, and nothing is wrong with it."""

    def __init__(self, value_format: str, schema: pa.Schema, avro_schema: str | None = None) -> None:
        self._schema = schema
        if value_format == "avro":
            self._open = _avro_opener(avro_schema or "")
            self._getter = _item_getter
        else:
            self._open = msgspec.json.Decoder(_struct(schema, "Value") | None).decode
            self._getter = _attribute_getter

    def decode(self, values: pa.Array) -> Decoded:
        opened, reasons = self._opened(values.to_pylist())
        columns = []
        for place, column in enumerate(self._schema):
            get = self._getter(place, column.name)
            columns.append(self._column([None if one is None else get(one) for one in opened], column, reasons))
        if reasons:
            columns = [_without(column, reasons) for column in columns]
        return Decoded(columns, reasons)

    def _opened(self, values: Sequence[bytes | None]) -> tuple[list[Any], Reasons]:
        decode = self._open
        try:
            return [None if value is None else decode(value) for value in values], {}
        except _REFUSED:
            pass  # which of them it was, the second look tells
        opened: list[Any] = []
        reasons: Reasons = {}
        for row, value in enumerate(values):
            try:
                opened.append(None if value is None else decode(value))
            except _REFUSED as error:
                opened.append(None)
                reasons[row] = _said(error)
        return opened, reasons

    def _column(self, cells: list[Any], column: pa.Field, reasons: Reasons) -> pa.Array:
        try:
            return self._array(cells, column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pass  # a decimal of too many digits, a time before all times: one cell or another does not fit
        for row, cell in enumerate(cells):
            try:
                self._array([cell], column.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                cells[row] = None
                reasons.setdefault(row, f"{column.name}: {_said(error)}")
        return self._array(cells, column.type)

    def _array(self, cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
        if pa.types.is_struct(kind):
            children = []
            for place, child in enumerate(kind):
                get = self._getter(place, child.name)
                children.append(self._array([None if one is None else get(one) for one in cells], child.type))
            mask = pa.array([one is None for one in cells], pa.bool_())
            if not children:
                return pa.array([None if one is None else {} for one in cells], kind)
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
        if pa.types.is_list(kind) and _has_struct(kind.value_type):
            held = self._array([item for one in cells if one is not None for item in one], kind.value_type)
            return pa.ListArray.from_arrays(_list_offsets(cells), held, type=kind)
        if pa.types.is_map(kind):
            pairs = [pair for one in cells if one is not None for pair in one.items()]
            keys = self._array([key for key, _ in pairs], kind.key_type)
            items = self._array([item for _, item in pairs], kind.item_type)
            return pa.MapArray.from_arrays(_list_offsets(cells), keys, items, type=kind)
        if pa.types.is_timestamp(kind):
            return pa.array([_moment(one, kind.tz is not None) for one in cells], kind)
        if pa.types.is_string(kind):
            return pa.array([str(one) if isinstance(one, uuid.UUID) else one for one in cells], kind)
        return pa.array(cells, kind)


def _without(column: pa.Array, reasons: Reasons) -> pa.Array:
    """Null in these rows."""
    bad = pa.array([row in reasons for row in range(len(column))], pa.bool_())
    return pa.compute.if_else(bad, pa.scalar(None, column.type), column)


def corrupt_column(rows: int, reasons: Reasons) -> pa.Array:
    if not reasons:
        return pa.nulls(rows, pa.string())
    return pa.array([reasons.get(row) for row in range(rows)], pa.string())


def _said(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:MAX_REASON_CHARS]


def _attribute_getter(place: int, name: str) -> Callable[[Any], Any]:
    return attrgetter(f"f{place}")


def _item_getter(place: int, name: str) -> Callable[[Any], Any]:
    return itemgetter(name)


def _has_struct(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind) or pa.types.is_map(kind) or pa.types.is_timestamp(kind):
        return True
    return bool(pa.types.is_list(kind) and _has_struct(kind.value_type))


def _list_offsets(cells: Sequence[Any]) -> pa.Array:
    """A null offset says that the list which begins there is null."""
    offsets: list[int | None] = []
    total = 0
    for one in cells:
        offsets.append(None if one is None else total)
        total += 0 if one is None else len(one)
    return pa.array([*offsets, total], pa.int32())


def _moment(value: Any, zoned: bool) -> Any:
    """What has no zone is UTC."""
    if not isinstance(value, datetime.datetime):
        return value
    if value.tzinfo is None:
        return value.replace(tzinfo=datetime.UTC) if zoned else value
    value = value.astimezone(datetime.UTC)
    return value if zoned else value.replace(tzinfo=None)


# -- JSON ---------------------------------------------------------------------------------------------------

_INTEGERS: Final = ((pa.int8(), 7), (pa.int16(), 15), (pa.int32(), 31), (pa.int64(), 63))


def _struct(fields: Any, name: str) -> Any:
    """A class for msgspec whose fields f0, f1... stand for those of the schema, whatever their names are."""
    members: list[Any] = []
    names: dict[str, str] = {}
    for place, field in enumerate(fields):
        names[f"f{place}"] = field.name
        kind = _json_kind(field.type, f"{name}.{field.name}")
        members.append((f"f{place}", kind | None, None) if field.nullable else (f"f{place}", kind))
    return msgspec.defstruct("Value", members, rename=names, kw_only=True, frozen=True, gc=False)


def _json_kind(kind: pa.DataType, name: str) -> Any:
    for integer, bits in _INTEGERS:
        if kind == integer:
            return Annotated[int, msgspec.Meta(ge=-(2**bits), le=2**bits - 1)]
    for is_kind, python in _PLAIN:
        if is_kind(kind):
            return python
    if pa.types.is_struct(kind):
        return _struct(kind, name)
    if pa.types.is_list(kind):
        return list[_json_kind(kind.value_type, name) | None]  # type: ignore[misc]
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return dict[str, _json_kind(kind.item_type, name) | None]  # type: ignore[misc]
    raise InvalidOption(f"option schema: JSON values cannot be read as {kind}, the type of {name.partition('.')[2]}")


_PLAIN: Final[tuple[tuple[Callable[[pa.DataType], bool], Any], ...]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_decimal, decimal.Decimal),
    (pa.types.is_date, datetime.date),
    (pa.types.is_timestamp, datetime.datetime),
)

# -- Avro ---------------------------------------------------------------------------------------------------

_REFUSED: Final = (
    msgspec.DecodeError,
    ValueError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    OverflowError,
    RecursionError,
)


def _avro_opener(text: str) -> _Open:
    """For values that are the bare binary encoding of one record."""
    import fastavro

    schema = fastavro.parse_schema(msgspec.json.decode(text))

    def decode(value: bytes) -> Any:
        stream = io.BytesIO(value)
        record = fastavro.schemaless_reader(stream, schema, None)
        if stream.tell() != len(value):
            raise ValueError(f"the record ends after {stream.tell()} of {len(value)} bytes")
        return record

    return decode
