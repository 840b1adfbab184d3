"""Random bytes and mangled requests: each gets an answer or is closed, nothing is logged as a fault, others go on."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.app import Server
from penstock.config.kinds import Listen, Storage
from penstock.config.settings import Settings
from penstock.doors.http.door import HttpDoor
from penstock.doors.http.routing import ROUTES

WAIT_S = 20.0

METHODS = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "get", "X"])
PATHS = st.one_of(
    st.sampled_from([route.path for route in ROUTES if not route.stream and not route.socket]),
    st.text(alphabet="/{}%az09?=&.-_~", max_size=40).map(lambda text: "/" + text),
)
FILLINGS = st.sampled_from(["t", "0", "1", "queue", "%ff", "%2F", "..", "x" * 300, "-1", "__penstock_groups"])
JSON_LIKE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=10)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "records",
                    "value",
                    "key",
                    "headers",
                    "settings",
                    "receipts",
                    "offsets",
                    "topic",
                    "group",
                    "limit",
                ]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=10,
)


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[HttpDoor]:
    server = Server(
        Settings(
            data=str(tmp_path / "data"),
            storage=Storage("memory", persistent=False),
            kafka=None,
            line=None,
            udp=None,
            http=Listen("127.0.0.1", 0),
        )
    )
    await server.start()
    (opened,) = server.doors
    assert isinstance(opened, HttpDoor)
    yield opened
    await asyncio.wait_for(server.stop(), WAIT_S)


async def exchange(door: HttpDoor, sent: bytes) -> bytes:
    """Everything that comes back, after we have said all that we will say."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.listener.port)
    try:
        async with asyncio.timeout(WAIT_S):
            writer.write(sent)
            writer.write(b"\r\n\r\nGET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(sent=st.binary(max_size=300))
async def test_random_bytes(door: HttpDoor, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    door.house.heads.allowed_s = door.house.bodies.allowed_s = 0.05
    await exchange(door, sent)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert b" 200 " in await exchange(door, b"")


@FUZZ
@given(
    method=METHODS,
    path=PATHS,
    fillings=st.lists(FILLINGS, min_size=5, max_size=5),
    body=JSON_LIKE,
    cut=st.integers(0, 3),
)
async def test_requests_that_nearly_make_sense(
    door: HttpDoor,
    caplog: pytest.LogCaptureFixture,
    method: str,
    path: str,
    fillings: list[str],
    body: object,
    cut: int,
) -> None:
    door.house.heads.allowed_s = door.house.bodies.allowed_s = 0.05
    filling = iter(fillings)
    path = re.sub(r"\{\w+\}", lambda _: next(filling), path)
    content = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    received = await exchange(door, head.encode() + content[: len(content) - cut])
    assert received.startswith(b"HTTP/1.1 ") or not received
    assert b"HTTP/1.1 500" not in received
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text
