"""Publishing over HTTP, in every form it takes, and that what went in comes out the same."""

import json

import httpx
import pytest

from penstock.model.batch import decode_batch, encode_batch, walk
from penstock.model.record import Record

BATCH = "application/vnd.penstock.batch"
LINES = "application/x-ndjson"
BYTES = "application/octet-stream"


def records_of(http: httpx.Client, topic: str, partition: int = 0) -> list[dict[str, object]]:
    answer = http.get(f"/v1/topics/{topic}/partitions/{partition}/records", params={"max_records": 10_000})
    assert answer.status_code == 200, answer.text
    records: list[dict[str, object]] = answer.json()["records"]
    return records


def publish(http: httpx.Client, topic: str, body: object, **more: object) -> list[tuple[int, int]]:
    answer = http.post(f"/v1/topics/{topic}/records", json=body, **more)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    assert answer.json()["topic"] == topic
    return [(each["partition"], each["offset"]) for each in answer.json()["offsets"]]


@pytest.mark.parametrize(
    "value",
    [
        "text", "", "quotes \" and \\ and \n lines", "snow ☃ and 🙂", "\u0000", {"a": [1, 2.5, None, True]}, [], {}, 0,
        -1.5, True, False, None, {"base64": "AP8="}, {"base64": "AP8=", "and": "more"},
        {"nested": {"base64": "AP8="}}, "null", "12",
    ],
)  # fmt: skip
def test_a_value_comes_back_as_it_went_in(http: httpx.Client, topic: str, value: object) -> None:
    assert publish(http, topic, {"value": value}) == [(0, 0)]
    (record,) = records_of(http, topic)
    assert record["value"] == value
    assert type(record["value"]) is type(value)


def test_everything_about_a_record_comes_back(http: httpx.Client, topic: str) -> None:
    given = {
        "key": "clé",
        "value": "v",
        "headers": {"a": "1", "b": {"base64": "/w=="}, "c": None},
        "timestamp_ms": 1_700_000_000_000,
    }
    publish(http, topic, given)
    publish(http, topic, {"value": "v", "key": {"base64": "/w=="}, "headers": [["a", "1"], ["a", "2"]]})
    first, second = records_of(http, topic)
    assert first == {"partition": 0, "offset": 0, **given}
    assert (second["key"], second["headers"]) == ({"base64": "/w=="}, [["a", "1"], ["a", "2"]])
    assert isinstance(second["timestamp_ms"], int) and second["timestamp_ms"] > 1_700_000_000_000


def test_steering_becomes_headers_that_every_door_can_set(http: httpx.Client, topic: str) -> None:
    publish(http, topic, {"value": "v", "priority": 9, "delay_ms": 5, "deliver_at_ms": 6, "ttl_ms": 7})
    (record,) = records_of(http, topic)
    assert record["headers"] == {
        "penstock-delay-ms": "5",
        "penstock-deliver-at-ms": "6",
        "penstock-priority": "9",
        "penstock-ttl-ms": "7",
    }


def test_a_batch_keeps_its_order_and_is_answered_record_by_record(http: httpx.Client, topic: str) -> None:
    values = [f"value {n}" for n in range(1_000)]
    placed = publish(http, topic, {"records": [{"value": value} for value in values]})
    assert placed == [(0, n) for n in range(1_000)]
    assert [record["value"] for record in records_of(http, topic)] == values
    assert publish(http, topic, {"records": []}) == []


def test_records_choose_their_partitions(http: httpx.Client, topic: str) -> None:
    http.post("/v1/topics", json={"name": topic, "partitions": 4})
    chosen = [{"value": str(p), "partition": p} for p in (3, 0, 3, 1)]
    assert publish(http, topic, {"records": chosen}) == [(3, 0), (0, 0), (3, 1), (1, 0)]
    keyed = publish(http, topic, {"records": [{"key": "same", "value": str(n)} for n in range(5)]})
    assert len({partition for partition, _ in keyed}) == 1
    assert publish(http, topic, {"value": "x"}, params={"partition": 2}) == [
        (2, keyed[-1][1] + 1 if keyed[0][0] == 2 else 0)
    ]
    nowhere = http.post(f"/v1/topics/{topic}/records", json={"value": "x", "partition": 4})
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "UnknownPartition")


def test_lines_of_json(http: httpx.Client, topic: str) -> None:
    body = b'{"value": "one"}\n\n{"value": {"two": 2}, "key": "k"}\n{"value": "three"}'
    answer = http.post(f"/v1/topics/{topic}/records", content=body, headers={"content-type": LINES})
    assert [each["offset"] for each in answer.json()["offsets"]] == [0, 1, 2]
    assert [(r["key"], r["value"]) for r in records_of(http, topic)] == [
        (None, "one"),
        ("k", {"two": 2}),
        (None, "three"),
    ]
    broken = http.post(
        f"/v1/topics/{topic}/records", content=b'{"value": 1}\n{"valu": 2}\n', headers={"content-type": LINES}
    )
    assert broken.status_code == 400
    assert "line 2" in broken.json()["detail"]
    assert len(records_of(http, topic)) == 3


