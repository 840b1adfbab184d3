"""What columns there are: the record's own, and those that the values are decoded into.

The record's columns have the names and types that Spark's own connector for Kafka gives them. Where a field of the
values has one of these names, the field keeps it and the record's column gets an underscore before its own.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import types as spark

from penstock.pipeline.decoding import CORRUPT
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.options import SourceOptions

_HEADER: Final = spark.StructType(
    [spark.StructField("key", spark.StringType()), spark.StructField("value", spark.BinaryType())]
)
TYPES: Final[dict[str, spark.DataType]] = {
    "key": spark.BinaryType(),
    "value": spark.BinaryType(),
    "topic": spark.StringType(),
    "partition": spark.IntegerType(),
    "offset": spark.LongType(),
    "timestamp": spark.TimestampType(),
    "timestampType": spark.IntegerType(),
    "headers": spark.ArrayType(_HEADER),
}
_SQL: Final = {
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    **{name: kind.simpleString().upper() for name, kind in TYPES.items() if name != "headers"},
}


@dataclass(frozen=True)
class Column:
    """A column of the result: one of the record's (`source` is its name), of the value (None), or of its fault."""

    name: str
    source: str | None


def layout(options: SourceOptions) -> tuple[Column, ...]:
    """All columns there are, in their order."""
    if options.schema is None:
        return tuple(Column(name, name) for name in options.columns)
    fields = value_fields(options)
    wanted = options.columns if options.columns_given else tuple(name for name in options.columns if name != "value")
    taken = {name.lower() for name in fields}
    faults = (Column(CORRUPT, CORRUPT),) if options.permissive else ()
    if CORRUPT in taken:
        raise InvalidOption(f"option schema: a field may not be called {CORRUPT}")
    own = tuple(Column(f"_{name}" if name.lower() in taken else name, name) for name in wanted)
    return tuple(Column(name, None) for name in fields) + own + faults


def spark_schema(options: SourceOptions) -> spark.StructType | str:
    """As Spark wants it: text where the values' schema is text, which only Java can read."""
    columns = layout(options)
    typed = None if options.schema is None else _structured(options)
    if options.schema is not None and typed is None:
        rest = [f"{_quoted(one.name)} {_sql(one)}" for one in columns if one.source is not None]
        return ", ".join([options.schema.rstrip(", "), *rest])
    fields = list(typed.fields) if typed is not None else []
    fields += [spark.StructField(one.name, _type(one)) for one in columns if one.source is not None]
    return spark.StructType(fields)


def check_schema(options: SourceOptions, asked: spark.StructType) -> tuple[Column, ...]:
    """The columns of a read, in the order that was asked for. What is asked for must be there, and of that type."""
    known = {one.name.lower(): one for one in layout(options)}
    columns = []
    for field in asked.fields:
        column = known.get(field.name.lower())
        if column is None:
            hint = "" if options.schema else "; fields of the values need the option schema"
            raise InvalidOption(
                f"there is no column {field.name!r}, only {', '.join(one.name for one in known.values())}{hint}"
            )
        if column.source is not None and _plain(field.dataType) != _plain(_type(column)):
            raise InvalidOption(
                f"column {field.name} is {_type(column).simpleString()}, not {field.dataType.simpleString()}; "
                "leave out schema(...), or cast it afterwards"
            )
        if column.source is None and options.permissive and not field.nullable:
            raise InvalidOption(
                f"column {field.name} is NOT NULL, but mode permissive gives nulls where a value does not fit"
            )
        columns.append(Column(field.name, column.source))
    return tuple(columns)


def _plain(kind: spark.DataType) -> str:
    return kind.simpleString()


def _type(column: Column) -> spark.DataType:
    assert column.source is not None
    return spark.StringType() if column.source == CORRUPT else TYPES[column.source]


def _sql(column: Column) -> str:
    assert column.source is not None
    return "STRING" if column.source == CORRUPT else _SQL[column.source]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# -- the values' schema -------------------------------------------------------------------------------------


def value_fields(options: SourceOptions) -> tuple[str, ...]:
    """The names of the values' columns."""
    typed = _structured(options)
    names = tuple(typed.fieldNames()) if typed is not None else _ddl_names(options.schema or "")
    lower = [name.lower() for name in names]
    twice = [name for name in names if lower.count(name.lower()) > 1]
    if twice:
        raise InvalidOption(f"option schema: there are two fields {twice[0]!r}")
    if not names:
        raise InvalidOption("option schema: it has no fields; write it as: id BIGINT, name STRING")
    return names


