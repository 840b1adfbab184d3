"""Whole messages: headers, frames, record data by reference, and what happens to fields that are not there."""

from io import BytesIO
from uuid import UUID

import pytest
from kio.schema.request_header.v1.header import RequestHeader as OracleHeader1
from kio.schema.request_header.v2.header import RequestHeader as OracleHeader2
from kio.serial import entity_writer

from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.messages import (
    Malformed,
    Struct,
    UnknownMessage,
    decode_assignment,
    decode_header,
    decode_request,
    decode_response,
    decode_subscription,
    encode_assignment,
    encode_request,
    encode_response,
    encode_subscription,
    versions,
)

TOPIC_ID = UUID("12345678-1234-5678-1234-567812345678")


def produce_request(records: object) -> Struct:
    partition = Struct(index=3, records=records)
    return Struct(
        acks=-1, timeout_ms=1000, topic_data=[Struct(name="t", topic_id=TOPIC_ID, partition_data=[partition])]
    )


def test_a_response_byte_by_byte() -> None:
    partition = Struct(index=1, error_code=2, base_offset=3)
    response = Struct(responses=[Struct(name="ab", partition_responses=[partition])])
    assert encode_response(ApiKey.PRODUCE, 0, 5, response) == [
        b"\x00\x00\x00\x1e"  # length
        b"\x00\x00\x00\x05"  # correlation id
        b"\x00\x00\x00\x01\x00\x02ab"  # one topic
        b"\x00\x00\x00\x01\x00\x00\x00\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03"  # one partition
    ]
    assert encode_response(ApiKey.PRODUCE, 10, 5, response) == [
        b"\x00\x00\x00\x31"
        b"\x00\x00\x00\x05\x00"  # correlation id, no tagged fields
        b"\x02\x03ab"
        b"\x02\x00\x00\x00\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03"
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"  # log append time, log start offset
        b"\x01\x00\x00"  # no record errors, no error message, no tagged fields
        b"\x00"  # of the topic
        b"\x00\x00\x00\x00\x00"  # throttle time; tagged fields of the response
    ]


@pytest.mark.parametrize("client_id", [None, "", "a client"])
@pytest.mark.parametrize("version", [8, 9])
def test_a_request_header_as_kafka_writes_it(client_id: str | None, version: int) -> None:
    oracle_type = OracleHeader1 if version < 9 else OracleHeader2
    written = BytesIO()
    entity_writer(oracle_type)(
        written, oracle_type(request_api_key=3, request_api_version=version, correlation_id=-7, client_id=client_id)
    )
    (frame,) = encode_request(ApiKey.METADATA, version, -7, client_id, Struct(topics=None))
    assert bytes(frame[4:]).startswith(written.getvalue())
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = decode_header(memoryview(frame)[4:])
    assert header == (ApiKey.METADATA, version, -7, client_id, len(written.getvalue()))
    assert decode_request(header.api_key, header.api_version, memoryview(frame)[4:], header.position).topics is None


def test_a_header_with_tagged_fields_nobody_knows() -> None:
    raw = b"\x00\x03\x00\x0c" + b"\x00\x00\x00\x07" + b"\x00\x01c" + b"\x01\x09\x02zz" + b"\x00\x01\x00\x00"
    header = decode_header(raw)
    assert raw[header.position :] == b"\x00\x01\x00\x00"


def test_a_client_whose_name_is_no_text_is_served_all_the_same() -> None:
    header = decode_header(bytes.fromhex("0003 0001 00000007 0003 4dfc6c 00000000"))
    assert (header.client_id, header.position) == ("M\ufffdl", 13)


def test_a_header_of_a_version_or_api_from_the_future_can_still_be_answered() -> None:
    for raw in (b"\x00\x12\x00\x63" + b"\x00\x00\x00\x07\x00\x01c", b"\x7f\xff\x00\x00" + b"\x00\x00\x00\x07\x00\x01c"):
        header = decode_header(raw)
        assert (header.correlation_id, header.client_id, header.position) == (7, "c", len(raw))
        with pytest.raises(UnknownMessage):
            decode_request(header.api_key, header.api_version, raw, header.position)


