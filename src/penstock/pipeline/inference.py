"""What type a JSON field has, by the values that were seen of it.

    true, 12, 1.5, "text"    boolean, bigint, double, string; a whole number too large for a bigint is a double
    {...}, [...]             struct and array of what they hold
    null                     says nothing: a field of which nothing else was seen is no column yet

Seen as whole numbers and as others, it is a double; seen as two kinds that have nothing in common, it is a string, and
the values that are none do not fit. Text that looks like a time is text: a given schema may say more.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.model.batch import CONTROL, decode_batch, walk
from penstock.model.errors import PenstockError
from penstock.pipeline.link import Link
from penstock.wire.native import messages as wire

MAX_DEPTH: Final = 32  # of what is nested; deeper is text
DEEP: Final = 1_000  # levels
FETCH_BYTES: Final = 1 << 20
_I64: Final = 1 << 63


def opened(values: Iterable[bytes]) -> Iterator[Any]:
    """The documents among these; what is none says nothing of any field.

    A document may fit a schema that leaves out the very field which cannot be opened.
    """
    for value in values:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield msgspec.json.decode(value)


def may_be_deep(value: bytes) -> bool:
    """Arrow's reader goes down as deep as a value is nested, and some thousand levels down it takes the whole process
    with it: what may be nested so is not for it."""
    return len(value) >= 2 * DEEP and value.count(b"[") + value.count(b"{") >= DEEP


def type_of(value: Any, depth: int = 0) -> pa.DataType:
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -_I64 <= value < _I64 else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str) or depth >= MAX_DEPTH:
        return pa.string()
    if isinstance(value, dict):
        return pa.struct([pa.field(name, type_of(item, depth + 1)) for name, item in value.items()])
    item = pa.null()
    for one in value:
        item = unified(item, type_of(one, depth + 1))
    return pa.list_(item)


def unified(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """What both can be read as."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    numbers = (pa.int64(), pa.float64())
    if one in numbers and other in numbers:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(unified(one.value_type, other.value_type))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = unified(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items()))
    return pa.string()


def settled(kind: pa.DataType) -> pa.DataType | None:
    """The type as a column can have it: without what nothing is known of. None: nothing is known at all."""
    if pa.types.is_null(kind):
        return None
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return pa.string()  # how Arrow sees text that looks like it
    if pa.types.is_list(kind):
        item = settled(kind.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_struct(kind):
        fields = [(field.name, settled(field.type)) for field in kind]
        known = [(name, of) for name, of in fields if of is not None]
        return pa.struct(known) if known else None
    return kind


def fields_of(documents: Iterable[Any]) -> dict[str, pa.DataType]:
    """The columns that these JSON objects have, in the order in which they were first seen."""
    found: dict[str, pa.DataType] = {}
    for document in documents:
        if isinstance(document, dict):
            for name, value in document.items():
                found[name] = unified(found.get(name, pa.null()), type_of(value))
    return {name: of for name, kind in found.items() if (of := settled(kind)) is not None}


# -- the sample ---------------------------------------------------------------------------------------------


def sample(link: Link, topic: str, records: int) -> list[Any]:
    """JSON documents of a topic, at most so many: from the beginning of each partition, and from its end."""
    partitions = link.ask(wire.FindTopic(topic, create=False)).topics[0].partitions
    each = max(records // partitions // 2, 1)
    documents: list[Any] = []
    for partition in range(partitions):
        bounds: wire.Offsets = link.ask(wire.ListOffsets(topic, partition))
        middle = max(bounds.start, bounds.end - each)
        documents += _documents(link, topic, partition, bounds.start, min(bounds.start + each, bounds.end))
        documents += _documents(link, topic, partition, max(middle, bounds.start + each), bounds.end)
    return documents


def _documents(link: Link, topic: str, partition: int, start: int, stop: int) -> list[Any]:
    found: list[Any] = []
    while start < stop:
        try:
            fetched: wire.Fetched = link.ask(wire.Fetch(topic, partition, start, FETCH_BYTES, 0))
        except PenstockError:
            if start == stop - 1:
                raise
            break  # what is older has gone meanwhile; the sample is smaller
        if fetched.next_offset <= start:
            break  # nothing more is decided yet
        for header in walk(fetched.batches):
            if header.attributes & CONTROL:
                continue
            for record in decode_batch(fetched.batches, header.position):
                if record.value is not None and start <= record.offset < stop:
                    found += opened([record.value])  # what cannot be opened will go to the quarantine
        start = fetched.next_offset
    return found
