"""Apache Kafka as it ships: one KRaft node, the heap and collector flags of its own start script.

The jars come from Maven Central by `pom.xml` beside this file, once, into `.make/kafka-<version>`. Settings differ from
Kafka's defaults only where one node demands it (replication factors of internal topics) and where a default would slow
Kafka down in a comparison (the pause before a group's first rebalance), or others (deleted logs that stay in memory).
"""

import subprocess
import sys
from pathlib import Path

from bench.peers.process import START_TIMEOUT_S, ServerProcess, free_port
from bench.probe import metadata_reply

VERSION = "4.1.0"
ROOT = Path(__file__).resolve().parents[2]
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


class Kafka(ServerProcess):
    name = "kafka"

    def __init__(self, directory: Path | None = None, **settings: str) -> None:
        super().__init__(directory)
        self._settings = settings
        self._jars = fetch_jars()
        self._controller_port = free_port()
        self._properties = self.home / "server.properties"
        self._properties.write_text(self._render())
        self._run_tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties))

    @property
    def kafka(self) -> str:
        return self.address

    def version(self) -> str:
        return f"Apache Kafka {VERSION}"

    def command(self) -> list[str]:
        return ["java", *JVM_FLAGS, "-cp", f"{self._jars}/*", "kafka.Kafka", str(self._properties)]

    def answers(self) -> bool:
        return metadata_reply(self.kafka)

    def _render(self) -> str:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
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
