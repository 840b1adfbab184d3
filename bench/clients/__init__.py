"""The load generator, built on first use against the librdkafka that the confluent-kafka wheel carries."""

import json
import subprocess
from pathlib import Path
from typing import Any

import confluent_kafka

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("native.c")
BINARY = ROOT / ".make" / "bench-client"
TIMEOUT_S = 300.0


def describe() -> str:
    return f"librdkafka {confluent_kafka.libversion()[0]} (the one in the confluent-kafka wheel), driven from C"


def run(
    verb: str, address: str, topic: str, *, count: int, size: int, partitions: int = 1, acks: str = "all"
) -> dict[str, Any]:
    """One process of the load generator from start to end, and the line that it printed."""
    arguments = [verb, address, topic, str(count), str(size), str(partitions), acks]
    done = subprocess.run([build(), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{verb} of {topic}: {done.stderr.strip()[-500:]}")
    return dict(json.loads(done.stdout))


def build() -> Path:
    library = _library()
    if not BINARY.exists() or BINARY.stat().st_mtime < max(SOURCE.stat().st_mtime, library.stat().st_mtime):
        BINARY.parent.mkdir(exist_ok=True)
        flags = ["-O2", "-Wall", "-Wextra", f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"]
        subprocess.run(["cc", *flags, "-o", BINARY, SOURCE, library], check=True)
    return BINARY


def _library() -> Path:
    wheel_libraries = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    return next(wheel_libraries.glob("librdkafka*.so*"))
