"""Every message in every version: what is written is what is read, and anything less is Malformed."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka_structs import (
    EVERY_MESSAGE_VERSION,
    MessageVersion,
    after_a_round_trip,
    joined,
    named,
    plain,
    plan_of,
    structs,
)

from penstock.wire.kafka.codec import Malformed, decode, encode

few = settings(
    max_examples=6,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
MAX_CUTS = 12


@pytest.mark.parametrize("message_version", EVERY_MESSAGE_VERSION, ids=named)
def test_what_is_written_is_what_is_read(message_version: MessageVersion) -> None:
    plan = plan_of(message_version)

    @few
    @given(structs(plan), st.binary(max_size=3))
    def round_trip(struct, tail) -> None:  # type: ignore[no-untyped-def]
        raw = joined(encode(plan, struct))
        expected = after_a_round_trip(plan, struct)
        for buf in (raw + tail, bytearray(raw + tail), memoryview(b"\x00" + raw + tail)[1:]):
            decoded, position = decode(plan, buf)
            assert position == len(raw)
            assert plain(decoded) == expected
        for cut in range(0, len(raw), len(raw) // MAX_CUTS + 1):
            with pytest.raises(Malformed):
                decode(plan, memoryview(raw)[:cut])

    round_trip()


@settings(few, max_examples=600)
@given(st.sampled_from(EVERY_MESSAGE_VERSION), st.binary(max_size=120))
def test_garbage_is_a_message_by_chance_or_malformed(message_version: MessageVersion, garbage: bytes) -> None:
    try:
        decode(plan_of(message_version), garbage)
    except Malformed:
        return


@pytest.mark.parametrize("kind", ["request", "response"])
def test_a_damaged_message_is_another_message_or_malformed(kind: str) -> None:
    candidates = [each for each in EVERY_MESSAGE_VERSION if each[0] == kind]

    @settings(few, max_examples=300)
    @given(st.data())
    def damage(data: st.DataObject) -> None:
        plan = plan_of(data.draw(st.sampled_from(candidates)))
        raw = bytearray(joined(encode(plan, data.draw(structs(plan)))))
        for _ in range(data.draw(st.integers(1, 3))):
            if raw:
                raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(
                    st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF])
                )
        try:
            decode(plan, raw)
        except Malformed:
            return

    damage()
