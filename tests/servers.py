"""Servers and names that tests and fixtures make."""

import os
import re
import uuid
from collections.abc import Callable

import pytest

from penstock.testing.server import Server

TEST_SETTINGS: dict[str, object] = {
    "group_min_session_timeout_ms": 500,  # so that a lost member is missed soon
}
AGAINST_KAFKA = os.environ.get("PENSTOCK_TEST_PEER") == "kafka"

only_penstock = pytest.mark.skipif(AGAINST_KAFKA, reason="Kafka has no such door")

StartServer = Callable[..., Server]


def make_server(**settings: object) -> Server:
    if AGAINST_KAFKA:
        from kafka_peer import KafkaServer

        return KafkaServer(**settings)  # type: ignore[return-value]
    return Server(**{**TEST_SETTINGS, **settings})  # type: ignore[arg-type]


def unique_name(text: str) -> str:
    readable = re.sub(r"[^a-zA-Z0-9.-]+", "-", text).strip("-.")[:80]
    return f"{readable}-{uuid.uuid4().hex[:8]}"
