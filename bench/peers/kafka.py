"""Apache Kafka as it ships: one KRaft node, the heap and collector flags of its own start script.

The jars come from Maven Central by `pom.xml` beside this file, once, into `.make/kafka-<version>`. Settings differ from
Kafka's defaults only where one node demands it (replication factors of internal topics) and where a default would slow
Kafka down in a comparison (the pause before a group's first rebalance), or others (deleted logs that stay in memory).
"""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.probe import metadata_reply
from penstock.testing.server import process_cpu_seconds, process_rss_bytes, process_tree

VERSION = "4.1.0"
ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 90.0
CLUSTER_ID = "cGVuc3RvY2stYmVuY2gtMQ"  # any 16 bytes in base64

# What kafka-server-start.sh and kafka-run-class.sh pass.
JVM_FLAGS = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]


class Kafka:
    name = "kafka"

    def __init__(self, directory: Path | None = None, **settings: str) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="kafka-peer-", dir=directory))
        self._settings = settings
        self._jars = fetch_jars()
        self._port, self._controller_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self._home / "server.log"
        self._properties = self._home / "server.properties"
        self._properties.write_text(self._render())
        self._run_tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties))

    @property
    def kafka(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def data(self) -> Path:
        return self._home / "data"

    def version(self) -> str:
        return f"Apache Kafka {VERSION}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["java", *JVM_FLAGS, "-cp", f"{self._jars}/*", "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not metadata_reply(self.kafka):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError("Apache Kafka did not start")
            time.sleep(0.005)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def rss_bytes(self) -> int:
        assert self._process is not None
        return sum(process_rss_bytes(pid) for pid in process_tree(self._process.pid))

    def cpu_seconds(self) -> float:
        assert self._process is not None
        return sum(process_cpu_seconds(pid) for pid in process_tree(self._process.pid))

    def _render(self) -> str:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # By default a deleted log keeps its page cache for a minute; whoever is measured next would do without.
            "log.segment.delete.delay.ms": "0",
        } | self._settings
        return "".join(f"{key}={value}\n" for key, value in settings.items())

    def _run_tool(self, tool: str, *arguments: str) -> None:
        subprocess.run(
            ["java", "-Xmx256M", "-cp", f"{self._jars}/*", tool, *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=START_TIMEOUT_S,
        )


def fetch_jars(version: str = VERSION) -> Path:
    """The directory of the broker's jars, filled by Maven on first use and complete once it exists."""
    jars = ROOT / ".make" / f"kafka-{version}"
    if not jars.exists():
        partial = jars.with_suffix(".partial")
        print(f"fetching Apache Kafka {version} with Maven", file=sys.stderr)
        pom = Path(__file__).with_name("pom.xml")
        command = ["mvn", "-q", "-B", "-f", str(pom), f"-Dkafka.version={version}", "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={partial}"], check=True, stdin=subprocess.DEVNULL)
        partial.rename(jars)
    return jars


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
