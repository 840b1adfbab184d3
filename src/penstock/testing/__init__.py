"""What a test of one's own needs: a broker for as long as it runs, and things that go wrong on purpose.

    from penstock.testing import Server

    def test_an_order_is_stored():
        with Server() as server, server.sync_client() as client:
            assert client.publish("orders", {"order_id": 101}).offset == 0

As a fixture, shared by all tests of a session:

    @pytest.fixture(scope="session")
    def server():
        with Server() as running:
            yield running
"""

from penstock.testing.proxy import Proxy
from penstock.testing.server import Server, ServerFailed

__all__ = ["Proxy", "Server", "ServerFailed"]
