"""`python -m bench`: every load on every peer, in turns, and the results page.

Repetitions are interleaved and rotated (A, B, C, B, C, A, ...), so that whatever else the machine does meanwhile hits
all alike; the page shows medians. All peers stay up while throughput and latency are measured, which costs each of them
the others' idling; starts, memory and many topics are measured on one peer at a time.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from bench import clients, report
from bench.loads.lifecycle import cold_start
from bench.loads.many_topics import many_topics
from bench.loads.memory import memory
from bench.loads.throughput import latency, throughput
from bench.peers import Peer
from bench.peers.kafka import Kafka
from bench.peers.penstock import Penstock
from bench.plan import FULL, PARTITIONS, QUICK, SIZES_BYTES, Plan

Results = dict[str, dict[str, list[dict[str, float]]]]  # load -> peer -> repetitions


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Penstock beside Apache Kafka.")
    parser.add_argument("--quick", action="store_true", help="about 3 minutes instead of about 15")
    parser.add_argument("--only", default="", help="loads to run, by the beginning of their names, comma-separated")
    parser.add_argument("--directory", type=Path, help="where the servers keep their data (default: the temporary one)")
    parser.add_argument("--output", type=Path, default=report.PAGE, help="the results page; the numbers go beside it")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    makers: dict[str, Callable[[], Peer]] = {
        "kafka": lambda: Kafka(options.directory),
        "penstock-os": lambda: Penstock("os", options.directory),
        "penstock-sync": lambda: Penstock("sync", options.directory),
    }
    wanted = tuple(options.only.split(",")) if options.only else ("",)
    clients.build()
    facts = report.machine_facts()
    started = time.monotonic()
    results: Results = defaultdict(lambda: defaultdict(list))
    run_starts(plan, makers, results, wanted)
    run_traffic(plan, makers, results, wanted)
    run_alone(plan, makers, results, wanted)
    versions = {name: version_of(make) for name, make in makers.items()}
    report.write(options.output, plan, results, versions, facts, time.monotonic() - started)


def note(results: Results, load: str, peer: str, numbers: dict[str, float]) -> None:
    results[load][peer].append(numbers)
    print(f"{load:28} {peer:14} " + "  ".join(f"{name}={value:,.2f}" for name, value in numbers.items()), flush=True)


def rotated(names: list[str], by: int) -> list[str]:
    """Another one first each time: nobody always follows the same neighbour and cleans up after it."""
    by %= len(names)
    return names[by:] + names[:by]


def run_starts(plan: Plan, makers: dict[str, Callable[[], Peer]], results: Results, wanted: tuple[str, ...]) -> None:
    if "cold start".startswith(wanted):
        for repetition in range(plan.cold_starts):
            for name in rotated(list(makers), repetition):
                note(results, "cold start", name, cold_start(makers[name]))


def run_traffic(plan: Plan, makers: dict[str, Callable[[], Peer]], results: Results, wanted: tuple[str, ...]) -> None:
    loads: dict[str, Callable[[Peer], dict[str, float]]] = {}
    for size_bytes in SIZES_BYTES:
        for partitions in PARTITIONS:
            count = plan.throughput_bytes[size_bytes] // size_bytes
            loads[f"throughput {size_bytes} B x {partitions}"] = lambda peer, s=size_bytes, p=partitions, c=count: (
                throughput(peer, size_bytes=s, partitions=p, count=c)
            )
    loads["latency"] = lambda peer: latency(peer, count=plan.latency_count)
    loads = {name: load for name, load in loads.items() if name.startswith(wanted)}
    if not loads:
        return
    peers = {name: make() for name, make in makers.items()}
    try:
        for peer in peers.values():
            peer.start()
            throughput(peer, size_bytes=100, partitions=12, count=plan.warm_up_bytes // 100)
            latency(peer, count=plan.latency_count)
        for load_name, load in loads.items():
            for repetition in range(plan.repetitions):
                for name in rotated(list(peers), repetition):
                    note(results, load_name, name, load(peers[name]))
        for name, peer in peers.items():
            note(results, "resident after traffic", name, {"rss_mb": peer.rss_bytes() / 1e6})
    finally:
        for peer in peers.values():
            peer.close()


def run_alone(plan: Plan, makers: dict[str, Callable[[], Peer]], results: Results, wanted: tuple[str, ...]) -> None:
    loads: dict[str, Callable[[Peer], dict[str, float]]] = {
        "memory": lambda peer: memory(peer, volume_bytes=plan.memory_bytes),
        "many topics": lambda peer: many_topics(
            peer,
            topics=plan.topics,
            partitions=plan.partitions_per_topic,
            settle_s=plan.settle_s,
            idle_window_s=plan.idle_window_s,
        ),
    }
    for load_name, load in loads.items():
        if not load_name.startswith(wanted):
            continue
        for name, make in makers.items():
            peer = make()
            try:
                peer.start()
                note(results, load_name, name, load(peer))
            finally:
                peer.close()


def version_of(make: Callable[[], Peer]) -> str:
    peer = make()
    try:
        return peer.version()
    finally:
        peer.close()


if __name__ == "__main__":
    main()
