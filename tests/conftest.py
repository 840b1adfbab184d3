"""Servers and names for the tests that need them.

`server` is shared by all tests of a worker: use topics and groups of your own (`topic`, `group`) and leave it running.
`fresh_server` and `start_server` are yours alone, to stop, kill and configure.

The client tests must hold against Apache Kafka as well, or they test our opinion and not the protocol:
`PENSTOCK_TEST_PEER=kafka pytest tests/clients` runs them there.
"""

import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.testing.server import Server

# The client tests' helpers (`story`, `members`) serve the fault tests too.
sys.path.insert(0, str(Path(__file__).with_name("clients")))

TEST_SETTINGS: dict[str, object] = {
    "group_initial_rebalance_delay_ms": 0,  # nobody else is coming
    "group_min_session_timeout_ms": 500,  # so that a lost member is missed soon
}
AGAINST_KAFKA = os.environ.get("PENSTOCK_TEST_PEER") == "kafka"

StartServer = Callable[..., Server]


def make_server(**settings: object) -> Server:
    if AGAINST_KAFKA:
        from kafka_peer import KafkaServer

        return KafkaServer(**settings)  # type: ignore[return-value]
    return Server(**{**TEST_SETTINGS, **settings})  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with make_server() as running:
        yield running


@pytest.fixture
def fresh_server(start_server: StartServer) -> Server:
    return start_server()


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """A function that starts a server of one's own, with settings of one's own; ended with the test."""
    with ExitStack() as stack:

        def start(**settings: object) -> Server:
            running = make_server(**settings).start()
            stack.callback(running.close)
            return running

        yield start


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that nobody else uses and that still says which test it belongs to."""
    return unique_name(request.node.name)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return unique_name("group-" + request.node.name)


def unique_name(text: str) -> str:
    readable = re.sub(r"[^a-zA-Z0-9.-]+", "-", text).strip("-.")[:80]
    return f"{readable}-{uuid.uuid4().hex[:8]}"
