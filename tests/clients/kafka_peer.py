"""Apache Kafka behind the face of `penstock.testing.server.Server`, to prove the client tests themselves."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers.kafka import Kafka

KAFKA_NAMES = {
    "auto_create_topics": "auto.create.topics.enable",
    "default_partitions": "num.partitions",
    "group_min_session_timeout_ms": "group.min.session.timeout.ms",
}


class KafkaServer:
    def __init__(self, **settings: object) -> None:
        translated = {
            "group.min.session.timeout.ms": "500",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        }
        for name, value in settings.items():
            if name == "kafka_advertised":
                translated["advertised.listeners"] = f"PLAINTEXT://{value}"
            elif name in KAFKA_NAMES:
                translated[KAFKA_NAMES[name]] = str(value).lower()
        self._peer = Kafka(**translated)
        self.is_running = False

    @property
    def kafka(self) -> str:
        return self._peer.kafka

    def start(self) -> "KafkaServer":
        self._peer.start()
        self.is_running = True
        return self

    def stop(self) -> None:
        self._peer.stop()
        self.is_running = False

    def kill(self) -> None:
        self._peer.kill()
        self.is_running = False

    def restart(self) -> "KafkaServer":
        if self.is_running:
            self.stop()
        return self.start()

    def close(self) -> None:
        self._peer.close()
        self.is_running = False

    def rss_bytes(self) -> int:
        return self._peer.rss_bytes()

    def log_text(self) -> str:
        return ""

    def __enter__(self) -> "KafkaServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
