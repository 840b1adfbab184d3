"""Queue work: in, out, both at once, one at a time, and a backlog that waits.

Every peer gets the same messages through the Python client that its users would take. Processor time is that of the
server and of the client, per message; a client that needs more of it than the server does is what limits the rate.
"""

import time

from bench.clients.processes import ClientProcess, run
from bench.loads import fresh_name
from bench.peers import QueuePeer

MICRO = 1e6


def throughput(peer: QueuePeer, *, size_bytes: int, seconds: float) -> dict[str, float]:
    """As many messages in as go in the time, then all of them out, each taken and settled."""
    queue = made_queue(peer)
    cpu_before_s = peer.cpu_seconds()
    published = run("worker", peer.client, peer.address, "publish", queue, size=size_bytes, seconds=seconds)
    cpu_between_s = peer.cpu_seconds()
    worked = run("worker", peer.client, peer.address, "work", queue, count=published["messages"])
    cpu_after_s = peer.cpu_seconds()
    check(peer, published, worked)
    run("worker", peer.client, peer.address, "drop", queue)
    return {
        **rates("publish", published, cpu_between_s - cpu_before_s),
        **rates("work", worked, cpu_after_s - cpu_between_s),
    }


def latency(peer: QueuePeer, *, seconds: float) -> dict[str, float]:
    """One message of 100 bytes at a time, each acknowledged before the next."""
    queue = made_queue(peer)
    ran = run("worker", peer.client, peer.address, "latency", queue, size=100, seconds=seconds)
    run("worker", peer.client, peer.address, "drop", queue)
    return {name: ran[name] for name in ("p50_ms", "p99_ms")}


def end_to_end(peer: QueuePeer, *, size_bytes: int, count: int) -> dict[str, float]:
    """A producer and a worker at the same time, from the first publish to the last settle."""
    queue = made_queue(peer)
    worker = ClientProcess("worker", peer.client, peer.address, "work", queue, count=count)
    try:
        producer = ClientProcess("worker", peer.client, peer.address, "publish", queue, size=size_bytes, count=count)
        cpu_before_s = peer.cpu_seconds()
        worker.release()
        try:
            published = producer.release().end()
        except BaseException:
            producer.kill()
            raise
        worked = worker.end()
    except BaseException:
        worker.kill()
        raise
    server_cpu_s = peer.cpu_seconds() - cpu_before_s
    check(peer, published, worked)
    run("worker", peer.client, peer.address, "drop", queue)
    both = {
        "messages": count,
        "seconds": worked["ended"] - published["started"],
        "client_cpu_s": published["client_cpu_s"] + worked["client_cpu_s"],
    }
    return rates("both", both, server_cpu_s)


def backlog(peer: QueuePeer, *, size_bytes: int, count: int) -> dict[str, float]:
    """What so many waiting messages weigh, and how long a restart takes until a consumer has the first of them."""
    queue = made_queue(peer)
    empty_bytes = peer.rss_bytes()
    run("worker", peer.client, peer.address, "publish", queue, size=size_bytes, count=count)
    run("worker", peer.client, peer.address, "work", queue, count=1)  # so that the queue has looked at what waits
    numbers = {"rss_bytes_per_message": (peer.rss_bytes() - empty_bytes) / count, "rss_mb": peer.rss_bytes() / 1e6}
    peer.stop()
    consumer = ClientProcess("worker", peer.client, peer.address, "work", queue, count=1)
    try:
        started = time.monotonic()
        peer.start()
        numbers["restart_s"] = time.monotonic() - started
        consumer.release()
        numbers["first_delivery_s"] = consumer.end()["ended"] - started
    except BaseException:
        consumer.kill()
        raise
    numbers["restarted_rss_mb"] = peer.rss_bytes() / 1e6
    return numbers


def made_queue(peer: QueuePeer) -> str:
    queue = fresh_name("queue")
    run("worker", peer.client, peer.address, "make", queue)
    return queue


def check(peer: QueuePeer, published: dict[str, float], worked: dict[str, float]) -> None:
    if published["sum"] != worked["sum"]:
        raise RuntimeError(f"{peer.name}: what was taken from the queue is not what was published")


def rates(verb: str, ran: dict[str, float], server_cpu_s: float) -> dict[str, float]:
    return {
        f"{verb}_msg_s": ran["messages"] / ran["seconds"],
        f"{verb}_server_us": server_cpu_s / ran["messages"] * MICRO,
        f"{verb}_client_us": ran["client_cpu_s"] / ran["messages"] * MICRO,
    }