def _structured(options: SourceOptions) -> spark.StructType | None:
    """The schema, if it is written as Avro or as Spark writes one in JSON; None if it is written in words."""
    text = options.schema or ""
    if options.value_format == "avro":
        return avro_struct(text)
    if not text.startswith("{"):
        return None
    try:
        kind = spark.StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidOption(f"option schema is no schema of Spark's: {error}") from None
    return kind


def _ddl_names(text: str) -> tuple[str, ...]:
    """The names in `id BIGINT, tags ARRAY<STRING>`: the first word of each part. Java reads the rest."""
    names: list[str] = []
    depth, word, quoted, done = 0, "", False, False
    for char in text + ",":
        if quoted:
            if char == "`":
                quoted, done = False, True
            else:
                word += char
        elif char in "<(":
            depth += 1
            done = True
        elif char in ">)":
            depth -= 1
        elif depth:
            continue
        elif char == ",":
            if word.strip():
                names.append(word.strip())
            word, done = "", False
        elif done:
            continue
        elif char == "`":
            quoted = True
        elif char.isspace() or char == ":":
            done = bool(word.strip())
        else:
            word += char
    return tuple(names)


# -- Avro ---------------------------------------------------------------------------------------------------

_AVRO_PLAIN: Final[dict[str, spark.DataType]] = {
    "boolean": spark.BooleanType(),
    "int": spark.IntegerType(),
    "long": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "bytes": spark.BinaryType(),
    "string": spark.StringType(),
    "enum": spark.StringType(),
    "fixed": spark.BinaryType(),
}
_AVRO_LOGICAL: Final[dict[str, spark.DataType]] = {
    "date": spark.DateType(),
    "timestamp-millis": spark.TimestampType(),
    "timestamp-micros": spark.TimestampType(),
    "local-timestamp-millis": spark.TimestampNTZType(),
    "local-timestamp-micros": spark.TimestampNTZType(),
    "uuid": spark.StringType(),
}


def avro_struct(text: str) -> spark.StructType:
    """The type that records of this Avro schema have in Spark."""
    try:
        import fastavro

        written = json.loads(text)
        fastavro.parse_schema(written)
    except ImportError:
        raise InvalidOption("Avro values need fastavro; run: pip install 'penstock[spark]'") from None
    except ValueError:
        raise InvalidOption("option schema: with valueFormat avro it must be an Avro schema in JSON") from None
    except Exception as error:  # fastavro has no root of its own for what it thinks of schemas
        raise InvalidOption(f"option schema is no Avro schema: {error}") from None
    kind = _avro_kind(written, {}, ())
    if not isinstance(kind, spark.StructType):
        raise InvalidOption("option schema: the Avro schema must be that of a record")
    return kind


def _avro_kind(written: Any, named: dict[str, Any], within: tuple[str, ...]) -> spark.DataType:
    """Every field may be null: a value that does not fit, and one that is not there, leave nulls."""
    if isinstance(written, list):
        kinds = [_avro_kind(one, named, within) for one in written if one != "null"]
        if len(kinds) != 1:
            raise InvalidOption(f"option schema: a union of {len(kinds)} Avro types has no type in Spark")
        return kinds[0]
    if isinstance(written, str):
        if written in named:
            return _avro_kind(named[written], named, within)
        if written not in _AVRO_PLAIN:
            raise InvalidOption(f"option schema: the Avro type {written!r} has no type in Spark")
        return _AVRO_PLAIN[written]
    kind, name = written["type"], written.get("name", "")
    if name:
        named[name] = written
        named[f"{written.get('namespace', '')}.{name}".strip(".")] = written
    if isinstance(kind, (dict, list)):
        return _avro_kind(kind, named, within)
    if kind == "record":
        if name in within:
            raise InvalidOption(f"option schema: the Avro record {name!r} holds itself, which no type in Spark can")
        fields = [(one["name"], _avro_kind(one["type"], named, (*within, name))) for one in written["fields"]]
        return spark.StructType([spark.StructField(field, of_field) for field, of_field in fields])
    if kind == "array":
        return spark.ArrayType(_avro_kind(written["items"], named, within))
    if kind == "map":
        return spark.MapType(spark.StringType(), _avro_kind(written["values"], named, within))
    if written.get("logicalType") == "decimal":
        return spark.DecimalType(written["precision"], written.get("scale", 0))
    return _AVRO_LOGICAL.get(written.get("logicalType", "")) or _avro_kind(kind, named, within)