def test_plain_bytes_are_one_value(http: httpx.Client, topic: str) -> None:
    answer = http.post(
        f"/v1/topics/{topic}/records",
        content=b"\x00\xffraw",
        headers={"content-type": BYTES},
        params={"key": "k", "header": ["a:1", "b:x:y"], "timestamp_ms": 5, "priority": 2},
    )
    assert answer.status_code == 200
    (record,) = records_of(http, topic)
    assert record["value"] == {"base64": "AP9yYXc="}
    assert record["headers"] == {"a": "1", "b": "x:y", "penstock-priority": "2"}
    assert (record["key"], record["timestamp_ms"]) == ("k", 5)


def test_ready_made_batches_go_in_and_out_as_they_are(http: httpx.Client, topic: str) -> None:
    records = [Record(n, 1_700_000_000_000 + n, b"k%d" % n, b"v%d" % n, (("h", b"\xff"),)) for n in range(10)]
    batch = bytes(encode_batch(records))
    kind = {"content-type": BATCH}
    answer = http.post(f"/v1/topics/{topic}/records", content=batch + batch, headers=kind)
    assert [each["offset"] for each in answer.json()["offsets"]] == list(range(20))
    stored = http.get(f"/v1/topics/{topic}/partitions/0/records", headers={"accept": BATCH})
    assert (stored.headers["content-type"], stored.headers["penstock-next-offset"]) == (BATCH, "20")
    opened = [record for header in walk(stored.content) for record in decode_batch(stored.content, header.position)]
    assert [record.offset for record in opened] == list(range(20))
    assert [(r.key, r.value, r.headers, r.timestamp_ms) for r in opened[10:]] == [
        (r.key, r.value, r.headers, r.timestamp_ms) for r in records
    ]
    for broken in (batch[:-1], batch[:60], b"x" * 100, bytes([*batch[:80], batch[80] ^ 1, *batch[81:]])):
        refused = http.post(f"/v1/topics/{topic}/records", content=broken, headers=kind)
        assert (refused.status_code, refused.json()["code"]) == (400, "CorruptBatch"), broken[:20]
    assert len(records_of(http, topic)) == 20


def test_an_idempotency_key_stores_once_and_answers_the_same(http: httpx.Client, topic: str) -> None:
    body = {"records": [{"value": "a"}, {"value": "b"}]}
    once = publish(http, topic, body, headers={"idempotency-key": "order 1"})
    assert publish(http, topic, body, headers={"idempotency-key": "order 1"}) == once
    assert publish(http, topic, body, headers={"idempotency-key": "order 2"}) == [(0, 2), (0, 3)]
    assert len(records_of(http, topic)) == 4


def test_a_named_producer_stores_each_number_once(http: httpx.Client, topic: str) -> None:
    def produce(sequence: int, value: str) -> tuple[int, int]:
        answer = http.post(
            "/v1/produce", json={"topic": topic, "producer": "till-3", "sequence": sequence, "value": value}
        )
        assert answer.status_code == 200, answer.text
        (place,) = answer.json()["offsets"]
        return place["partition"], place["offset"]

    first, second = produce(1, "one"), produce(2, "two")
    assert (produce(2, "two"), produce(1, "one")) == (second, first)
    assert produce(10, "ten") == (0, 2)
    assert [record["value"] for record in records_of(http, topic)] == ["one", "two", "ten"]


def test_what_identifies_a_producer_must_be_whole(http: httpx.Client, topic: str) -> None:
    for body, headers in (
        ({"value": "x", "producer": "p"}, {}),
        ({"value": "x", "sequence": 1}, {}),
        ({"value": "x", "sequence": 1, "producer": "p"}, {"idempotency-key": "k"}),
    ):
        refused = http.post(f"/v1/topics/{topic}/records", json=body, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (400, "InvalidRequest")


@pytest.mark.parametrize(("acks", "status"), [("none", 202), ("leader", 200), ("all", 200)])
def test_acks_choose_what_is_waited_for(http: httpx.Client, topic: str, acks: str, status: int) -> None:
    answer = http.post(f"/v1/topics/{topic}/records", json={"value": "x"}, params={"acks": acks})
    assert answer.status_code == status
    assert [each["offset"] for each in answer.json()["offsets"]] == [-1 if acks == "none" else 0]
    assert publish(http, topic, {"value": "after"}) == [(0, 1)]  # it is there, acknowledged or not


def test_a_compacted_topic_refuses_what_has_no_key(http: httpx.Client, topic: str) -> None:
    http.post("/v1/topics", json={"name": topic, "settings": {"cleanup.policy": "compact"}})
    refused = http.post(f"/v1/topics/{topic}/records", json={"value": "x"})
    assert (refused.status_code, refused.json()["code"]) == (422, "InvalidRecord")
    assert publish(http, topic, {"value": None, "key": "k"}) == [(0, 0)]


def test_a_record_larger_than_its_topic_takes(http: httpx.Client, topic: str) -> None:
    http.post("/v1/topics", json={"name": topic, "settings": {"max.message.bytes": 1000}})
    refused = http.post(f"/v1/topics/{topic}/records", json={"value": "x" * 2000})
    assert (refused.status_code, refused.json()["code"]) == (413, "RecordTooLarge")


def test_json_of_another_door_is_believed_only_where_it_is_json(http: httpx.Client, topic: str) -> None:
    kind = {"content-type": "application/json"}
    bodies = [{"value": '{"a": 1}', "headers": kind}, {"value": "{not json", "headers": kind}]
    publish(http, topic, {"records": [*bodies, {"value": json.dumps({"a": 1}, indent=1), "headers": kind}]})
    assert [record["value"] for record in records_of(http, topic)] == [{"a": 1}, "{not json", {"a": 1}]
