"""Memory against the log's size: write much, read it all, and watch the server's resident memory meanwhile."""

import threading
import time
from types import TracebackType

from confluent_kafka import Consumer, TopicPartition

from bench import clients
from bench.loads import fresh_name, settle, until_answered
from bench.loads.lifecycle import timed_start
from bench.peers import Peer

SAMPLE_S = 0.02
SIZE_BYTES = 1000


class PeakMemory:
    """The highest resident memory of a peer while the block runs."""

    def __init__(self, peer: Peer) -> None:
        self.peak_bytes = 0
        self._peer = peer
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, self._peer.rss_bytes())


def memory(peer: Peer, *, volume_bytes: int) -> dict[str, float]:
    """A tenth of the volume first, then the whole: a peak that follows the log's size would show. Then `kill -9`.

    The restart is timed to the first metadata reply, and until the log has told its end offset, since a server may put
    its recovery off; then all of it is read again.
    """
    numbers: dict[str, float] = {}
    for share, name in ((0.1, "tenth"), (1.0, "whole")):
        topic = fresh_name("memory")
        count = int(volume_bytes * share) // SIZE_BYTES
        settle(peer.data)
        with PeakMemory(peer) as watch:
            clients.run("produce", peer.kafka, topic, count=count, size=SIZE_BYTES)
            clients.run("consume", peer.kafka, topic, count=count, size=SIZE_BYTES)
        numbers[f"{name}_peak_mb"] = watch.peak_bytes / 1e6
    numbers["after_mb"] = peer.rss_bytes() / 1e6
    stored = end_offset(peer, topic)
    peer.kill()
    started = time.monotonic()
    numbers["restart_after_kill_s"] = timed_start(peer)
    recovered = end_offset(peer, topic)
    numbers["restart_after_kill_answered_s"] = time.monotonic() - started
    if recovered != stored:
        raise RuntimeError(f"{peer.name}: {stored} messages before kill -9, {recovered} after it")
    clients.run("consume", peer.kafka, topic, count=stored, size=SIZE_BYTES)
    return numbers


def end_offset(peer: Peer, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": peer.kafka, "group.id": "end-offset", "log_level": 2})
    try:
        pair = TopicPartition(topic, 0)
        return int(until_answered(lambda: consumer.get_watermark_offsets(pair, timeout=60, cached=False))[1])
    finally:
        consumer.close()
