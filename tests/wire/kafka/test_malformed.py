"""What a stranger's bytes can do: be refused, with a reason, before they cost anything."""

import tracemalloc

import pytest

from penstock.wire.kafka import plan as p
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.codec import Malformed, Plan, Struct, decode
from penstock.wire.kafka.messages import decode_header, decode_request, request_plan
from penstock.wire.kafka.reader import MAX_ELEMENTS

PLAIN = request_plan(ApiKey.HEARTBEAT, 3)  # group_id, generation_id, member_id, nullable group_instance_id
FLEXIBLE = request_plan(ApiKey.HEARTBEAT, 4)
GOOD_FLEXIBLE = b"\x02g" + b"\x00\x00\x00\x01" + b"\x02m" + b"\x00"  # and then the tagged fields

FLEXIBLE_METADATA = request_plan(ApiKey.METADATA, 12)
FETCH = request_plan(ApiKey.FETCH, 12)  # tag 0 is the nullable string cluster_id
GOOD_FETCH = bytes(17) + bytes(8) + b"\x01" + b"\x01" + b"\x01"
assert decode(FETCH, GOOD_FETCH + b"\x00")[1] == len(GOOD_FETCH) + 1


def refused(plan: Plan, raw: bytes, reason: str) -> None:
    for buf in (raw, bytearray(raw), memoryview(raw)):
        with pytest.raises(Malformed, match=reason):
            decode(plan, buf)


def test_text_that_is_not_utf8() -> None:
    refused(PLAIN, b"\x00\x02\xc3\x28" + bytes(20), "group_id: not UTF-8")


def test_null_where_null_is_not_allowed() -> None:
    refused(PLAIN, b"\xff\xff" + bytes(20), "group_id: null is not allowed")
    refused(FLEXIBLE, b"\x00" + bytes(20), "group_id: null is not allowed")


def test_negative_lengths() -> None:
    refused(PLAIN, b"\xff\xfe" + bytes(20), "group_id: length -2")
    produce = request_plan(ApiKey.PRODUCE, 3)
    refused(produce, b"\xff\xff" + bytes(6) + b"\x80\x00\x00\x00" + bytes(20), "topic_data: length")


def test_a_length_that_takes_too_many_bytes() -> None:
    refused(FLEXIBLE, b"\x80\x80\x80\x80\x80\x01" + bytes(20), "more than five bytes")
    refused(FLEXIBLE, b"\xff\xff\xff\xff\x7f" + bytes(20), "exceeds 32 bits")


def test_a_string_longer_than_kafka_allows() -> None:
    length = 0x8000 + 1
    refused(FLEXIBLE, bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14]) + bytes(0x8010), "at most")


def test_tags_that_do_not_rise() -> None:
    refused(FLEXIBLE, GOOD_FLEXIBLE + b"\x02" + b"\x05\x00" + b"\x05\x00", "tag 5 after tag 5")
    refused(FLEXIBLE, GOOD_FLEXIBLE + b"\x02" + b"\x05\x00" + b"\x04\x00", "tag 4 after tag 5")


def test_more_tags_than_bytes() -> None:
    refused(FLEXIBLE, GOOD_FLEXIBLE + b"\x09" + b"\x05\x00", "9 tagged fields")


def test_a_tag_that_reaches_past_the_end() -> None:
    refused(FLEXIBLE, GOOD_FLEXIBLE + b"\x01" + b"\x05\x7f" + bytes(20), "tag 5 announces 127 bytes")


def test_a_known_tag_whose_value_has_another_size() -> None:
    assert decode(FETCH, GOOD_FETCH + b"\x01\x00\x03\x03ab")[0].cluster_id == "ab"
    refused(FETCH, GOOD_FETCH + b"\x01\x00\x04\x03ab\x00", "another size")
    refused(FETCH, GOOD_FETCH + b"\x01\x00\x02\x03ab", "another size")


def test_unknown_tags_are_passed_over() -> None:
    raw = GOOD_FLEXIBLE + b"\x02" + b"\x00\x03abc" + b"\x88\x01\x00"
    struct, position = decode(FLEXIBLE, raw)
    assert position == len(raw)
    assert struct == Struct(group_id="g", generation_id=1, member_id="m", group_instance_id=None)


def test_a_count_costs_nothing_before_its_elements_have_come() -> None:
    metadata = request_plan(ApiKey.METADATA, 1)
    produce = request_plan(ApiKey.PRODUCE, 3)
    fetch = request_plan(ApiKey.FETCH, 4)
    tracemalloc.start()
    try:
        refused(
            metadata, b"\x7f\xff\xff\xff" + bytes(100), "topics: 2147483647 elements are announced, 100 bytes remain"
        )
        refused(FLEXIBLE_METADATA, b"\xff\xff\xff\xff\x0f" + bytes(100), "topics: 4294967294 elements")
        refused(produce, b"\xff\xff" + bytes(6) + b"\x7f\xff\xff\xff" + bytes(100), "topic_data: 2147483647 elements")
        refused(fetch, bytes(17) + b"\x00\x00\x00\x15" + bytes(100), "topics: 21 elements")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


def test_a_record_length_is_checked_against_what_is_there() -> None:
    produce = request_plan(ApiKey.PRODUCE, 3)
    start = b"\xff\xff" + bytes(6) + b"\x00\x00\x00\x01" + b"\x00\x01t" + b"\x00\x00\x00\x01" + bytes(4)
    refused(produce, start + b"\x7f\xff\xff\xff" + bytes(100), "records: 2147483647 bytes are announced, 100 remain")


def test_a_message_of_very_many_tiny_elements() -> None:
    raw = (MAX_ELEMENTS + 1).to_bytes(4, "big") + bytes(2 * MAX_ELEMENTS + 2)
    refused(request_plan(ApiKey.METADATA, 1), raw, f"more than {MAX_ELEMENTS} array elements")


def test_no_position_outside_the_buffer() -> None:
    for position in (-1, 6):
        with pytest.raises(Malformed):
            decode_request(ApiKey.METADATA, 1, b"\x00\x00\x00\x00", position)


@pytest.mark.parametrize("size", range(14))
def test_a_header_cut_short(size: int) -> None:
    header = b"\x00\x03\x00\x0c" + b"\x00\x00\x00\x07" + b"\x00\x04name"
    assert decode_header(header + b"\x00").client_id == "name"
    with pytest.raises(Malformed):
        decode_header(header[:size])


def test_every_array_element_takes_at_least_a_byte() -> None:
    """Otherwise a count could not be checked against the bytes that remain."""
    from kafka_structs import EVERY_MESSAGE_VERSION, plan_of

    def check(plan: Plan) -> None:
        for field in [*plan.fields, *plan.tagged]:
            one = field.element if field.code == p.ARRAY else field
            assert one is not None
            assert field.code != p.ARRAY or one.min_bytes > 0
            if one.plan is not None:
                check(one.plan)

    for each in EVERY_MESSAGE_VERSION:
        check(plan_of(each))
