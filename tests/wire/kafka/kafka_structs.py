"""Structs of any message and version, made from its plan; and what a struct must look like after a round trip."""

import string
from functools import cache
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from penstock.wire.kafka import plan as p
from penstock.wire.kafka import schema
from penstock.wire.kafka.plan import Field, Plan, Struct

MessageVersion = tuple[str, int | str, int]  # kind, API number or name, version

EVERY_MESSAGE_VERSION: list[MessageVersion] = [
    (kind, key, version)
    for (kind, key), message in schema.messages().items()
    for version in range(message.versions.first, message.versions.last + 1)
]

_INTEGERS = {
    p.INT8: (-(2**7), 2**7 - 1),
    p.INT16: (-(2**15), 2**15 - 1),
    p.UINT16: (0, 2**16 - 1),
    p.INT32: (-(2**31), 2**31 - 1),
    p.UINT32: (0, 2**32 - 1),
    p.INT64: (-(2**63), 2**63 - 1),
}


def named(message_version: MessageVersion) -> str:
    kind, key, version = message_version
    return f"{schema.messages()[kind, key].name}-{kind}-v{version}"


@cache
def plan_of(message_version: MessageVersion) -> Plan:
    kind, key, version = message_version
    return schema.compile_plan(schema.messages()[kind, key], version)


@cache
def structs(plan: Plan, tame: bool = False) -> st.SearchStrategy[Struct]:
    """Structs that the plan can encode; tame ones have only values that mean something to other libraries."""
    return st.fixed_dictionaries(
        {field.name: _values(field, tame) for field in plan.fields},
        optional={field.name: _values(field, tame) for field in plan.tagged},
    ).map(lambda values: Struct(**values))


def _values(field: Field, tame: bool) -> st.SearchStrategy[Any]:
    some = _some(field, tame)
    return st.none() | some if field.nullable else some


def _some(field: Field, tame: bool) -> st.SearchStrategy[Any]:
    code = int(field.code)
    match code:
        case p.BOOL:
            return st.booleans()
        case p.FLOAT64:
            return st.floats(allow_nan=False)
        case p.ID:
            return st.uuids()
        case p.STRING:
            return st.text(string.ascii_letters if tame else st.characters(codec="utf-8"), max_size=6)
        case p.BYTES | p.RECORDS:
            return st.binary(max_size=6)
        case p.ARRAY:
            assert field.element is not None
            return st.lists(_values(field.element, tame), max_size=2)
        case p.STRUCT:
            assert field.plan is not None
            return structs(field.plan, tame)
    if not tame:
        return st.integers(*_INTEGERS[code])
    if "error_code" in field.name:
        return st.integers(-1, 80)
    return st.integers(0, min(_INTEGERS[code][1], 2**40))


def after_a_round_trip(plan: Plan, struct: Struct) -> Struct:
    """Every field of every version is there, and a tagged struct with nothing but defaults was not sent."""
    values: dict[str, object] = dict(plan.template)
    for field in plan.fields:
        values[field.name] = _after(field, getattr(struct, field.name, field.default))
    for field in plan.tagged:
        if field.name in struct.__dict__:
            value = _after(field, getattr(struct, field.name))
            defaults = (
                None if field.plan is None or field.code != p.STRUCT else after_a_round_trip(field.plan, Struct())
            )
            values[field.name] = None if defaults is not None and value == defaults else value
    return Struct(**values)


def _after(field: Field, value: Any) -> Any:
    if value is None:
        return None
    if field.code == p.ARRAY:
        assert field.element is not None
        return [_after(field.element, each) for each in value]
    if field.code == p.STRUCT:
        assert field.plan is not None
        return after_a_round_trip(field.plan, value)
    return value


def plain(value: Any) -> Any:
    """A decoded struct with its record data as bytes, so that it compares."""
    if isinstance(value, Struct):
        return Struct(**{name: plain(each) for name, each in value.__dict__.items()})
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


def joined(buffers: list[Any]) -> bytes:
    return b"".join(buffers)


NO_ID = UUID(int=0)
