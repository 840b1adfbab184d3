"""The options and columns of the sink, checked before the first row: what is wrong is named, and what is right."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.client.address import parse_addresses
from penstock.pipeline.errors import InvalidOption, SchemaMismatch
from penstock.pipeline.publishing import BATCH_BYTES, COMPRESSIONS, STEP_TIMEOUT_MS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TIMEOUT_S: Final = 60.0

SINK_OPTIONS: Final[dict[str, str]] = {
    "server": "host:port of the line door, several separated by commas",
    "topic": "where rows go that have no column topic of their own",
    "application": "the name that batches are remembered by; the query's id if it is not given",
    "epoch": "a number: with an application the name of a batch write, so that it is done once",
    "group": "a name under which the query's progress is committed together with what it writes",
    "compression": f"one of {', '.join(COMPRESSIONS)}",
    "maxBatchBytes": "of one record batch",
    "timeout": "seconds that a server may be away before writing fails",
    "stepTimeout": "seconds after which the server gives up what an application that has died left unfinished",
    "checkpointLocation": "of the query",
}

COLUMNS: Final[dict[str, str]] = {
    "key": "string or binary",
    "value": "string or binary",
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp, or bigint in milliseconds",
    "headers": "array<struct<key string, value binary>>",
}
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int", "bigint", "smallint", "tinyint"),
    "timestamp": ("timestamp", "timestamp_ntz", "bigint"),
    "headers": ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"),
}


@dataclass(frozen=True)
class SinkOptions:
    server: str
    topic: str | None
    application: str | None
    epoch: int
    group: str | None
    compression: int
    batch_bytes: int
    timeout_s: float
    step_timeout_ms: int
    checkpoint: str | None


def sink_options(given: Mapping[str, str], *, stream: bool) -> SinkOptions:
    said = {name.lower(): str(value).strip() for name, value in given.items()}
    path = said.pop("path", None)  # what `save(...)` and `start(...)` are called with
    said.pop("queryname", None)  # what Spark puts there of a query that has a name
    if path and not said.get("topic"):
        said["topic"] = path
    known = {name.lower(): name for name in SINK_OPTIONS}
    for name in said:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {known[near[0]]}?" if near else "."
            raise InvalidOption(f"option {name!r} is not known to the sink{hint} Known are: {', '.join(SINK_OPTIONS)}")
    server = said.get("server")
    if not server:
        raise InvalidOption(f"the option server is missing: {SINK_OPTIONS['server']}, as in 127.0.0.1:7070")
    try:
        parse_addresses(server)
    except ValueError as error:
        raise InvalidOption(f"option server: {error}") from None
    compression = (said.get("compression") or "none").lower()
    if compression not in COMPRESSIONS:
        raise InvalidOption(f"option compression is {compression!r}; it must be {SINK_OPTIONS['compression']}")
    if stream and said.get("epoch"):
        raise InvalidOption("option epoch is for batch writes; a stream counts its batches by itself")
    if not stream and said.get("group"):
        raise InvalidOption("option group is for streams; a batch read commits nothing")
    if not stream and said.get("epoch") and not said.get("application"):
        raise InvalidOption("option epoch needs an application: together they name the write that is done once")
    return SinkOptions(
        server=server,
        topic=said.get("topic") or None,
        application=said.get("application") or None,
        epoch=_number(said, "epoch", 0, least=0),
        group=said.get("group") or None,
        compression=COMPRESSIONS[compression],
        batch_bytes=_number(said, "maxBatchBytes", BATCH_BYTES, least=1),
        timeout_s=_number(said, "timeout", int(TIMEOUT_S), least=1),
        step_timeout_ms=1000 * _number(said, "stepTimeout", STEP_TIMEOUT_MS // 1000, least=1),
        checkpoint=said.get("checkpointlocation") or None,
    )


def check_columns(schema: "StructType", topic: str | None) -> None:
    """Raises SchemaMismatch when these rows cannot be records."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    unknown = [name for name in types if name not in COLUMNS]
    listed = "; ".join(f"{name}: {kind}" for name, kind in COLUMNS.items())
    if unknown:
        raise SchemaMismatch(
            f"a topic has no column {', '.join(map(repr, unknown))}. Select what is to be written, as one of {listed}. "
            "(Several columns make a JSON value by: to_json(struct(...)).alias('value'))"
        )
    if "value" not in types:
        raise SchemaMismatch(f"the column 'value' is missing; the columns are {listed}")
    for name, kind in types.items():
        if kind not in _TYPES[name]:
            raise SchemaMismatch(f"column {name!r} is {kind}; it must be {COLUMNS[name]}")
    if topic is None and "topic" not in types:
        raise SchemaMismatch("give the option topic, or a column topic")


def _number(said: Mapping[str, str], name: str, otherwise: int, *, least: int) -> int:
    text = said.get(name.lower())
    if not text:
        return otherwise
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise InvalidOption(f"option {name} is {text!r}; it must be a whole number of {least} or more")
    return int(text)
