"""The fields of a topic's values, inferred for SQL: what is no document among them says nothing."""

import pytest

from penstock.pipeline.errors import SchemaMismatch
from penstock.pipeline.views import infer
from penstock.testing.server import Server

DEEP = b'{"id": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"  # it would end the process, were it given to Arrow
NO_OBJECTS = [b'{"id": "broken', b"\xff\xfe", b"[1]", b"7", b'{"id": NaN}', DEEP]


def test_values_that_are_no_objects_are_passed_over(server: Server, topic: str) -> None:
    with server.sync_client() as client:
        client.publish_many(topic, [*NO_OBJECTS, b'{"id": 1,\n "at": "2026-11-15T10:00:00Z"}', b'{"id": 2}'])
    assert infer(server.line, topic) == "`id` BIGINT, `at` TIMESTAMP"


def test_topic_without_any_object_has_no_fields(server: Server, topic: str) -> None:
    with server.sync_client() as client:
        client.publish_many(topic, NO_OBJECTS)
    with pytest.raises(SchemaMismatch, match="are no JSON objects"):
        infer(server.line, topic)
