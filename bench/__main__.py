"""`python -m bench`: every load on every peer, in turns, and the results page.

Repetitions are interleaved and rotated (A, B, C, B, C, A, ...), so that whatever else the machine does meanwhile hits
all alike; the page shows medians. All peers stay up while throughput and latency are measured, which costs each of them
the others' idling; starts, memory, many topics, backlogs and fan-out are measured on one peer at a time.
"""

import argparse
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from bench import clients, report
from bench.loads import doors, queues, spark
from bench.loads.lifecycle import cold_start
from bench.loads.many_topics import many_topics
from bench.loads.memory import memory
from bench.loads.spark import FORMATS, READERS, WRITERS, SparkBench
from bench.loads.throughput import latency, throughput
from bench.loads.transactions import transactions
from bench.peers import Peer, QueuePeer, Server, redis
from bench.peers.kafka import Kafka
from bench.peers.nats import Nats, can_be_synced
from bench.peers.penstock import Penstock
from bench.peers.redis import Redis
from bench.plan import FULL, HTTP_BATCH, PARTITIONS, QUICK, SIZES_BYTES, SPARK_PARTITIONS, Plan

BACKLOG_PEERS = ("redis-everysec", "nats", "penstock-sync")

AnyPeer = TypeVar("AnyPeer", bound=Server)
Results = dict[str, dict[str, list[dict[str, float]]]]  # load -> peer -> repetitions


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure Penstock beside Apache Kafka, Redis and NATS."
    )
    parser.add_argument("--quick", action="store_true", help="about 4 minutes instead of about 20")
    parser.add_argument("--only", default="", help="loads to run, by the beginning of their names, comma-separated")
    parser.add_argument("--directory", type=Path, help="where the servers keep their data (default: the temporary one)")
    parser.add_argument("--output", type=Path, default=report.PAGE, help="the results page; the numbers go beside it")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    penstocks: dict[str, Callable[[], Penstock]] = {
        "penstock-os": lambda: Penstock("os", options.directory),
        "penstock-sync": lambda: Penstock("sync", options.directory),
    }
    makers: dict[str, Callable[[], Peer]] = {"kafka": lambda: Kafka(options.directory), **penstocks}
    queue_makers: dict[str, Callable[[], QueuePeer]] = {
        **{mode: lambda mode=mode: Redis(mode, options.directory) for mode in redis.MODES},
        "nats": lambda: Nats("nats", options.directory),
        **penstocks,
    }
    if can_be_synced(options.directory):
        queue_makers["nats-synced"] = lambda: Nats("nats-synced", options.directory)
    wanted = tuple(options.only.split(",")) if options.only else ("",)
    facts = report.machine_facts()
    started = time.monotonic()
    results: Results = defaultdict(lambda: defaultdict(list))
    run_starts(plan, makers, results, wanted)
    run_traffic(plan, makers, results, wanted)
    run_alone(alone_loads(plan), makers, results, wanted)
    run_queues(plan, queue_makers, results, wanted)
    run_alone(backlog_loads(plan), {name: queue_makers[name] for name in BACKLOG_PEERS}, results, wanted)
    run_doors(plan, penstocks, results, wanted)
    run_alone(fan_out_loads(plan), penstocks, results, wanted)
    run_spark(plan, options.directory, results, wanted)
    measured = {peer for peers in results.values() for peer in peers}
    versions = {name: version_of(make) for name, make in {**makers, **queue_makers}.items() if name in measured}
    if measured & set(READERS):
        versions["Spark"] = spark.describe()
        versions |= {name: version_of(makers[name]) for name in ("kafka", "penstock-os")}
    report.write(options.output, plan, results, versions, facts, time.monotonic() - started, options.only)


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
    loads["transactions"] = lambda peer: transactions(peer, count=plan.transactions)
    loads = {name: load for name, load in loads.items() if name.startswith(wanted)}
    if not loads:
        return
    clients.build()
    with all_started(makers) as peers:
        for peer in peers.values():
            throughput(peer, size_bytes=100, partitions=12, count=plan.warm_up_bytes // 100)
            latency(peer, count=plan.latency_count)
        in_turns(loads, peers, plan.repetitions, results)
        for name, peer in peers.items():
            note(results, "resident after traffic", name, {"rss_mb": peer.rss_bytes() / 1e6})


def run_queues(
    plan: Plan, makers: dict[str, Callable[[], QueuePeer]], results: Results, wanted: tuple[str, ...]
) -> None:
    loads: dict[str, Callable[[QueuePeer], dict[str, float]]] = {}
    for size_bytes in SIZES_BYTES:
        loads[f"queue {size_bytes} B"] = lambda peer, s=size_bytes: queues.throughput(
            peer, size_bytes=s, seconds=plan.queue_s
        )
    loads["queue both 100 B"] = lambda peer: queues.end_to_end(peer, size_bytes=100, count=plan.queue_both_count)
    loads["queue latency"] = lambda peer: queues.latency(peer, seconds=plan.queue_latency_s)
    loads = {name: load for name, load in loads.items() if name.startswith(wanted)}
    if loads:
        with all_started(makers) as peers:
            in_turns(loads, peers, plan.queue_repetitions, results)


def run_doors(plan: Plan, makers: dict[str, Callable[[], Penstock]], results: Results, wanted: tuple[str, ...]) -> None:
    loads: dict[str, Callable[[Penstock], dict[str, float]]] = {
        "door http batch": lambda peer: doors.http_publish(peer, records=HTTP_BATCH, seconds=plan.doors_s),
        "door http single": lambda peer: doors.http_publish(peer, records=1, seconds=plan.doors_s),
        "door line": lambda peer: doors.line_publish(peer, seconds=plan.doors_s),
    }
    loads = {name: load for name, load in loads.items() if name.startswith(wanted)}
    if loads:
        with all_started(makers) as peers:
            in_turns(loads, peers, plan.queue_repetitions, results)


def run_spark(plan: Plan, directory: Path | None, results: Results, wanted: tuple[str, ...]) -> None:
    """One Spark session and two servers; the readers and writers take turns on the same topics."""
    if not any(f"spark {what}".startswith(wanted) for what in ("batch", "stream", "sink")):
        return
    with contextlib.ExitStack() as stack:
        kafka, penstock = Kafka(directory), Penstock("os", directory)
        for server in (kafka, penstock):
            stack.callback(server.close)
            server.start()
        bench = SparkBench(kafka, penstock)
        stack.callback(bench.close)
        topics: dict[str, tuple[str, int]] = {}
        for size_bytes, count in plan.spark_rows.items():
            for partitions in SPARK_PARTITIONS:
                name = f"bench-{size_bytes}-{partitions}"
                bench.fill(name, size_bytes=size_bytes, partitions=partitions, count=count)
                topics[f"{size_bytes} B x {partitions}"] = (name, count)
        for reader in READERS:  # the JVM and the workers' imports, once
            bench.read_batch(reader, *topics["100 B x 8"])
        for label, (topic, count) in topics.items():
            for repetition in range(plan.spark_repetitions):
                for reader in rotated(list(READERS), repetition):
                    note(results, f"spark batch {label}", reader, bench.read_batch(reader, topic, count))
                for reader in rotated([r for r in READERS if r != "penstock-direct"], repetition):
                    note(results, f"spark stream {label}", reader, bench.read_stream(reader, topic, count))
        for size_bytes, count in plan.spark_rows.items():
            for repetition in range(plan.spark_repetitions):
                for writer in rotated(list(WRITERS), repetition):
                    numbers = bench.write_batch(writer, size_bytes=size_bytes, partitions=8, count=count)
                    note(results, f"spark sink {size_bytes} B x 8", writer, numbers)
        for format_name in FORMATS:
            note(
                results,
                f"spark backfill {format_name}",
                "penstock",
                bench.backfill(format_name, count=plan.backfill_rows),
            )


@contextlib.contextmanager
def all_started(makers: dict[str, Callable[[], AnyPeer]]) -> Iterator[dict[str, AnyPeer]]:
    peers: dict[str, AnyPeer] = {}
    try:
        for name, make in makers.items():
            peers[name] = make()
            peers[name].start()
        yield peers
    finally:
        for peer in peers.values():
            peer.close()


def in_turns(
    loads: dict[str, Callable[[AnyPeer], dict[str, float]]],
    peers: dict[str, AnyPeer],
    repetitions: int,
    results: Results,
) -> None:
    for load_name, load in loads.items():
        for repetition in range(repetitions):
            for name in rotated(list(peers), repetition):
                note(results, load_name, name, load(peers[name]))


def alone_loads(plan: Plan) -> dict[str, Callable[[Peer], dict[str, float]]]:
    return {
        "memory": lambda peer: memory(peer, volume_bytes=plan.memory_bytes),
        "many topics": lambda peer: many_topics(
            peer,
            topics=plan.topics,
            partitions=plan.partitions_per_topic,
            settle_s=plan.settle_s,
            idle_window_s=plan.idle_window_s,
        ),
    }


def backlog_loads(plan: Plan) -> dict[str, Callable[[QueuePeer], dict[str, float]]]:
    return {"queue backlog": lambda peer: queues.backlog(peer, size_bytes=100, count=plan.backlog_count)}


def fan_out_loads(plan: Plan) -> dict[str, Callable[[Penstock], dict[str, float]]]:
    return {"fan-out": lambda peer: doors.fan_out(peer, subscribers=plan.subscribers, seconds=plan.fan_out_s)}


def run_alone(
    loads: dict[str, Callable[[AnyPeer], dict[str, float]]],
    makers: dict[str, Callable[[], AnyPeer]],
    results: Results,
    wanted: tuple[str, ...],
) -> None:
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


def version_of(make: Callable[[], Server]) -> str:
    peer = make()
    try:
        return peer.version()
    finally:
        peer.close()


if __name__ == "__main__":
    main()
