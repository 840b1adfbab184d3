"""Another library's opinion: kio reads what we write as the same values, and writes them as the same bytes.

kio is generated from Apache Kafka's own definitions. It serves as an oracle only, and sees only well-formed bytes.
"""

from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from kafka_structs import EVERY_MESSAGE_VERSION, MessageVersion, after_a_round_trip, joined, named, plan_of, structs
from kio.index import UnknownEntity, load_entity_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from penstock.wire.kafka import plan as p
from penstock.wire.kafka import schema
from penstock.wire.kafka.codec import encode
from penstock.wire.kafka.plan import Plan, Struct

_DATA_NAMES = {
    "consumer_subscription": "consumer_protocol_subscription",
    "consumer_assignment": "consumer_protocol_assignment",
}


def oracle_type(message_version: MessageVersion) -> type | None:
    kind, key, version = message_version
    name = schema.messages()[kind, key].name
    try:
        return load_entity_schema(_DATA_NAMES.get(name, name), version, EntityType[kind])
    except UnknownEntity:
        return None


KNOWN_TO_BOTH = [each for each in EVERY_MESSAGE_VERSION if oracle_type(each) is not None]


def same(plan: Plan, ours: Struct, theirs: Any) -> None:
    """Their entity holds our values, each in its own type."""
    assert is_dataclass(theirs)
    # Their times are timedelta and datetime, and so have no unit in their names.
    their_values = {each.name.removesuffix("_ms"): getattr(theirs, each.name) for each in fields(theirs)}
    assert their_values.keys() == {each.name.removesuffix("_ms") for each in [*plan.fields, *plan.tagged]}
    for field in [*plan.fields, *plan.tagged]:
        value, their_value = getattr(ours, field.name), their_values[field.name.removesuffix("_ms")]
        if field.code == p.STRUCT and value is not None:
            assert field.plan is not None
            same(field.plan, value, their_value)
        elif field.code == p.STRUCT and field.tag >= 0:
            assert field.plan is not None
            if their_value is not None:
                same(field.plan, after_a_round_trip(field.plan, Struct()), their_value)
        elif field.code == p.ARRAY and value is not None:
            assert field.element is not None
            assert len(value) == len(their_value)
            for our_each, their_each in zip(value, their_value, strict=True):
                if field.element.code == p.STRUCT:
                    assert field.element.plan is not None
                    same(field.element.plan, our_each, their_each)
                else:
                    assert our_each == our_type(their_each, our_each), field.name
        else:
            assert value == our_type(their_value, value), field.name


def our_type(theirs: Any, ours: Any) -> Any:
    """Their value in the type that we use for it."""
    if theirs is None and isinstance(ours, UUID):
        return UUID(int=0)
    if theirs is None and isinstance(ours, int):
        return -1  # no time
    if isinstance(theirs, Enum):
        return theirs.value
    if isinstance(theirs, timedelta):
        return theirs // timedelta(milliseconds=1)
    if isinstance(theirs, datetime):
        return (theirs - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return theirs


@pytest.mark.parametrize("message_version", KNOWN_TO_BOTH, ids=named)
def test_kio_reads_and_writes_the_same(message_version: MessageVersion) -> None:
    plan = plan_of(message_version)
    entity_type = oracle_type(message_version)
    assert entity_type is not None
    read, write = entity_reader(entity_type), entity_writer(entity_type)

    @settings(max_examples=5, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(structs(plan, tame=True))
    def compare(struct: Struct) -> None:
        raw = joined(encode(plan, struct))
        theirs, size = read(raw, 0)
        assert size == len(raw)
        same(plan, after_a_round_trip(plan, struct), theirs)
        written = BytesIO()
        write(written, theirs)
        assert written.getvalue() == raw

    compare()


def test_only_the_oldest_produce_versions_are_without_an_oracle() -> None:
    alone = [each for each in EVERY_MESSAGE_VERSION if each not in KNOWN_TO_BOTH]
    assert {(key, version) for _, key, version in alone} == {(0, 0), (0, 1), (0, 2)}
