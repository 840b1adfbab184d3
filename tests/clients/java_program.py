"""The Java programs beside this file: compiled once, run with one version of the client each."""

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).with_name("java")
VERSIONS = ["3.9.1", "4.1.0"]  # what Spark's connector carries, and the newest
TIMEOUT_S = 90
QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m"]  # a short life


def jars_of(version: str) -> Path:
    """Missing jars fail the tests: a skipped client would look like a client that works."""
    jars = ROOT / ".make" / f"jars-{version}"
    assert jars.is_dir(), f"{jars} is not there: run tests/clients/java/fetch-jars.sh, or make test"
    return jars


def compiled() -> Path:
    """All programs, compiled when their sources have changed; against the older client, so that both can run them.

    Several processes may want them at once: whoever is done first is whose work is kept.
    """
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    kept = ROOT / ".make" / f"java-classes-{digest}"
    if not kept.is_dir():
        with tempfile.TemporaryDirectory(dir=kept.parent) as directory:
            fresh = Path(directory) / "classes"
            classpath = f"{jars_of(VERSIONS[0])}/*"
            subprocess.run(["javac", "-d", fresh, "-cp", classpath, *sources], check=True, timeout=TIMEOUT_S)
            with contextlib.suppress(OSError):
                fresh.rename(kept)
    return kept


def command(version: str, program: str) -> list[str]:
    return ["java", *QUICK, "-cp", os.pathsep.join([str(compiled()), f"{jars_of(version)}/*"]), program]


def tell(java: list[str], *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run([*java, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return [json.loads(line) for line in done.stdout.splitlines()]
