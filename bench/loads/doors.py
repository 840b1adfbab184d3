"""Penstock's other doors: HTTP, the text protocol, and server-sent events to many."""

from bench.clients.processes import ClientProcess, run
from bench.loads import fresh_name
from bench.peers.penstock import Penstock

MICRO = 1e6
SIZE_BYTES = 100
CONNECTIONS = 4
LINE_BLOCK = 500  # commands that are sent together
STEADY_RATE = 50  # messages a second, each to every subscriber
BURST = 100  # messages at once, each to every subscriber


def http_publish(peer: Penstock, *, records: int, seconds: float) -> dict[str, float]:
    connections = CONNECTIONS if records > 1 else CONNECTIONS * 4  # requests that share a sync
    return measured(peer, "http", peer.http, records, size=SIZE_BYTES, connections=connections, seconds=seconds)


def line_publish(peer: Penstock, *, seconds: float) -> dict[str, float]:
    options = {"size": SIZE_BYTES, "commands": LINE_BLOCK, "connections": CONNECTIONS, "seconds": seconds}
    return measured(peer, "line", peer.address, 0, **options)


def measured(peer: Penstock, verb: str, address: str, records: int, **options: float) -> dict[str, float]:
    topic = fresh_name(f"door-{verb}")
    cpu_before_s = peer.cpu_seconds()
    ran = run("doors", verb, address, topic, **options, **({"records": records} if records else {}))
    server_cpu_s = peer.cpu_seconds() - cpu_before_s
    run("worker", peer.client, peer.address, "drop", topic)
    sent = ran["answers"] * (records or 1)
    return {
        "records_s": sent / ran["seconds"],
        "server_us": server_cpu_s / sent * MICRO,
        "client_us": ran["client_cpu_s"] / sent * MICRO,
    }


def fan_out(peer: Penstock, *, subscribers: int, seconds: float) -> dict[str, float]:
    """The producer alone at a steady rate; the same with every subscriber there; then a burst."""
    topic = fresh_name("fan-out")
    steady = {"size": SIZE_BYTES, "seconds": seconds, "rate": STEADY_RATE, "warm_up": 0}
    alone = run("worker", peer.client, peer.address, "latency", topic, **steady)
    empty_bytes = peer.rss_bytes()
    audience = ClientProcess("subscribers", peer.http, sse_path(topic), count=subscribers).release()
    try:
        audience.hear()
        heavy_bytes = peer.rss_bytes() - empty_bytes
        cpu_before_s = peer.cpu_seconds()
        together = run("worker", peer.client, peer.address, "latency", topic, **steady)
        heard = audience.ask(str(together["messages"]))
        burst = run("worker", peer.client, peer.address, "burst", topic, size=SIZE_BYTES, count=BURST)
        all_heard = audience.ask(str(together["messages"] + BURST))
        server_cpu_s = peer.cpu_seconds() - cpu_before_s
    finally:
        audience.kill()
    return {
        "subscribers": subscribers,
        "steady_events_s": heard["events"] / (heard["ended"] - together["started"]),
        "steady_missing": heard["missing"],
        **{f"alone_{name}": alone[name] for name in ("p50_ms", "p99_ms")},
        **{f"steady_{name}": together[name] for name in ("p50_ms", "p99_ms")},
        "burst_events_s": (all_heard["events"] - heard["events"]) / (all_heard["ended"] - burst["started"]),
        "burst_missing": all_heard["missing"],
        "server_us": server_cpu_s / all_heard["events"] * MICRO,
        "rss_kb_per_subscriber": heavy_bytes / subscribers / 1000,
    }


def sse_path(topic: str) -> str:
    return f"/v1/topics/{topic}/events"
