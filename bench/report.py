"""The results page: medians, ratios against Apache Kafka, and everything a reader needs to doubt them."""

import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import clients
from bench.plan import Plan

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
BASE = "kafka"

Results = dict[str, dict[str, list[dict[str, float]]]]  # by load, by peer, one dictionary of numbers a repetition
Summary = Callable[[list[float]], float]

# (load, number, what a reader calls it, unit, whether more is better)
Row = tuple[str, str, str, str, bool]
THROUGHPUT: list[Row] = [
    (f"throughput {size} B x {partitions}", f"{verb}_msg_s", f"{verb} {size} B, {partitions} part.", "msg/s", True)
    for verb in ("produce", "consume")
    for size in (100, 1000)
    for partitions in (1, 12)
]
BEST = "Throughput, best repetition"
SECTIONS: dict[str, list[Row]] = {
    "Throughput": THROUGHPUT,
    BEST: THROUGHPUT,
    "Latency, one message at a time, acks=all": [
        ("latency", "p50_ms", "p50", "ms", False),
        ("latency", "p99_ms", "p99", "ms", False),
    ],
    "Start and memory": [
        ("cold start", "ready_s", "cold start to first metadata reply", "s", False),
        ("cold start", "rss_mb", "resident after the start", "MB", False),
        ("resident after traffic", "rss_mb", "resident after all of the above", "MB", False),
        ("memory", "tenth_peak_mb", "peak while a tenth of the log below is written and read", "MB", False),
        ("memory", "whole_peak_mb", "peak while the whole log is written and read", "MB", False),
        ("memory", "restart_after_kill_s", "start after `kill -9` with that log, to ready", "s", False),
        ("memory", "restart_after_kill_answered_s", "the same, until the log tells its end", "s", False),
    ],
    "Server's processor time": [
        (
            f"throughput {size} B x {partitions}",
            f"{verb}_server_cpu_s_per_gb",
            f"{verb} {size} B, {partitions} part.",
            "s/GB",
            False,
        )
        for verb in ("produce", "consume")
        for size in (100, 1000)
        for partitions in (1, 12)
    ],
    "Many topics": [
        ("many topics", "create_s", "create them all", "s", False),
        ("many topics", "first_messages_s", "one message to every partition", "s", False),
        ("many topics", "restart_s", "restart after a clean stop, to ready", "s", False),
        ("many topics", "restart_answered_s", "the same, until every partition told its end", "s", False),
        ("many topics", "restart_after_kill_s", "restart after `kill -9`, to ready", "s", False),
        ("many topics", "restart_after_kill_answered_s", "the same, until every partition told its end", "s", False),
        ("many topics", "idle_cpu_percent", "idle", "% of a core", False),
        ("many topics", "rss_mb", "resident", "MB", False),
    ],
}
SESSION_NOTE = (
    "Of Kafka's time after `kill -9`, up to 9 s is its controller waiting for the dead broker's session to expire "
    "(`broker.session.timeout.ms`; set to 3 s, one trial of such a restart without data took 5 s instead of 12), not "
    "work on the logs."
)
NOTES = {
    "Start and memory": SESSION_NOTE,
    "Many topics": "Every partition holds one message, which is checked after each restart. " + SESSION_NOTE,
    "Throughput": "Client busy is the share of one core's time that the load generator itself used, at most over the "
    "peers: near 1 and above, the client is what was measured, and a higher number needs a bigger machine.",
    BEST: "On a virtual machine the first touch of a memory page may cost the host more than the write that needs it: "
    "a run that happens to get such pages for its page cache takes up to twice as long, whoever is measured. The best "
    "repetition of each peer is the one with the least of that.",
    "Server's processor time": "Seconds of all processes of the server, user and system, per GB of message values.",
}


def write(
    page: Path,
    plan: Plan,
    results: Results,
    versions: dict[str, str],
    facts: dict[str, Any],
    took_s: float,
) -> None:
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    page.parent.mkdir(exist_ok=True)
    numbers = {"when": when, "plan": plan.__dict__, "machine": facts, "versions": versions, "results": results}
    page.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n")
    page.write_text(render(plan, results, versions, facts, when, took_s))
    print(f"written: {page}")


def render(
    plan: Plan,
    results: Results,
    versions: dict[str, str],
    facts: dict[str, Any],
    when: str,
    took_s: float,
) -> str:
    command = "make bench" if plan.name == "full" else "python -m bench --quick"
    lines = [
        "# Benchmarks",
        "",
        f"Written by `{command}` on {when}, in {took_s / 60:.1f} minutes; the raw numbers are in `benchmarks.json`.",
        "",
        "The same client, the same machine, the same disk, one run. Medians of interleaved repetitions; in brackets",
        "the ratio to Apache Kafka. Kafka acknowledges when the operating system has the data, as Penstock does with",
        "`durability=os`; Penstock's default, `sync`, acknowledges when the disk has it. The load average at the start",
        "says whether the machine was ours alone; the spread of the repetitions is in the raw numbers.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts.items()),
        f"| client | {clients.describe()} |",
        *(f"| {name} | {version} |" for name, version in versions.items()),
        f"| volumes | {volumes(plan)} |",
    ]
    for title, rows in SECTIONS.items():
        table = section(rows, results, max if title == BEST else statistics.median)
        if table:
            lines += ["", f"## {title}", "", *table]
            if title in NOTES:
                lines += ["", NOTES[title]]
    return "\n".join(lines) + "\n"


def section(rows: list[Row], results: Results, summary: Summary) -> list[str]:
    peers = sorted({peer for load, *_ in rows for peer in results.get(load, {})})
    if not peers:
        return []
    busy = any(f"{number.split('_')[0]}_client_busy" in first(results, load) for load, number, *_ in rows)
    busy = busy and rows[0][3] == "msg/s"
    head = ["", *peers, *(["client busy"] if busy else [])]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for load, number, label, unit, _ in rows:
        values = {peer: summarised(results, load, peer, number, summary) for peer in peers}
        if not any(value is not None for value in values.values()):
            continue
        cells = [f"{label} ({unit})", *(cell(values[peer], values.get(BASE), peer) for peer in peers)]
        if busy:
            number_busy = f"{number.split('_')[0]}_client_busy"
            shares = [summarised(results, load, peer, number_busy, summary) or 0 for peer in peers]
            cells.append(f"{max(shares):.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def first(results: Results, load: str) -> dict[str, float]:
    for repetitions in results.get(load, {}).values():
        return repetitions[0]
    return {}


def summarised(results: Results, load: str, peer: str, number: str, summary: Summary) -> float | None:
    values = [repetition[number] for repetition in results.get(load, {}).get(peer, []) if number in repetition]
    return summary(values) if values else None


def cell(value: float | None, base: float | None, peer: str) -> str:
    if value is None:
        return "–"
    text = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
    return text if peer == BASE or not base else f"{text} ({value / base:.2f}x)"


def volumes(plan: Plan) -> str:
    parts = [f"{count / 1e6:,.0f} MB of {size} B" for size, count in plan.throughput_bytes.items()]
    return (
        f"{' and '.join(parts)} per throughput run, {plan.repetitions} times; {plan.latency_count} for latency; "
        f"a log of {plan.memory_bytes / 1e9:.1f} GB; {plan.topics:,} topics of {plan.partitions_per_topic} partitions"
    )


def machine_facts() -> dict[str, Any]:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return {
        "processor": f"{os.cpu_count()} x {cpu}",
        "memory": f"{memory_gb:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "java": java[0] if java else "none",
        "load average at the start": f"{os.getloadavg()[0]:.1f} (anything above 0 is somebody else's work)",
    }
