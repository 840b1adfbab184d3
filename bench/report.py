"""The results page: medians, ratios against Apache Kafka, and everything a reader needs to doubt them."""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from bench import clients
from bench.plan import Plan
from bench.sections import SECTIONS, Section, Summary

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"

Results = dict[str, dict[str, list[dict[str, float]]]]  # by load, by peer, one dictionary of numbers a repetition


def write(
    page: Path,
    plan: Plan,
    results: Results,
    versions: dict[str, str],
    facts: dict[str, Any],
    took_s: float,
    only: str = "",
) -> None:
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    page.parent.mkdir(exist_ok=True)
    numbers = {
        "when": when,
        "only": only,
        "took_s": took_s,
        "plan": plan.__dict__,
        "machine": facts,
        "versions": versions,
        "results": results,
    }
    page.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n")
    page.write_text(render(plan, results, versions, facts, when, took_s, only, page.with_suffix(".json").name))
    print(f"written: {page}")


def render(
    plan: Plan,
    results: Results,
    versions: dict[str, str],
    facts: dict[str, Any],
    when: str,
    took_s: float,
    only: str = "",
    numbers: str = PAGE.with_suffix(".json").name,
) -> str:
    command = "python -m bench" + (" --quick" if plan.name == "quick" else "") + (f" --only {only}" if only else "")
    if command == "python -m bench":
        command = "make bench"
    lines = [
        "# Benchmarks" + (f": {only}" if only else ""),
        "",
        f"Written by `{command}` on {when}, in {took_s / 60:.1f} minutes; the raw numbers are in `{numbers}`.",
        "",
        "The same work, the same machine, the same disk, one run. Medians of interleaved repetitions; in brackets the",
        "ratio to the first column. Kafka acknowledges when the operating system has the data, as Penstock does with",
        "`durability=os`; Penstock's default, `sync`, acknowledges when the disk has it. The load average at the start",
        "says whether the machine was ours alone; the spread of the repetitions is in the raw numbers.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts.items()),
        f"| Kafka's client | {clients.describe()} |",
        f"| queues' clients | {queue_clients()} |",
        *(f"| {name} | {version} |" for name, version in versions.items()),
        f"| volumes | {volumes(plan) if not only.startswith('spark') else spark_volumes(plan)} |",
    ]
    for section in SECTIONS:
        table = render_table(section, results)
        if table:
            lines += ["", f"## {section.title}", "", *table]
            if section.note:
                lines += ["", section.note]
    return "\n".join(lines) + "\n"


def render_table(section: Section, results: Results) -> list[str]:
    measured = {peer for load, *_ in section.rows for peer in results.get(load, {})}
    peers = [peer for peer in section.peers or sorted(measured) if peer in measured]
    if not peers:
        return []
    rows = section.rows
    busy = any(f"{number.split('_')[0]}_client_busy" in first(results, load) for load, number, *_ in rows)
    busy = busy and rows[0][3] == "msg/s"
    head = ["", *peers, *(["client busy"] if busy else [])]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for load, number, label, unit in rows:
        values = {peer: summarised(results, load, peer, number, section.summary) for peer in peers}
        if not any(value is not None for value in values.values()):
            continue
        base = values.get(section.base) if section.base else None
        cells = [f"{label} ({unit})", *(cell(values[peer], base, peer == section.base, unit) for peer in peers)]
        if busy:
            number_busy = f"{number.split('_')[0]}_client_busy"
            shares = [summarised(results, load, peer, number_busy, section.summary) or 0 for peer in peers]
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


def cell(value: float | None, base: float | None, is_base: bool, unit: str) -> str:
    if value is None:
        return "–"
    text = f"{value:,.0f}" if value >= 100 or unit == "count" else f"{value:.2f}"
    return text if is_base or not base else f"{text} ({value / base:.2f}x)"


def volumes(plan: Plan) -> str:
    parts = [f"{count / 1e6:,.0f} MB of {size} B" for size, count in plan.throughput_bytes.items()]
    return (
        f"{' and '.join(parts)} per throughput run, {plan.repetitions} times; {plan.latency_count} for latency; "
        f"a log of {plan.memory_bytes / 1e9:.1f} GB; {plan.topics:,} topics of {plan.partitions_per_topic} partitions; "
        f"{plan.queue_s:g} s of publishing into each queue, {plan.queue_repetitions} times; "
        f"{plan.queue_both_count:,} messages through a queue at work; a backlog of {plan.backlog_count:,}"
    )


def spark_volumes(plan: Plan) -> str:
    parts = [f"{count / 1e6:,.1f} million rows of {size} B" for size, count in plan.spark_rows.items()]
    return f"{' and '.join(parts)}, {plan.spark_repetitions} times; {plan.backfill_rows / 1e6:,.0f} million into tables"


def queue_clients() -> str:
    names = ("redis", "hiredis", "nats-py", "uvloop")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


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