def test_api_versions_are_answered_with_the_oldest_header() -> None:
    (frame,) = encode_response(ApiKey.API_VERSIONS, 3, 7, Struct(error_code=35))
    assert frame[4:10] == b"\x00\x00\x00\x07\x00\x23"
    assert decode_response(ApiKey.API_VERSIONS, 3, frame[4:])[1].error_code == 35


@pytest.mark.parametrize("version", range(14))
def test_records_are_read_in_place(version: int) -> None:
    frame = bytearray(b"".join(encode_request(ApiKey.PRODUCE, version, 1, "me", produce_request(b"x" * 5000))))
    buf = memoryview(frame)[4:]
    body = decode_request(ApiKey.PRODUCE, version, buf, decode_header(buf).position)
    records = body.topic_data[0].partition_data[0].records
    records[:3] = b"abc"  # the same memory, and writable
    assert frame.count(b"abcxx") == 1
    assert body.topic_data[0].topic_id == (TOPIC_ID if version >= 13 else UUID(int=0))
    assert body.topic_data[0].name == ("" if version >= 13 else "t")


def test_records_are_written_by_reference() -> None:
    first, second = bytearray(b"first"), memoryview(b"second")
    partitions = [Struct(partition_index=0, records=[first, b"", second]), Struct(partition_index=1, records=None)]
    frame = encode_response(ApiKey.FETCH, 16, 7, Struct(responses=[Struct(topic_id=TOPIC_ID, partitions=partitions)]))
    assert frame[1] is first
    assert frame[2] is second
    assert len(frame) == 4
    raw = b"".join(frame)
    assert int.from_bytes(raw[:4], "big") == len(raw) - 4
    _, body = decode_response(ApiKey.FETCH, 16, raw[4:])
    assert [each.records for each in body.responses[0].partitions] == [b"firstsecond", None]


def test_two_partitions_of_records_leave_as_two_buffers() -> None:
    partitions = [Struct(partition_index=each, records=b"records") for each in range(2)]
    frame = encode_response(ApiKey.FETCH, 4, 7, Struct(responses=[Struct(topic="t", partitions=partitions)]))
    assert [part == b"records" for part in frame] == [False, True, False, True]


def test_what_is_not_given_has_its_default() -> None:
    (frame,) = encode_request(ApiKey.FETCH, 12, 1, None, Struct())
    body = decode_request(ApiKey.FETCH, 12, frame, decode_header(frame[4:]).position + 4)
    assert body.max_bytes == 0x7FFFFFFF
    assert body.topics == body.forgotten_topics_data == []
    assert body.topics is not body.forgotten_topics_data
    assert body.replica_state is None


def test_lists_of_fields_that_were_not_sent_are_not_shared() -> None:
    (frame,) = encode_request(ApiKey.FETCH, 4, 1, None, Struct())
    one, other = (decode_request(ApiKey.FETCH, 4, frame, 14) for _ in range(2))
    assert one.forgotten_topics_data == []
    assert one.forgotten_topics_data is not other.forgotten_topics_data


def test_a_field_of_another_version_is_left_out() -> None:
    assert encode_response(ApiKey.HEARTBEAT, 0, 1, Struct(error_code=0, throttle_time_ms=9)) == [
        b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00"
    ]


def test_a_misspelt_field_is_a_mistake() -> None:
    with pytest.raises(AttributeError, match="heartbeat response v1 has no field 'eror_code'"):
        encode_response(ApiKey.HEARTBEAT, 1, 1, Struct(eror_code=0))


