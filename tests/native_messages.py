"""Messages of the binary protocol, any of them, for tests that try all."""

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

Scalars = dict[Any, st.SearchStrategy[Any]]

ANYTHING: Scalars = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=200),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    types.NoneType: st.none(),
}


def values_of(annotation: Any, scalars: Scalars = ANYTHING) -> st.SearchStrategy[Any]:
    """What a field of this type may hold."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return values_of(arguments[0], scalars)
    parts = [values_of(argument, scalars) for argument in arguments]
    if origin is list:
        return st.lists(parts[0], max_size=4)
    if origin is tuple:
        return st.tuples(*parts)
    if origin is dict:
        return st.dictionaries(parts[0], parts[1], max_size=3)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*parts)
    return scalars[annotation] if annotation in scalars else messages_of(annotation, scalars)


def messages_of(kind: type[Any], scalars: Scalars = ANYTHING) -> st.SearchStrategy[Any]:
    return st.builds(kind, *(values_of(field.type, scalars) for field in msgspec.structs.fields(kind)))
