"""Penstock's other doors: HTTP, the text protocol, and server-sent events to many."""

from bench.clients.processes import ClientProcess, run
from bench.loads import fresh_name
from bench.peers.penstock import Penstock

MICRO = 1e6
SIZE_BYTES = 100
CONNECTIONS = 4
LINE_BLOCK = 500  # commands that are sent together
STEADY_RATE = 20  # messages a second, each to every subscriber
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
    """A producer alone, then with every subscriber there: at a steady rate, as fast as it gets its answers, at once."""
    topic = fresh_name("fan-out")
    pace = {"size": SIZE_BYTES, "seconds": seconds, "warm_up": 0}

    def publish(rate: int) -> dict[str, float]:
        return run("worker", peer.client, peer.address, "latency", topic, **pace, rate=rate)

    alone, alone_fast = publish(STEADY_RATE), publish(0)
    empty_bytes = peer.rss_bytes()
    audience = ClientProcess("subscribers", peer.http, sse_path(topic), count=subscribers).release()
    try:
        audience.hear()
        heavy_bytes = peer.rss_bytes() - empty_bytes
        cpu_before_s = peer.cpu_seconds()
        steady = publish(STEADY_RATE)
        heard = audience.ask(str(steady["messages"]))
        steady_cpu_s = peer.cpu_seconds() - cpu_before_s
        fast = publish(0)
        heard_fast = audience.ask(str(steady["messages"] + fast["messages"]))
        burst = run("worker", peer.client, peer.address, "burst", topic, size=SIZE_BYTES, count=BURST)
        heard_all = audience.ask(str(steady["messages"] + fast["messages"] + BURST))
    finally:
        audience.kill()
    return {
        "subscribers": subscribers,
        "steady_events_s": heard["events"] / (heard["ended"] - steady["started"]),
        "steady_server_us": steady_cpu_s / heard["events"] * MICRO,
        **{f"alone_{name}": alone[name] for name in ("p50_ms", "p99_ms")},
        **{f"steady_{name}": steady[name] for name in ("p50_ms", "p99_ms")},
        "alone_msg_s": alone_fast["messages"] / alone_fast["seconds"],
        "fast_msg_s": fast["messages"] / fast["seconds"],
        "fast_events_s": (heard_fast["events"] - heard["events"]) / (heard_fast["ended"] - fast["started"]),
        "burst_events_s": (heard_all["events"] - heard_fast["events"]) / (heard_all["ended"] - burst["started"]),
        "missing": heard_all["missing"],
        "rss_kb_per_subscriber": heavy_bytes / subscribers / 1000,
    }


def sse_path(topic: str) -> str:
    return f"/v1/topics/{topic}/events"
