"""Topics and their settings."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.client.kafka.cluster import LEADER_NOT_AVAILABLE, Cluster, TopicInfo
from penstock.client.kafka.errors import Refused, check
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.messages import Struct

TOPIC_RESOURCE = 2
SET, DELETE = 0, 1
SOURCE_NAMES = {1: "topic", 2: "server (dynamic)", 3: "server (dynamic default)", 4: "server", 5: "default", 8: "group"}
SERVER_DEFAULT = -1


class TopicSetting(NamedTuple):
    name: str
    value: str | None
    source: str
    read_only: bool
    documentation: str | None

    @property
    def is_set(self) -> bool:
        """Whether the topic itself says so, rather than a default."""
        return self.source == "topic"


def list_topics(cluster: Cluster) -> list[TopicInfo]:
    topics = cluster.retry(lambda: cluster.metadata(None))
    return sorted(topics.values(), key=lambda topic: topic.name)


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int = SERVER_DEFAULT,
    replication: int = SERVER_DEFAULT,
    settings: Mapping[str, str] | None = None,
) -> None:
    configs = [Struct(name=key, value=value) for key, value in (settings or {}).items()]
    topic = Struct(
        name=name, num_partitions=partitions, replication_factor=replication, assignments=[], configs=configs
    )
    request = Struct(topics=[topic], timeout_ms=_timeout_ms(cluster), validate_only=False)

    def ask() -> None:
        answer = cluster.controller().call(ApiKey.CREATE_TOPICS, request, timeout_s=2 * cluster.timeout_s)
        for result in answer.topics:
            check(result.error_code, f"cannot create topic {name!r}", result.error_message)

    cluster.retry(ask, repeatable=False)
    _wait_for_partitions(cluster, name, max(partitions, 1))


def delete_topic(cluster: Cluster, name: str) -> None:
    def ask() -> None:
        answer = cluster.controller().call(
            ApiKey.DELETE_TOPICS,
            Struct(topic_names=[name], timeout_ms=_timeout_ms(cluster)),
            timeout_s=2 * cluster.timeout_s,
        )
        for result in answer.responses:
            check(result.error_code, f"cannot delete topic {name!r}", getattr(result, "error_message", None))

    cluster.retry(ask, repeatable=False)
    cluster.forget()


def add_partitions(cluster: Cluster, name: str, count: int) -> None:
    """Grow the topic to this many partitions."""

    def ask() -> None:
        answer = cluster.controller().call(
            ApiKey.CREATE_PARTITIONS,
            Struct(
                topics=[Struct(name=name, count=count, assignments=None)],
                timeout_ms=_timeout_ms(cluster),
                validate_only=False,
            ),
            timeout_s=2 * cluster.timeout_s,
        )
        for result in answer.results:
            check(result.error_code, f"cannot add partitions to topic {name!r}", result.error_message)

    cluster.retry(ask, repeatable=False)
    _wait_for_partitions(cluster, name, count)


def topic_settings(cluster: Cluster, name: str) -> list[TopicSetting]:
    resource = Struct(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
    request = Struct(resources=[resource], include_synonyms=False, include_documentation=True)

    def ask() -> list[TopicSetting]:
        answer = cluster.any().call(ApiKey.DESCRIBE_CONFIGS, request)
        result = answer.results[0]
        check(result.error_code, f"cannot describe topic {name!r}", result.error_message)
        return [
            TopicSetting(
                config.name,
                config.value,
                SOURCE_NAMES.get(config.config_source, "unknown"),
                config.read_only,
                getattr(config, "documentation", None),
            )
            for config in sorted(result.configs, key=lambda config: config.name)
        ]

    return cluster.retry(ask)


def alter_topic(cluster: Cluster, name: str, settings: Mapping[str, str], unset: Sequence[str] = ()) -> None:
    """Set some settings and return others to their defaults; the rest stays."""
    changes = [Struct(name=key, config_operation=SET, value=value) for key, value in settings.items()]
    changes += [Struct(name=key, config_operation=DELETE, value=None) for key in unset]
    resource = Struct(resource_type=TOPIC_RESOURCE, resource_name=name, configs=changes)

    def ask() -> None:
        answer = cluster.controller().call(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, Struct(resources=[resource], validate_only=False)
        )
        for result in answer.responses:
            check(result.error_code, f"cannot alter topic {name!r}", result.error_message)

    cluster.retry(ask)


def _wait_for_partitions(cluster: Cluster, name: str, count: int) -> None:
    """In a cluster the news takes a moment to reach every server; who asked next would be told the past."""
    cluster.forget()

    def ask() -> None:
        topic = cluster.metadata([name]).get(name)
        if topic is None or len(topic.partitions) < count:
            raise Refused(LEADER_NOT_AVAILABLE, f"topic {name!r}")

    cluster.retry(ask)


def _timeout_ms(cluster: Cluster) -> int:
    return int(cluster.timeout_s * 1000)
