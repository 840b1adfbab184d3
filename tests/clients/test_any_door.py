"""Publish in any door, read in any other: values, keys, headers and timestamps, in order, once each."""

import time

import httpx
import pytest
from any_door_readers import READERS
from any_door_writers import SHORTLY_AGO_MS, UNKNOWN, WRITERS, Seen, Writer

from penstock.testing.server import Server
from servers import only_penstock

pytestmark = only_penstock

KEYS = [b"k1", None, "ключ".encode(), b"k1"]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
def test_from_any_door_to_any_door(server: Server, topic: str, writer: Writer, reader: str) -> None:
    assert httpx.post(f"{server.http}/v1/topics", json={"name": topic}).status_code == 201
    now_ms = int(time.time() * 1000)
    sent = [
        Seen(f"message {n}, grün".encode(), key, {"n": b"%d" % n, "who": b"a b"}, now_ms - SHORTLY_AGO_MS + n)
        for n, key in enumerate(KEYS)
    ]
    with READERS[reader](server, topic) as read:
        carried = writer(server, topic, sent)
        seen = read(len(sent))
    for taken, shown in zip(carried, seen, strict=True):
        assert shown.value == taken.value
        assert shown.key is UNKNOWN or shown.key == taken.key
        assert shown.headers is UNKNOWN or shown.headers == taken.headers
        if shown.timestamp_ms is not UNKNOWN:
            stored_ms = range(now_ms, int(time.time() * 1000) + 1)
            assert shown.timestamp_ms == taken.timestamp_ms or (
                taken.timestamp_ms is UNKNOWN and shown.timestamp_ms in stored_ms
            )
    ends = httpx.get(f"{server.http}/v1/topics/{topic}/partitions/0/records", params={"offset": len(sent)}).json()
    assert ends["records"] == []