@pytest.mark.parametrize("wrong", [2**15, -(2**15) - 1, 2**70, "0", 1.5, b""])
def test_a_value_that_does_not_fit_is_a_mistake(wrong: object) -> None:
    with pytest.raises((OverflowError, TypeError, ValueError)):
        encode_response(ApiKey.HEARTBEAT, 1, 1, Struct(error_code=wrong))


def test_null_is_a_mistake_where_it_is_not_allowed() -> None:
    with pytest.raises(ValueError, match="error_code may not be null"):
        encode_response(ApiKey.HEARTBEAT, 1, 1, Struct(error_code=None))
    with pytest.raises(ValueError, match="group_id may not be null"):
        encode_request(ApiKey.HEARTBEAT, 4, 1, None, Struct(group_id=None))


def test_a_string_longer_than_kafka_allows_is_a_mistake() -> None:
    encode_request(ApiKey.HEARTBEAT, 4, 1, None, Struct(group_id="g" * 0x7FFF))
    for version in (3, 4):
        with pytest.raises(ValueError, match="at most 32767"):
            encode_request(ApiKey.HEARTBEAT, version, 1, None, Struct(group_id="g" * 0x8000))


def test_records_must_be_buffers() -> None:
    with pytest.raises(TypeError, match="record data"):
        encode_request(ApiKey.PRODUCE, 3, 1, None, produce_request("text"))


@pytest.mark.parametrize(
    ("api_key", "expected"),
    [
        (ApiKey.PRODUCE, (0, 13)),
        (ApiKey.FETCH, (4, 18)),
        (ApiKey.LIST_OFFSETS, (1, 11)),
        (ApiKey.METADATA, (0, 13)),
        (ApiKey.OFFSET_COMMIT, (2, 10)),
        (ApiKey.OFFSET_FETCH, (1, 10)),
        (ApiKey.JOIN_GROUP, (0, 9)),
        (ApiKey.API_VERSIONS, (0, 4)),
        (ApiKey.CREATE_TOPICS, (2, 7)),
        (ApiKey.INIT_PRODUCER_ID, (0, 5)),
        (ApiKey.SHARE_FETCH, (1, 2)),
    ],
)
def test_versions_known(api_key: ApiKey, expected: tuple[int, int]) -> None:
    assert versions(api_key) == expected


def test_every_api_number_has_both_tables() -> None:
    from penstock.wire.kafka import schema

    keys = {(kind, key) for kind, key in schema.messages() if kind != "data"}
    assert keys == {(kind, int(key)) for kind in ("request", "response") for key in ApiKey}
    for key in ApiKey:
        request, response = (schema.messages()[kind, int(key)] for kind in ("request", "response"))
        assert request.name.upper() == response.name.upper() == key.name
        assert (request.versions, request.flexible) == (response.versions, response.flexible)


def test_subscriptions_and_assignments_of_classic_groups() -> None:
    subscription = Struct(topics=["a", "b"], user_data=b"u", owned_partitions=[Struct(topic="a", partitions=[0, 2])])
    decoded = decode_subscription(encode_subscription(subscription, 1))
    assert (decoded.topics, decoded.user_data, decoded.generation_id) == (["a", "b"], b"u", -1)
    assert decoded.owned_partitions == [Struct(topic="a", partitions=[0, 2])]
    raw = encode_assignment(Struct(assigned_partitions=[Struct(topic="a", partitions=[1])]), 0)
    assert raw == b"\x00\x00" + b"\x00\x00\x00\x01\x00\x01a\x00\x00\x00\x01\x00\x00\x00\x01" + b"\xff\xff\xff\xff"
    newer = b"\x00\x63" + raw[2:] + b"what a later version adds"
    assert decode_assignment(newer).assigned_partitions == [Struct(topic="a", partitions=[1])]
    assert decode_assignment(b"").assigned_partitions == []
    for wrong in (b"\x00", b"\xff\xff\x00", raw[:-1]):
        with pytest.raises(Malformed):
            decode_assignment(wrong)
