"""Starting, and what is resident before anyone has asked for anything."""

import time
from collections.abc import Callable

from bench.peers import Peer
from bench.probe import metadata_reply


def cold_start(make_peer: Callable[[], Peer]) -> dict[str, float]:
    """From the start of the process on an empty, prepared data directory to the first answer to a Metadata request."""
    peer = make_peer()
    try:
        numbers = {"ready_s": timed_start(peer)}
        numbers["rss_mb"] = peer.rss_bytes() / 1e6
    finally:
        peer.close()
    return numbers


def timed_start(peer: Peer) -> float:
    started = time.monotonic()
    peer.start()
    while not metadata_reply(peer.kafka):
        time.sleep(0.002)
    return time.monotonic() - started
