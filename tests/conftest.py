"""Servers and names for the tests that need them.

`server` is shared by all tests of a worker: use topics and groups of your own (`topic`, `group`) and leave it running.
`fresh_server` and `start_server` are yours alone, to stop, kill and configure.

The client tests must hold against Apache Kafka as well, or they test our opinion and not the protocol:
`PENSTOCK_TEST_PEER=kafka pytest tests/clients` runs them there.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from penstock.testing.server import Server
from servers import StartServer, make_server, unique_name

# The client tests' helpers (`story`, `members`) serve the fault tests too.
sys.path.insert(0, str(Path(__file__).with_name("clients")))

# A run in the background begins with Ctrl-C ignored, and all that it starts would be deaf to it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With `--dist loadgroup` one worker runs all that Spark is needed for, so that there is one session of it."""
    return OneSpark(config, log) if config.getvalue("dist") == "loadgroup" else None


class OneSpark(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(("tests/pipeline/", "tests/cli/test_cli_pipeline_runs")) else nodeid


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
